"""The figures of an incident: its numbers with their intervals, its days, and its chart."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from markupsafe import Markup

from analytics.queries import query_rows
from analytics.sums.daily import query_days
from audit.drift.anomaly_rate import CRITICAL as CRITICAL_RATE
from audit.drift.anomaly_rate import DAYS as RATE_DAYS
from audit.drift.anomaly_rate import FEWEST_ANOMALIES, HISTORY_DAYS
from audit.drift.anomaly_rate import SUSPECTED as SUSPECTED_RATE
from audit.drift.change_detector import SUSPECTED
from audit.drift.consecutive_days import CRITICAL, DAYS, SHORTEST_RUN, SMALLEST_SIGMA
from audit.drift.incident_evidence import MOVED_TOO, Evidence, Moved, Sighting, evidence_of
from audit.drift.watched_series import DOWN, SPREAD, TIERS, UP
from schemas.lazy import duckdb
from schemas.records import Incident
from service.pages.charts import Band, Chart, Mark, Point, judge_moves, line, marks_within, run_policies
from service.pages.rendering import NOTHING, number, share
from service.text.links import Links
from service.text.window import Window
from streams.watch.evidence import CAUSES, Explanation, with_mix
from streams.watch.lifecycle import DISMISSED, VANISHED, is_live
from streams.watch.measures import TRUST
from streams.watch.rules import RUNS, series_name

_BELIEVED = 12 * math.log(10)
"""Evidence is not believed beyond this limit, because no model of scores is that accurate."""
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
    sentence = with_mix(Explanation(cause, "", evidence.cause), evidence).words or evidence.cause.words
    return sentence or CAUSES.get(cause or "", NO_CAUSE)


class Figure(NamedTuple):
    """A number with its label and qualification."""

    label: str
    value: str
    note: str = ""


def figures(rule: str, seen: Sighting) -> list[Figure]:
    """Return the numbers behind a rule's finding; empty for an unknown rule."""
    return list(_FIGURES[rule](seen)) if rule in _FIGURES else []


def _spread_figures(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Spread before", number(seen.spread_before, 3), f"{number(seen.sessions_before)} sessions")
    yield Figure("Spread after", number(seen.spread_after, 3), f"{number(seen.sessions_after)} sessions")
    yield _find_first_day(seen)
    yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {_SUSPECTED} to 1")


def _evidence_figures(seen: Sighting) -> Iterator[Figure]:
    if seen.spread_before is not None:
        yield from _spread_figures(seen)
        return
    before = f"{number(seen.scores_before)} scores, {number(seen.sessions_before)} sessions{_format_comparison(seen)}"
    yield Figure("Mean before", number(seen.mean_before, 3), before)
    after = f"{number(seen.scores_after)} scores, {number(seen.sessions_after)} sessions"
    yield Figure("Mean after", number(seen.mean_after, 3), after)
    yield _format_change(seen)
    yield _find_first_day(seen)
    yield Figure("Sigma", number(seen.sigma, 3), "spread of one session's mean")
    yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {_SUSPECTED} to 1")


def _run_figures(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Mean before", number(seen.mean_before, 3), f"{number(seen.runs_before)} runs{_format_comparison(seen)}")
    yield Figure("Mean after", number(seen.mean_after, 3), f"{number(seen.runs_after)} runs")
    yield _format_change(seen)
    yield _find_first_day(seen)
    yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {number(SUSPECTED * (seen.series or 1))} to 1")


def _day_figures(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Baseline mean", number(seen.mean, 3), f"{number(seen.baseline_scores)} scores")
    yield Figure("Standard deviation", number(seen.stddev, 3), "of single scores")
    yield Figure("Farthest day", f"{number(seen.deviation, 1)} \u03c3", "off the mean")
    yield Figure("Days in a row", NOTHING if seen.days is None else number(len(seen.days)), f"alarm at {SHORTEST_RUN}")


def _rate_figures(seen: Sighting) -> Iterator[Figure]:
    yield Figure("Rate now", share(seen.rate), f"{number(seen.anomalies)} of {number(seen.exchanges)} exchanges")
    yield Figure("Rate before", share(seen.baseline_rate), f"of {number(seen.baseline_exchanges)} exchanges")
    ratio = f"{seen.ratio:.1f}" if isinstance(seen.ratio, float) else NOTHING
    yield Figure("Times as high", ratio, f"critical at {CRITICAL_RATE:g}")
    if seen.log_evidence is not None:  # earlier versions required twice the baseline's rate
        yield Figure("Evidence", odds(seen.log_evidence), f"alarm at {SUSPECTED_RATE:g} to 1")


_FIGURES: Mapping[str, Callable[[Sighting], Iterator[Figure]]] = {
    "sequential": _evidence_figures,
    "consecutive_days": _day_figures,
    "rate_ratio": _rate_figures,
    "runs": _run_figures,
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


def _format_change(seen: Sighting) -> Figure:
    low_high = seen.change_interval
    interval = "" if low_high is None else f"95 %: {number(low_high[0], 3)} to {number(low_high[1], 3)}"
    return Figure("Change", number(seen.change, 3), interval)


def _find_first_day(seen: Sighting) -> Figure:
    days = seen.first_day_interval
    interval = "" if days is None else f"95 %: {days[0]} to {days[1]}"
    return Figure("First day", NOTHING if seen.first_day is None else f"{seen.first_day}", interval)


def _format_comparison(seen: Sighting) -> str:
    """Return the days to which a change is compared; empty for evidence of earlier versions."""
    return "" if seen.compared_since is None else f", {seen.compared_since} until the change"


Days = Mapping[str, float | None]
"""A measure by day or hour, as 2026-10-01 or 2026-10-01 14:00; None for one without it."""
_Day = tuple[str, str, float]
"""A day, its label, and its measure."""
_DAY_LENGTH = len("2026-10-01")
_AFTER = "~"
"""Sorts after every label of a day."""
_WEIGHING = frozenset({"sequential", "runs", MOVED_TOO})
"""The rules that weigh evidence over many days."""
INCIDENTS_AT_HAND = 256
"""Maximum number of incidents whose parsed evidence is cached: twice those of a page."""


def expected_of(rule: str, seen: Sighting) -> tuple[float, float] | None:
    """Return the expected value and its sigma, 0 if the rule has no sigma; None for evidence without them."""
    if rule in _WEIGHING:
        mean, sigma = seen.mean_before, seen.sigma
    elif rule == "consecutive_days":
        mean, sigma = seen.mean, seen.stddev
    else:
        mean, sigma = seen.baseline_rate if rule == "rate_ratio" else None, None
    return None if mean is None else (mean, sigma or 0.0)


def before_of(tier: str, incidents: Sequence[Incident]) -> tuple[date, float, float] | None:
    """Return the first day of a tier's newest live change, and the mean before it with one sigma; None without a live change."""
    live = (one for one in incidents if is_live(one))
    for incident in sorted(live, key=lambda one: one.detected_at, reverse=True):
        for moved in _read_entries(incident, tier):
            for rule, seen in [(moved.rule, moved.seen), *moved.rules.items()]:
                expected = expected_of(rule, seen)
                if expected is not None:
                    return seen.since, *expected
    return None


def days_of(incident: Incident, values: Days) -> frozenset[str]:
    """Return the days that show an incident, judged by its leading series.

    A day shows it if a rule's finding covers the day, and its value deviates from the expected one on the incident's side by
    one sigma of the evidence-weighing rule or by half of the change, whichever is less. If the evidence has no numbers, every
    day in it counts.
    """
    return _find_days(_read_entries(incident, incident.tier or incident.type, incident.agent), _known_entries(values))


class Shown(NamedTuple):
    """An incident, and the days that show it."""

    incident: Incident
    days: frozenset[str]


def shown_by(name: str, incidents: Sequence[Incident], values: Days) -> list[Shown]:
    """Return the incidents of a tier, or of a type without a tier such as anomaly_spike, that some of the days show."""
    days = _known_entries(values)
    shown = [Shown(incident, _find_days(_read_entries(incident, name), days)) for incident in _find_about(name, incidents)]
    return [incident for incident in shown if incident.days]


def marked_days(shown: Iterable[Shown]) -> frozenset[str]:
    """Return the days that show any of the incidents."""
    return frozenset[str]().union(*(one.days for one in shown))


def _known_entries(values: Days) -> list[_Day]:
    """Return the days with a value, in order."""
    return sorted((label[:_DAY_LENGTH], label, value) for label, value in values.items() if value is not None)


def _find_days(entries: Iterable[Moved], days: Sequence[_Day]) -> frozenset[str]:
    return frozenset(
        label
        for moved in entries
        for rule, seen in moved.rules.items()
        for label in _find_shown(moved.key.direction, rule, seen, days)
    )


def _find_about(name: str, incidents: Sequence[Incident]) -> Iterator[Incident]:
    """Leave out dismissed incidents, and suspected ones that have disappeared."""
    shown = (one for one in incidents if one.status != DISMISSED and one.resolution != VANISHED)
    return (one for one in shown if _read_entries(one, name))


def _read_entries(incident: Incident, name: str, agent: str | None = None) -> list[Moved]:
    """Return the changed series in incidents of a tier, or of a type without a tier, for one agent's runs or the whole project."""
    return [moved for moved in _read_means(incident) if agent == moved.key.agent and name == (moved.key.tier or moved.key.type)]


@functools.lru_cache(maxsize=INCIDENTS_AT_HAND)
def _read_means(incident: Incident) -> tuple[Moved, ...]:
    """Return the changed means of an incident, cached because a page needs them by tier and for each chart."""
    return tuple(moved for moved in evidence_of(incident).moved if moved.kind != SPREAD)


def _find_shown(direction: str | None, rule: str, seen: Sighting, days: Sequence[_Day]) -> Iterator[str]:
    """Yield the days that a rule's finding covers and that show the incident."""
    stated_days = days[bisect_left(days, (f"{seen.since}",)) : bisect_left(days, (f"{seen.until}{_AFTER}",))]
    expected = expected_of(rule, seen)
    if expected is None:
        yield from (label for _, label, _ in stated_days)
        return
    mean, sigma = expected
    # With many scores, a change may be smaller than one sigma.
    least = min(sigma, abs(seen.change or 0.0) / 2) if rule in _WEIGHING else 0.0
    named = {f"{one.day}" for one in seen.days or ()} if rule == "consecutive_days" else None
    for day, label, value in stated_days:
        off = {UP: value - mean, DOWN: mean - value}.get(direction or "", abs(value - mean))
        if off > least and (named is None or day in named):
            yield label


BEFORE, AFTER = timedelta(days=28), timedelta(days=21)
"""Time shown before the change, and after an incident that was decided on."""
MOST_DAYS = 120
_DAY = timedelta(days=1)
_LIMITS = {"tier3": (1.0, 5.0), TRUST: (0.0, 100.0)}
_UNMARKED = Markup('<p class="soft">No deployment and no change of policy or judge is known in this time.</p>')
_WEIGHTED = "sequential"
"""The rule that weights exchanges by their sampling probability."""


@dataclass(frozen=True, slots=True)
class Row:
    """A day: its value, the number of records behind it, and half its interval."""

    value: float | None
    count: int | None = None
    half: float | None = None


def chart_of(cursor: duckdb.DuckDBPyConnection, incident: Incident, now: datetime) -> Markup | None:
    """Return the chart; None for an incident whose evidence has no times."""
    seen = evidence_of(incident).seen_by(incident.rule)
    if seen is None:
        return None
    first, last = seen.since, seen.until
    end = now if is_live(incident) else min(now, datetime.combine(last, datetime.min.time(), UTC) + AFTER)
    days = min(max((end.date() - first + BEFORE).days + 1, 1), MOST_DAYS)
    params = {"project": incident.project, "as_of": end, "days": days}
    values = _read_values(cursor, params, incident)
    sorted_days = sorted(values)
    span = (
        [sorted_days[0] + timedelta(days=number) for number in range((sorted_days[-1] - sorted_days[0]).days + 1)]
        if sorted_days
        else []
    )
    points = [_build_point(incident.project, day, values.get(day)) for day in span]
    marked = days_of(incident, {f"{day}": row.value for day, row in values.items()})
    marks = _read_marks(cursor, incident, span)
    drawn = line(_build_chart(incident, first, last, marks), points, band=_build_band(incident, seen), marked=marked)
    return drawn if marks or not span else drawn + _UNMARKED


def _read_values(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], incident: Incident) -> dict[date, Row]:
    if incident.rule == RUNS:
        of_runs = {"agent": incident.agent or "", "series": incident.tier}
        return {row["day"]: Row(row["mean"], row["runs"]) for row in query_rows(cursor, "run_days", {**params, **of_runs})}
    return _read_anomaly_rates(cursor, params) if incident.tier is None else _read_averages(cursor, params, incident)


def _build_point(project: str, day: date, value: Row | None) -> Point:
    """Return the point of a day, with a link to its hours."""
    at = datetime.combine(day, datetime.min.time(), UTC)
    link = Links(Window("24h", at + _DAY, is_pinned=True).asked).project(project)
    row = value or Row(None)
    return Point(f"{day}", row.value, f"{day:%m-%d}", at=at, count=row.count, half=row.half, link=link)


def _read_marks(cursor: duckdb.DuckDBPyConnection, incident: Incident, span: list[date]) -> list[Mark]:
    """Return the marks of the days shown, including the incident's first day if the judge caused it."""
    if not span:
        return []
    start, end = (datetime.combine(day, datetime.min.time(), UTC) for day in (span[0], span[-1] + _DAY))
    marks = [*marks_within(cursor, incident.project, start, end, _DAY), *judge_moves([incident], start, end)]
    # If exchanges are scored too, their hours have already shown a change of the policy.
    if incident.rule == RUNS and not any(one.kind == "policy" for one in marks):
        marks += run_policies(cursor, incident.project, incident.agent or "", start, end)
    return marks


def _build_chart(incident: Incident, first: date, last: date, marks: Sequence[Mark]) -> Chart:
    measure = "Anomalies" if incident.tier is None else tier_name(incident.tier)
    kind = "share of exchanges with an anomaly" if incident.tier is None else f"{_name_column(incident).lower()} of a day"
    return Chart(
        key="days",
        title=f"{measure} by day",
        words=f"{measure}, {kind}. The days that show the change are marked: its first day is {first}, the last one seen is {last}.",
        column=_name_column(incident),
        form=share if incident.tier is None or _is_share(incident) else None,
        limits=_LIMITS.get(incident.tier or "", (0.0, 1.0)),
        marked="shows the change",
        counted="Runs" if incident.rule == RUNS else "Exchanges" if incident.tier is None else "Scores",
        marks=marks,
        step=_DAY,
    )


def _name_column(incident: Incident) -> str:
    """Name the numbers: with different sampling probabilities there are two means, which differ."""
    if incident.tier is None or _is_share(incident):
        return "Share"
    if incident.tier in ("tier1", TRUST):
        return "Mean"
    return "Weighted mean" if incident.rule == _WEIGHTED else "Mean as sampled"


def _is_share(incident: Incident) -> bool:
    """Return whether the incident is about a share of runs."""
    return incident.rule == RUNS and incident.tier != TRUST


def _read_averages(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], incident: Incident) -> dict[date, Row]:
    column = "weighted_mean" if incident.rule == _WEIGHTED else "mean"
    rows = query_days(cursor, "daily_averages", params)
    return {row["day"]: Row(row[column], row["count"], row["half"]) for row in rows if row["tier"] == incident.tier}


def _read_anomaly_rates(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any]) -> dict[date, Row]:
    return {
        row["day"]: Row(row["anomaly_count"] / row["exchange_count"], row["exchange_count"])
        for row in query_days(cursor, "trends", params)
        if row["exchange_count"]
    }


def _build_band(incident: Incident, seen: Sighting) -> Band | None:
    """Return the expected range."""
    expected = expected_of(incident.rule, seen)
    return None if expected is None else Band(*expected)
