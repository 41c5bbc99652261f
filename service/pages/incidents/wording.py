"""Wording of an incident: its detection, and its numbers with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from audit.drift.anomaly_rate import CRITICAL as CRITICAL_RATE
from audit.drift.anomaly_rate import DAYS as RATE_DAYS
from audit.drift.anomaly_rate import FEWEST_ANOMALIES, HISTORY_DAYS
from audit.drift.anomaly_rate import SUSPECTED as SUSPECTED_RATE
from audit.drift.change_detector import SUSPECTED
from audit.drift.consecutive_days import CRITICAL, DAYS, SHORTEST_RUN, SMALLEST_SIGMA
from audit.drift.incident_evidence import Evidence, Sighting
from audit.drift.watched_series import TIERS
from service.pages.rendering import NOTHING, number, share
from streams.watch.evidence import CAUSES, Explanation, with_mix
from streams.watch.rules import series_name

_BELIEVED = 12 * math.log(10)
"""The limit of belief: no model of scores is accurate beyond it."""
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
        "After every session the rule asks, for each day of the last two months, how much better a change of the mean on that day "
        f"explains the scores than no change, and adds this up. If nothing changes, the sum reaches {_SUSPECTED} by chance at most "
        f"once in {_YEARS:.0f} years per tier, however often it is checked. A change of more than {CRITICAL:g} sigma is critical. "
        "If the mean holds, the rule checks the spread of each day's sessions in the same way."
    ),
    "consecutive_days": (
        f"Within {DAYS} days, the averages of at least {SHORTEST_RUN} consecutive days with scores lie more than one standard "
        f"deviation of single scores (at least {SMALLEST_SIGMA:g}) off the baseline's mean, on the same side. Beyond {CRITICAL:g} "
        "standard deviations it is critical. The rule is simple and finds large changes only."
    ),
    "rate_ratio": (
        f"For each of the last {RATE_DAYS} days the rule asks how much better a rate that rose on that day explains the number of "
        f"anomalies than the rate of the days before it, up to {HISTORY_DAYS}, and adds this up. At {SUSPECTED_RATE:g} to 1 it is a spike, "
        f"which chance brings about once per year. Above {CRITICAL_RATE:g} times the earlier rate it is critical. A spike needs at least "
        f"{FEWEST_ANOMALIES} anomalies; anomalies in bunches count for less."
    ),
    "runs": (
        "After every finished run of an agent the rule asks, for each day of the last two months, how much better a change on that day "
        "explains trust, the share of unsafe runs and the share of each failure than no change. An alarm needs "
        f"{_SUSPECTED} times the number of the agent's series, so that all of them together are wrong by chance at most once in "
        f"{_YEARS:.0f} years. A change of more than {CRITICAL:g} sigma is critical."
    ),
}
"""The rules, by name."""
NO_CAUSE = "The anchors cannot tell whether the agent or the judge changed: too few were judged around that time."


def tier_name(tier: str) -> str:
    """Return the name of a tier, or of a series of runs, for people."""
    return TIERS.get(tier) or series_name(tier)


def cause_in_words(cause: str | None, evidence: Evidence) -> str:
    """Describe the cause and its evidence, or why the cause is unknown; incidents of earlier versions have less."""
    words = with_mix(Explanation(cause, "", evidence.cause), evidence).words or evidence.cause.words
    return words or CAUSES.get(cause or "", NO_CAUSE)


class Figure(NamedTuple):
    """A number with its label and qualification."""

    label: str
    value: str
    note: str = ""


def figures(rule: str, seen: Sighting) -> list[Figure]:
    """Return the numbers behind a rule's finding; empty for an unknown rule."""
    return list(_FIGURES[rule](seen)) if rule in _FIGURES else []


def _of_spread(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Spread before", number(seen.spread_before, 3), f"{number(seen.sessions_before)} sessions")
    yield Figure("Spread after", number(seen.spread_after, 3), f"{number(seen.sessions_after)} sessions")
    yield _first_day(seen)
    yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {_SUSPECTED} to 1")


def _of_evidence(seen: Sighting) -> Iterator[Figure]:
    if seen.spread_before is not None:
        yield from _of_spread(seen)
        return
    before = f"{number(seen.scores_before)} scores, {number(seen.sessions_before)} sessions{_compared(seen)}"
    yield Figure("Mean before", number(seen.mean_before, 3), before)
    after = f"{number(seen.scores_after)} scores, {number(seen.sessions_after)} sessions"
    yield Figure("Mean after", number(seen.mean_after, 3), after)
    yield _change(seen)
    yield _first_day(seen)
    yield Figure("Sigma", number(seen.sigma, 3), "spread of one session's mean")
    yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {_SUSPECTED} to 1")


def _of_runs(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Mean before", number(seen.mean_before, 3), f"{number(seen.runs_before)} runs{_compared(seen)}")
    yield Figure("Mean after", number(seen.mean_after, 3), f"{number(seen.runs_after)} runs")
    yield _change(seen)
    yield _first_day(seen)
    yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {number(SUSPECTED * (seen.series or 1))} to 1")


def _of_days(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Baseline mean", number(seen.mean, 3), f"{number(seen.baseline_scores)} scores")
    yield Figure("Standard deviation", number(seen.stddev, 3), "of single scores")
    yield Figure("Farthest day", f"{number(seen.deviation, 1)} \u03c3", "off the mean")
    yield Figure("Days in a row", NOTHING if seen.days is None else number(len(seen.days)), f"alarm at {SHORTEST_RUN}")


def _of_rate(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Rate now", share(seen.rate), f"{number(seen.anomalies)} of {number(seen.exchanges)} exchanges")
    yield Figure("Rate before", share(seen.baseline_rate), f"of {number(seen.baseline_exchanges)} exchanges")
    ratio = f"{seen.ratio:.1f}" if isinstance(seen.ratio, float) else NOTHING
    yield Figure("Times as high", ratio, f"critical at {CRITICAL_RATE:g}")
    if seen.log_evidence is not None:  # earlier versions required twice the baseline's rate
        yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {SUSPECTED_RATE:g} to 1")


_FIGURES: Mapping[str, Callable[[Sighting], Iterator[Figure]]] = {
    "sequential": _of_evidence,
    "consecutive_days": _of_days,
    "rate_ratio": _of_rate,
    "runs": _of_runs,
}


def odds(log_evidence: float | None) -> str:
    """Format evidence, given by its natural logarithm, as odds against chance; large odds as a power of ten, at most as over 10¹²."""
    if log_evidence is None:
        return NOTHING
    if log_evidence > _BELIEVED:
        return "over 10\u00b9\u00b2 to 1"
    if log_evidence > _BEYOND:
        return f"10{str(math.floor(log_evidence / math.log(10))).translate(_RAISED)} to 1"
    ratio = math.exp(max(log_evidence, -_BEYOND))
    places = max(0, math.floor(math.log10(ratio)) - 1) if ratio >= 1 else 0
    return f"{number(round(ratio, -places))} to 1"


def _change(seen: Sighting) -> Figure:
    low_high = seen.change_interval
    interval = "" if low_high is None else f"95 %: {number(low_high[0], 3)} to {number(low_high[1], 3)}"
    return Figure("Change", number(seen.change, 3), interval)


def _first_day(seen: Sighting) -> Figure:
    days = seen.first_day_interval
    interval = "" if days is None else f"95 %: {days[0]} to {days[1]}"
    return Figure("First day", NOTHING if seen.first_day is None else f"{seen.first_day}", interval)


def _compared(seen: Sighting) -> str:
    """Return the days to which a change is compared; empty for evidence of earlier versions."""
    return "" if seen.compared_since is None else f", {seen.compared_since} until the change"
