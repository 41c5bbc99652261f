"""The figures of an incident: its numbers with their intervals, the days that show it, and its chart."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from markupsafe import Markup

from analytics.queries import query_rows
from analytics.sums.daily import query_days
from audit.drift.anomaly_rate import CRITICAL as CRITICAL_RATE
from audit.drift.anomaly_rate import DAYS as RATE_DAYS
from audit.drift.anomaly_rate import HISTORY_DAYS, MIN_ANOMALIES
from audit.drift.anomaly_rate import SUSPECTED as SUSPECTED_RATE
from audit.drift.change_detector import SUSPECTED
from audit.drift.consecutive_days import CRITICAL, DAYS, MIN_RUN_DAYS, MIN_SIGMA
from audit.drift.incident_evidence import ALSO_CHANGED, ChangedSeries, Evidence, Observation, evidence_of
from audit.drift.versions import SUSPECTED as SUSPECTED_VERSION
from audit.drift.watched_series import BEHAVIOUR, DOWN, SESSION, SPREAD, UP, bounds_of, is_size, name_series
from schemas.lazy import duckdb
from schemas.records import Incident
from service.pages.charts import Band, Chart, Mark, Point, find_judge_changes, find_run_policy_changes, line, marks_within
from service.pages.rendering import NOTHING, number, share
from service.text.links import Links
from service.text.window import Window
from streams.watch.behaviour_rules import BEHAVIOURS
from streams.watch.evidence import CAUSES, Explanation, apply_mix
from streams.watch.findings import NEW_VERSION_DAYS
from streams.watch.lifecycle import DISMISSED, VANISHED, is_live
from streams.watch.measures import TRUST
from streams.watch.run_rules import RUNS, SESSIONS

_MAX_LOG_EVIDENCE = 12 * math.log(10)
"""Larger evidence is shown as "over": no model of scores is accurate enough to support it."""
_MAX_PLAIN_LOG_ODDS = 13.8
"""Larger evidence is shown as a power of ten. This is the natural logarithm of a million."""
_SUPERSCRIPTS = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
_YEARS_PER_FALSE_ALARM = SUSPECTED / 365
_ALARM_ODDS = number(SUSPECTED)

RULE_NAMES: Mapping[str, str] = {
    "sequential": "Evidence over all sessions",
    "consecutive_days": "Days in a row",
    "rate_ratio": "Rate of anomalies",
    "versions": "Versions side by side",
    "runs": "Evidence over all runs",
    SESSIONS: "Evidence over all judged sessions",
    BEHAVIOURS: "Evidence over all turns",
}
RULE_EXPLANATIONS: Mapping[str, str] = {
    "sequential": (
        "After every hour with sessions, this rule weighs the evidence that the mean changed on one of the last 400 days. For each day, it computes "
        "how much more likely the scores are with a change on that day than without any, and adds up these ratios. An alarm needs a sum "
        f"of {_ALARM_ODDS}. Chance alone reaches it at most once in {_YEARS_PER_FALSE_ALARM:.0f} years per tier, however often the rule "
        "checks. Agents and slices are decided together and need more, in proportion to their number. "
        f" A change of more than {CRITICAL:g} sigma is critical. If the mean has not changed, the rule checks the spread of each "
        "day's sessions in the same way."
    ),
    "consecutive_days": (
        f"Within {DAYS} days, the averages of at least {MIN_RUN_DAYS} consecutive days with scores are more than one standard deviation "
        f"away from the baseline's mean, all on the same side. The standard deviation is that of single scores, and at least "
        f"{MIN_SIGMA:g}. More than {CRITICAL:g} standard deviations are critical. This rule is simple, but finds only large changes."
    ),
    "rate_ratio": (
        f"For each of the last {RATE_DAYS} days, this rule computes how much more likely the number of anomalies is if their rate rose on "
        f"that day than if it stayed the same, and adds up these ratios. The earlier rate comes from the days before, up to "
        f"{HISTORY_DAYS}. Evidence of {SUSPECTED_RATE:g} to 1 is a spike. Chance alone causes about one spike per year. More than "
        f"{CRITICAL_RATE:g} times the earlier rate is critical. A spike has at least {MIN_ANOMALIES} anomalies. Anomalies that cluster "
        "in a few sessions count for less."
    ),
    "versions": (
        f"For {NEW_VERSION_DAYS} days, this rule compares the sessions of a new version of an agent, its prompt, its tools or its model with those "
        "of its other versions on the same days. It computes how much more likely the difference is if the versions differ than if they do "
        f"not. Of {number(SUSPECTED_VERSION)} versions that are like the others, at most one ever raises an alarm, however often the rule checks. "
        "What new versions do without a judge, such as their errors of a tool, is compared likewise: all of these series are one family, and need more evidence, "
        "in proportion to their number."
    ),
    "runs": (
        "After every hour with finished runs of an agent, this rule weighs the evidence that its trust, its share of unsafe runs or its share of a "
        "failure type changed on one of the last 400 days. An alarm needs evidence of "
        f"{_ALARM_ODDS} times n / k: all series of all agents of the project are one family of n, in which k changed. Chance alone then raises an alarm for any of them at most once in "
        f"{_YEARS_PER_FALSE_ALARM:.0f} years. A change of more than {CRITICAL:g} sigma is critical."
    ),
    SESSIONS: (
        "After every hour with sessions that were judged as a whole, this rule weighs the evidence that the overall score or one of the six "
        f"dimensions changed on one of the last 400 days. An alarm needs evidence of {_ALARM_ODDS} times the number of these series. "
        f"Chance alone then raises an alarm for any of them at most once in {_YEARS_PER_FALSE_ALARM:.0f} years. A change of more than "
        f"{CRITICAL:g} sigma is critical. Each session is weighted by 1 / its sampling probability."
    ),
    BEHAVIOURS: (
        "After every hour with turns, this rule weighs the evidence that what an agent does changed within the last thirteen weeks: the errors "
        "of each tool, failed, empty, refused and abandoned turns, repeated tool calls, tool calls and tokens per turn. All series of all agents "
        f"of the project are one family: of n series, the k changes with most evidence need {_ALARM_ODDS} times n / k each. Chance alone then raises an "
        f"alarm for any of them at most once in {_YEARS_PER_FALSE_ALARM:.0f} years. Only more errors can be critical. No judge is involved."
    ),
}
NO_CAUSE = "The anchors cannot tell whether the agent or the judge changed: too few of them were judged around that time."


def describe_cause(cause: str | None, evidence: Evidence) -> str:
    """Describe the cause of an incident and its evidence, or why the cause is unknown. Records of earlier versions have less."""
    explanation = apply_mix(Explanation(cause, "", evidence.cause), evidence).text or evidence.cause.words
    return explanation or CAUSES.get(cause or "", NO_CAUSE)


class Figure(NamedTuple):
    """A labelled number. The note says what it is based on."""

    label: str
    value: str
    note: str = ""


def list_figures(rule: str, observation: Observation) -> list[Figure]:
    """Return the numbers behind a rule's finding; empty for a rule that this version does not know."""
    return list(_FIGURE_LISTS[rule](observation)) if rule in _FIGURE_LISTS else []


def _list_spread_figures(observation: Observation) -> Iterator[Figure]:
    yield Figure("Spread before", number(observation.spread_before, 3), f"{number(observation.sessions_before)} sessions")
    yield Figure("Spread after", number(observation.spread_after, 3), f"{number(observation.sessions_after)} sessions")
    yield _build_first_day_figure(observation)
    yield Figure("Evidence", format_odds(observation.log_evidence), f"alarm at {_ALARM_ODDS} to 1")


def _list_evidence_figures(observation: Observation) -> Iterator[Figure]:
    if observation.spread_before is not None:
        yield from _list_spread_figures(observation)
        return
    before = f"{number(observation.scores_before)} scores, {number(observation.sessions_before)} sessions{_format_baseline_start(observation)}"
    yield Figure("Mean before", number(observation.mean_before, 3), before)
    after = f"{number(observation.scores_after)} scores, {number(observation.sessions_after)} sessions"
    yield Figure("Mean after", number(observation.mean_after, 3), after)
    yield _build_change_figure(observation)
    yield _build_first_day_figure(observation)
    yield Figure("Sigma", number(observation.sigma, 3), "spread of one session's mean")
    yield _build_evidence_figure(observation)


def _list_version_figures(observation: Observation) -> Iterator[Figure]:
    if observation.series is not None:
        yield from _list_behaviour_levels(observation, ("of the others", "of the version"))
        yield _build_first_day_figure(observation)
        alarm = number(SUSPECTED_VERSION * observation.series)
        yield Figure("Evidence", format_odds(observation.log_evidence), f"alarm at {alarm} to 1")
        return
    yield Figure("Mean of the version", number(observation.mean_after, 3), f"{number(observation.sessions_after)} sessions")
    yield Figure("Mean of the others", number(observation.mean_before, 3), f"{number(observation.sessions_before)} sessions")
    yield _build_change_figure(observation)
    yield _build_first_day_figure(observation)
    yield Figure("Sigma", number(observation.sigma, 3), "spread of one session's mean")
    yield Figure("Evidence", format_odds(observation.log_evidence), f"alarm at {number(SUSPECTED_VERSION)} to 1")


def _list_run_figures(observation: Observation) -> Iterator[Figure]:
    yield Figure(
        "Mean before",
        number(observation.mean_before, 3),
        f"{number(observation.runs_before)} runs{_format_baseline_start(observation)}",
    )
    yield Figure("Mean after", number(observation.mean_after, 3), f"{number(observation.runs_after)} runs")
    yield _build_change_figure(observation)
    yield _build_first_day_figure(observation)
    yield _build_evidence_figure(observation)


def _list_session_figures(observation: Observation) -> Iterator[Figure]:
    before = f"{number(observation.scores_before)} judged sessions{_format_baseline_start(observation)}"
    yield Figure("Mean before", number(observation.mean_before, 2), before)
    yield Figure("Mean after", number(observation.mean_after, 2), f"{number(observation.scores_after)} judged sessions")
    yield _build_change_figure(observation)
    yield _build_first_day_figure(observation)
    yield _build_evidence_figure(observation)


def _list_behaviour_figures(observation: Observation) -> Iterator[Figure]:
    yield from _list_behaviour_levels(observation, ("before", "after"))
    yield _build_first_day_figure(observation)
    yield _build_evidence_figure(observation)


def _list_behaviour_levels(observation: Observation, labels: tuple[str, str]) -> Iterator[Figure]:
    is_size = observation.having_before is None
    for label, mean, count, having, sessions in (
        (labels[0], observation.mean_before, observation.scores_before, observation.having_before, observation.sessions_before),
        (labels[1], observation.mean_after, observation.scores_after, observation.having_after, observation.sessions_after),
    ):
        note = f"{number(count)} turns" if is_size else f"{number(having)} of {number(count)}"
        since = _format_baseline_start(observation) if label == "before" else ""
        value = NOTHING if mean is None else number(math.expm1(mean), 1) if is_size else share(mean)
        name = f"Typical turn {label}" if is_size else f"Share {label}"
        yield Figure(name, value, f"{note}, {number(sessions)} sessions{since}")


def _build_evidence_figure(observation: Observation) -> Figure:
    """Return the evidence of a rule that examines several series."""
    alarm = number(SUSPECTED * (observation.series or 1))
    return Figure("Evidence", format_odds(observation.log_evidence), f"alarm at {alarm} to 1")


def _list_day_figures(observation: Observation) -> Iterator[Figure]:
    yield Figure("Baseline mean", number(observation.mean, 3), f"{number(observation.baseline_scores)} scores")
    yield Figure("Standard deviation", number(observation.stddev, 3), "of single scores")
    yield Figure("Farthest day", f"{number(observation.deviation, 1)} \u03c3", "off the mean")
    yield Figure(
        "Days in a row", NOTHING if observation.days is None else number(len(observation.days)), f"alarm at {MIN_RUN_DAYS}"
    )


def _list_rate_figures(observation: Observation) -> Iterator[Figure]:
    yield Figure(
        "Rate now", share(observation.rate), f"{number(observation.anomalies)} of {number(observation.exchanges)} exchanges"
    )
    yield Figure("Rate before", share(observation.baseline_rate), f"of {number(observation.baseline_exchanges)} exchanges")
    ratio = f"{observation.ratio:.1f}" if isinstance(observation.ratio, float) else NOTHING
    yield Figure("Times as high", ratio, f"critical at {CRITICAL_RATE:g}")
    if observation.log_evidence is not None:  # earlier versions required twice the baseline's rate
        yield Figure("Evidence", format_odds(observation.log_evidence), f"alarm at {SUSPECTED_RATE:g} to 1")


_FIGURE_LISTS: Mapping[str, Callable[[Observation], Iterator[Figure]]] = {
    "sequential": _list_evidence_figures,
    "consecutive_days": _list_day_figures,
    "rate_ratio": _list_rate_figures,
    "versions": _list_version_figures,
    "runs": _list_run_figures,
    SESSIONS: _list_session_figures,
    BEHAVIOURS: _list_behaviour_figures,
}


def format_odds(log_evidence: float | None) -> str:
    """Format the natural logarithm of evidence as odds against chance; large odds as a power of ten, up to over 10¹²."""
    if log_evidence is None:
        return NOTHING
    if log_evidence > _MAX_LOG_EVIDENCE:
        return "over 10\u00b9\u00b2 to 1"
    if log_evidence > _MAX_PLAIN_LOG_ODDS:
        return f"10{str(math.floor(log_evidence / math.log(10))).translate(_SUPERSCRIPTS)} to 1"
    ratio = math.exp(max(log_evidence, -_MAX_PLAIN_LOG_ODDS))
    rounded_digits = max(0, math.floor(math.log10(ratio)) - 1) if ratio >= 1 else 0
    return f"{number(round(ratio, -rounded_digits))} to 1"


def _build_change_figure(observation: Observation) -> Figure:
    interval = ""
    if observation.change_interval is not None:
        low, high = observation.change_interval
        interval = f"95%: {number(low, 3)} to {number(high, 3)}"
    return Figure("Change", number(observation.change, 3), interval)


def _build_first_day_figure(observation: Observation) -> Figure:
    days = observation.first_day_interval
    interval = "" if days is None else f"95%: {days[0]} to {days[1]}"
    return Figure("First day", NOTHING if observation.first_day is None else f"{observation.first_day}", interval)


def _format_baseline_start(observation: Observation) -> str:
    """Return the period that a change is compared with; empty for evidence of earlier versions."""
    return "" if observation.compared_since is None else f", {observation.compared_since} until the change"


Values = Mapping[str, float | None]
"""A measure by the label of its day or hour, such as 2026-10-01 or 2026-10-01 14:00. None is an unknown value."""
_LabelledValue = tuple[str, str, float]
"""The day of a value, its label, and the value."""
_DAY_LENGTH = len("2026-10-01")
_AFTER_LABELS = "~"
"""Sorts after every label of the day that it is appended to."""
_EVIDENCE_RULES = frozenset({"sequential", "versions", "runs", SESSIONS, BEHAVIOURS, ALSO_CHANGED})
"""Rules that weigh evidence over many days."""
MAX_CACHED_INCIDENTS = 256
"""Number of incidents whose parsed evidence is cached; a page shows at most half of this."""


class IncidentDays(NamedTuple):
    """An incident, and the labels of the days or hours that show it."""

    incident: Incident
    labels: frozenset[str]


def find_incident_days(incident: Incident, values: Values) -> frozenset[str]:
    """Return the labels of the days or hours that show an incident in its leading series.

    A rule's finding must cover the day, and the value must deviate from the expected one in the incident's direction. For rules
    that weigh evidence, it must deviate by one sigma or by half of the change, whichever is smaller. If the evidence has no
    numbers, every covered day shows the incident.
    """
    return _find_labels(_read_entries(incident, incident.tier or incident.type, incident.agent), _sort_values(values))


def find_shown_incidents(name: str, incidents: Sequence[Incident], values: Values) -> list[IncidentDays]:
    """Return the incidents of a tier, or of a type without a tier, that at least one of the days shows.

    Dismissed incidents and suspected ones that have disappeared are left out.
    """
    sorted_values = _sort_values(values)
    shown = []
    for incident in incidents:
        if incident.status == DISMISSED or incident.resolution == VANISHED:
            continue
        labels = _find_labels(_read_entries(incident, name), sorted_values)
        if labels:
            shown.append(IncidentDays(incident, labels))
    return shown


def merge_labels(shown: Iterable[IncidentDays]) -> frozenset[str]:
    """Return the labels of the days or hours that show any of the incidents."""
    return frozenset(label for incident in shown for label in incident.labels)


def find_level_before(tier: str, incidents: Sequence[Incident]) -> tuple[date, float, float] | None:
    """Return the first day of a tier's newest live change, and the mean before it with its sigma; None without a live change."""
    live = [incident for incident in incidents if is_live(incident)]
    for incident in sorted(live, key=lambda incident: incident.detected_at, reverse=True):
        for moved in _read_entries(incident, tier):
            for rule, observation in [(moved.rule, moved.observation), *moved.rules.items()]:
                expected = expected_range(rule, observation)
                if expected is not None:
                    return observation.since, *expected
    return None


def expected_range(rule: str, observation: Observation) -> tuple[float, float] | None:
    """Return the expected value and its sigma, which is 0 for a rule without one; None if the evidence has neither."""
    mean: float | None = None
    sigma: float | None = None
    if rule in _EVIDENCE_RULES:
        mean, sigma = observation.mean_before, observation.sigma
    elif rule == "consecutive_days":
        mean, sigma = observation.mean, observation.stddev
    elif rule == "rate_ratio":
        mean = observation.baseline_rate
    return None if mean is None else (mean, sigma or 0.0)


def _sort_values(values: Values) -> list[_LabelledValue]:
    """Return the known values in the order of their labels."""
    return sorted((label[:_DAY_LENGTH], label, value) for label, value in values.items() if value is not None)


def _find_labels(entries: Iterable[ChangedSeries], values: Sequence[_LabelledValue]) -> frozenset[str]:
    return frozenset(
        label
        for moved in entries
        for rule, observation in moved.rules.items()
        for label in _find_labels_of_rule(moved.key.direction, rule, observation, values)
    )


def _find_labels_of_rule(
    direction: str | None, rule: str, observation: Observation, values: Sequence[_LabelledValue]
) -> Iterator[str]:
    """Yield the labels of the values that a rule's finding covers and that show the incident."""
    start = bisect_left(values, (f"{observation.since}",))
    end = bisect_left(values, (f"{observation.until}{_AFTER_LABELS}",))
    covered = values[start:end]
    expected = expected_range(rule, observation)
    if expected is None:
        yield from (label for _, label, _ in covered)
        return
    mean, sigma = expected
    # With many scores, a change can be smaller than one sigma.
    min_deviation = min(sigma, abs(observation.change or 0.0) / 2) if rule in _EVIDENCE_RULES else 0.0
    flagged_days = {f"{day.day}" for day in observation.days or ()} if rule == "consecutive_days" else None
    for day, label, value in covered:
        deviation = {UP: value - mean, DOWN: mean - value}.get(direction or "", abs(value - mean))
        if deviation > min_deviation and (flagged_days is None or day in flagged_days):
            yield label


def _read_entries(incident: Incident, name: str, agent: str | None = None) -> list[ChangedSeries]:
    """Return an incident's changed series of a tier, or of a type without a tier: for an agent's runs, or for the whole project."""
    return [
        moved
        for moved in _read_changed_means(incident)
        if moved.key.agent == agent and (moved.key.tier or moved.key.type) == name
    ]


@functools.lru_cache(maxsize=MAX_CACHED_INCIDENTS)
def _read_changed_means(incident: Incident) -> tuple[ChangedSeries, ...]:
    """Return the series of an incident whose mean changed. The cache serves the charts and tiers of one page."""
    return tuple(moved for moved in evidence_of(incident).moved if moved.kind != SPREAD)


_TIME_BEFORE = timedelta(days=28)
"""Time shown before the change."""
_TIME_AFTER = timedelta(days=21)
"""Time shown after the end of a decided incident."""
_MAX_CHART_DAYS = 120
_DAY = timedelta(days=1)
_NO_MARKS_NOTE = Markup('<p class="soft">There was no deployment and no change of policy or judge in this period.</p>')
_WEIGHTED_RULES = frozenset({"sequential", "versions", SESSIONS})
"""The rules whose means weight each exchange or session by 1 / its sampling probability."""


_COUNTED = {RUNS: "Runs", SESSIONS: "Judged sessions", BEHAVIOURS: "Turns or calls"}
"""What the days of a rule count that is not about exchanges."""


@dataclass(frozen=True, slots=True)
class DayValue:
    """The value of a day, the number of records behind it, and half the width of its interval."""

    value: float | None
    count: int | None = None
    half: float | None = None


def draw_incident_chart(cursor: duckdb.DuckDBPyConnection, incident: Incident, now: datetime) -> Markup | None:
    """Return the chart of an incident's measure by day; None if its evidence has no days."""
    observation = evidence_of(incident).observation_of(incident.rule)
    if observation is None:
        return None
    last_midnight = datetime.combine(observation.until, datetime.min.time(), UTC)
    end = now if is_live(incident) else min(now, last_midnight + _TIME_AFTER)
    day_count = min(max((end.date() - observation.since + _TIME_BEFORE).days + 1, 1), _MAX_CHART_DAYS)
    values = _read_values(cursor, {"project": incident.project, "as_of": end, "days": day_count}, incident)
    days = _list_days(min(values), max(values)) if values else []
    marks = _read_marks(cursor, incident, days)
    drawing = line(
        _build_chart(incident, observation, marks),
        [_build_point(incident.project, day, _unscale(incident, values.get(day))) for day in days],
        band=_build_band(incident, observation),
        marked=find_incident_days(incident, {f"{day}": row.value for day, row in values.items()}),
    )
    return drawing if marks or not days else drawing + _NO_MARKS_NOTE


def _unscale(incident: Incident, value: DayValue | None) -> DayValue | None:
    """Return the value for people: a size instead of its logarithm."""
    if value is None or value.value is None or not is_size(incident.tier):
        return value
    return replace(value, value=math.expm1(value.value))


def _list_days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _read_values(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], incident: Incident) -> dict[date, DayValue]:
    if incident.rule == RUNS:
        run_params = {**params, "agent": incident.agent or "", "series": incident.tier}
        return {row["day"]: DayValue(row["mean"], row["runs"]) for row in query_rows(cursor, "run_days", run_params)}
    if incident.rule == SESSIONS:
        score_params = {**params, "series": (incident.tier or "").removeprefix(SESSION)}
        rows = query_rows(cursor, "session_score_days", score_params)
        return {row["day"]: DayValue(row["mean"], row["sessions"], row["half"]) for row in rows}
    if _is_behaviour(incident):
        return _read_behaviour(cursor, params, incident)
    return _read_anomaly_rates(cursor, params) if incident.tier is None else _read_averages(cursor, params, incident)


def _read_behaviour(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], incident: Incident) -> dict[date, DayValue]:
    """Return the daily means of a series of behaviour; those of a size are logarithms."""
    end = params["as_of"]
    lead = evidence_of(incident).lead_series(incident).key
    version = (lead.slice or "").partition(" ")[2]
    since = datetime.combine(end.date() - (params["days"] - 1) * _DAY, datetime.min.time(), UTC)
    values = {
        "projects": [params["project"]],
        "since": since,
        "until": end,
        "by_version": lead.slice is not None,
        "hours_since": None,
    }
    rows = query_rows(cursor, "behaviour_days", values)
    series = (incident.tier or "").removeprefix(BEHAVIOUR)
    return {
        row["day"]: DayValue(row["total"] / row["weight"], row["weight"])
        for row in rows
        if (row["agent"], row["version"], row["series"]) == (incident.agent or "", version, series)
    }


def _build_point(project: str, day: date, value: DayValue | None) -> Point:
    """Return the point of a day, with a link to its hours."""
    midnight = datetime.combine(day, datetime.min.time(), UTC)
    link = Links(Window("24h", midnight + _DAY, is_pinned=True).params).project(project)
    row = value or DayValue(None)
    return Point(f"{day}", row.value, f"{day:%m-%d}", at=midnight, count=row.count, half=row.half, link=link)


def _read_marks(cursor: duckdb.DuckDBPyConnection, incident: Incident, days: list[date]) -> list[Mark]:
    """Return the marks of the days, including the incident's first day if the judge caused it."""
    if not days:
        return []
    start = datetime.combine(days[0], datetime.min.time(), UTC)
    end = datetime.combine(days[-1] + _DAY, datetime.min.time(), UTC)
    marks = [*marks_within(cursor, incident.project, start, end, _DAY), *find_judge_changes([incident], start, end)]
    # Scored exchanges already show a change of the policy.
    if incident.rule == RUNS and not any(mark.kind == "policy" for mark in marks):
        marks += find_run_policy_changes(cursor, incident.project, incident.agent or "", start, end)
    return marks


def _build_chart(incident: Incident, observation: Observation, marks: Sequence[Mark]) -> Chart:
    measure = "Anomalies" if incident.tier is None else name_series(incident.tier)
    kind = "share of exchanges with an anomaly" if incident.tier is None else f"{_name_column(incident).lower()} by day"
    counted = "Exchanges" if incident.tier is None else "Scores"
    return Chart(
        key="days",
        title=f"{measure} by day",
        words=f"{measure}, {kind}. Days that show the change are marked. It began on {observation.since} and was last seen on {observation.until}.",
        column=_name_column(incident),
        form=share if incident.tier is None or _is_share(incident) else None,
        limits=(0.0, None) if is_size(incident.tier) else bounds_of(incident.tier),
        marked="shows the change",
        counted=_COUNTED.get(BEHAVIOURS if _is_behaviour(incident) else incident.rule, counted),
        marks=marks,
        step=_DAY,
    )


def _is_behaviour(incident: Incident) -> bool:
    return (incident.tier or "").startswith(BEHAVIOUR)


def _name_column(incident: Incident) -> str:
    """Name the measure. If exchanges are sampled at different rates, the weighted mean differs from the mean of the sample."""
    if incident.tier is None or _is_share(incident):
        return "Share"
    if incident.tier in ("tier1", TRUST):
        return "Mean"
    if _is_behaviour(incident):
        return "Typical turn"
    return "Weighted mean" if incident.rule in _WEIGHTED_RULES else "Mean as sampled"


def _is_share(incident: Incident) -> bool:
    """Return whether the incident is about a share of runs, turns or calls."""
    return (incident.rule == RUNS and incident.tier != TRUST) or (_is_behaviour(incident) and not is_size(incident.tier))


def _read_averages(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], incident: Incident) -> dict[date, DayValue]:
    column = "weighted_mean" if incident.rule in _WEIGHTED_RULES else "mean"
    rows = query_days(cursor, "daily_averages", {**params, "agent": incident.agent})
    return {row["day"]: DayValue(row[column], row["count"], row["half"]) for row in rows if row["tier"] == incident.tier}


def _read_anomaly_rates(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any]) -> dict[date, DayValue]:
    return {
        row["day"]: DayValue(row["anomaly_count"] / row["exchange_count"], row["exchange_count"])
        for row in query_days(cursor, "trends", params)
        if row["exchange_count"]
    }


def _build_band(incident: Incident, observation: Observation) -> Band | None:
    """Return the expected range."""
    expected = expected_range(incident.rule, observation)
    if expected is None or not is_size(incident.tier):
        return None if expected is None else Band(*expected)
    mean, sigma = expected
    return Band(math.expm1(mean), math.expm1(mean + sigma) - math.expm1(mean))
