# ruff: noqa: S608 - statements are built from names and patterns of our own; values are always parameters
"""The failures of a day by kind, cause, tool and error, and the groups that they form (`audit.failures`).

1. Each run that is not ready and each exchange with an anomaly is one failure. A failed call counts as its error if no later call of the
   same tool succeeded; for a run, only calls of the tools that are evidence of its largest failure. An error explains more than what it led
   to, so it comes before the rule, the dimension and the detector. Attempts to sway the judge or the agent come before all.
2. A day of a project has at most MAX_ROWS rows; the failures beyond are counted without their tool and error.
3. Groups are assigned to all rows of a project again whenever a day of it changes, in the order of their first failure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from analytics.store.views import CURRENT_EXCHANGES
from audit.failures import (
    FAILED_STATUSES,
    FOLDS,
    MAX_ERROR,
    NOT_READY,
    OTHER,
    SAYS_MOST,
    FailureParts,
    failure_name,
    first_lines,
    group_id,
)
from schemas.lazy import duckdb

MAX_ROWS = 200
"""Rows of a project and day with a tool and an error of their own: those of most sessions."""
MAX_EXAMPLES = 3
KEY = "project, day, kind, cause, tool, error"
_MAX_TOOL = 80
MAX_LINE = 400
"""Characters of the line of an error, before what varies is replaced."""
_LEVELS = ", ".join(f"'{level}'" for level in NOT_READY)
RUN_AT = "coalesce(ended_at, closed_at)"
"""The time at which a run counts."""
IS_NOT_READY = f"readiness_level IN ({_LEVELS})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _fold_sql(text: str) -> str:
    for pattern, replacement in FOLDS:
        text = f"regexp_replace({text}, {_quoted(pattern)}, {_quoted(replacement)}, 'g')"
    return f"trim(regexp_replace(left(lower(trim({text}, ' .:;,')), {MAX_ERROR}), '\\{{[a-z]*$', ''))"


def _line_sql(text: str) -> str:
    lines = ", ".join(f"nullif(regexp_extract({text}, {_quoted(pattern)}, 1), '')" for pattern in SAYS_MOST)
    return f"left(coalesce({lines}, ''), {MAX_LINE})"


# A long text has its cause at the start or, as a traceback, at the end.
_CUT = "CASE WHEN length(text) > 6000 THEN left(text, 3000) || chr(10) || right(text, 3000) ELSE text END"
_ERROR_MACROS = {
    "error_line(text)": f"({_line_sql('text')})",
    "folded_error(text)": f"({_fold_sql('log.error_line(text)')})",
    "error_excerpt(text)": f"({_CUT})",
}
"""Macros for the line of an error that says most, and for that line without what varies."""


def error_macro_statements() -> list[str]:
    """Return the statements that create the macros that counting failures needs, in files that are never queried, too."""
    return [f"CREATE OR REPLACE MACRO log.{name} AS {text}" for name, text in _ERROR_MACROS.items()]


_FAILED = ", ".join(f"'{status}'" for status in sorted(FAILED_STATUSES))
_OUTPUT_PATHS = (
    "$.is_error", "$.error", "$.ok", "$.success", "$.exit_code", "$.exitCode", "$.returncode", "$.status", "$.tool_status",
)  # fmt: skip
_TEXT_PATHS = ("$.result", "$.output", "$.content", "$.text", "$.error", "$.stderr", "$.message")
_HAS_FAILED = f"""(
    facts[1] = 'true' OR (facts[2] IS NOT NULL AND facts[2] NOT IN ('', 'false', 'null')) OR facts[3] = 'false' OR facts[4] = 'false'
    OR coalesce(TRY_CAST(coalesce(facts[5], facts[6], facts[7]) AS DOUBLE) <> 0, false)
    OR lower(coalesce(facts[8], '')) IN ({_FAILED}) OR lower(coalesce(facts[9], '')) IN ({_FAILED})
)"""
_SELECT_TEXT = "coalesce(" + ", ".join(f"nullif(texts[{place}], '')" for place in range(1, len(_TEXT_PATHS) + 1)) + ", '')"


def _paths_sql(paths: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{path}'" for path in paths) + "]"


def daily_failures_sql(scores: str, runs: str) -> str:
    """Return the statement that counts the failures of days between `$first` and `$end`.

    `scores` and `runs` are FROM clauses with a WHERE clause: all revisions of the scores of the days, and the diagnoses of runs that ended
    on them.
    """
    return f"""
    WITH anomalous AS MATERIALIZED (
        SELECT
            project, "connection", session_id, exchange_id, exchange_at AS failed_at, tier1_flags, anomaly_reasons,
            CASE WHEN tier3_state = 'scored' THEN tier3_dimensions END AS dimensions, score_id, (revision, _offset) AS version
        FROM {scores} AND anomaly
    ), newest AS (
        SELECT score_id, max((revision, _offset)) AS version FROM {scores} AND score_id IN (SELECT score_id FROM anomalous) GROUP BY score_id
    ), exchanges AS MATERIALIZED (
        SELECT a.* FROM anomalous AS a JOIN newest AS n ON a.score_id = n.score_id AND a.version = n.version
    ), turns AS MATERIALIZED (
        SELECT
            "connection", exchange_id, coalesce(input_tokens, 0) + coalesce(output_tokens, 0) AS tokens,
            [
                {{'tool': c.name, 'outcome': c.outcome, 'text': CASE WHEN c.outcome = 'error' THEN log.error_excerpt(c.result) END}}
                FOR c IN tool_calls IF c.outcome IN ('ok', 'error')
            ] AS calls
        FROM {CURRENT_EXCHANGES} SEMI JOIN exchanges USING ("connection", exchange_id)
        WHERE occurred_at >= $first AND occurred_at < $end
    ), calls AS (
        SELECT "connection", exchange_id, unnest(calls) AS call, generate_subscripts(calls, 1) AS place FROM turns
    ), last_calls AS (
        SELECT "connection", exchange_id, call.tool AS tool, max(place) AS place, arg_max(call, place) AS call
        FROM calls
        GROUP BY ALL
    ), turn_errors AS (
        SELECT "connection", exchange_id, arg_max(call, place) AS call FROM last_calls WHERE call.outcome = 'error' GROUP BY ALL
    ), versions AS (
        -- Few runs have a second diagnosis.
        SELECT "connection", session_id, max((revision, _offset)) AS version FROM log.diagnoses WHERE revision > 0 GROUP BY ALL
    ), runs AS MATERIALIZED (
        SELECT
            d.project, d."connection", d.session_id, d.started_at, {RUN_AT} AS failed_at, cost_analysis.token_waste AS tokens,
            primary_failure_type AS cause, [c FOR c IN failure_causes IF c.type = primary_failure_type][1] AS main
        FROM (FROM {runs} AND {IS_NOT_READY}) AS d
        LEFT JOIN versions AS v USING ("connection", session_id)
        WHERE (v.version IS NULL OR (d.revision, d._offset) = v.version) AND primary_failure_type IS NOT NULL
    ), run_events AS MATERIALIZED (
        SELECT
            e."connection", e.session_id, e.event_id, e.event, e.tool, e.seq,
            CASE WHEN event = 'tool_output' THEN json_extract_string(payload, {_paths_sql(_OUTPUT_PATHS)}) END AS facts,
            CASE WHEN event = 'tool_output' THEN json_extract_string(payload, {_paths_sql(_TEXT_PATHS)}) END AS texts
        FROM log.agent_events AS e
        SEMI JOIN runs USING ("connection", session_id)
        WHERE tool IS NOT NULL
            AND occurred_at >= (SELECT min(started_at) FROM runs) AND occurred_at <= (SELECT max(failed_at) FROM runs)
    ), evidence AS (
        SELECT "connection", session_id, main.impact_score < 0 AS is_scored, unnest(main.evidence).event_id AS event_id FROM runs
    ), evidence_tools AS (
        SELECT "connection", session_id, tool, is_scored, count(*) AS events
        FROM evidence JOIN run_events USING ("connection", session_id, event_id)
        GROUP BY ALL
    ), run_tools AS (
        SELECT "connection", session_id, min_by(tool, (-events, tool)) AS tool FROM evidence_tools GROUP BY ALL
    ), last_outputs AS (
        SELECT "connection", session_id, tool, max(seq) AS seq, arg_max({{'facts': facts, 'texts': texts}}, seq) AS output
        FROM run_events
        SEMI JOIN (FROM evidence_tools WHERE is_scored) USING ("connection", session_id, tool)
        WHERE event = 'tool_output'
        GROUP BY ALL
    ), run_errors AS (
        SELECT "connection", session_id, arg_max({{'tool': tool, 'text': log.error_excerpt({_SELECT_TEXT})}}, seq) AS call
        FROM (SELECT "connection", session_id, tool, seq, output.facts AS facts, output.texts AS texts FROM last_outputs)
        WHERE {_HAS_FAILED}
        GROUP BY ALL
    ), failures AS (
        SELECT
            project, "connection", session_id, exchange_id, failed_at, coalesce(tokens, 0) AS tokens, call,
            list_filter(anomaly_reasons, lambda r: starts_with(r, 'judge_tampering: ') OR starts_with(r, 'prompt_injection: '))[1] AS attempt,
            list_min([{{'score': d.score, 'dimension': d.dimension}} FOR d IN dimensions IF d.score <= 2]).dimension AS dimension,
            CASE
                WHEN attempt IS NOT NULL THEN 'attempt'
                WHEN call IS NOT NULL THEN 'tool_error'
                WHEN len(tier1_flags) > 0 THEN 'check'
                WHEN dimension IS NOT NULL THEN 'dimension'
                ELSE 'alignment'
            END AS kind,
            CASE kind WHEN 'attempt' THEN regexp_replace(attempt, 'output of the tool \\S+', 'output of a tool')
                WHEN 'check' THEN tier1_flags[1] WHEN 'dimension' THEN dimension ELSE '' END AS cause,
            CASE kind WHEN 'attempt' THEN regexp_extract(attempt, 'output of the tool (\\S+)', 1) WHEN 'tool_error' THEN call.tool ELSE '' END AS tool
        FROM exchanges
        LEFT JOIN turns USING ("connection", exchange_id)
        LEFT JOIN turn_errors USING ("connection", exchange_id)
        UNION ALL BY NAME
        SELECT
            project, "connection", session_id, NULL AS exchange_id, failed_at, tokens, call,
            CASE WHEN call IS NULL THEN 'run' ELSE 'tool_error' END AS kind, CASE WHEN call IS NULL THEN cause ELSE '' END AS cause,
            coalesce(call.tool, tool, '') AS tool
        FROM runs
        LEFT JOIN run_tools USING ("connection", session_id)
        LEFT JOIN run_errors USING ("connection", session_id)
    ), parts AS MATERIALIZED (
        SELECT
            project, date_trunc('day', failed_at) AS day, kind, cause, left(trim(regexp_replace(tool, '[\\pC\\s]+', ' ', 'g')), {_MAX_TOOL}) AS tool,
            CASE WHEN kind = 'tool_error' THEN log.folded_error(coalesce(call.text, '')) ELSE '' END AS error,
            "connection", session_id, exchange_id, failed_at, tokens
        FROM failures
    ), ranks AS (
        SELECT {KEY} FROM parts GROUP BY {KEY}
        QUALIFY row_number() OVER (
            PARTITION BY project, day ORDER BY count(DISTINCT ("connection", session_id)) DESC, kind, cause, tool, error
        ) <= {MAX_ROWS}
    ), bounded AS (
        SELECT p.* REPLACE (
            CASE WHEN r.kind IS NULL THEN '' ELSE p.tool END AS tool,
            CASE WHEN r.kind IS NULL AND p.kind = 'tool_error' THEN '{OTHER}' ELSE p.error END AS error
        )
        FROM parts AS p
        LEFT JOIN ranks AS r ON {" AND ".join(f"p.{name} = r.{name}" for name in KEY.split(", "))}
    ), sessions AS (
        SELECT
            {KEY}, "connection", session_id, count(*) FILTER (exchange_id IS NULL) AS runs, count(exchange_id) AS exchanges,
            greatest(
                coalesce(sum(tokens) FILTER (exchange_id IS NULL), 0), coalesce(sum(tokens) FILTER (exchange_id IS NOT NULL), 0)
            )::BIGINT AS wasted_tokens,
            min(failed_at) AS first_at, max(failed_at) AS last_at,
            arg_max({{'connection': "connection", 'session_id': session_id, 'exchange_id': exchange_id}}, (failed_at, coalesce(exchange_id, '')))
                AS example
        FROM bounded
        GROUP BY ALL
    )
    SELECT
        {KEY}, '' AS failure_group, '' AS name, count(*) AS sessions, sum(runs)::BIGINT AS runs, sum(exchanges)::BIGINT AS exchanges,
        sum(wasted_tokens)::BIGINT AS wasted_tokens, min(first_at) AS first_at, max(last_at) AS last_at,
        arg_max(example, (last_at, "connection", session_id), {MAX_EXAMPLES}) AS examples
    FROM sessions
    GROUP BY {KEY}"""


_SELECT_PARTS = """
    SELECT project, kind, cause, tool, error
    FROM log.daily_failures
    WHERE list_contains($projects::VARCHAR[], project)
    GROUP BY ALL
    ORDER BY project, kind, cause, tool, min(first_at), error"""
_UPDATE_GROUPS = """
    UPDATE log.daily_failures AS f
    SET failure_group = g.failure_group, name = g.name
    FROM (
        SELECT unnest($project_names::VARCHAR[]) AS project, unnest($kinds::VARCHAR[]) AS kind, unnest($causes::VARCHAR[]) AS cause,
            unnest($tools::VARCHAR[]) AS tool, unnest($errors::VARCHAR[]) AS error, unnest($groups::VARCHAR[]) AS failure_group,
            unnest($names::VARCHAR[]) AS name
    ) AS g
    WHERE f.project = g.project AND f.kind = g.kind AND f.cause = g.cause AND f.tool = g.tool AND f.error = g.error
        AND (f.failure_group <> g.failure_group OR f.name <> g.name)"""


def assign_groups(connection: duckdb.DuckDBPyConnection, projects: Sequence[str]) -> None:
    """Set the groups of the failures of these projects, in the caller's transaction."""
    lines = defaultdict(list)
    for project, kind, cause, tool, error in connection.execute(_SELECT_PARTS, {"projects": list(projects)}).fetchall():
        lines[project, kind, cause, tool].append(error)
    rows = []
    for (project, kind, cause, tool), errors in lines.items():
        for error, first in zip(errors, first_lines(errors), strict=True):
            parts = FailureParts(kind, cause, tool, first)
            rows.append((project, kind, cause, tool, error, group_id(project, parts), failure_name(parts)))
    if rows:
        names = ("project_names", "kinds", "causes", "tools", "errors", "groups", "names")
        connection.execute(_UPDATE_GROUPS, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
