"""The check of projects as of a moment: what was measured, a fresh baseline, the rules, the incidents they make, and blind spots.

It reads tables and writes nothing; it has no clock and no coin: the same tables and the same as-of make the same records.

Blind spots are what the rules could not compare, and why. The absence of incidents is good news only where something was compared. A new
judge has no past; of two judges side by side only the one with most scores is compared; a change needs six days with data before it; only
the runs of the agents with most runs are watched; an agent that stopped has no scores that could fall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from analytics.queries import query_rows
from audit.drift.change_detector import MIN_DAYS_BEFORE
from audit.drift.incident_evidence import Evidence, evidence_of
from audit.drift.series import REFERENCE_DAYS
from audit.drift.watched_series import is_more_severe
from audit.policy import Policy
from schemas.lazy import duckdb
from schemas.records import Baseline, BlindSpot, Incident, ProjectCheck
from streams.watch.baselines import compute_baseline, needs_new_baseline
from streams.watch.evidence import Explanation, FindCompanions, companion_finder, gather_evidence, gather_run_evidence
from streams.watch.findings import Finding, RuleInput
from streams.watch.incidents import (
    IncidentUpdate,
    apply_assignment,
    apply_decision,
    build_record,
    derive_references,
    find_open_changes,
    plan_updates,
)
from streams.watch.lifecycle import OPEN, Levels, decision_of, end_if_over, end_if_vanished, is_live, levels_of
from streams.watch.measures import MAX_AGENTS, JudgeUse, ProjectRuns, ProjectScores, measure_runs, measure_scores, midnight
from streams.watch.rules import ALL_RULES, LOOK_BACK_DAYS, RUNS, RunRuleInput, find_run_changes

NEW_JUDGE, OTHER_JUDGES, FEW_DAYS = "new_judge", "other_judges", "few_days"
AGENTS_BEYOND_LIMIT, AGENT_STOPPED = "agents_beyond_limit", "agent_stopped"
MIN_OTHER_JUDGES_SHARE = 0.1
"""Share of the judged scores of the last seven days from which on other judges are worth a word."""
MAX_NAMED_AGENTS = 5
"""Agents of each reason that are named; the others are counted with the last of them."""
StoppedAgents = Mapping[str, Sequence[Mapping[str, Any]]]
"""The rows of the query `stopped_agents`, by project."""


def read_stopped_agents(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime) -> StoppedAgents:
    """Read the agents that stopped, by project."""
    stopped: dict[str, list[Mapping[str, Any]]] = {}
    for row in query_rows(cursor, "stopped_agents", {"projects": list(projects), "as_of": as_of}):
        stopped.setdefault(row["project"], []).append(row)
    return stopped


def find_blind_spots(
    cursor: duckdb.DuckDBPyConnection,
    measured: ProjectScores | None,
    runs: ProjectRuns | None,
    stopped: Sequence[Mapping[str, Any]],
) -> tuple[BlindSpot, ...]:
    """Return what was not compared of a project, the reasons that concern most first."""
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
    uses = {use.judge: use for use in measured.judges(2 * REFERENCE_DAYS)}
    current = uses.pop(measured.judge_key, None)
    if current is None or not uses:
        return []
    spots = []
    is_new = current.days < MIN_DAYS_BEFORE or (measured.as_of.date() - current.first_day).days < REFERENCE_DAYS
    if is_new and any(use.first_day < current.first_day for use in uses.values()):
        spots.append(
            BlindSpot(
                reason=NEW_JUDGE,
                subject=current.name,
                since=midnight(current.first_day),
                count=current.days,
                of=REFERENCE_DAYS,
            )
        )
    beside = [use for use in uses.values() if use.last_day > current.first_day and use.recent]
    judged = current.recent + sum(use.recent for use in beside)
    others = sum(use.recent for use in beside)
    if beside and others >= MIN_OTHER_JUDGES_SHARE * judged:
        spots.append(BlindSpot(reason=OTHER_JUDGES, subject=_name_judges(beside), since=None, count=others, of=judged))
    return spots


def _name_judges(uses: Sequence[JudgeUse]) -> str:
    return ", ".join(sorted({use.name for use in uses})[:MAX_NAMED_AGENTS])


def _find_day_spots(measured: ProjectScores) -> list[BlindSpot]:
    days = measured.days_with_data
    if measured.days_covered <= REFERENCE_DAYS or days >= MIN_DAYS_BEFORE:
        return []
    return [BlindSpot(reason=FEW_DAYS, subject="", since=None, count=days, of=MIN_DAYS_BEFORE)]


def _find_agent_spots(cursor: duckdb.DuckDBPyConnection, runs: ProjectRuns) -> list[BlindSpot]:
    """The agents beyond the limit; that there are any is asked only where the limit is reached."""
    if runs.watched_agents < MAX_AGENTS:
        return []
    watched = {one.agent for one in runs.agents}
    names = [row["agent"] for row in query_rows(cursor, "agents_with_runs", {"project": runs.project})]
    others = [name or "" for name in names if name not in watched]
    if len(names) <= MAX_AGENTS:
        return []
    return [
        BlindSpot(
            reason=AGENTS_BEYOND_LIMIT,
            subject=", ".join(filter(None, others[:MAX_NAMED_AGENTS])),
            since=None,
            count=len(names) - MAX_AGENTS,
            of=len(names),
        )
    ]


@dataclass(frozen=True, slots=True)
class KnownRecords:
    """The latest baseline of each project, and its incidents in their latest revisions, oldest first."""

    baselines: Mapping[str, Baseline]
    incidents: Mapping[str, Sequence[Incident]]
    unflushed: frozenset[str] = frozenset()
    """Ids of incidents that the tables show in an earlier revision: what they show beside them may be as old."""


ExplainProjectFinding = Callable[[str, Finding], Explanation]
"""Returns the cause of a finding in a project: agent or judge, or the reason why it is not known."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of the check of one project."""

    project: str
    as_of: datetime
    project_check: ProjectCheck | None
    """The data that was looked at; None if there were neither scores nor runs of the last days."""
    baseline: Baseline | None
    """In force after the check; None without scores."""
    is_new_baseline: bool
    findings: tuple[Finding, ...]
    """The findings of the rules, whether or not an incident comes of them."""
    incidents: tuple[Incident, ...]
    """Incidents and revisions that are to be written."""
    opened: tuple[Incident, ...]
    """Those of them that are new."""
    worsened: tuple[Incident, ...]
    """Those of them that are open and got more severe."""


@dataclass(frozen=True, slots=True)
class ProjectData:
    """The data to look at in one project: scores, finished runs, or both."""

    project: str
    as_of: datetime
    scores: RuleInput | None
    runs: RunRuleInput | None
    baseline: Baseline | None
    """In force at the check."""
    stopped: Sequence[Mapping[str, Any]] = ()
    """Agents that stopped, rows of the query `stopped_agents`."""

    @property
    def companion_finder(self) -> FindCompanions:
        """The tiers that moved along with a change; none where there are no scores."""
        return companion_finder(self.scores) if self.scores is not None else lambda *_: ()

    def evidence(self, cursor: duckdb.DuckDBPyConnection, finding: Finding) -> Evidence:
        """Gather the evidence that an incident of a finding carries."""
        if self.scores is None or finding.rule == RUNS:
            return gather_run_evidence(cursor, finding, self.project, self.as_of, has_scores=self.scores is not None)
        return gather_evidence(cursor, finding, self.scores.measured, self.baseline)


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks by a policy; `cause_of` says what changed."""

    policy: Policy
    cause_of: ExplainProjectFinding

    def check(
        self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime, known: KnownRecords
    ) -> Iterator[CheckResult]:
        """Check some projects, given what is known of them."""
        windows = [self.policy.for_project(project).settings.baseline_window_days for project in projects]
        since = as_of.date() - timedelta(days=max([LOOK_BACK_DAYS, *windows]))
        measured, parameters = measure_scores(cursor, projects, since, as_of)
        runs, run_parameters = measure_runs(cursor, projects, since, as_of)
        pending, stopped = _read_pending_reviews(cursor, projects), read_stopped_agents(cursor, projects, as_of)
        for project in projects:
            incidents = {one.incident_id: one for one in known.incidents.get(project, ())}
            # What was decided here last has not landed yet: a decision that has may be the one before it.
            missed = [row for row in pending if row["incident_id"] in incidents.keys() - known.unflushed]
            for row in missed:
                incidents[row["incident_id"]] = _apply_missed_review(incidents[row["incident_id"]], row)
            late = [incidents[incident_id] for incident_id in dict.fromkeys(row["incident_id"] for row in missed)]
            baseline, found, ran = known.baselines.get(project), measured.get(project), runs.get(project)
            scored = found if found is not None and found.has_scores else None
            if scored is None and ran is None:
                yield CheckResult(project, as_of, None, baseline, False, (), tuple(late), (), ())
                continue
            # What is over is so before the rules look: its days are cut out, and the way back is no change.
            levels = levels_of(scored, ran)
            ended = [one for incident in incidents.values() if (one := end_if_over(incident, levels, as_of)) is not None]
            incidents.update({one.incident_id: one for one in ended})
            fresh = None
            if scored is not None and needs_new_baseline(baseline, scored, incidents.values()):
                fresh = self.baseline(scored)
            references, open_changes = derive_references(incidents.values()), find_open_changes(incidents.values())
            seen = ProjectData(
                project,
                as_of,
                None if scored is None else RuleInput(scored, fresh or baseline, references, parameters, open_changes),
                None if ran is None else RunRuleInput(ran, references, run_parameters),
                fresh or baseline,
                stopped.get(project, ()),
            )
            yield self._checked(cursor, seen, incidents, [*late, *ended], levels, is_new=fresh is not None)

    def baseline(self, measured: ProjectScores, days: int | None = None) -> Baseline | None:
        """The baseline of what was measured, over so many days or the policy's window."""
        window = days or self.policy.for_project(measured.project).settings.baseline_window_days
        return compute_baseline(measured, self.policy, window)

    def _checked(
        self,
        cursor: duckdb.DuckDBPyConnection,
        seen: ProjectData,
        known: Mapping[str, Incident],
        others: Sequence[Incident],
        levels: Levels,
        *,
        is_new: bool,
    ) -> CheckResult:
        """Apply the rules to one project; `others` are revisions that are to be written whatever they find."""
        project, as_of = seen.project, seen.as_of
        findings = tuple(self._findings(seen))
        dues = plan_updates(
            findings,
            list(known.values()),
            as_of,
            lambda finding: self.cause_of(project, finding),
            seen.companion_finder,
        )
        opened, worsened, ended, others = [], [], [], list(others)
        for one in dues:
            evidence = seen.evidence(cursor, one.lead) if _needs_evidence(one) else one.evidence
            made = build_record(one, project, as_of, evidence)
            if one.before is None:
                opened.append(made)
            elif made.status == OPEN and is_more_severe(made.severity, one.before.severity):
                worsened.append(made)
            else:
                others.append(made)
            # What was found just now may be over already, as in an import of last month's records.
            ended += [gone for gone in [end_if_over(made, levels, as_of)] if gone is not None]
        others += [gone for gone in self._gone(known, findings, as_of) if gone is not None]
        made_all = (*others, *worsened, *opened, *ended)
        project_check = self._build_project_check(seen, len(findings), _blind_spots(cursor, seen))
        return CheckResult(
            project, as_of, project_check, seen.baseline, is_new, findings, made_all, tuple(opened), tuple(worsened)
        )

    def _findings(self, seen: ProjectData) -> Iterator[Finding]:
        """Yield the findings of the rules in a project's policy, those about scores first."""
        rules = self.policy.for_project(seen.project).settings.incident_rules
        if seen.scores is not None:
            for name, rule in ALL_RULES.items():
                if name in rules:
                    yield from rule(seen.scores)
        if seen.runs is not None and RUNS in rules:
            yield from find_run_changes(seen.runs)

    def _gone(self, known: Mapping[str, Incident], findings: Sequence[Finding], as_of: datetime) -> Iterator[Incident | None]:
        """Yield the last revision of each incident that was only suspected and is not seen any more."""
        seen = {one.series for one in findings}
        for incident in known.values():
            if seen.isdisjoint(one.series for one in evidence_of(incident).moved):
                yield end_if_vanished(incident, as_of)

    def _build_project_check(self, seen: ProjectData, findings: int, blind: tuple[BlindSpot, ...]) -> ProjectCheck:
        window = self.policy.for_project(seen.project).settings.baseline_window_days
        reach = (
            seen.scores.measured.days_covered
            if seen.scores is not None
            else seen.runs.runs.days_covered
            if seen.runs is not None
            else 0
        )
        return ProjectCheck(
            project=seen.project,
            checked_at=seen.as_of,
            days=min(window, reach),
            baseline_days=window,
            exchanges=0 if seen.scores is None else seen.scores.measured.window(window).exchanges,
            findings=findings,
            blind_spots=blind,
        )


def _blind_spots(cursor: duckdb.DuckDBPyConnection, seen: ProjectData) -> tuple[BlindSpot, ...]:
    measured = None if seen.scores is None else seen.scores.measured
    return find_blind_spots(cursor, measured, None if seen.runs is None else seen.runs.runs, seen.stopped)


def _needs_evidence(made: IncidentUpdate) -> bool:
    """Tell whether to gather evidence again: not after a decision, and not for a series that does not lead."""
    return made.before is None or (made.is_about_lead and is_live(made.before))


def _apply_missed_review(incident: Incident, row: Mapping[str, Any]) -> Incident:
    """The incident as a decision or an assignment left it that came through without its revision."""
    if row["status"] is None:
        return apply_assignment(incident, row["assignee"], row["occurred_at"])
    return apply_decision(incident, decision_of(row["status"]), row["reviewer"], row["occurred_at"])


def _read_pending_reviews(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str]) -> list[dict[str, Any]]:
    """Decisions and assignments that their incident does not show, oldest first."""
    asked = {"projects": list(projects), "incident": None}
    rows = [row for name in ("incident_decisions", "incident_assignments") for row in query_rows(cursor, name, asked)]
    return sorted((row for row in rows if row["pending"]), key=lambda row: row["occurred_at"])
