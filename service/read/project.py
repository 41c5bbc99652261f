"""A project: its health, its recent figures compared with earlier ones, its largest change, and its newest check for drift.

The rules of drift find only changes. A judge that never answered, unsafe runs, and a permanently high anomaly rate are not changes, so
the health includes them separately. Without a check, or with too little data, the health is unknown: that there are no incidents is
good news only if the project was checked over a full baseline.

The change of a project is one of these:

1. With a live confirmed incident: the change of the leading series of the worst incident since its first day, with the levels in its
   evidence. If all of the last days come after the first day, their level is added.
2. Otherwise: the change of Tier 2, or of Tier 1 without a judge, from the days before to the last days. It may be chance; a change
   beyond chance would be an incident.
3. Daily levels cover four weeks up to the last day. Series of runs have none.

Projects are sorted by health, worst first. Among projects with an incident, those whose worst incident began within the last days come
first, because it may not have been noticed yet; then those with more exchanges and unsafe runs in these days. An agent with two runs
therefore does not rank above one with 40% of the traffic, nor last month's change above yesterday's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from analytics.queries import query_rows
from analytics.sums.daily import query_days
from audit.drift.anomaly_rate import MIN_ANOMALIES
from audit.drift.watched_series import DOWN, NOTICE, SPIKE, TIERS, UP, Key, bounds_of, is_share, name_series
from audit.policy import Policy, ProjectSettings, Sampling
from schemas.lazy import duckdb
from service.setup.judge_setup import LIVE, NONE
from service.text.answers import Answer, Moment, NextCursor, Share
from service.text.formats import grouped, grouped_count
from service.text.window import LENGTHS, RECENT, recent_window
from streams.watch.lifecycle import is_recovered

if TYPE_CHECKING:
    from audit.policy import Policy

Health = Literal["critical", "warning", "unknown", "ok", "empty"]
Reason = Literal["open_incidents", "unscored", "unsafe_runs", "anomalies", "unjudged", "too_few", "unchecked"]
CheckState = Literal["off", "nothing", "never", "behind", "learning", "quiet", "found"]
"""The result of checking a project.

off: the policy turns auditing off; nothing: there are no scores; never: not checked yet; behind: exchanges are newer than the check;
learning: the history is shorter than a full baseline; quiet: nothing was found; found: there are findings.
"""
Row = Mapping[str, Any]
RECENT_DAYS = LENGTHS[RECENT].days
"""Number of days, up to today, that are a project's last days."""
LEVEL_DAYS = 28
"""Number of daily levels."""
UNSCORED = 0.1
"""The share of unscored exchanges in the last days from which on the health is a warning."""
ANOMALOUS = 0.05
"""The share of anomalous exchanges in the last days from which on the health is a warning."""
ENOUGH = math.ceil(1 / ANOMALOUS)
"""Exchanges of the last days, or runs, needed to call a project healthy. With fewer, a single anomaly would be too large a share."""
MISSING_SHARE = 1 / 3
"""The share of unscored exchanges among those due from which on a comparison is doubtful."""
WORST: Mapping[Health, int] = {"critical": 4, "warning": 3, "unknown": 2, "ok": 1, "empty": 0}
"""Sort key of each health; the largest comes first."""
_CHECK_TOLERANCE = timedelta(days=1)
"""A check is behind if the newest exchange is more than this after its day. Just after midnight, it is not."""
_UNCHECKED_STATES = frozenset({"off", "never", "behind"})
_DAILY_SERIES = frozenset({*TIERS, SPIKE})
"""Series that have daily levels."""


class Before(Answer, frozen=True):
    """The same number of days before the last days, for comparison."""

    scores: int
    anomalies: int
    anomaly_rate: Share | None
    scored: Annotated[int, Meta(description="Exchanges that have every tier that was to be scored.")]
    unscored: int
    unscored_rate: Share | None
    cost_usd: float | None
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None

    def level(self, series: str) -> float | None:
        """Return the level of a tier or of the anomaly rate; None for any other series, and without scores."""
        level: float | None = self.anomaly_rate if series == SPIKE else getattr(self, f"avg_{series}", None)
        return level


class Recent(Before, frozen=True):
    """The last days, up to today or `until`. Means weight judged scores by the inverse of their sampling probability."""

    days: int
    until: Annotated[date, Meta(description="The last of these UTC days.")]
    last_until: Annotated[
        date | None,
        Meta(
            description="If these days have no score: the newest earlier UTC day with one, to use as `until`; otherwise null."
        ),
    ]
    unscored: Annotated[int, Meta(description="Exchanges that the judge failed to score.")]
    unscored_rate: Annotated[Share | None, Meta(description="Share of the exchanges that the judge should have scored.")]
    unsafe_runs: Annotated[int, Meta(description="Runs that ended in these days and are unsafe for production.")]
    runs: Annotated[int, Meta(description="All runs with runtime events that ended in these days.")]
    cost_usd: Annotated[float | None, Meta(description="The known costs of judging these exchanges; null without a score.")]


class Change(Answer, frozen=True):
    """The largest change: the leading series of the worst incident, or Tier 2 (Tier 1 without a judge) of the last days."""

    series: Annotated[str, Meta(examples=["tier2", "anomaly_spike", "unsafe"])]
    name: str
    before: Annotated[float, Meta(description="Level before the incident's first day, or of the days before the last ones.")]
    after: float
    since: Annotated[
        date | None,
        Meta(description="The incident's first day; null without an incident, for which no rule confirms the difference."),
    ] = None
    incident: Annotated[str | None, Meta(description="Id of the incident; null without one.")] = None
    agent: Annotated[str | None, Meta(description="Agent of a series of runs.")] = None
    now: Annotated[
        float | None,
        Meta(description="Level of the last days if the incident began before them; otherwise null, also for series of runs."),
    ] = None
    levels: Annotated[
        list[float | None],
        Meta(
            description=f"Levels of the last {LEVEL_DAYS} days, the newest last; null for a day without one. Empty for series of runs."
        ),
    ] = msgspec.field(default_factory=list)

    is_notice: Annotated[bool, Meta(description="Whether only the judge changed, so that the agent is as before.")] = False

    @property
    def is_share(self) -> bool:
        """Whether the levels are shares of exchanges or runs."""
        return is_share(self.series)

    @property
    def is_back(self) -> bool:
        """Whether the last days are back to normal by the measure that resolves incidents, before a check has noticed it."""
        return self.incident is not None and self.now is not None and is_recovered(self.now, self.before, self.after)

    @property
    def worse(self) -> float:
        """The size of the change for the worse, as a fraction of the scale; negative for an improvement."""
        key = Key(SPIKE if self.series == SPIKE else "drift", self.series, UP if self.after > self.before else DOWN)
        low, high = bounds_of(self.series)
        size = abs(self.after - self.before) / (high - low)
        return size if key.is_worse else -size


class ProjectCheck(Answer, frozen=True):
    """The newest check for drift and anomaly spikes. Without one, the absence of incidents means nothing."""

    state: Annotated[
        CheckState,
        Meta(
            description="off: the policy turns auditing off; nothing: no scores; never: not checked yet; behind: newer exchanges "
            "exist; learning: the history is shorter than a full baseline; quiet: nothing found; found: there are findings."
        ),
    ]
    checked_at: Annotated[Moment | None, Meta(description="Time of the check; null before the first one.")]
    days: Annotated[int | None, Meta(description="Days of comparable scores, at most baselineDays.")]
    baseline_days: Annotated[int | None, Meta(description="Days of a full baseline.")]
    findings: Annotated[int | None, Meta(description="Number of findings of the rules.")]
    notices: Annotated[
        list[str],
        Meta(
            description="What changed in the traffic or in tools and says nothing about quality, in one sentence each: the mix of agents, new agents, descriptions of tools."
        ),
    ] = msgspec.field(default_factory=list)
    not_compared: Annotated[
        list[str],
        Meta(
            description="Traffic that is not compared, since when and why, in one sentence each: a new judge, other judges, too few days, "
            "agents beyond the limit, agents that stopped, missing scores."
        ),
    ] = msgspec.field(default_factory=list)

    @property
    def remarks(self) -> list[str]:
        """The notices, and what is not compared."""
        return [*self.notices, *self.not_compared]


class Project(Answer, frozen=True):
    """A project and its health."""

    project: str
    health: Annotated[
        Health,
        Meta(
            description="critical: it has a critical incident; warning: another of the reasons; unknown: never judged, too few exchanges and "
            "runs in the last days, or not checked; empty: no exchanges yet."
        ),
    ]
    reasons: Annotated[
        list[Reason],
        Meta(
            description="Why it is not healthy: its incidents; in the last days a tenth or more of what the judge should have scored is "
            "unscored, a run is unsafe for production, or one exchange in twenty has an anomaly. unjudged: no judge has ever scored an "
            "exchange. Without any of these problems, too_few: fewer than "
            f"{ENOUGH} exchanges and fewer than {ENOUGH} runs in the last days; unchecked: no check for drift since the newest exchange."
        ),
    ]
    enabled: Annotated[bool, Meta(description="Whether the policy has auditing on.")]
    exchanges: int
    scores: int
    scored: Annotated[int, Meta(description="Scores that have every requested tier.")]
    anomalies: int
    simulated: Annotated[int, Meta(description="Scores by a simulated judge.")]
    open_incidents: Annotated[int, Meta(description="Confirmed incidents that are open or acknowledged.")]
    critical_incidents: int
    acknowledged_incidents: Annotated[int, Meta(description="Acknowledged ones, which have an owner.")]
    notice_incidents: Annotated[
        int, Meta(description="Live notices, in addition: the judge changed and no agent did; they do not affect the health.")
    ]
    suspected_incidents: Annotated[int, Meta(description="Suspected ones, in addition; they do not affect the health.")]
    runs: int
    runs_with_evidence: Annotated[int, Meta(description="Runs with runtime events.")]
    last_exchange_at: Moment | None
    last_run_at: Annotated[Moment | None, Meta(description="When the newest run ended.")]
    last_score_day: Annotated[date | None, Meta(description="The newest UTC day with a score.")]
    recent: Recent
    before: Before
    check: ProjectCheck
    change: Annotated[Change | None, Meta(description="Null without data about the days before.")] = None

    @property
    def newest(self) -> datetime | None:
        """The time of the newest exchange or run; None without any.

        If retention has deleted the exchanges, it is the start of the newest day with a score.
        """
        day = self.last_score_day
        last_scored = None if day is None else datetime.combine(day, time(), UTC)
        times = (self.last_exchange_at or last_scored, self.last_run_at)
        return max((moment for moment in times if moment is not None), default=None)


class Projects(Answer, frozen=True):
    """Projects by name."""

    projects: list[Project]
    count: int
    next_cursor: NextCursor


_TOTALS = (
    *("exchanges", "scores", "scored", "anomalies", "simulated", "runs", "runs_with_evidence"),
    *("open_incidents", "critical_incidents", "acknowledged_incidents", "notice_incidents", "suspected_incidents"),
)
_COUNTS = ("scores", "anomalies", "scored", "unscored")
_EMPTY: Row = dict.fromkeys(
    (*_TOTALS, *(f"{days}_{name}" for days in ("recent", "before") for name in _COUNTS), "recent_unsafe_runs", "recent_runs"), 0
)
"""Counts of a project without records."""


def read_projects(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    now: datetime,
    *,
    project: str | None = None,
    until: date | None = None,
    connected: Collection[str] = (),
) -> list[Project]:
    """Return all projects with records and the `connected` ones, or only one project, in alphabetical order and without changes.

    `until` is the last day of the figures, today by default.
    """
    recent = recent_window(now, until)
    values = {"project": project, "as_of": now, "from": recent.start, "to": recent.end}
    rows = {row["project"]: row for row in query_days(cursor, "projects", values)}
    names = sorted({*rows, *connected})
    return [build_project(name, rows.get(name, {}), policy, recent.last) for name in names]


def read_project(cursor: duckdb.DuckDBPyConnection, policy: Policy, now: datetime, project: str) -> Project:
    """Return a project; an empty one if it has no records."""
    return read_projects(cursor, policy, now, project=project, connected=[project])[0]


def build_project(name: str, row: Row, policy: Policy, until: date) -> Project:
    """Return a project from its row of the query `projects`. A project without records has an empty row."""
    row = {**_EMPTY, **row}
    enabled = policy.for_project(name).settings.enabled
    check = ProjectCheck(
        state=_check_state(row, enabled=enabled),
        checked_at=row.get("checked_at"),
        days=row.get("check_days"),
        baseline_days=row.get("baseline_days"),
        findings=row.get("check_findings"),
    )
    newest = row.get("last_score_day")
    recent = Recent(
        **_build_figures(row, "recent"),
        days=RECENT_DAYS,
        until=until,
        last_until=newest if newest is not None and not row["recent_scores"] and newest < until else None,
        unsafe_runs=row["recent_unsafe_runs"],
        runs=row["recent_runs"],
    )
    reasons = _find_reasons(row, recent, check)
    return Project(
        project=name,
        health=_derive_health(row, reasons),
        reasons=reasons,
        enabled=enabled,
        **{total: row[total] for total in _TOTALS},
        last_exchange_at=row.get("last_exchange_at"),
        last_run_at=row.get("last_run_at"),
        last_score_day=newest,
        recent=recent,
        before=Before(**_build_figures(row, "before")),
        check=check,
    )


def _build_figures(row: Row, days: str) -> dict[str, Any]:
    """Return the figures of the last days, or of the days before."""
    counts = {name: row[f"{days}_{name}"] for name in _COUNTS}
    due = counts["scored"] + counts["unscored"]
    return {
        **counts,
        "anomaly_rate": counts["anomalies"] / counts["scores"] if counts["scores"] else None,
        "unscored_rate": counts["unscored"] / due if due else None,
        "cost_usd": row.get(f"{days}_cost_usd"),
        **{f"avg_{tier}": row.get(f"{days}_{tier}") for tier in TIERS},
    }


def _check_state(row: Row, *, enabled: bool) -> CheckState:
    checked_at = row.get("checked_at")
    newest = row.get("last_score_day")
    states: tuple[tuple[CheckState, bool], ...] = (
        ("off", not enabled),
        ("nothing", checked_at is None and not row["scores"]),
        ("never", checked_at is None),
        ("behind", checked_at is not None and newest is not None and newest - checked_at.date() > _CHECK_TOLERANCE),
        ("found", bool(row.get("check_findings"))),
        ("learning", checked_at is not None and row["check_days"] < row["baseline_days"]),
    )
    return next((state for state, holds in states if holds), "quiet")


def _find_reasons(row: Row, recent: Recent, check: ProjectCheck) -> list[Reason]:
    """Return the reasons why a project is not healthy, most serious first."""
    problems: dict[Reason, bool] = {
        "open_incidents": bool(row["open_incidents"]),
        "unscored": bool(row["scored"]) and (recent.unscored_rate or 0) >= UNSCORED,
        "unsafe_runs": bool(recent.unsafe_runs),
        "anomalies": (recent.anomaly_rate or 0) >= ANOMALOUS and recent.anomalies >= MIN_ANOMALIES,
    }
    # What a project without a judge needs is said beside its problems, too: nothing else about missing scores is true of it.
    unjudged: list[Reason] = ["unjudged"] if recent.unscored and not row["scored"] else []
    doubts: dict[Reason, bool] = {
        "too_few": recent.scores < ENOUGH and row["runs_with_evidence"] < ENOUGH,
        "unchecked": check.state in _UNCHECKED_STATES,
    }
    reasons: list[Reason] = [reason for reason, holds in problems.items() if holds]
    if reasons or not _has_data(row):
        return reasons + unjudged
    return unjudged + [reason for reason, holds in doubts.items() if holds]


def _derive_health(row: Row, reasons: Sequence[Reason]) -> Health:
    if row["critical_incidents"]:
        return "critical"
    if reasons:
        return "unknown" if set(reasons) <= {"unjudged", "too_few", "unchecked"} else "warning"
    return "ok" if _has_data(row) else "empty"


def _has_data(row: Row) -> bool:
    return bool(row["exchanges"] or row["scores"] or row["runs"])


def describe_check(project: Project) -> str:
    """Describe the newest check of a project in a sentence or two."""
    return _CHECK_DESCRIPTIONS[project.check.state](project)


def manual_check_date(project: Project) -> date | None:
    """Return the date to check a project by hand, the day after its newest score; None if it is checked or has no scores."""
    newest = project.last_score_day
    if project.check.state not in {"never", "behind"} or newest is None:
        return None
    return newest + timedelta(days=1)


def describe_unchecked(projects: Sequence[Project]) -> str:
    """Describe the checks of projects without an incident: the number that were checked, and the state of each other one."""
    if len(projects) == 1:
        return describe_check(projects[0])
    others = [project for project in projects if project.check.state not in {"quiet", "found"}]
    sentences = [f"{project.project}: {describe_check(project)}" for project in others]
    return " ".join([f"{grouped_count(len(projects) - len(others), 'project')} checked.", *sentences])


def with_remarks(cursor: duckdb.DuckDBPyConnection, projects: Sequence[Project], only: str | None = None) -> list[Project]:
    """Return projects with the remarks of their newest check: changes of the traffic, what it could not compare, and missing scores.

    `only` limits the query to one project.
    """
    notices: dict[str, list[Row]] = defaultdict(list)
    for notice in query_rows(cursor, "notices", {"project": only}):
        notices[notice["project"]].append(notice)
    sentences = {project.project: _describe_missing(project) for project in projects}
    for spot in query_rows(cursor, "blind_spots", {"project": only}):
        if spot["project"] in sentences:
            sentences[spot["project"]].append(describe_blind_spot(spot))
    return [
        replace(
            project,
            check=replace(
                project.check,
                notices=describe_notices(notices[project.project]),
                not_compared=sentences[project.project],
            ),
        )
        for project in projects
    ]


def describe_notices(notices: Sequence[Row]) -> list[str]:
    """Describe the changes of a project's traffic and tools, with those of the mix in one sentence."""
    shares = [notice for notice in notices if notice["reason"] == "mix_changed"]
    descriptions = [notice for notice in notices if notice["reason"] == "description_changed"]
    sentences = []
    if shares:
        moved = ", ".join(
            f"{notice['subject'] or 'no agent'} {notice['before']:.0%} → {notice['after']:.0%}" for notice in shares
        )
        changed = shares[0]["count"]
        levels = f"{grouped_count(changed, 'agent')} changed too, see the incidents" if changed else "every agent is as before"
        sentences.append(f"The mix of agents changed on {_format_since(shares[0])}: {moved}; {levels}.")
    return (
        sentences
        + [
            f"{notice['subject'] or 'Traffic without an agent'} is new since {_format_since(notice)}: {TIERS[notice['tier']]} is "
            f"{notice['after']:.2f} over {grouped_count(notice['count'], 'session')}, and {notice['before']:.2f} for the other agents on "
            "the same days."
            for notice in notices
            if notice["reason"] == "new_agent"
        ]
        + [_NOTICES[notice["reason"]](notice) for notice in notices if notice["reason"] in _NOTICES]
        + ([_describe_descriptions(descriptions)] if descriptions else [])
    )


def _describe_descriptions(notices: Sequence[Row]) -> str:
    changes = "; ".join(
        f"{notice['subject']} since {format_minute(notice['since'])}, in {grouped_count(round(notice['after']), 'session')} "
        f"({round(notice['before']):,} before)"
        for notice in notices
    )
    return (
        f"Other descriptions of tools: {changes}. A model reads what the server of a tool writes there. Unless you changed it, take the tool "
        "away from the agent, compare both descriptions, and pin the version of its server."
    )


_NOTICES: Mapping[str, Callable[[Row], str]] = {
    "traffic_fell": lambda notice: (
        f"Sessions per day fell to {notice['after']:.0f} from {notice['before']:.0f} on {_format_since(notice)}: less of the agents is seen."
    ),
    "unscored_rose": lambda notice: (
        f"{notice['after']:.0%} of the exchanges that were due to be judged have no score since {_format_since(notice)}, "
        f"{notice['before']:.0%} before."
    ),
}


def describe_blind_spot(spot: Row) -> str:
    """Describe a blind spot."""
    return _BLIND_SPOT_DESCRIPTIONS[spot["reason"]](spot)


def format_minute(moment: datetime | None) -> str:
    """Format a time in UTC to the minute; empty for None."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _describe_missing(project: Project) -> list[str]:
    recent = project.recent
    if (recent.unscored_rate or 0) < MISSING_SHARE or not {"unscored", "unjudged"}.isdisjoint(project.reasons):
        return []  # only a few, or already a reason in the project's health
    due = recent.scored + recent.unscored
    exchanges = (
        f"{grouped(recent.unscored)} of {grouped(due)} exchanges of the last {RECENT_DAYS} days that were due to be judged"
    )
    return [f"{exchanges} have no score, so comparisons may not represent them."]


def _format_since(spot: Row) -> str:
    return f"{spot['since'].astimezone(UTC):%Y-%m-%d}"


def _describe_new_judge(spot: Row) -> str:
    since = _format_since(spot)
    begin = f"{spot['since'].astimezone(UTC) + timedelta(days=spot['of']):%Y-%m-%d}"
    comparisons = (
        f"Comparisons begin on {begin} or later, after {spot['of']} days with its scores; it has {spot['count']}."
        if spot["count"] <= spot["of"]
        else "Later days are compared with each other."
    )
    return (
        f"{spot['subject']} is the judge since {since}. Judged tiers are not compared with the days before, because no three days have "
        f"scores of both judges, and too few anchors were judged by both. {comparisons} Tier 1, runs and behavior are still compared."
    )


_BLIND_SPOT_DESCRIPTIONS: Mapping[str, Callable[[Row], str]] = {
    "new_judge": _describe_new_judge,
    "other_judges": lambda spot: (
        f"{grouped(spot['count'])} of {grouped(spot['of'])} judged exchanges of the last 7 days are not compared, because another judge "
        f"scored them: {spot['subject']}. No three days have scores of both judges, and too few anchors were judged by both."
    ),
    "few_days": lambda spot: (
        f"Not compared yet: there are scores on only {grouped_count(spot['count'], 'day')}, and a change needs {spot['of']} days before it."
    ),
    "agents_beyond_limit": lambda spot: (
        f"Runs of {spot['count']} of {spot['of']} agents are compared only together, because they have the fewest runs"
        + (f": {spot['subject']}." if spot["subject"] else ".")
    ),
    "agent_stopped": lambda spot: (
        f"{spot['subject']} is not compared since {_format_since(spot)}: it has had no exchanges since then; it had some on "
        f"{spot['count']} of the {spot['of']} days before."
    ),
}
"""Descriptions of blind spots, by reason."""
_CHECK_DESCRIPTIONS: Mapping[CheckState, Callable[[Project], str]] = {
    "off": lambda _: "Not checked: the policy turns auditing off.",
    "nothing": lambda _: "Not checked yet: there are no scores to check.",
    "never": lambda _: "Not checked yet.",
    "behind": lambda project: (
        f"Not checked since {format_minute(project.check.checked_at)}; the newest exchange is from {project.last_score_day}."
    ),
    "learning": lambda project: (
        f"No full baseline yet ({project.check.days} of {project.check.baseline_days} days). "
        f"Checked {format_minute(project.check.checked_at)}: nothing found so far."
    ),
    "quiet": lambda project: (
        f"Checked {format_minute(project.check.checked_at)}: nothing {'new' if project.open_incidents else 'found'}."
    ),
    "found": lambda project: (
        f"Checked {format_minute(project.check.checked_at)}: {grouped_count(project.check.findings or 0, 'finding')}."
    ),
}


def worst_incidents(cursor: duckdb.DuckDBPyConnection, project: str | None) -> dict[str, Row]:
    """Return the worst incident of each project, or of one project, worst first."""
    return {row["project"]: row for row in query_rows(cursor, "worst_incidents", {"project": project})}


def with_changes(projects: Iterable[Project], worst: Mapping[str, Row]) -> list[Project]:
    """Return projects with their changes, which have no daily levels yet. `worst` comes from `worst_incidents`."""
    return [replace(project, change=build_change(project, worst.get(project.project))) for project in projects]


def with_levels(cursor: duckdb.DuckDBPyConnection, projects: Sequence[Project], only: str | None) -> list[Project]:
    """Return projects with daily levels in their changes. `only` limits the query to one project."""
    series_by_project = [
        (project.project, project.change.series)
        for project in projects
        if project.change and project.change.series in _DAILY_SERIES
    ]
    if not series_by_project:
        return list(projects)
    last = min(project.recent.until for project in projects)
    values = {
        "project": only,
        "projects": [name for name, _ in series_by_project],
        "series": [series for _, series in series_by_project],
        "since": datetime.combine(last - timedelta(days=LEVEL_DAYS - 1), time(), UTC),
        "as_of": datetime.combine(last + timedelta(days=1), time(), UTC),
        "days": LEVEL_DAYS,
    }
    levels = {(row["project"], row["series"]): _read_levels(row) for row in query_rows(cursor, "project_levels", values)}
    return [
        project
        if project.change is None
        else replace(project, change=replace(project.change, levels=levels.get((project.project, project.change.series), [])))
        for project in projects
    ]


def build_change(project: Project, incident: Row | None) -> Change | None:
    """Return the change of a project, from its worst incident if it has one; None without data."""
    change = None if incident is None else _build_incident_change(project, incident)
    return _build_recent_change(project) if change is None else change


def _build_incident_change(project: Project, incident: Row) -> Change | None:
    series = incident["tier"] or incident["type"]
    before, after = incident["level_before"], incident["level_after"]
    if before is None or after is None:
        # Evidence of earlier versions has no levels.
        before, after = project.before.level(series), project.recent.level(series)
    if before is None or after is None:
        return None
    since = incident["since"]
    is_before_last_days = since is not None and (project.recent.until - since).days >= RECENT_DAYS
    return Change(
        series=series,
        name=incident["name"] or name_series(series),
        before=before,
        after=after,
        since=since,
        incident=incident["incident_id"],
        agent=incident["agent"],
        is_notice=incident["severity"] == NOTICE,
        now=project.recent.level(series) if is_before_last_days and series in _DAILY_SERIES else None,
    )


def _build_recent_change(project: Project) -> Change | None:
    series = next((tier for tier in ("tier2", "tier1") if project.recent.level(tier) is not None), None)
    if series is None:
        return None
    before, after = project.before.level(series), project.recent.level(series)
    return (
        None if before is None or after is None else Change(series=series, name=name_series(series), before=before, after=after)
    )


def _read_levels(row: Row) -> list[float | None]:
    levels: list[float | None] = [None] * LEVEL_DAYS
    for days_ago, level in zip(row["back"], row["level"], strict=True):
        levels[LEVEL_DAYS - 1 - days_ago] = level
    return levels


Rank = tuple[int, bool, int, float]
"""Sort key among projects with the same health: 1 with an incident, whether that is new, the traffic of the project, and the position of the
incident in the inbox, negated."""
_NO_RANK = (0, False, 0, float("-inf"))
"""The rank of a project without an incident."""


def rank_projects(projects: Sequence[Project], worst: Mapping[str, Row]) -> dict[str, Rank]:
    """Return the rank of each project with an incident. `worst` comes from `worst_incidents`."""
    until = max((project.recent.until for project in projects), default=None)
    traffic = {project.project: project.recent.scores + project.recent.unsafe_runs for project in projects}
    return {
        name: (1, _is_new(incident["since"], until), traffic.get(name, 0), -position)
        for position, (name, incident) in enumerate(worst.items())
    }


def _is_new(since: date | None, until: date | None) -> bool:
    """Return whether a change began within the last days. A change without a first day counts as new."""
    return since is None or until is None or (until - since).days < RECENT_DAYS


def sort_worst_first(projects: Sequence[Project], ranks: Mapping[str, Rank]) -> list[Project]:
    """Sort projects by `rank_key`, worst first. `ranks` come from `rank_projects`."""
    return sorted(projects, key=partial(rank_key, ranks), reverse=True)


def rank_key(ranks: Mapping[str, Rank], project: Project) -> tuple[float, ...]:
    """Return the sort key of a project: its health, its rank, the number of reasons, and the anomaly rate."""
    rank = ranks.get(project.project, _NO_RANK)
    return WORST[project.health], *rank, len(project.reasons), project.recent.anomaly_rate or 0.0


_TEENS = range(11, 14)
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def format_banner(settings: ProjectSettings, open_incidents: int, judge: str, check: str) -> str:
    """Return the banner of a project: six lines, or two if it is not audited.

    `judge` is none, live, or the name of another judge such as `simulated judge`, which is shown beside the model that it replaces.
    `check` describes the last check for incidents.
    """
    incidents = f"Open incidents: {open_incidents}"
    if not open_incidents:
        incidents += f". {check}"
    if not settings.enabled:
        return f"Eval Audit Mode: Off\n{incidents}"
    lines = [
        "Eval Audit Mode: Active",
        f"Judge model: {_describe_judge(settings, judge)}",
        f"Tiers: {_describe_tiers(settings, judge)}",
        f"Sampling: {_describe_sampling(settings.sampling)}",
        f"Cost cap: {_describe_caps(settings)}",
        incidents,
    ]
    return "\n".join(lines)


def _describe_judge(settings: ProjectSettings, judge: str) -> str:
    if judge == NONE:
        return "none; only Tier 1 runs"
    return settings.judge_model + ("" if judge == LIVE else f" ({judge})")


def _describe_tiers(settings: ProjectSettings, judge: str) -> str:
    tiers = ["1 (structural)"]
    if judge != NONE:
        tiers.append("2 (semantic)")
        tiers += ["2.5 (thinking)"] if settings.thinking_block_analysis else []
        tiers.append("3 (behavioral)")
    return " → ".join(tiers)


def _describe_sampling(sampling: Sampling) -> str:
    if not sampling.enabled or sampling.routine_interval == 1:
        return "every exchange"
    ends = {"first": sampling.always_score_first, "last": sampling.always_score_last}
    always = " / ".join(f"{end} {count}" for end, count in ends.items() if count)
    routine = f"every {_format_ordinal(sampling.routine_interval)} routine"
    return f"{routine}, always {always}" if always else routine


def _describe_caps(settings: ProjectSettings) -> str:
    caps = {"session": settings.cost_cap_per_session, "day": settings.cost_caps.day, "month": settings.cost_caps.month}
    # Fractions of a cent need more digits, or half a cent would be shown as 0.
    amounts = {
        period: f"{cap:.2f}" if cap == round(cap, 2) else f"{cap:.9f}".rstrip("0")
        for period, cap in caps.items()
        if cap is not None
    }
    return ", ".join(f"${amount}/{period}" for period, amount in amounts.items()) or "none"


def _format_ordinal(number: int) -> str:
    ending = "th" if number % 100 in _TEENS else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"
