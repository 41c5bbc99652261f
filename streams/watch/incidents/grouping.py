"""Grouping of findings into changes, and their match with open incidents. Pure.

1. Findings of drift that went the same way for the worse, or for the better, and whose first days overlap or lie within a day of each other
   are one change, whichever series and rules saw it. A spike of anomalies is a change of its own.
2. A series stays with the incident that has it. Others join a live incident of the same days, and it keeps its identity.
3. What a person has decided on takes up what goes on with it, and opens nothing, until that is worse or had ended and came back.
4. The way back of a change that is not over is that change: it opens nothing, unless it goes half as far again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from audit.drift.incident_evidence import Evidence, Moved, evidence_of
from audit.drift.watched_series import DRIFT, Series, worse
from schemas.records import Incident
from streams.watch.incidents.states import DAY, DISMISSED, RESOLVED, is_live
from streams.watch.rules.findings import Finding

MUCH_LARGER = 1.5
"""So many times as large as it was when a person decided on it, a change has got worse."""
Days = tuple[date, date]


@dataclass(slots=True)
class Group:
    """Findings about one change, and the incident of it, None for a new one."""

    incident: Incident | None
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class _Case:
    """An incident that is known, with what moved in it."""

    incident: Incident
    evidence: Evidence
    moved: Mapping[Series, Moved]

    @classmethod
    def of(cls, incident: Incident) -> _Case:
        """The case of an incident."""
        evidence = evidence_of(incident)
        return cls(incident, evidence, {entry.series: entry for entry in evidence.moved})

    def has(self, series: Series) -> bool:
        """Tell whether a series moved in the incident; the leading one did, even if the evidence cannot be read."""
        return series in self.moved or series == self.evidence.lead_of(self.incident)

    @property
    def is_live(self) -> bool:
        return is_live(self.incident)

    @property
    def goes_on(self) -> bool:
        """True if its change is not over, as far as is known."""
        return self.is_live or (self.incident.status == DISMISSED and self.incident.last_day is None)


def grouped(findings: Sequence[Finding], known: Sequence[Incident]) -> list[Group]:
    """The findings of a project by change, in the order in which they were found."""
    order = sorted(known, key=lambda one: (one.detected_at, one.incident_id))
    cases = [_Case.of(one) for one in order]
    groups: dict[str, Group] = {}
    fresh: list[list[Finding]] = []
    for series, seen in _by_series(findings).items():
        rest = [one for one in seen if not any(_is_way_back(one, case) for case in cases)]
        home = _home(series, rest, cases)
        if home is None:
            settled = next((case for case in reversed(cases) if case.has(series)), None)
            goes_on = [one for one in rest if settled is not None and _repeats(settled, series, one)]
            if settled is not None and goes_on:
                _put(groups, settled.incident, goes_on)
            rest = [one for one in rest if one not in goes_on]
            home = _joined(series, rest, cases)
        if home is not None and rest:
            _put(groups, home.incident, rest)
        elif rest:
            fresh.append(rest)
    # What is resolved is over: there is nothing to take up.
    told = [
        one for one in groups.values() if one.incident is None or one.incident.status != RESOLVED or _is_normal(one.incident)
    ]
    return [*told, *_clusters(fresh)]


def _is_normal(incident: Incident) -> bool:
    return incident.last_day is None


def _put(groups: dict[str, Group], incident: Incident, findings: Sequence[Finding]) -> None:
    groups.setdefault(incident.incident_id, Group(incident, [])).findings += findings


def _by_series(findings: Sequence[Finding]) -> dict[Series, list[Finding]]:
    found: dict[Series, list[Finding]] = defaultdict(list)
    for one in findings:
        found[one.series].append(one)
    return found


def _home(series: Series, findings: Sequence[Finding], cases: Sequence[_Case]) -> _Case | None:
    """The live incident that has a series, the newest of several; where it only moved along there, if the days fit."""
    live = [case for case in reversed(cases) if case.is_live and case.has(series)]
    own = [case for case in live if series not in case.moved or not case.moved[series].fell_too]
    return next(iter(own), None) or next((case for case in live if _fits(findings, case)), None)


def _joined(series: Series, findings: Sequence[Finding], cases: Sequence[_Case]) -> _Case | None:
    """The incident of other series that findings belong to: a live one, else one that was decided on and knows as bad."""
    found = [case for case in reversed(cases) if findings and _fits(findings, case)]
    live = next((case for case in found if case.is_live), None)
    # What is worse than its own decision is not covered by it, as that of another series may be.
    others = (case for case in found if not case.has(series))
    return live or next((case for case in others if all(_is_known(case, one) for one in findings)), None)


def _is_known(case: _Case, finding: Finding) -> bool:
    """Tell whether a person's decision covers another series of the same change."""
    incident = case.incident
    if worse(finding.severity, incident.severity):
        return False
    return incident.last_day is None or finding.since <= incident.last_day.date()


def _fits(findings: Sequence[Finding], case: _Case) -> bool:
    """Tell whether findings went the same way as an incident, on the same days."""
    alarms = [one for one in case.moved.values() if not one.fell_too]
    if not alarms or not findings or case.incident.type != DRIFT or findings[0].key.type != DRIFT:
        return False
    first = findings[0]
    same = any(one.is_worse == first.is_worse for one in alarms)
    return same and _meet(first.first_days, first.since, _common([one.interval for one in alarms]), alarms[0].since)


def _common(intervals: Sequence[Days]) -> Days:
    """The days that all intervals share; of those that share none, the first one."""
    first, last = max(one[0] for one in intervals), min(one[1] for one in intervals)
    return (first, last) if first <= last else intervals[0]


def _meet(days: Days, since: date, others: Days, other_since: date) -> bool:
    return (days[0] <= others[1] and others[0] <= days[1]) or abs(since - other_since) <= DAY


def _clusters(fresh: Sequence[Sequence[Finding]]) -> Iterator[Group]:
    """New changes: series by series, each to the first cluster that it fits."""
    clusters: list[list[Sequence[Finding]]] = []
    for findings in sorted(fresh, key=lambda found: found[0].since):
        clusters_it_fits = (one for one in clusters if _are_one(findings[0], [found[0] for found in one]))
        found = next(clusters_it_fits, None)
        if found is None:
            clusters.append([findings])
        else:
            found.append(findings)
    for cluster in clusters:
        yield Group(None, [finding for findings in cluster for finding in findings])


def _are_one(finding: Finding, cluster: Sequence[Finding]) -> bool:
    first = cluster[0]
    if finding.key.type != DRIFT or first.key.type != DRIFT or finding.is_worse != first.is_worse:
        return False
    return _meet(finding.first_days, finding.since, _common([one.first_days for one in cluster]), first.since)


def _is_way_back(finding: Finding, case: _Case) -> bool:
    """Tell whether a finding is only the end of a change that is not over, as far as is known."""
    opposite = finding.key._replace(direction="down" if finding.key.direction == "up" else "up")
    moved = case.moved.get(Series(opposite, finding.kind))
    if moved is None or moved.fell_too or not case.goes_on or finding.since <= moved.since:
        return False
    sizes = [seen.size for seen in moved.rules.values() if seen.size is not None]
    return not sizes or finding.size < MUCH_LARGER * max(sizes)


def _repeats(case: _Case, series: Series, finding: Finding) -> bool:
    """Tell whether a finding is only the change that was decided on, and no worse than it was."""
    incident, moved = case.incident, case.moved.get(series)
    if incident.last_day is not None and incident.status == RESOLVED:
        return finding.since <= incident.last_day.date()
    if moved is None or finding.known_level or finding.since > moved.until + DAY or worse(finding.severity, moved.severity):
        return False
    size = _decided_size(case.evidence, series, finding.rule)
    return size is None or finding.size < MUCH_LARGER * size


def _decided_size(evidence: Evidence, series: Series, rule: str) -> float | None:
    """Return the size of a change when a person decided on it; None if that is not known."""
    sizes = evidence.decided_sizes
    return sizes.get(f"{series.key.series} {series.kind} {rule}", sizes.get(rule))
