"""`driftline compare`: compare two scorings of the same exchanges, to show the effect of another policy or judge.

The comparison pairs the exchanges that both sides have, each with the same weight. It estimates the change among these exchanges, not
among all exchanges of the fleet, because sampling selects some kinds more often than others.

`compare_sides` computes one document, which `--json` prints; `comparison_view` shows it to people.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from analytics.queries import query_rows
from analytics.store.connection import attach_files, select_log_rows
from audit.comparison import CONFIDENCE, PairedSums, expected_by_chance, paired_interval
from audit.exchanges.states import SCORED
from schemas.bounds import NAME
from schemas.errors import InputError, StoreError
from schemas.lazy import duckdb
from service.cli.commands.options import AsJson, Database, Project, print_json, settings_of
from service.cli.progress import working
from service.cli.terminal import out, table
from service.cli.views import SIMULATED, TIER_STATES
from service.read.known_projects import unknown_project
from service.setup.workspace import readable_file
from service.text.formats import MISSING, counted, plain
from streams.replay.plan import LIVE, folder_of, outcome_in


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Label of a replay, or live for the scores in the database.")],
    second: Annotated[
        str | None,
        typer.Argument(metavar="B", help="Label to compare with: changes are B minus A. Without B, live is compared with A."),
    ] = None,
    project: Project = None,
    top: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="Number of exchanges to show, those that changed most.")
    ] = 5,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Compare two scorings of the same exchanges: changes of means with intervals, states, largest changes, cost."""
    settings = settings_of(database)
    labels = (LIVE, first) if second is None else (first, second)
    sides = [find_side(label, settings.database) for label in labels]
    with contextlib.ExitStack() as stack:
        if LIVE in labels:
            file = stack.enter_context(readable_file(settings))
            sides = [replace(side, path=file) if side.label == LIVE else side for side in sides]
        stack.enter_context(working("comparing"))
        document = compare_sides(sides[0], sides[1], project, top)
    if as_json:
        print_json(document)
    else:
        out.print(comparison_view(document))


Row = Mapping[str, Any]
Document = dict[str, Any]
_DIGITS = 9
"""Decimals of a mean. Further decimals depend on the order of summation."""
_SUMS = tuple(field.name for field in dataclasses.fields(PairedSums))
_SIDES = ("a", "b")


@dataclass(frozen=True)
class Side:
    """One scoring: its label and its file."""

    label: str
    path: Path


def find_side(label: str, database: Path) -> Side:
    """Return the scoring with a label: `live`, or the label of a replay. Raises InputError if there is none."""
    if label == LIVE:
        path = database
    elif re.fullmatch(NAME, label):
        path = folder_of(database) / f"{label}.duckdb"
    else:
        raise InputError(
            f"{plain(label, 64)!r} is not a valid label",
            hint="A label has a-z, 0-9, _ . - and at most 63 characters.",
        )
    if not path.exists():
        raise InputError(f"there are no scores labelled {label}: no file {path}", hint=_list_labels(database))
    return Side(label, path)


def compare_sides(first: Side, second: Side, project: str | None, top: int) -> Document:
    """Compare two scorings, with the `top` exchanges that changed most.

    Raises InputError if they have no exchange in common, and StoreError if a file cannot be read.
    """
    if first.path == second.path:
        raise InputError(f"{first.label} cannot be compared with itself", hint="Name two labels, or a label and live.")
    with _open_sides(first, second) as connection:
        sides = {name: select_log_rows(name, "scores") for name in _SIDES} | {"project": project}
        exchanges = query_rows(connection, "compared_exchanges", sides)
        if not any(row["in_both"] for row in exchanges):
            project_names = {row["project"] for row in query_rows(connection, "compared_exchanges", sides | {"project": None})}
            if project is not None and project_names and project not in project_names:
                raise unknown_project(project, sorted(project_names))
            of_project = "" if project is None else f" of project {plain(project, 64)}"
            raise InputError(
                f"{first.label} and {second.label} have no exchange{of_project} in common",
                hint="Replay the same projects and the same period under both labels.",
            )
        measures = [_measure_document(row) for row in query_rows(connection, "compared_measures", sides)]
        return {
            "a": _side_document(connection, first, "a", project),
            "b": _side_document(connection, second, "b", project),
            "exchanges": exchanges,
            "measures": measures,
            "intervals": _count_intervals(measures),
            "states": query_rows(connection, "compared_states", sides),
            "moved": query_rows(connection, "moved_exchanges", sides | {"limit": top}),
        }


@contextlib.contextmanager
def _open_sides(first: Side, second: Side) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open both files on one connection, as `a` and `b`. Raises StoreError if one has no scores in this version's format."""
    with attach_files(dict(zip(_SIDES, (first.path, second.path), strict=True))) as connection:
        try:
            yield connection
        except (duckdb.CatalogException, duckdb.BinderException) as error:
            raise StoreError(
                f"{first.path} or {second.path}: {str(error).splitlines()[0]}",
                hint="One of them is from another version: `driftline doctor --db FILE` opens and upgrades it.",
            ) from error


def _side_document(connection: duckdb.DuckDBPyConnection, side: Side, name: str, project: str | None) -> Document:
    """Describe the policy and the judge of a side's scores, and the scope and calls of a replay."""
    origins = query_rows(connection, "score_origins", {"scores": select_log_rows(name, "scores"), "project": project})
    return {"label": side.label, "replay": None if side.label == LIVE else _replay_scope(side.path), "origins": origins}


def _replay_scope(path: Path) -> Document:
    """Describe the scope of a replay and its calls. Raises StoreError if the file is not a replay."""
    outcome = outcome_in(path)
    scope = outcome.plan.scope
    return {
        "source": outcome.plan.origin.kind,
        "judge": outcome.plan.asking.value,
        "project": scope.project,
        "since": scope.since,
        "until": scope.until,
        "range": outcome.plan.range or None,
        "calls": outcome.calls,
        "cost_usd": outcome.cost_usd,
        "unknown_price": outcome.unknown_price,
    }


def _measure_document(row: Row) -> Document:
    """Return a measure with the interval of its change. A single session has no interval."""
    interval = paired_interval(PairedSums(**{name: row[name] for name in _SUMS}))
    measure = {
        "project": row["project"],
        "tier": row["tier"],
        "dimension": row["dimension"],
        "exchanges": row["pairs"],
        "sessions": row["clusters"],
        "changed": row["changed"],
        "mean_a": round(row["mean_a"], _DIGITS),
        "mean_b": round(row["mean_b"], _DIGITS),
        "change": round(row["mean"], _DIGITS),
    }
    if interval is None:
        return measure | {"low": None, "high": None, "excludes_zero": None, "few_sessions": True}
    ends = {"low": round(interval.low, _DIGITS), "high": round(interval.high, _DIGITS)}
    return measure | ends | {"excludes_zero": interval.excludes_zero, "few_sessions": interval.is_rough}


def _count_intervals(measures: Sequence[Row]) -> Document:
    """Count the intervals that exclude zero, and the number expected to do so by chance.

    Intervals from few sessions and measures without a difference are not counted.
    """
    counted = [row for row in measures if row["changed"] and not row["few_sessions"]]
    return {
        "confidence": CONFIDENCE,
        "counted": len(counted),
        "exclude_zero": sum(row["excludes_zero"] for row in counted),
        "by_chance": round(expected_by_chance(len(counted)), 2),
    }


def _list_labels(database: Path) -> str:
    labels = sorted(path.stem for path in folder_of(database).glob("*.duckdb"))
    if not labels:
        return "`driftline replay --label NAME` makes one; live means the scores of the database itself."
    return f"Use one of {LIVE}, {', '.join(labels)}."


Labels = tuple[str, str]
STYLES = {"lower": "yellow", "higher": "cyan"}


def comparison_view(document: Row) -> RenderableType:
    """Show the comparison without its equal parts."""
    labels = (document["a"]["label"], document["b"]["label"])
    parts: list[RenderableType] = [Text(line) for line in (*origin_lines(document), *overlap_lines(document))]
    parts += ["", Text(headline(document), style="bold")]
    if any(row["changed"] for row in document["measures"]):
        parts += [
            Text(describe_certainty(document)),
            "",
            _measures_table(document["measures"], labels),
            Text(METHOD_NOTE, style="dim"),
        ]
    changed = {row["tier"] for row in document["states"] if row["state_a"] != row["state_b"]}
    if changed:
        states = [row for row in document["states"] if row["tier"] in changed]
        parts += ["", Text(f"States of the tiers: {labels[0]} down, {labels[1]} across", style="bold"), _states_table(states)]
    if document["moved"]:
        parts += [
            "",
            Text("Exchanges that moved most, on a scale of 1", style="bold"),
            *largest_changes_view(document["moved"], labels),
        ]
    heading = Text("Cost of judging the exchanges in both", style="bold")
    costs = _costs_table(document["exchanges"], labels)
    return Group(*parts, "", heading, costs, *(Text(line) for line in call_lines(document)))


def _measures_table(measures: Sequence[Row], labels: Labels) -> RenderableType:
    numbers = ["exchanges", "sessions", *labels, "change", "95% interval"]
    return table(["project", "measure", *numbers, "moved"], map(_measure_cells, measures), right=numbers, cut_last=True)


def _measure_cells(row: Row) -> list[object]:
    word = classify_change(row)
    shown = [row["project"], measure_name(row), f"{row['exchanges']:,}", f"{row['sessions']:,}"]
    shown += [level(row, row["mean_a"]), level(row, row["mean_b"])]
    if word == "same":
        return [*shown, MISSING, MISSING, Text(word, style="dim")]
    ends = MISSING if row["low"] is None else f"{change(row, row['low'])} to {change(row, row['high'])}"
    return [*shown, change(row, row["change"]), ends, Text(word, style=STYLES.get(word, "dim"))]


def _states_table(states: Sequence[Row]) -> RenderableType:
    """Return a table with a row per state of a tier on the first side, and a column per state on the second."""
    states_a = {row["state_a"] for row in states}
    states_b = {row["state_b"] for row in states}
    order = [state for state in (SCORED, *TIER_STATES) if state in states_a | states_b]
    columns = [state for state in order if state in states_b]
    counts = {(row["tier"], row["state_a"], row["state_b"]): row["exchanges"] for row in states}
    row_keys = sorted({(tier, state) for tier, state, _ in counts}, key=lambda pair: (pair[0], order.index(pair[1])))
    cells = [
        [f"tier {tier}", state, *(f"{counts.get((tier, state, column), 0):,}" for column in columns)]
        for tier, state in row_keys
    ]
    return table(["tier", "state", *columns], cells, right=columns, cut_last=True)


def _costs_table(exchanges: Sequence[Row], labels: Labels) -> RenderableType:
    """Return a table with a row per project and side, and the sums of both sides if there are several projects."""
    rows = list(exchanges)
    if len(exchanges) > 1:
        rows.append(_sum_rows(exchanges))
    cells = [_cost_cells(row, label, side) for row in rows for label, side in zip(labels, ("a", "b"), strict=True)]
    numbers = ["exchanges", "judged", "anomalous", "cost", "an exchange"]
    return table(["project", "side", *numbers, "judge"], cells, right=numbers, cut_last=True)


def _cost_cells(row: Row, label: str, side: str) -> list[object]:
    usd, unknown, exchanges = row[f"cost_usd_{side}"], row[f"unknown_costs_{side}"], row["in_both"]
    priced = exchanges - unknown
    cost = f"${usd:.4f}" if priced or not exchanges else MISSING
    return [
        row["project"],
        label,
        f"{exchanges:,}",
        f"{row[f'judged_{side}']:,}",
        f"{row[f'anomalies_{side}']:,}",
        cost + (f" + {unknown:,} unknown" if unknown else ""),
        f"${usd / priced:.5f}" if priced else MISSING,
        simulated_note(row, side),
    ]


def _sum_rows(exchanges: Sequence[Row]) -> Row:
    return {name: sum(row[name] for row in exchanges) for name in exchanges[0] if name != "project"} | {"project": "all"}


RATES = {("anomaly", ""), ("2.5", "sycophancy"), ("2.5", "advocacy_suppression")}
"""Measures that are shares of exchanges. They are shown in percent, and their changes in percentage points."""
COST = "cost"
SCALE_LENGTHS = {"3": 4.0}
"""The difference between the highest and the lowest score of a tier, by which changes are divided; 1 for all other tiers."""
MAX_NAMED = 3
"""Maximum number of measures, policies and judges that a line names."""
METHOD_NOTE = (
    "Each exchange that both sides have counts once, unweighted, so this is the change among these exchanges. Exchanges of a session are "
    "not independent, so the intervals are clustered by session (Student's t)."
)
_NAMES = {"anomaly": "anomalous", COST: "cost"}


def measure_name(row: Row) -> str:
    """Return the name of a measure for people."""
    name = _NAMES.get(row["tier"], f"tier {row['tier']}")
    return f"{name} {plain(row['dimension'], 40)}".strip().replace("_", " ")


def level(row: Row, value: float) -> str:
    """Format a mean of the measure: a score, a share in percent, or dollars."""
    if row["tier"] == COST:
        return f"${value:.5f}"
    return f"{value:.1%}" if _is_rate(row) else f"{value:.3f}"


def change(row: Row, value: float) -> str:
    """Format a difference of means with its sign, and differences of shares in percentage points."""
    if row["tier"] == COST:
        return f"{'-' if value < 0 else '+'}${abs(value):.5f}"
    number, unit = (f"{value * 100:+.1f}", " pts") if _is_rate(row) else (f"{value:+.3f}", "")
    if not float(number):
        number = number[1:]  # a rounded zero has no sign
    return number + unit


def classify_change(row: Row) -> str:
    """Return how a measure changed: same, lower, higher, or the reason why that is not clear."""
    if not row["changed"]:
        return "same"
    if row["few_sessions"]:
        return "few sessions"
    if not row["excludes_zero"]:
        return "not clear"
    return "higher" if row["change"] > 0 else "lower"


def origin_lines(document: Row) -> Iterator[str]:
    """Yield a line per side with its policy and its judge."""
    for side in (document["a"], document["b"]):
        policies = _join_distinct(f"{row['policy_digest']}" for row in side["origins"])
        judges = _join_distinct(_judge_name(row) for row in side["origins"] if row["judge_model"] is not None) or "nobody"
        rules = _join_distinct(
            f"{row['methodology']} {row['methodology_version']}, {row['rule_version']}" for row in side["origins"]
        )
        replay = "" if side["replay"] is None else f"{_describe_replay(side['replay'])}; "
        yield f"{side['label']}: {replay}policy {policies} ({rules}); judged by {judges}"


def overlap_lines(document: Row) -> Iterator[str]:
    """Yield the number of compared exchanges, of exchanges that only one side has, and of exchanges with different texts."""
    labels = _labels(document)
    totals = _total_counts(document)
    yield (
        f"{totals['in_both']:,} exchanges are in both; {totals['only_a']:,} only in {labels[0]}, {totals['only_b']:,} only in {labels[1]}"
    )
    if totals["other_evidence"]:
        yield f"{totals['other_evidence']:,} have different texts on the two sides, which also changes their scores"


def headline(document: Row) -> str:
    """Return a sentence with the changes whose interval excludes zero, largest first."""
    moved = sorted(
        (row for row in document["measures"] if classify_change(row) in {"lower", "higher"}), key=_change_size, reverse=True
    )
    if moved:
        changes = "; ".join(_describe_change(row) for row in moved[:MAX_NAMED])
        return f"Moved: {changes}" + (f"; and {len(moved) - MAX_NAMED} more" if len(moved) > MAX_NAMED else "")
    states = sum(row["exchanges"] for row in document["states"] if row["state_a"] != row["state_b"])
    if any(row["changed"] for row in document["measures"]):
        return "No mean moved clearly: every reliable interval includes zero"
    if states:
        return f"No number moved; {counted(states, 'state')} of a tier changed"
    return f"Nothing differs: all {_total_counts(document)['in_both']:,} exchanges have the same scores on both sides"


def describe_certainty(document: Row) -> str:
    """Return a sentence with the number of intervals that exclude zero and the number expected by chance."""
    intervals = document["intervals"]
    if not intervals["counted"]:
        return "No interval has enough sessions to be reliable."
    excluding_zero, chance = intervals["exclude_zero"], intervals["by_chance"]
    sentence = f"{excluding_zero} of {counted(intervals['counted'], 'interval')} {'excludes' if excluding_zero == 1 else 'exclude'} zero"
    more = "; that is no more than chance" if excluding_zero <= chance else ""
    return f"{sentence}; without any change, about {chance:.1f} would by chance{more}."


def simulated_note(row: Row, side: str) -> str:
    """Return a note if a simulated judge gave some of a side's scores of a project."""
    simulated = row[f"simulated_{side}"]
    judged = row[f"judged_{side}"]
    if not simulated:
        return MISSING
    return SIMULATED if simulated >= judged else f"{SIMULATED} ({simulated:,} of {judged:,})"


def call_lines(document: Row) -> Iterator[str]:
    """Yield a line per replay with its calls to a judge and their cost. Recorded answers are not counted."""
    for side in (document["a"], document["b"]):
        replay = side["replay"]
        if replay is not None and replay["calls"]:
            calls = ", ".join(f"{count:,} {name}" for name, count in replay["calls"].items())
            unknown = f" plus the unknown cost of {replay['unknown_price']:,}" if replay["unknown_price"] else ""
            yield f"Judge calls of {side['label']}, without recorded answers: {calls}; ${replay['cost_usd']:.4f}{unknown}"


def _describe_replay(replay: Row) -> str:
    """Describe a replay: the source of its history, its judge, and what it scored."""
    limits = [plain(replay["project"], 64)] if replay["project"] else []
    limits += [f"{word} {replay[name]:%Y-%m-%d %H:%M}" for name, word in (("since", "from"), ("until", "to")) if replay[name]]
    limits += [f"offsets {plain(replay['range'], 64)}"] if replay["range"] else []
    return f"replay of {' '.join([replay['source'], *limits])}, judge {replay['judge']}"


def _describe_change(row: Row) -> str:
    project = plain(row["project"], 64)
    return f"{project} {measure_name(row)} {level(row, row['mean_a'])} → {level(row, row['mean_b'])} ({change(row, row['change'])})"


def _change_size(row: Row) -> tuple[bool, float]:
    """Return the sort key of a change: scores and rates before cost, then the size as a fraction of the scale."""
    return row["tier"] != COST, abs(row["change"]) / SCALE_LENGTHS.get(row["tier"], 1.0)


def _is_rate(row: Row) -> bool:
    return (row["tier"], row["dimension"]) in RATES


def _judge_name(row: Row) -> str:
    return f"{plain(row['judge_model'], 64)}, {SIMULATED}" if row["simulated"] else plain(row["judge_model"], 64)


def _join_distinct(names: Iterator[str]) -> str:
    """Join the distinct names, and count the ones beyond `MAX_NAMED`."""
    distinct: Sequence[str] = list(dict.fromkeys(names))
    return "; ".join(distinct[:MAX_NAMED]) + (f" and {len(distinct) - MAX_NAMED} more" if len(distinct) > MAX_NAMED else "")


def _labels(document: Row) -> tuple[str, str]:
    return document["a"]["label"], document["b"]["label"]


def _total_counts(document: Row) -> dict[str, int]:
    names = ("in_both", "only_a", "only_b", "other_evidence")
    return {name: sum(row[name] for row in document["exchanges"]) for name in names}


TIERS = ("tier1", "tier2", "tier2_5", "tier3")
MAX_REASON_LENGTH = 160
"""Maximum length of a reason."""
SIDES = ("a", "b")


def largest_changes_view(moved: Sequence[Row], labels: Labels) -> Iterator[RenderableType]:
    """Yield each exchange with its session, and below it each side's scores with the reason for the largest change."""
    width = max(map(len, labels))
    for row in moved:
        location = f"{plain(row['project'], 64)}  session {plain(row['session_id'], 64)} turn {row['turn_number']}"
        yield Text(
            f"{row['moved']:.2f}  {location}  exchange {plain(row['exchange_id'], 64)}  {row['exchange_at']:%Y-%m-%d %H:%M}"
        )
        for label, side, reason in zip(labels, SIDES, _change_reasons(row), strict=True):
            tiers = " ".join(f"{_format_tier(row, tier, side):>4}" for tier in TIERS)
            flag = "anomalous" if row[f"anomaly_{side}"] else ""
            yield Text(
                f"      {label:<{width}}  tiers 1, 2, 2.5, 3: {tiers}  {flag:<9}  {plain(reason, MAX_REASON_LENGTH)}".rstrip(),
                style="dim",
            )


def _format_tier(row: Row, tier: str, side: str) -> str:
    state = row.get(f"{tier}_state_{side}", SCORED)
    value = row[f"{tier}_{side}"]
    return f"{value:.2f}" if state == SCORED and value is not None else TIER_STATES.get(state, plain(state))


def _change_reasons(row: Row) -> tuple[str, str]:
    """Return each side's reason for the largest change."""
    tier = max(TIERS, key=lambda tier_name: _relative_change(row, tier_name))
    if not _relative_change(row, tier):
        return _describe_sides(lambda side: "; ".join(row[f"anomaly_reasons_{side}"]))
    if tier == "tier1":
        return _describe_sides(lambda side: ", ".join(row[f"tier1_flags_{side}"]))
    if tier == "tier2_5":
        return _describe_sides(lambda side: row[f"tier2_5_reasoning_{side}"] or "")
    return _describe_dimension(row, tier)


def _relative_change(row: Row, tier: str) -> float:
    """Return the change of a tier as a fraction of its scale; 0 if one side has no number."""
    values = [row[f"{tier}_{side}"] for side in SIDES if row.get(f"{tier}_state_{side}", SCORED) == SCORED]
    if len(values) < 2 or None in values:
        return 0.0
    return float(abs(values[1] - values[0])) / SCALE_LENGTHS.get(tier.removeprefix("tier"), 1.0)


def _describe_sides(describe: Callable[[str], str]) -> tuple[str, str]:
    """Describe the scores of each side."""
    first, second = map(describe, SIDES)
    return first, second


def _describe_dimension(row: Row, tier: str) -> tuple[str, str]:
    """Return each side's score and reasoning on the dimension that changed most."""
    first, second = ({item["dimension"]: item for item in row[f"{tier}_dimensions_{side}"]} for side in SIDES)
    common = [name for name in first if name in second]
    if not common:
        return "", ""
    name = max(common, key=lambda dimension: abs(second[dimension]["score"] - first[dimension]["score"]))
    return _format_dimension(first[name]), _format_dimension(second[name])


def _format_dimension(dimension: Row) -> str:
    return f"{dimension['dimension']} {dimension['score']:g}: {dimension['reasoning'] or ''}".rstrip(": ")
