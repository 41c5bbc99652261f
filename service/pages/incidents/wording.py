"""Wording of an incident: how it was found, and its numbers with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from audit.drift.anomaly_rate import CRITICAL as CRITICAL_RATE
from audit.drift.anomaly_rate import DAYS as RATE_DAYS
from audit.drift.anomaly_rate import FEWEST_ANOMALIES, HISTORY_DAYS
from audit.drift.anomaly_rate import SUSPECTED as SUSPECTED_RATE
from audit.drift.change_detector import SUSPECTED
from audit.drift.consecutive_days import CRITICAL, DAYS, SHORTEST_RUN, SMALLEST_SIGMA
from service.pages.rendering import NOTHING, number, share
from streams.watch.incidents.causes import CAUSES
from streams.watch.incidents.incidents import CAUSE
from streams.watch.measured import TIERS
from streams.watch.rules.run_rules import series_name

Seen = Mapping[str, Any]
"""What a rule saw, as the evidence of an incident has it."""
_BEYOND = 13.8
"""Natural logarithm of a million: larger odds are shown by their power of ten."""
_RAISED = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
_YEARS = SUSPECTED / 365
_SUSPECTED = number(SUSPECTED)

NAMES: Mapping[str, str] = {
    "sequential": "Evidence over all sessions",
    "consecutive_days": "Days in a row",
    "rate_ratio": "Rate of anomalies",
    "runs": "Evidence over all runs",
}
EXPLAINED: Mapping[str, str] = {
    "sequential": (
        "After every session the rule asks of each day of the last two months how much better the scores are explained by a change of "
        f"the mean on that day than by none, and adds that up. Where nothing changes, the sum reaches {_SUSPECTED} by chance no more "
        f"than once in {_YEARS:.0f} years for a tier, however often one looks. A change of more than {CRITICAL:g} sigma is critical. "
        "Where the mean holds, the spread of the sessions of a day is looked at in the same way."
    ),
    "consecutive_days": (
        f"Within {DAYS} days, the averages of at least {SHORTEST_RUN} days with scores lie one after the other more than one standard "
        f"deviation of single scores (at least {SMALLEST_SIGMA:g}) off the baseline's mean, on one side of it. Beyond {CRITICAL:g} "
        "standard deviations it is critical. The rule is simple and finds large changes only."
    ),
    "rate_ratio": (
        f"For each of the last {RATE_DAYS} days the rule asks how much better the number of exchanges with an anomaly is explained by a "
        f"rate that rose on that day than by the rate of the days before it, up to {HISTORY_DAYS}, and adds that up. From "
        f"{SUSPECTED_RATE:g} to 1 on it is a spike: by chance about once in a year. Above {CRITICAL_RATE:g} times the rate before it is "
        f"critical. There are at least {FEWEST_ANOMALIES} anomalies; where they come in bunches, all of them count for less."
    ),
    "runs": (
        "After every finished run of an agent the rule asks of each day of the last two months how much better trust, the share of "
        "unsafe runs and the share with each type of failure are explained by a change on that day than by none. An alarm takes "
        f"{_SUSPECTED} times the number of the agent's series, so that all of them together are wrong by chance no more than once in "
        f"{_YEARS:.0f} years. A change of more than {CRITICAL:g} sigma is critical."
    ),
}
"""The rules, by name."""
NO_CAUSE = "The anchors do not tell agent from judge: none were judged about that time, or too few."


def tier_name(tier: str) -> str:
    """How people call a tier, or a series of runs."""
    return TIERS.get(tier) or series_name(tier)


def cause_in_words(cause: str | None, evidence: Mapping[str, Any]) -> str:
    """What changed and how that is known, or why it is not, as the evidence of an incident says; earlier incidents say less."""
    kept = evidence.get(CAUSE)
    words = kept.get("words") if isinstance(kept, dict) else None
    return words if isinstance(words, str) and words else CAUSES.get(cause or "", NO_CAUSE)


class Figure(NamedTuple):
    """A number with its label and what qualifies it."""

    label: str
    value: str
    note: str = ""


def figures(rule: str, seen: Seen) -> list[Figure]:
    """The numbers that a rule's finding rests on; none for a rule that is not known."""
    return list(_FIGURES[rule](seen)) if rule in _FIGURES else []


def _of_spread(seen: Seen) -> Iterator[Figure]:
    yield Figure("Spread before", _points(seen, "spreadBefore"), f"{_count(seen, 'sessionsBefore')} sessions")
    yield Figure("Spread after", _points(seen, "spreadAfter"), f"{_count(seen, 'sessionsAfter')} sessions")
    yield Figure("First day", _text(seen, "firstDay"), _interval(seen, "firstDayInterval"))
    yield Figure("Evidence", odds(_number(seen, "logEvidence")), f"an alarm from {_SUSPECTED} to 1 on")


def _of_evidence(seen: Seen) -> Iterator[Figure]:
    if "spreadBefore" in seen:
        yield from _of_spread(seen)
        return
    yield Figure(
        "Mean before",
        _points(seen, "meanBefore"),
        f"{_count(seen, 'scoresBefore')} scores, {_count(seen, 'sessionsBefore')} sessions",
    )
    yield Figure(
        "Mean after",
        _points(seen, "meanAfter"),
        f"{_count(seen, 'scoresAfter')} scores, {_count(seen, 'sessionsAfter')} sessions",
    )
    yield Figure("Change", _points(seen, "change"), _interval(seen, "changeInterval"))
    yield Figure("First day", _text(seen, "firstDay"), _interval(seen, "firstDayInterval"))
    yield Figure("Sigma", _points(seen, "sigma"), "spread of one session's mean")
    yield Figure("Evidence", odds(_number(seen, "logEvidence")), f"an alarm from {_SUSPECTED} to 1 on")


def _of_runs(seen: Seen) -> Iterator[Figure]:
    yield Figure("Mean before", _points(seen, "meanBefore"), f"{_count(seen, 'runsBefore')} runs")
    yield Figure("Mean after", _points(seen, "meanAfter"), f"{_count(seen, 'runsAfter')} runs")
    yield Figure("Change", _points(seen, "change"), _interval(seen, "changeInterval"))
    yield Figure("First day", _text(seen, "firstDay"), _interval(seen, "firstDayInterval"))
    series = _number(seen, "series") or 1.0
    yield Figure("Evidence", odds(_number(seen, "logEvidence")), f"an alarm from {number(SUSPECTED * series)} to 1 on")


def _of_days(seen: Seen) -> Iterator[Figure]:
    yield Figure("Baseline mean", _points(seen, "mean"), f"{_count(seen, 'baselineScores')} scores")
    yield Figure("Standard deviation", _points(seen, "stddev"), "of single scores")
    yield Figure("Farthest day", f"{_points(seen, 'deviation', 1)} \u03c3", "off the mean")
    days = seen.get("days")
    yield Figure("Days in a row", number(len(days)) if isinstance(days, list) else NOTHING, f"an alarm from {SHORTEST_RUN} on")


def _of_rate(seen: Seen) -> Iterator[Figure]:
    yield Figure(
        "Rate now", share(_number(seen, "rate")), f"{_count(seen, 'anomalies')} of {_count(seen, 'exchanges')} exchanges"
    )
    yield Figure("Rate before", share(_number(seen, "baselineRate")), f"of {_count(seen, 'baselineExchanges')} exchanges")
    ratio = _number(seen, "ratio")
    yield Figure("Times as high", NOTHING if ratio is None else f"{ratio:.1f}", f"critical from {CRITICAL_RATE:g} on")
    if "logEvidence" in seen:  # versions before asked for twice the baseline's rate
        yield Figure("Evidence", odds(_number(seen, "logEvidence")), f"an alarm from {SUSPECTED_RATE:g} to 1 on")


_FIGURES: Mapping[str, Callable[[Seen], Iterator[Figure]]] = {
    "sequential": _of_evidence,
    "consecutive_days": _of_days,
    "rate_ratio": _of_rate,
    "runs": _of_runs,
}


def odds(log_evidence: float | None) -> str:
    """Evidence as odds against chance, from its natural logarithm; very large ones as a power of ten."""
    if log_evidence is None:
        return NOTHING
    if log_evidence > _BEYOND:
        return f"10{str(math.floor(log_evidence / math.log(10))).translate(_RAISED)} to 1"
    ratio = math.exp(max(log_evidence, -_BEYOND))
    places = max(0, math.floor(math.log10(ratio)) - 1) if ratio >= 1 else 0
    return f"{number(round(ratio, -places))} to 1"


def _number(seen: Seen, name: str) -> float | None:
    value = seen.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _points(seen: Seen, name: str, digits: int = 3) -> str:
    return number(_number(seen, name), digits)


def _count(seen: Seen, name: str) -> str:
    return number(_number(seen, name))


def _text(seen: Seen, name: str) -> str:
    return str(seen.get(name) or NOTHING)


def _interval(seen: Seen, name: str) -> str:
    ends: Sequence[Any] = seen.get(name) or ()
    if not isinstance(ends, list) or len(ends) != 2:
        return ""
    low, high = (number(one, 3) if isinstance(one, float) else str(one) for one in ends)
    return f"95 %: {low} to {high}"
