"""Frozen cases of an incident: the exchanges that moved it most, healthy ones from before, and the file that they are written to.

1. The periods, the direction and the expected value are those of the queries in the incident's evidence, so the same exchanges come first
   as on the incident's page.
2. An incident about runs or judged sessions gives its sessions, and of each the exchanges that show the fault.
3. At most `MAX_BEFORE` exchanges from before are read, the newest ones, whatever the size of the project.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import yaml

from analytics.queries import queries, query_records, query_rows
from audit.anchors import Verdict, anchor_project, group_by_round
from audit.drift.incident_evidence import Evidence, evidence_of
from audit.drift.incident_evidence import Query as NamedQuery
from audit.evaluation.cases import FrozenCases, Source
from audit.evaluation.freezing import SCALES, ScoredExchange, freeze, is_freezable
from audit.exchanges.context import has_trouble
from audit.policy import Policy
from audit.prompt_quoting import hidden_parts
from schemas.errors import InputError
from schemas.lazy import duckdb
from schemas.records import EarlierTurn, Exchange, Incident, Score

DEFAULT_MOVED = 20
"""Exchanges of the incident that become cases, and healthy ones from before."""
MAX_CASES = 200
"""Most cases of one side."""
MAX_BEFORE = 400
"""Exchanges from before that are read for the levels."""
_SESSION_QUERIES = ("incident_runs", "incident_sessions", "incident_behaviour")
_MOVED_QUERIES = ("incident_exchanges", *_SESSION_QUERIES)
_DAYS_BEFORE = 30
_MAX_SESSION_EXCHANGES = 1_000
_BATCH = 100
"""Exchanges whose texts are read together."""
DEFAULT_NOISE = 0.05
"""Margin of a judge whose noise is unknown, as a share of the scale: the resolution of its verdicts."""
_MIN_ROUNDS = 3
_NO_EVIDENCE = "Its evidence is of another kind or was erased. Choose an incident whose page lists exchanges or runs."


def freeze_incident(
    cursor: duckdb.DuckDBPyConnection,
    incident: Incident,
    policy: Policy,
    *,
    count: int = DEFAULT_MOVED,
    healthy: int | None = None,
) -> FrozenCases:
    """Return up to `count` exchanges that moved an incident most, and `healthy` ones from before (by default as many), as cases.

    Raises InputError if the evidence names no exchange or run, or if there is nothing to compare with.
    """
    evidence = evidence_of(incident)
    project = policy.for_project(incident.project)
    moved = _read_moved(cursor, incident, evidence, count)
    if not moved:
        raise InputError(f"incident {incident.incident_id}: no exchange is known that moved it", hint=_NO_EVIDENCE)
    since, until = _find_period_before(evidence)
    scores = query_records(
        cursor,
        "frozen_scores",
        Score,
        {
            "project": incident.project,
            "since": since,
            "until": until,
            "agents": sorted({scored.exchange.agent or "" for scored in moved}),
            "exchanges": None,
            "sessions": None,
            "limit": MAX_BEFORE,
        },
    )
    before = _add_exchanges(cursor, list(scores))
    if not before:
        raise InputError(
            f"incident {incident.incident_id}: there is no exchange of its agents from before the change",
            hint="Without a level before there is nothing that a build could be compared with.",
        )
    judged = [scored for scored in before if scored.score.judge_model is not None]
    newest = max(judged or before, key=lambda scored: scored.exchange.occurred_at).score
    source = Source(
        incident=incident.incident_id,
        title=incident.title[:1_000],
        project=incident.project,
        before=f"{since[:10]} to {until[:10]}",
        methodology_digest=newest.methodology_digest,
        rule_version=newest.rule_version,
        judge_model=newest.judge_model,
    )
    # The scores of other rules or another judge are no level for this one.
    comparable = [scored for scored in before if _is_comparable(scored.score, newest)]
    return freeze(
        moved,
        comparable,
        project,
        source,
        healthy=len(moved) if healthy is None else healthy,
        noise=judge_noise(cursor, incident.project),
    )


def _find_period_before(evidence: Evidence) -> tuple[str, str]:
    """Return the period before the change as ISO times: that of the evidence, or else the month before."""
    for query in evidence.queries:
        if "before_since" in query.parameters:
            return str(query.parameters["before_since"]), str(query.parameters["before_until"])
    until = next(str(query.parameters["since"]) for query in evidence.queries if query.name in _MOVED_QUERIES)
    return (datetime.fromisoformat(until) - timedelta(days=_DAYS_BEFORE)).isoformat(), until


def _is_comparable(score: Score, newest: Score) -> bool:
    """Return whether a score was made like the newest one; one without a judge has no judge's name."""
    rules = (score.methodology_digest, score.rule_version) == (newest.methodology_digest, newest.rule_version)
    return rules and score.judge_model in {None, newest.judge_model}


def _read_moved(cursor: duckdb.DuckDBPyConnection, incident: Incident, evidence: Evidence, count: int) -> list[ScoredExchange]:
    recorded = {query.name: _complete_parameters(query) for query in evidence.queries if query.name in _MOVED_QUERIES}
    if "incident_exchanges" in recorded:
        parameters = {**recorded["incident_exchanges"], "limit": count}
        rows = query_rows(cursor, "incident_exchanges", parameters)
        effects = {(row["connection"], row["exchange_id"]): row["moved"] for row in rows}
        keys = [{"connection": connection, "exchange_id": exchange_id} for connection, exchange_id in effects]
        scores = _read_scores(cursor, incident, parameters, exchanges=keys) if keys else []
        moved = _add_exchanges(cursor, scores, effects)
        return sorted(moved, key=lambda scored: (-scored.moved, scored.exchange.exchange_id))
    name = next((name for name in _SESSION_QUERIES if name in recorded), None)
    if name is None:
        return []
    rows = query_rows(cursor, name, {**recorded[name], "limit": count})
    sessions = {(row["connection"], row["session_id"]): row["moved"] for row in rows}
    if not sessions:
        return []
    keys = [{"connection": connection, "session_id": session_id} for connection, session_id in sessions]
    # A session ends after its exchanges, which may be of the days before.
    parameters = {**recorded[name], "since": "2000-01-01T00:00:00Z"}
    scores = _read_scores(cursor, incident, parameters, sessions=keys)
    by_session: dict[tuple[str, str], list[ScoredExchange]] = {key: [] for key in sessions}
    for scored in _add_exchanges(cursor, scores):
        key = (scored.exchange.connection, scored.exchange.session_id)
        by_session[key].append(scored._replace(moved=sessions[key]))
    share = -(-count // len(sessions))
    worst = [scored for exchanges in by_session.values() for scored in sorted(exchanges, key=_rank_fault)[:share]]
    return worst[:count]


def _complete_parameters(query: NamedQuery) -> dict[str, Any]:
    """Return the parameters of a recorded query, with NULL for those that it got in a later version."""
    return {**dict.fromkeys(queries()[query.name].parameters), **query.parameters}


def _rank_fault(scored: ScoredExchange) -> tuple[bool, bool, str]:
    """Return the rank of an exchange within its session: anomalies first, then trouble with tools."""
    exchange = scored.exchange
    return not scored.score.anomaly, not has_trouble(exchange.tool_calls), f"{exchange.occurred_at} {exchange.exchange_id}"


def _read_scores(
    cursor: duckdb.DuckDBPyConnection, incident: Incident, period: Mapping[str, Any], **selection: list[dict[str, str]]
) -> list[Score]:
    values = {
        "project": incident.project,
        "since": period["since"],
        "until": period["until"],
        "agents": None,
        "exchanges": None,
        "sessions": None,
        "limit": _MAX_SESSION_EXCHANGES,
    }
    return list(query_records(cursor, "frozen_scores", Score, values | selection))


def _add_exchanges(
    cursor: duckdb.DuckDBPyConnection, scores: Sequence[Score], effects: Mapping[tuple[str, str], float] | None = None
) -> list[ScoredExchange]:
    """Return the scores with their exchanges, without those that are erased, withdrawn or too long for a case."""
    by_key = {(score.connection, score.exchange_id): score for score in scores}
    keys = [{"connection": connection, "exchange_id": exchange_id} for connection, exchange_id in by_key]
    scored: list[ScoredExchange] = []
    for start in range(0, len(keys), _BATCH):
        batch = {"exchanges": keys[start : start + _BATCH]}
        rows = query_rows(cursor, "earlier_turns", batch)
        turns = {
            (row["connection"], row["exchange_id"]): msgspec.convert(row["earlier_turns"], tuple[EarlierTurn, ...])
            for row in rows
        }
        for exchange in query_records(cursor, "exchange_records", Exchange, batch):
            key = (exchange.connection, exchange.exchange_id)
            if is_freezable(exchange) and not exchange.withdrawn:
                scored.append(ScoredExchange(exchange, by_key[key], turns.get(key, ()), (effects or {}).get(key, 0.0)))
    return scored


def judge_noise(cursor: duckdb.DuckDBPyConnection, project: str) -> dict[str, float]:
    """Return the margin for each judged tier as a share of its scale: how far the mean of the same answers lies apart between rounds.

    It comes from the anchors of the project, as two standard deviations between rounds, and is never below the resolution of verdicts.
    """
    rows = query_rows(cursor, "anchor_scores", {"judged_as": anchor_project(project), "from": None})
    columns = {"tier2": "tier2_score", "tier2_5": "tier2_5_alignment", "tier3": "tier3_score"}
    return {tier: _measure_noise(rows, column, SCALES[tier]) for tier, column in columns.items()}


def _measure_noise(rows: Iterable[Mapping[str, Any]], column: str, scale: float) -> float:
    verdicts = [Verdict(row["anchor_id"], row["round_at"], row[column] / scale) for row in rows if row[column] is not None]
    rounds = list(group_by_round(verdicts).values())
    changes = []
    for earlier, later in itertools.pairwise(rounds):
        common = earlier.keys() & later.keys()
        if 2 * len(common) >= max(len(earlier), len(later)):
            changes.append(statistics.fmean(later[anchor] - earlier[anchor] for anchor in common))
    if len(changes) < _MIN_ROUNDS - 1:
        return DEFAULT_NOISE
    # The change between two rounds has twice the variance of a round. Its median is not spoiled by one day on which the judge changed.
    typical = statistics.median(map(abs, changes)) / 0.6745 / 2**0.5
    return max(DEFAULT_NOISE, round(2 * typical, 4))


class _CaseDumper(yaml.SafeDumper):
    """Writes long texts as blocks, and what people cannot see in quotes, where it can be escaped."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if len(hidden_parts(text)) > 1 else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_CaseDumper.add_representer(str, _represent_text)


def write_cases(frozen: FrozenCases) -> str:
    r"""Return frozen cases as YAML. Invisible characters, and those that reorder a line, are written as `\uXXXX`."""
    document = frozen.model_dump(mode="json", exclude_defaults=True)
    text = yaml.dump(document, Dumper=_CaseDumper, sort_keys=False, allow_unicode=True, width=110)
    return _HEAD + "".join(part + _escape_character(character) for part, character in hidden_parts(text))


def _escape_character(character: str) -> str:
    """Return a character as in a quoted text of YAML; empty for none."""
    if not character:
        return ""
    code = ord(character)
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"


_HEAD = """\
# Cases that were frozen from an incident, for `driftline gate`. The recorded answers are redacted as stored.
# A candidate build answers the messages of each `input`; docs/how-to/ci.md explains the rest.
"""
