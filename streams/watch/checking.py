"""The check of projects as of a moment: what was measured, a fresh baseline, the rules, and the incidents they make.

It reads tables and writes nothing; it has no clock and no coin: the same tables and the same as-of make the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb

from analytics.queries import query_rows
from audit.policy import Policy
from schemas.records import Baseline, Incident, ProjectCheck
from streams.watch.baselines import OPEN, baseline_of, needs_another
from streams.watch.causes import Explanation
from streams.watch.evidence import gather
from streams.watch.findings import Finding, worse
from streams.watch.incidents import decided, decided_changes, due, record_of
from streams.watch.known import Known
from streams.watch.measured import Measured, measure
from streams.watch.rules import ALL_RULES, LOOK_BACK, Case

CauseOf = Callable[[str, Finding], Explanation]
"""Told a project and a finding: what changed, agent or judge, or why that is not known."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of the check of one project."""

    project: str
    as_of: datetime
    looked: ProjectCheck | None
    """What was looked at; None where there were no scores of the last days."""
    baseline: Baseline | None
    """In force after the check; None without scores."""
    is_new_baseline: bool
    findings: tuple[Finding, ...]
    """What the rules see, whether or not an incident comes of it."""
    incidents: tuple[Incident, ...]
    """Incidents and revisions that are to be written."""
    opened: tuple[Incident, ...]
    """Those of them that are new."""
    worsened: tuple[Incident, ...]
    """Those of them that are open and got more severe."""


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks by a policy; `cause_of` says what changed."""

    policy: Policy
    cause_of: CauseOf

    def check(
        self, cursor: duckdb.DuckDBPyConnection, projects: Sequence[str], as_of: datetime, known: Known
    ) -> Iterator[Checked]:
        """Check some projects, given what is known of them."""
        windows = [self.policy.for_project(project).settings.baseline_window_days for project in projects]
        since = as_of.date() - timedelta(days=max([LOOK_BACK, *windows]))
        measured, parameters = measure(cursor, projects, since, as_of)
        pending = _pending(cursor, projects)
        for project in projects:
            incidents = {one.incident_id: one for one in known.incidents.get(project, ())}
            # What was decided here last has not landed yet: a decision that has may be the one before it.
            missed = [row for row in pending if row["incident_id"] in incidents.keys() - known.unlanded]
            late = [_reconciled(incidents[row["incident_id"]], row) for row in missed]
            incidents.update({one.incident_id: one for one in late})
            baseline, found = known.baselines.get(project), measured.get(project)
            if found is None or not found.has_scores:
                yield Checked(project, as_of, None, baseline, False, (), tuple(late), (), ())
                continue
            fresh = self.baseline(found) if needs_another(baseline, found, incidents.values()) else None
            case = Case(found, fresh or baseline, decided_changes(list(incidents.values())), parameters)
            yield self._checked(cursor, case, list(incidents.values()), late, is_new=fresh is not None)

    def baseline(self, measured: Measured, days: int | None = None) -> Baseline | None:
        """The baseline of what was measured, over so many days or the policy's window."""
        window = days or self.policy.for_project(measured.project).settings.baseline_window_days
        return baseline_of(measured, self.policy, window)

    def _checked(
        self,
        cursor: duckdb.DuckDBPyConnection,
        case: Case,
        known: Sequence[Incident],
        late: Sequence[Incident],
        *,
        is_new: bool,
    ) -> Checked:
        """Apply the rules to one project."""
        measured, project = case.measured, case.measured.project
        rules = self.policy.for_project(project).settings.incident_rules
        findings = tuple(finding for name, rule in ALL_RULES.items() if name in rules for finding in rule(case))
        opened, worsened, others = [], [], list(late)
        for one in due(findings, known, measured.as_of, lambda finding: self.cause_of(project, finding)):
            evidence = gather(cursor, one.lead, measured, case.baseline)
            made = record_of(one, project, measured.as_of, evidence)
            if one.before is None:
                opened.append(made)
            elif made.status == OPEN and worse(made.severity, one.before.severity):
                worsened.append(made)
            else:
                others.append(made)
        made_all = (*others, *worsened, *opened)
        looked = self._looked(measured, len(findings))
        return Checked(
            project, measured.as_of, looked, case.baseline, is_new, findings, made_all, tuple(opened), tuple(worsened)
        )

    def _looked(self, measured: Measured, findings: int) -> ProjectCheck:
        window = self.policy.for_project(measured.project).settings.baseline_window_days
        return ProjectCheck(
            project=measured.project,
            checked_at=measured.as_of,
            days=min(window, measured.reach),
            baseline_days=window,
            exchanges=measured.window(window).exchanges,
            findings=findings,
        )


def _reconciled(incident: Incident, row: Mapping[str, Any]) -> Incident:
    """The incident as a decision left it that came through without its revision."""
    return decided(incident, row["status"], row["reviewer"], row["occurred_at"])


def _pending(cursor: duckdb.DuckDBPyConnection, projects: Sequence[str]) -> list[dict[str, Any]]:
    """Decisions that their incident does not show."""
    rows = query_rows(cursor, "incident_decisions", {"projects": list(projects), "incident": None})
    return [row for row in rows if row["pending"]]
