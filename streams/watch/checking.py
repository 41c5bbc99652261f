"""The check of projects as of a moment: it measures, computes a baseline, applies the rules, and makes incidents and blind spots.

A check reads tables and writes nothing. It uses neither a clock nor random numbers: the same tables and the same as-of give the same
records.

Blind spots are what the rules could not compare, and why: that nothing was found is good news only where something was compared. A new
judge has no history, unless anchors or days with both judges connect it with the one before. A change needs six days with data before it.
Agents beyond those with most runs are compared only together. An agent that stopped has no scores that could fall.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any

from analytics.queries import query_rows
from audit.drift.change_detector import MIN_DAYS_BEFORE
from audit.drift.discoveries import find_fleet_discoveries, log_e_value
from audit.drift.incident_evidence import Evidence, evidence_of
from audit.drift.segments import find_mix_change, find_new_segments
from audit.drift.series import REFERENCE_DAYS
from audit.drift.watched_series import BEHAVIOUR, TIERS, is_more_severe
from audit.policy import Policy
from schemas.lazy import duckdb
from schemas.records import Baseline, BlindSpot, Incident, Notice, ProjectCheck
from streams.watch.baselines import compute_baseline, needs_new_baseline
from streams.watch.behaviour_rules import (
    BEHAVIOURS,
    LOOK_BACK,
    BehaviourRuleInput,
    ProjectBehaviour,
    cell_reader,
    find_behaviour_changes,
    find_traffic_fall,
    find_unscored_rise,
    find_version_changes,
    measure_behaviour,
    read_versions,
)
from streams.watch.evidence import (
    Explanation,
    FindCompanions,
    companion_finder,
    gather_behaviour_evidence,
    gather_evidence,
    gather_run_evidence,
    gather_session_evidence,
)
from streams.watch.findings import VERSIONS, Finding, RuleInput
from streams.watch.incidents import (
    IncidentUpdate,
    apply_assignment,
    apply_decision,
    apply_snooze,
    build_record,
    derive_references,
    find_open_changes,
    plan_updates,
)
from streams.watch.lifecycle import (
    ASSIGNMENT,
    OPEN,
    SNOOZE,
    Levels,
    decision_of,
    end_if_over,
    end_if_vanished,
    is_live,
    levels_of,
)
from streams.watch.measures import (
    OTHER_AGENTS,
    SESSION_SERIES,
    JudgeUse,
    ProjectRuns,
    ProjectScores,
    Segment,
    measure_runs,
    measure_scores,
    measure_sessions,
    midnight,
)
from streams.watch.rules import ALL_RULES, LOOK_BACK_DAYS, RATE_RATIO
from streams.watch.run_rules import RUNS, SESSIONS, RunRuleInput, SessionRuleInput, find_run_changes, find_session_changes

NEW_JUDGE, OTHER_JUDGES, FEW_DAYS = "new_judge", "other_judges", "few_days"
AGENTS_BEYOND_LIMIT, AGENT_STOPPED = "agents_beyond_limit", "agent_stopped"
MIX_CHANGED, NEW_AGENT = "mix_changed", "new_agent"
TRAFFIC_FELL, UNSCORED_ROSE = "traffic_fell", "unscored_rose"
DESCRIPTION_CHANGED = "description_changed"
TIER_OF_ALL = "tier1"
"""The tier that scores every exchange."""
NOTICE_DAYS = 28
"""Days for which a change of the mix, or of a tool's description, is told."""
MIN_OTHER_JUDGES_SHARE = 0.1
"""The share of the last seven days' judged scores from which other judges are a blind spot."""
MAX_NAMED_AGENTS = 5
"""Agents, judges and tools that a blind spot or a notice names."""
RowsByProject = Mapping[str, Sequence[Mapping[str, Any]]]
"""The rows of a query, by project."""


@dataclass(frozen=True, slots=True)
class KnownRecords:
    """The latest baseline of each project, and the latest revisions of its incidents, oldest first."""

    baselines: Mapping[str, Baseline]
    incidents: Mapping[str, Sequence[Incident]]
    unflushed: frozenset[str] = frozenset()
    """Ids of incidents whose latest revision is not in the tables yet; the tables may lack their latest review, too."""


ExplainProjectFinding = Callable[[str, Finding], Explanation]
"""Returns the cause of a finding in a project (agent or judge), or the reason why it is unknown."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of the check of one project."""

    project: str
    as_of: datetime
    project_check: ProjectCheck | None
    """What was checked; None if there are no scores, runs, judged sessions or turns of the last days."""
    baseline: Baseline | None
    """The baseline after the check; None without scores."""
    is_new_baseline: bool
    findings: tuple[Finding, ...]
    """The findings of the rules, including those that make no incident."""
    incidents: tuple[Incident, ...]
    """New incidents and revisions, which must be written."""
    opened: tuple[Incident, ...]
    """The new incidents."""
    worsened: tuple[Incident, ...]
    """The revisions of open incidents that got more severe."""


@dataclass(frozen=True, slots=True)
class ProjectData:
    """The data of one project that a check examines: scores, finished runs, judged sessions, behaviour, or some of them."""

    project: str
    as_of: datetime
    scores: RuleInput | None
    runs: RunRuleInput | None
    sessions: SessionRuleInput | None
    behaviour: BehaviourRuleInput | None
    baseline: Baseline | None
    """The baseline that applies to the check."""
    stopped: Sequence[Mapping[str, Any]] = ()
    """The agents that stopped, as rows of the query `stopped_agents`."""
    unscored: Sequence[Mapping[str, Any]] = ()
    """The days of the exchanges that were due to be judged, as rows of the query `unscored_days`."""
    fleet: Sequence[Mapping[str, Any]] = ()
    """The series and the evidence of all projects, as rows of the query `fleet_evidence`."""
    descriptions: Sequence[Mapping[str, Any]] = ()
    """The descriptions of tools that replaced others of late, as rows of the query `tool_descriptions`."""

    @property
    def find_companions(self) -> FindCompanions:
        """The function that finds the tiers that changed along; it finds none without scores."""
        return companion_finder(self.scores) if self.scores is not None else lambda *_: ()

    @property
    def compared_series(self) -> int:
        """The number of series that the rules compared."""
        scores = 0 if self.scores is None else self.scores.measured.compared_series
        runs = 0 if self.runs is None else sum(len(agent.series) for agent in self.runs.runs.agents)
        behaviour = 0 if self.behaviour is None else len(self.behaviour.behaviour.series)
        return scores + runs + behaviour + (0 if self.sessions is None else len(SESSION_SERIES))

    @property
    def days_covered(self) -> int:
        """The number of days that the data goes back."""
        if self.scores is not None:
            return self.scores.measured.days_covered
        return 0 if self.runs is None else self.runs.runs.days_covered

    def gather_evidence(self, cursor: duckdb.DuckDBPyConnection, finding: Finding) -> Evidence:
        """Gather the evidence for an incident of a finding."""
        if finding.rule == SESSIONS:
            return gather_session_evidence(cursor, finding, self.project, self.as_of)
        if self.behaviour is not None and (finding.key.tier or "").startswith(BEHAVIOUR):
            agents = self.behaviour.behaviour.agents_of(finding.key.agent or "")
            return gather_behaviour_evidence(cursor, finding, self.project, agents)
        if self.scores is None or finding.rule == RUNS:
            return gather_run_evidence(cursor, finding, self.project, self.as_of, has_scores=self.scores is not None)
        return gather_evidence(cursor, finding, self.scores.measured, self.baseline)

    def find_blind_spots(self, cursor: duckdb.DuckDBPyConnection) -> tuple[BlindSpot, ...]:
        """Return the blind spots of the rules in this data."""
        measured = None if self.scores is None else self.scores.measured
        return find_blind_spots(cursor, measured, None if self.runs is None else self.runs.runs, self.stopped)


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks projects under a policy; `explain` finds the causes of findings."""

    policy: Policy
    explain: ExplainProjectFinding

    def check(
        self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime, known: KnownRecords
    ) -> Iterator[CheckResult]:
        """Check projects, given their known records."""
        windows = [self.policy.for_project(project).settings.baseline_window_days for project in projects]
        since = as_of.date() - timedelta(days=max([LOOK_BACK_DAYS, *windows]))
        measured, parameters = measure_scores(cursor, projects, since, as_of)
        runs, run_parameters = measure_runs(cursor, projects, since, as_of)
        sessions, session_parameters = measure_sessions(cursor, projects, since, as_of)
        behaviours, behaviour_parameters = measure_behaviour(cursor, projects, as_of)
        versions = read_versions(cursor, list(behaviours), as_of)
        reviews = _read_pending_reviews(cursor, projects)
        stopped = _query_by_project(cursor, "stopped_agents", projects, as_of=as_of)
        until = midnight(as_of.date())
        unscored = _query_by_project(cursor, "unscored_days", projects, since=until - LOOK_BACK, until=until)
        fleet = query_rows(cursor, "fleet_evidence", {"as_of": as_of})
        descriptions = self._read_changed_descriptions(cursor, projects, as_of)
        for project in projects:
            incidents = {incident.incident_id: incident for incident in known.incidents.get(project, ())}
            reviewed = _apply_missed_reviews(incidents, reviews, known.unflushed)
            baseline = known.baselines.get(project)
            project_runs = runs.get(project)
            judged_sessions = sessions.get(project)
            behaviour = behaviours.get(project)
            scores = measured.get(project)
            if scores is not None and not scores.has_scores:
                scores = None
            if scores is None and project_runs is None and judged_sessions is None and behaviour is None:
                yield CheckResult(project, as_of, None, baseline, False, (), tuple(reviewed), (), ())
                continue
            # End the changes that are over before the rules run: their days are excluded, so the recovery is not a change.
            levels = levels_of(scores, project_runs, judged_sessions, behaviour)
            ended = _end_incidents(incidents, levels, as_of)
            new_baseline = None
            if scores is not None and needs_new_baseline(baseline, scores, incidents.values()):
                new_baseline = self.baseline(scores)
            baseline = new_baseline or baseline
            references = derive_references(incidents.values())
            open_changes = find_open_changes(incidents.values())
            data = ProjectData(
                project,
                as_of,
                None
                if scores is None
                else RuleInput(
                    scores,
                    baseline,
                    references,
                    parameters,
                    open_changes,
                    self.policy.for_project(project).settings.min_alerted_change,
                ),
                None if project_runs is None else RunRuleInput(project_runs, references, run_parameters),
                None if judged_sessions is None else SessionRuleInput(judged_sessions, references, session_parameters),
                None
                if behaviour is None
                else BehaviourRuleInput(
                    behaviour, references, behaviour_parameters, cell_reader(cursor), versions.get(project, {})
                ),
                baseline,
                stopped.get(project, ()),
                unscored.get(project, ()),
                fleet,
                descriptions.get(project, ()),
            )
            revisions = [*reviewed, *ended]
            yield self._check_project(cursor, data, incidents, revisions, levels, is_new_baseline=new_baseline is not None)

    def baseline(self, measured: ProjectScores, days: int | None = None) -> Baseline | None:
        """Compute the baseline of measured scores over a number of days, by default the policy's window."""
        window = days or self.policy.for_project(measured.project).settings.baseline_window_days
        return compute_baseline(measured, self.policy, window)

    def _read_changed_descriptions(
        self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime
    ) -> dict[str, list[Mapping[str, Any]]]:
        """Return the descriptions of tools that replaced others of late, by project, of agents whose policy compares them."""
        detectors = {project: self.policy.for_project(project).settings.detectors for project in projects}
        values = {
            "projects": [project for project in projects if detectors[project].reads_definitions],
            "since": as_of - LOOK_BACK,
            "until": as_of,
            "changed_since": midnight(as_of.date() - timedelta(days=NOTICE_DAYS)),
        }
        changed: dict[str, list[Mapping[str, Any]]] = {}
        for row in query_rows(cursor, "tool_descriptions", values) if values["projects"] else ():
            if detectors[row["project"]].profile("events", row["agent"]).rules.definitions:
                changed.setdefault(row["project"], []).append(row)
        return changed

    def _check_project(
        self,
        cursor: duckdb.DuckDBPyConnection,
        data: ProjectData,
        incidents: Mapping[str, Incident],
        revisions: Sequence[Incident],
        levels: Levels,
        *,
        is_new_baseline: bool,
    ) -> CheckResult:
        """Apply the rules to one project; `revisions` must be written whatever the rules find."""
        project = data.project
        as_of = data.as_of
        findings = tuple(_confirm_over_fleet(list(self._apply_rules(data)), data))
        updates = plan_updates(
            findings,
            list(incidents.values()),
            as_of,
            lambda finding: self.explain(project, finding),
            data.find_companions,
        )
        opened: list[Incident] = []
        worsened: list[Incident] = []
        ended: list[Incident] = []
        other_revisions = list(revisions)
        for update in updates:
            evidence = data.gather_evidence(cursor, update.finding) if _needs_evidence(update) else update.evidence
            record = build_record(update, project, as_of, evidence)
            if update.previous is None:
                opened.append(record)
            elif record.status == OPEN and is_more_severe(record.severity, update.previous.severity):
                worsened.append(record)
            else:
                other_revisions.append(record)
            # A new incident may be over already, for example after an import of last month's records.
            end = end_if_over(record, levels, as_of)
            if end is not None:
                ended.append(end)
        other_revisions += _end_vanished(incidents, findings, as_of)
        return CheckResult(
            project,
            as_of,
            self._build_project_check(cursor, data, findings),
            data.baseline,
            is_new_baseline,
            findings,
            incidents=(*other_revisions, *worsened, *opened, *ended),
            opened=tuple(opened),
            worsened=tuple(worsened),
        )

    def _apply_rules(self, data: ProjectData) -> Iterator[Finding]:
        """Yield the findings of the rules in the project's policy, those about scores first."""
        rules = self.policy.for_project(data.project).settings.incident_rules
        if data.scores is not None:
            for name, rule in ALL_RULES.items():
                if name in rules:
                    yield from rule(data.scores)
        if data.runs is not None and RUNS in rules:
            yield from find_run_changes(data.runs)
        if data.sessions is not None and SESSIONS in rules:
            yield from find_session_changes(data.sessions)
        if data.behaviour is not None and BEHAVIOURS in rules:
            yield from find_behaviour_changes(data.behaviour)
            yield from find_version_changes(data.behaviour)

    def _build_project_check(
        self, cursor: duckdb.DuckDBPyConnection, data: ProjectData, findings: Sequence[Finding]
    ) -> ProjectCheck:
        window = self.policy.for_project(data.project).settings.baseline_window_days
        return ProjectCheck(
            project=data.project,
            checked_at=data.as_of,
            days=min(window, data.days_covered),
            baseline_days=window,
            exchanges=0 if data.scores is None else data.scores.measured.window(window).exchanges,
            findings=len(findings),
            series=data.compared_series,
            blind_spots=data.find_blind_spots(cursor),
            notices=(
                *(() if data.scores is None else find_notices(data.scores.measured, findings)),
                *(() if data.behaviour is None else find_coverage_notices(data.behaviour.behaviour, data.unscored)),
                *find_description_notices(data.descriptions),
            ),
        )


def _confirm_over_fleet(findings: Sequence[Finding], data: ProjectData) -> Iterator[Finding]:
    """Yield the findings; those that weigh evidence are only suspected if too many of the fleet's confirmed changes could be false."""
    weighed = {index: _log_e_value_of(finding) for index, finding in enumerate(findings)}
    own = {index: value for index, value in weighed.items() if value is not None}
    if not own:
        yield from findings
        return
    others = [row for row in data.fleet if row["project"] != data.project]
    series = max(data.compared_series, len(own)) + sum(row["series"] for row in others)
    known = [*own.values(), *(log_e_value(evidence) for row in others for evidence in row["log_evidence"])]
    named = find_fleet_discoveries(known, series)
    is_named = dict(zip(own, named[: len(own)].tolist(), strict=True))
    for index, finding in enumerate(findings):
        yield finding if is_named.get(index, True) else replace(finding, confirmed=False)


def _log_e_value_of(finding: Finding) -> float | None:
    """Return the log e-value of a finding; None if its rule gives none."""
    evidence = finding.numbers.log_evidence
    if evidence is None or finding.rule == RATE_RATIO:
        return None
    return evidence if finding.rule == VERSIONS else log_e_value(evidence)


def _needs_evidence(update: IncidentUpdate) -> bool:
    """Return whether to gather evidence: for a new incident, and for a live one if the finding is about its leading series."""
    return update.previous is None or (update.is_about_lead and is_live(update.previous))


def _end_incidents(incidents: dict[str, Incident], levels: Levels, as_of: datetime) -> list[Incident]:
    """End the incidents whose changes are over, and return their new revisions."""
    ended = [end_if_over(incident, levels, as_of) for incident in incidents.values()]
    revisions = [revision for revision in ended if revision is not None]
    incidents.update({revision.incident_id: revision for revision in revisions})
    return revisions


def _end_vanished(incidents: Mapping[str, Incident], findings: Sequence[Finding], as_of: datetime) -> Iterator[Incident]:
    """Yield the last revision of each suspected incident that the rules no longer find."""
    found = {finding.series for finding in findings}
    for incident in incidents.values():
        if found.isdisjoint(changed.series for changed in evidence_of(incident).moved):
            revision = end_if_vanished(incident, as_of)
            if revision is not None:
                yield revision


def _read_pending_reviews(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str]) -> list[dict[str, Any]]:
    """Return the decisions, assignments and snoozes that their incidents do not show, oldest first."""
    values = {"projects": list(projects), "incident": None}
    return [review for review in query_rows(cursor, "incident_reviews", values) if review["pending"]]


def _apply_missed_reviews(
    incidents: dict[str, Incident], reviews: Sequence[Mapping[str, Any]], unflushed: frozenset[str]
) -> list[Incident]:
    """Apply the reviews that were published without a revision of their incident, and return the revisions.

    Unflushed incidents are left alone: their latest review is not in the tables yet, and an older one must not override it.
    """
    missed = [review for review in reviews if review["incident_id"] in incidents.keys() - unflushed]
    for review in missed:
        incident = incidents[review["incident_id"]]
        incidents[incident.incident_id] = _apply_review(incident, review)
    return [incidents[incident_id] for incident_id in dict.fromkeys(review["incident_id"] for review in missed)]


def _apply_review(incident: Incident, review: Mapping[str, Any]) -> Incident:
    if review["kind"] == SNOOZE:
        return apply_snooze(incident, review["until"], review["reviewer"], review["occurred_at"])
    if review["kind"] == ASSIGNMENT:
        return apply_assignment(incident, review["assignee"], review["occurred_at"])
    return apply_decision(incident, decision_of(review["status"]), review["reviewer"], review["occurred_at"])


def _query_by_project(cursor: duckdb.DuckDBPyConnection, name: str, projects: Sequence[str], **values: object) -> RowsByProject:
    """Run one query for all projects, because a query for each would cost more than the rules."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in query_rows(cursor, name, {"projects": list(projects), **values}):
        rows.setdefault(row["project"], []).append(row)
    return rows


def find_notices(measured: ProjectScores, findings: Sequence[Finding]) -> tuple[Notice, ...]:
    """Return what changed in a project's traffic: the shares of its agents, the largest change first, and agents that are new."""
    sessions = measured.agent_cells(TIER_OF_ALL)
    if len(sessions) < 2:
        return ()
    as_of = measured.as_of.date()
    changed_agents = {finding.key.agent for finding in findings if finding.key.tier in TIERS and finding.key.agent is not None}
    tier = next(tier for tier in ("tier2", "tier3", TIER_OF_ALL) if measured.segment(tier) is not None)
    scored = measured.agent_cells(tier)
    new_agents = [
        Notice(
            reason=NEW_AGENT,
            subject=list(scored)[new.stratum],
            since=midnight(new.day),
            before=new.sibling_level,
            after=new.level,
            tier=tier,
            count=new.sessions,
        )
        for new in find_new_segments([*scored.values()], as_of)[:MAX_NAMED_AGENTS]
    ]
    new_names = {notice.subject for notice in new_agents}
    agents = list(sessions)
    mix = find_mix_change([*sessions.values()], as_of)
    if mix is None or (as_of - mix.first_day).days >= NOTICE_DAYS:
        return tuple(new_agents)
    moved = [
        Notice(
            reason=MIX_CHANGED,
            subject=agents[share.stratum],
            since=midnight(mix.first_day),
            before=share.before,
            after=share.after,
            count=len(changed_agents),
        )
        for share in mix.moved[:MAX_NAMED_AGENTS]
        if agents[share.stratum] not in new_names
    ]
    return (*moved, *new_agents)


def find_coverage_notices(behaviour: ProjectBehaviour, unscored: Sequence[Mapping[str, Any]]) -> tuple[Notice, ...]:
    """Return what changed in how much of a project is seen: fewer sessions per day, and more exchanges without a score.

    `unscored` are the project's rows of the query `unscored_days`; there are none if every exchange has a score, or none has.
    """
    as_of = behaviour.as_of.date()
    changes = {
        TRAFFIC_FELL: find_traffic_fall(behaviour),
        UNSCORED_ROSE: find_unscored_rise(unscored, as_of - timedelta(days=1)) if unscored else None,
    }
    return tuple(
        Notice(
            reason=reason,
            subject="",
            since=midnight(change.first_day),
            before=math.expm1(change.mean_before) if reason == TRAFFIC_FELL else change.mean_before,
            after=math.expm1(change.mean_after) if reason == TRAFFIC_FELL else change.mean_after,
            count=(as_of - change.first_day).days,
        )
        for reason, change in changes.items()
        if change is not None and (as_of - change.first_day).days < NOTICE_DAYS
    )


def find_description_notices(descriptions: Sequence[Mapping[str, Any]]) -> tuple[Notice, ...]:
    """Return the agents whose tools have other descriptions, one per agent and day, the newest first, from rows of `tool_descriptions`."""
    days: dict[tuple[str, date], list[Mapping[str, Any]]] = {}
    for row in sorted(descriptions, key=itemgetter("first_at"), reverse=True):
        days.setdefault((row["agent"], row["first_at"].date()), []).append(row)
    return tuple(_build_description_notice(agent, rows) for (agent, _), rows in islice(days.items(), MAX_NAMED_AGENTS))


def _build_description_notice(agent: str, rows: Sequence[Mapping[str, Any]]) -> Notice:
    tools = sorted({row["tool"] for row in rows})
    more = len(tools) - MAX_NAMED_AGENTS
    names = ", ".join(tools[:MAX_NAMED_AGENTS]) + (f" and {more} more" if more > 0 else "")
    return Notice(
        reason=DESCRIPTION_CHANGED,
        subject=f"{names} of {agent}" if agent else names,
        since=rows[0]["first_at"],
        before=max(row["previous_sessions"] for row in rows),
        after=max(row["sessions"] for row in rows),
        count=len(tools),
    )


def find_blind_spots(
    cursor: duckdb.DuckDBPyConnection,
    measured: ProjectScores | None,
    runs: ProjectRuns | None,
    stopped: Sequence[Mapping[str, Any]],
) -> tuple[BlindSpot, ...]:
    """Return the blind spots of a project, the most important ones first."""
    spots: list[BlindSpot] = []
    if measured is not None:
        spots += _find_judge_spots(measured)
        spots += _find_day_spots(measured)
    if runs is not None:
        spots += _find_agent_spots(cursor, runs)
    spots += [
        BlindSpot(
            reason=AGENT_STOPPED,
            subject=row["agent"],
            since=midnight(row["last_day"] + timedelta(days=1)),
            count=row["days"],
            of=REFERENCE_DAYS,
        )
        for row in stopped[:MAX_NAMED_AGENTS]
    ]
    return tuple(spots)


def _find_judge_spots(measured: ProjectScores) -> list[BlindSpot]:
    """Return the judges whose scores are not compared with those of the others: neither days nor anchors connect them."""
    uses = {use.judge: use for use in measured.judges(2 * REFERENCE_DAYS)}
    if len(uses) < 2:
        return []
    segments = measured.judged_segments()
    left_out = {stratum.judge for segment in segments for stratum in segment.left_out}
    compared = {stratum.judge for segment in segments for stratum in segment.strata}
    changes = [
        (uses[older], uses[newer])
        for older, newer in {pair for segment in segments for pair in _pair_separate_judges(segment, uses)}
        if uses[older].last_day <= uses[newer].first_day
    ]
    spots: list[BlindSpot] = []
    newest = max((newer for _, newer in changes), key=lambda use: (use.first_day, use.name), default=None)
    age = 0 if newest is None else (measured.as_of.date() - newest.first_day).days
    if newest is not None and (newest.days < MIN_DAYS_BEFORE or age < REFERENCE_DAYS):
        since = midnight(newest.first_day)
        spots.append(BlindSpot(reason=NEW_JUDGE, subject=newest.name, since=since, count=newest.days, of=MIN_DAYS_BEFORE))
    replaced = {use.judge for change in changes for use in change}
    others = [use for judge, use in uses.items() if use.recent and judge in left_out - compared - replaced]
    scores = sum(use.recent for use in others)
    all_scores = sum(use.recent for use in uses.values())
    if others and scores >= MIN_OTHER_JUDGES_SHARE * all_scores:
        spots.append(BlindSpot(reason=OTHER_JUDGES, subject=_name_judges(others), since=None, count=scores, of=all_scores))
    return spots


def _pair_separate_judges(segment: Segment, uses: Mapping[tuple[Any, ...], JudgeUse]) -> Iterator[tuple[tuple[Any, ...], ...]]:
    """Yield the judges in use whose scores of a segment are not compared with each other, the one that was used first first."""
    for stratum in segment.left_out:
        for other in segment.strata:
            if stratum.without_judge == other.without_judge and {stratum.judge, other.judge} <= uses.keys():
                yield tuple(sorted((stratum.judge, other.judge), key=lambda judge: uses[judge].first_day))


def _name_judges(uses: Sequence[JudgeUse]) -> str:
    return ", ".join(sorted({use.name for use in uses})[:MAX_NAMED_AGENTS])


def _find_day_spots(measured: ProjectScores) -> list[BlindSpot]:
    days = measured.days_with_data
    if measured.days_covered <= REFERENCE_DAYS or days >= MIN_DAYS_BEFORE:
        return []
    return [BlindSpot(reason=FEW_DAYS, subject="", since=None, count=days, of=MIN_DAYS_BEFORE)]


def _find_agent_spots(cursor: duckdb.DuckDBPyConnection, runs: ProjectRuns) -> list[BlindSpot]:
    """Return the agents that are compared only together, if there are any."""
    if all(agent_runs.agent != OTHER_AGENTS for agent_runs in runs.agents):
        return []
    watched = {agent_runs.agent for agent_runs in runs.agents}
    names = [row["agent"] for row in query_rows(cursor, "agents_with_runs", {"project": runs.project})]
    pooled = [name or "" for name in names if name not in watched]
    return [
        BlindSpot(
            reason=AGENTS_BEYOND_LIMIT,
            subject=", ".join(filter(None, pooled[:MAX_NAMED_AGENTS])),
            since=None,
            count=len(pooled),
            of=len(names),
        )
    ]
