"""Wording of a comparison: the changes, their size, and how certain they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.cli.views import SIMULATED
from service.text.plain import MISSING, counted, plain

Row = Mapping[str, Any]
RATES = {("anomaly", ""), ("2.5", "sycophancy"), ("2.5", "advocacy_suppression")}
"""Measures that are shares of exchanges, shown in percent; a change of one is in percentage points."""
COST = "cost"
SPANS = {"3": 4.0}
"""The span from the least to the greatest score of a tier, unless it is 1: it makes tiers comparable."""
NAMED = 3
"""Measures, policies and judges that a line names."""
ESTIMATED = (
    "Exchanges that both sides have count once each, unweighted: this is the change among these exchanges. Exchanges of a session are "
    "not independent, so the intervals go by how sessions differ (clustered by session, Student's t)."
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
    """Format a difference of means with its sign; for shares in percentage points."""
    if row["tier"] == COST:
        return f"{'-' if value < 0 else '+'}${abs(value):.5f}"
    shown, unit = (f"{value * 100:+.1f}", " pts") if _is_rate(row) else (f"{value:+.3f}", "")
    return (shown if float(shown) else shown[1:]) + unit


def verdict(row: Row) -> str:
    """Describe in a word or two how a measure changed."""
    if not row["changed"]:
        return "same"
    if row["few_sessions"]:
        return "few sessions"
    if not row["excludes_zero"]:
        return "not clear"
    return ("lower", "higher")[row["change"] > 0]


def made_by(document: Row) -> Iterator[str]:
    """Name the policy and the judge of each side, one line each."""
    for side in (document["a"], document["b"]):
        policies = _listed(f"{row['policy_digest']}" for row in side["origins"])
        judges = _listed(_judge(row) for row in side["origins"] if row["judge_model"] is not None) or "nobody"
        rules = _listed(f"{row['methodology']} {row['methodology_version']}, {row['rule_version']}" for row in side["origins"])
        replay = "" if side["replay"] is None else f"{_replay(side['replay'])}; "
        yield f"{side['label']}: {replay}policy {policies} ({rules}); judged by {judges}"


def in_common(document: Row) -> Iterator[str]:
    """Count the exchanges that are compared, and those that only one side has or that differ."""
    labels, totals = _labels(document), _totals(document)
    yield (
        f"{totals['in_both']:,} exchanges are in both; {totals['only_a']:,} only in {labels[0]}, {totals['only_b']:,} only in {labels[1]}"
    )
    if others := totals["other_evidence"]:
        yield f"{others:,} have different texts on the two sides, which also changes their scores"


def headline(document: Row) -> str:
    """Name the changes whose interval excludes zero in a sentence, largest first."""
    moved = sorted((row for row in document["measures"] if verdict(row) in {"lower", "higher"}), key=_size, reverse=True)
    if moved:
        said = "; ".join(_moved(row) for row in moved[:NAMED])
        return f"Moved: {said}" + (f"; and {len(moved) - NAMED} more" if len(moved) > NAMED else "")
    states = sum(row["exchanges"] for row in document["states"] if row["state_a"] != row["state_b"])
    if any(row["changed"] for row in document["measures"]):
        return "No mean moved clearly: every reliable interval includes zero"
    if states:
        return f"No number moved; {counted(states, 'state')} of a tier changed"
    return f"Nothing differs: all {_totals(document)['in_both']:,} exchanges have the same scores on both sides"


def how_sure(document: Row) -> str:
    """Describe the number of intervals that exclude zero and the number expected by chance: a single one proves nothing."""
    intervals = document["intervals"]
    if not intervals["counted"]:
        return "No interval has enough sessions to be reliable."
    found, chance = intervals["exclude_zero"], intervals["by_chance"]
    said = f"{found} of {counted(intervals['counted'], 'interval')} {'excludes' if found == 1 else 'exclude'} zero"
    more = "; that is no more than chance" if found <= chance else ""
    return f"{said}; without any change, about {chance:.1f} would by chance{more}."


def judged_by(row: Row, side: str) -> str:
    """Tell whether a simulated judge took part in a side's scores of a project."""
    simulated, judged = row[f"simulated_{side}"], row[f"judged_{side}"]
    if not simulated:
        return MISSING
    return SIMULATED if simulated >= judged else f"{SIMULATED} ({simulated:,} of {judged:,})"


def asked(document: Row) -> Iterator[str]:
    """Describe each replay's questions to a judge, beyond recorded answers, and their cost; empty if there were none."""
    for side in (document["a"], document["b"]):
        replay = side["replay"]
        if replay is not None and replay["calls"]:
            calls = ", ".join(f"{count:,} {name}" for name, count in replay["calls"].items())
            unknown = f" plus the unknown cost of {replay['unknown_price']:,}" if replay["unknown_price"] else ""
            yield f"Asked for {side['label']} itself, the rest was recorded: {calls}; ${replay['cost_usd']:.4f}{unknown}"


def _replay(replay: Row) -> str:
    """Describe a replay: the source of its history, its judge, and what it scored."""
    limits = [plain(replay["project"], 64)] if replay["project"] else []
    limits += [f"{word} {replay[name]:%Y-%m-%d %H:%M}" for name, word in (("since", "from"), ("until", "to")) if replay[name]]
    limits += [f"offsets {plain(replay['range'], 64)}"] if replay["range"] else []
    return f"replay of {' '.join([replay['source'], *limits])}, judge {replay['judge']}"


def _moved(row: Row) -> str:
    project = plain(row["project"], 64)
    return f"{project} {measure_name(row)} {level(row, row['mean_a'])} → {level(row, row['mean_b'])} ({change(row, row['change'])})"


def _size(row: Row) -> tuple[bool, float]:
    """Sort key of changes in a sentence: scores and rates before cost, then the size of the change as a fraction of the scale."""
    return row["tier"] != COST, abs(row["change"]) / SPANS.get(row["tier"], 1.0)


def _is_rate(row: Row) -> bool:
    return (row["tier"], row["dimension"]) in RATES


def _judge(row: Row) -> str:
    return f"{plain(row['judge_model'], 64)}, {SIMULATED}" if row["simulated"] else plain(row["judge_model"], 64)


def _listed(names: Iterator[str]) -> str:
    """Name each once, the first few by name."""
    found: Sequence[str] = list(dict.fromkeys(names))
    return "; ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _labels(document: Row) -> tuple[str, str]:
    return document["a"]["label"], document["b"]["label"]


def _totals(document: Row) -> dict[str, int]:
    names = ("in_both", "only_a", "only_b", "other_evidence")
    return {name: sum(row[name] for row in document["exchanges"]) for name in names}
