"""Incidents of findings: what is new, what goes on, and what a person has decided on already. Pure: the same input makes the same records.

Grouping of findings into changes, and their match with open incidents:

1. Findings of drift in the same direction (better or worse) whose first days overlap or lie within a day of each other are one change,
   whichever series and rules saw it. A spike of anomalies is a change of its own.
2. A series stays with the incident that has it. Others join a live incident of the same days, and it keeps its identity.
3. A decided incident takes up what goes on with it, and opens nothing, until the change gets worse, or had ended and came back.
4. The way back of a change that is not over is that change: it opens nothing, unless it goes half as far again.

Incidents and their revisions:

1. There is one open incident for each change, whichever series and rules see it. It ends when it has recovered, or when a person decides
   on it (`streams.watch.lifecycle`).
2. A live incident gets another revision when it got worse, was confirmed, another series joined it, or it goes on for another day, and at
   most once an hour when only numbers changed. Its severity is the worst it had, what is confirmed stays so, and it keeps all of its days.
3. It is told by the worst of its confirmed series. Series without an alarm of their own that moved along are listed.
4. What a person has dismissed, or called the new normal, opens nothing new while it goes on: the decided incident takes up the days, so
   that the next check knows them. A new one opens when it got worse (critical instead of warning, or half as large again), or had ended
   and came back.

The reference of each series (`references_of`, `open_changes_of`), by what is known of its incidents:

1. "This is the new normal" moves the reference of all series of the incident to their first day. The latest such decision counts.
2. The days of a change that is over are cut out: of one that recovered, that a person says is fixed, or that was dismissed and ended. The
   cut begins a day before the most probable first day if the interval of the first day allows that.
3. A change that was over before it was called the new normal is cut out as well: what holds now is what held before it.
4. What goes on, open, acknowledged or dismissed, changes nothing; neither does what was suspected and vanished. A further change the same
   way is looked for within the days of an open one, and its days are then left out of the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import msgspec

from audit.drift.incident_evidence import ChangedSeries, Evidence, Observation, build_changed_series, evidence_json, evidence_of
from audit.drift.series import Reference, Span, merge_spans
from audit.drift.watched_series import DRIFT, FURTHER, MEAN, SEVERITIES, Key, Series, bounds_of, is_more_severe
from audit.fingerprints import stable_id
from schemas.records import Incident
from streams.watch.evidence import HISTORY, MIX, UNEXPLAINED, Explanation, FindCompanions, apply_mix, combine_explanations
from streams.watch.findings import Finding, OpenChange
from streams.watch.lifecycle import (
    CONFIRMED,
    DAY,
    DISMISSED,
    MAX_UNSEEN_DAYS,
    NEW_NORMAL,
    OPEN,
    RESOLVED,
    SUSPECTED,
    VANISHED,
    is_live,
    set_assignee,
    set_decision,
)
from streams.watch.measures import midnight

MIN_GROWTH_FACTOR = 1.5
"""So many times as large as it was when a person decided on it, a change has got worse."""
Days = tuple[date, date]


@dataclass(slots=True)
class Group:
    """Findings about one change, and the incident of it, None for a new one."""

    incident: Incident | None
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class _KnownIncident:
    """An incident that is known, with what moved in it."""

    incident: Incident
    evidence: Evidence
    moved: Mapping[Series, ChangedSeries]

    @classmethod
    def of(cls, incident: Incident) -> _KnownIncident:
        """The case of an incident."""
        evidence = evidence_of(incident)
        return cls(incident, evidence, {entry.series: entry for entry in evidence.moved})

    def has(self, series: Series) -> bool:
        """Tell whether a series moved in the incident; the leading one did, even if the evidence cannot be read."""
        return series in self.moved or series == self.evidence.lead_series(self.incident)

    @property
    def is_live(self) -> bool:
        return is_live(self.incident)

    @property
    def goes_on(self) -> bool:
        """True if its change is not over, as far as is known."""
        return self.is_live or (self.incident.status == DISMISSED and self.incident.last_day is None)


def group_findings(findings: Sequence[Finding], known: Sequence[Incident]) -> list[Group]:
    """The findings of a project by change, in the order in which they were found."""
    order = sorted(known, key=lambda one: (one.detected_at, one.incident_id))
    cases = [_KnownIncident.of(one) for one in order]
    groups: dict[str, Group] = {}
    fresh: list[list[Finding]] = []
    for series, seen in _group_by_series(findings).items():
        rest = [one for one in seen if not any(_is_recovery(one, case) for case in cases)]
        home = _find_own_incident(series, rest, cases)
        if home is None:
            settled = next((case for case in reversed(cases) if case.has(series)), None)
            goes_on = [one for one in rest if settled is not None and _is_repetition(settled, series, one)]
            if settled is not None and goes_on:
                _add_to_group(groups, settled.incident, goes_on)
            rest = [one for one in rest if one not in goes_on]
            home = _find_matching_incident(series, rest, cases)
        if home is not None and rest:
            _add_to_group(groups, home.incident, rest)
        elif rest:
            fresh.append(rest)
    # What is resolved is over: there is nothing to take up.
    told = [one for one in groups.values() if one.incident is None or one.incident.status != RESOLVED or _goes_on(one.incident)]
    return [*told, *_cluster_findings(fresh)]


def _goes_on(incident: Incident) -> bool:
    return incident.last_day is None


def _add_to_group(groups: dict[str, Group], incident: Incident, findings: Sequence[Finding]) -> None:
    groups.setdefault(incident.incident_id, Group(incident, [])).findings += findings


def _group_by_series(findings: Sequence[Finding]) -> dict[Series, list[Finding]]:
    found: dict[Series, list[Finding]] = defaultdict(list)
    for one in findings:
        found[one.series].append(one)
    return found


def _find_own_incident(series: Series, findings: Sequence[Finding], cases: Sequence[_KnownIncident]) -> _KnownIncident | None:
    """The live incident that has a series, the newest of several; where it only moved along there, if the days fit."""
    live = [case for case in reversed(cases) if case.is_live and case.has(series)]
    own = [case for case in live if series not in case.moved or not case.moved[series].fell_too]
    return next(iter(own), None) or next((case for case in live if _matches_incident(findings, case)), None)


def _find_matching_incident(
    series: Series, findings: Sequence[Finding], cases: Sequence[_KnownIncident]
) -> _KnownIncident | None:
    """The incident of other series that findings belong to: a live one, else one that was decided on and knows as bad."""
    found = [case for case in reversed(cases) if findings and _matches_incident(findings, case)]
    live = next((case for case in found if case.is_live), None)
    # What is worse than its own decision is not covered by it, as that of another series may be.
    others = (case for case in found if not case.has(series))
    return live or next((case for case in others if all(_is_covered(case, one) for one in findings)), None)


def _is_covered(case: _KnownIncident, finding: Finding) -> bool:
    """Tell whether a person's decision covers another series of the same change."""
    incident = case.incident
    if is_more_severe(finding.severity, incident.severity):
        return False
    return incident.last_day is None or finding.since <= incident.last_day.date()


def _matches_incident(findings: Sequence[Finding], case: _KnownIncident) -> bool:
    """Tell whether findings went the same way as an incident, on the same days."""
    alarms = [one for one in case.moved.values() if not one.fell_too]
    if not alarms or not findings or case.incident.type != DRIFT or findings[0].key.type != DRIFT:
        return False
    first = findings[0]
    same = any(one.is_worse == first.is_worse for one in alarms)
    return same and _are_close(first.first_days, first.since, _intersect([one.interval for one in alarms]), alarms[0].since)


def _intersect(intervals: Sequence[Days]) -> Days:
    """The days that all intervals share; of those that share none, the first one."""
    first, last = max(one[0] for one in intervals), min(one[1] for one in intervals)
    return (first, last) if first <= last else intervals[0]


def _are_close(days: Days, since: date, others: Days, other_since: date) -> bool:
    return (days[0] <= others[1] and others[0] <= days[1]) or abs(since - other_since) <= DAY


def _cluster_findings(fresh: Sequence[Sequence[Finding]]) -> Iterator[Group]:
    """New changes: series by series, each to the first cluster that it fits."""
    clusters: list[list[Sequence[Finding]]] = []
    for findings in sorted(fresh, key=lambda found: found[0].since):
        clusters_it_fits = (one for one in clusters if _are_same_change(findings[0], [found[0] for found in one]))
        found = next(clusters_it_fits, None)
        if found is None:
            clusters.append([findings])
        else:
            found.append(findings)
    for cluster in clusters:
        yield Group(None, [finding for findings in cluster for finding in findings])


def _are_same_change(finding: Finding, cluster: Sequence[Finding]) -> bool:
    first = cluster[0]
    if finding.key.type != DRIFT or first.key.type != DRIFT or finding.is_worse != first.is_worse:
        return False
    return _are_close(finding.first_days, finding.since, _intersect([one.first_days for one in cluster]), first.since)


def _is_recovery(finding: Finding, case: _KnownIncident) -> bool:
    """Tell whether a finding is only the end of a change that is not over, as far as is known."""
    opposite = finding.key._replace(direction="down" if finding.key.direction == "up" else "up")
    moved = case.moved.get(Series(opposite, finding.kind))
    if moved is None or moved.fell_too or not case.goes_on or finding.since <= moved.since:
        return False
    sizes = [seen.size for seen in moved.rules.values() if seen.size is not None]
    return not sizes or finding.size < MIN_GROWTH_FACTOR * max(sizes)


def _is_repetition(case: _KnownIncident, series: Series, finding: Finding) -> bool:
    """Tell whether a finding is only the change that was decided on, and no worse than it was."""
    incident, moved = case.incident, case.moved.get(series)
    if incident.last_day is not None and incident.status == RESOLVED:
        return finding.since <= incident.last_day.date()
    if (
        moved is None
        or finding.known_level
        or finding.since > moved.until + DAY
        or is_more_severe(finding.severity, moved.severity)
    ):
        return False
    size = _decided_size(case.evidence, series, finding.rule)
    return size is None or finding.size < MIN_GROWTH_FACTOR * size


def _decided_size(evidence: Evidence, series: Series, rule: str) -> float | None:
    """Return the size of a change when a person decided on it; None if that is not known."""
    sizes = evidence.decided_sizes
    return sizes.get(f"{series.key.series} {series.kind} {rule}", sizes.get(rule))


NUMBERS_INTERVAL = timedelta(hours=1)
"""The interval at which an incident is written again for its numbers alone."""
MAX_PAST_DAYS = 90
"""Days that are kept of those that have left a rule's window."""
MAX_CHANGED_SERIES = 40
"""Series that an incident lists: an agent may have many failure types."""
ESTIMATING_RULES = ("sequential", "rate_ratio", "runs")
"""The rules that look at all days each time, and may find another first day."""
_MIN_SIGMA_SHARE = 0.05
"""The assumed spread of a series that never varied, as a share of its scale.

With it, the first unsafe run is not infinitely far off.
"""
MAX_NAMED_SERIES = 2
"""Series that a title names besides the one that leads; more are counted."""
ExplainFinding = Callable[[Finding], Explanation]
"""Returns the cause of a finding: agent or judge, or the reason why it is not known."""


@dataclass(frozen=True, slots=True)
class IncidentUpdate:
    """An incident that is to be written: for the first time, or once more."""

    lead: Finding
    """The finding that tells of it, or one of those that were made now where another tells of it still."""
    moved: tuple[ChangedSeries, ...]
    """The series that moved, now and before."""
    leads: Series
    """The series that tells of it."""
    before: Incident | None
    """Its latest revision; None for a new one."""
    evidence: Evidence
    """The evidence of that; empty for a new one."""
    explanation: Explanation
    """The cause according to the anchors, agent or judge, or the reason why it is not known."""

    @property
    def alarms(self) -> list[ChangedSeries]:
        """The series that raised an alarm."""
        return [one for one in self.moved if not one.fell_too]

    @property
    def severity(self) -> str:
        """The worst that any of them had."""
        so_far = [] if self.before is None else [self.before.severity]
        return max([*so_far, *(one.severity for one in self.alarms)], key=SEVERITIES.index)

    @property
    def is_confirmed(self) -> bool:
        """True if it is certain."""
        was = self.before is not None and self.before.confidence == CONFIRMED
        return was or any(one.confirmed for one in self.alarms)

    @property
    def first_day(self) -> date:
        """The first day of the change."""
        return next(one.since for one in self.moved if one.series == self.leads)

    @property
    def is_about_lead(self) -> bool:
        """True if its leading series was found now: its evidence is gathered again."""
        return self.leads == self.lead.series

    @property
    def tells(self) -> bool:
        """True if the new findings describe it: its title and description are made again."""
        before = self.before
        goes_on = before is not None and self.evidence.lead_series(before) == self.leads
        return self.is_about_lead and (not goes_on or before is None or before.rule == self.lead.rule)


def plan_updates(
    findings: Sequence[Finding],
    known: Sequence[Incident],
    as_of: datetime,
    cause_of: ExplainFinding,
    moved_too: FindCompanions = lambda *_: (),
) -> list[IncidentUpdate]:
    """The incidents that findings of one project make, given all that are known of it; none that would say nothing new."""
    found = [_plan_update(group, cause_of, moved_too) for group in group_findings(findings, known)]
    return [one for one in found if one.before is None or _is_worth_writing(one, one.before, as_of)]


def _plan_update(group: Group, cause_of: ExplainFinding, moved_too: FindCompanions) -> IncidentUpdate:
    before = group.incident
    evidence = Evidence() if before is None else evidence_of(before)
    moved = merge_findings(evidence.moved, group.findings)
    lead = _choose_lead(group.findings, before, moved)
    leads = lead.series
    was = None if before is None else evidence.lead_series(before)
    if was is not None and any(one.series == was for one in moved) and not _outranks(leads, was, moved):
        leads = was
        own = [one for one in group.findings if one.series == was]
        lead = next((one for one in own if one.rule == _rule_of(before)), next(iter(own), lead))
    made = IncidentUpdate(lead, tuple(moved), leads, before, evidence, _explain(group.findings, cause_of))
    if lead.key.type != DRIFT or (before is not None and not is_live(before)):
        return made
    is_worse = next(one.is_worse for one in moved if one.series == leads)
    tiers = {one.key.tier or "" for one in made.alarms}
    return replace(made, moved=tuple(merge_findings(moved, moved_too(made.first_day, is_worse, tiers))))


def _rule_of(incident: Incident | None) -> str | None:
    return None if incident is None else incident.rule


def _choose_lead(findings: Sequence[Finding], before: Incident | None, moved: Sequence[ChangedSeries]) -> Finding:
    """The finding that tells of a change: of the worst confirmed series, by the rule that told before, else by the first one."""
    best = max(findings, key=lambda one: _rank(one.series, moved))
    of_series = [one for one in findings if one.series == best.series]
    return next((one for one in of_series if one.rule == _rule_of(before)), of_series[0])


def _rank(series: Series, moved: Sequence[ChangedSeries]) -> tuple[bool, int, bool, float]:
    """Return the key that decides which series leads.

    Confirmed series come first, then the more severe, then those that moved the whole project by a sigma. Last comes the larger
    change, measured by its own spread.
    """
    found = next(one for one in moved if one.series == series)
    level = found.level
    low, high = bounds_of(series.key.tier)
    least = _MIN_SIGMA_SHARE * (high - low)
    off = 0.0 if level is None else abs(level.after - level.before) / max(level.sigma, least)
    return found.confirmed, SEVERITIES.index(found.severity), series.key.agent is None and off >= 1, off


def _outranks(series: Series, other: Series, moved: Sequence[ChangedSeries]) -> bool:
    """Tell whether a series is worse than the one that leads; not by numbers alone, which change every hour."""
    return _rank(series, moved)[:2] > _rank(other, moved)[:2]


def _explain(findings: Sequence[Finding], cause_of: ExplainFinding) -> Explanation:
    """Return the cause, from all series that raised an alarm; of several findings of one series the first one counts."""
    explanations: dict[Key, Explanation] = {}
    for one in findings:
        if not one.fell_too and explanations.get(one.key, UNEXPLAINED) is UNEXPLAINED:
            explanations[one.key] = cause_of(one)
    return combine_explanations(
        {
            key.tier if key.agent is None and key.tier else key.series: one
            for key, one in sorted(explanations.items(), key=lambda pair: str(pair[0]))
        }
    )


def build_record(made: IncidentUpdate, project: str, as_of: datetime, evidence: Evidence) -> Incident:
    """The record of an incident that is due, with its evidence; the same as-of gives the same record."""
    explanation = apply_mix(made.explanation, evidence)
    if made.before is None:
        return _build_first_revision(made, project, as_of, evidence, explanation)
    before = made.before
    if not is_live(before):
        kept = _build_metadata(made, made.evidence)
        again = None if before.status == DISMISSED else before.last_day
        return msgspec.structs.replace(before, revision=before.revision + 1, metadata=kept, checked_at=as_of, last_day=again)
    tells, key, is_sure = made.tells, made.leads.key, made.is_confirmed and explanation.cause != HISTORY
    return msgspec.structs.replace(
        before,
        revision=before.revision + 1,
        tier=key.tier,
        direction=key.direction,
        agent=key.agent,
        rule=made.lead.rule if tells else before.rule,
        severity=made.severity,
        title=_build_title(made, explanation) if tells else before.title,
        description=_build_description(made, evidence, explanation) if tells else before.description,
        metadata=_build_metadata(made, evidence),
        cause=explanation.cause,
        checked_at=as_of,
        confidence=CONFIRMED if is_sure else before.confidence,
        confirmed_at=before.confirmed_at or (as_of if is_sure and before.confidence != CONFIRMED else None),
        first_day=midnight(made.first_day),
    )


def _build_first_revision(
    made: IncidentUpdate, project: str, as_of: datetime, evidence: Evidence, explanation: Explanation
) -> Incident:
    # What history explains did not happen on that day: it is shown, and alerts nobody.
    lead, is_sure = made.lead, made.is_confirmed and explanation.cause != HISTORY
    kind, tier, direction, agent = lead.key
    named = [
        project,
        kind,
        tier or "",
        direction or "",
        *([agent] if agent else []),
        *([lead.kind] if lead.kind != "mean" else []),
    ]
    return Incident(
        incident_id=stable_id("incident", *named, as_of.isoformat()),
        revision=0,
        project=project,
        type=kind,
        tier=tier,
        direction=direction,
        agent=agent,
        status=OPEN,
        severity=made.severity,
        title=_build_title(made, explanation),
        description=_build_description(made, evidence, explanation),
        metadata=_build_metadata(made, evidence),
        baseline_id=None if evidence.baseline is None else evidence.baseline.id,
        detected_at=as_of,
        rule=lead.rule,
        cause=explanation.cause,
        checked_at=as_of,
        confidence=CONFIRMED if is_sure else SUSPECTED,
        confirmed_at=as_of if is_sure else None,
        first_day=midnight(made.first_day),
    )


def _build_title(made: IncidentUpdate, explanation: Explanation) -> str:
    """The title of the finding that tells of it, with the names of what moved as well; that of a changed mix begins with the mix."""
    mix = ""
    if explanation.cause in {MIX, HISTORY}:
        changed = "The mix changed" if explanation.cause == MIX else "History was added"
        mix = f"{changed} ({explanation.shares}): "
    names = list(dict.fromkeys(one.name for one in made.moved if one.series != made.leads))
    if len(names) > MAX_NAMED_SERIES:
        names = [*names[: MAX_NAMED_SERIES - 1], f"{len(names) - MAX_NAMED_SERIES + 1} others"]
    return mix + made.lead.title + (f"; {' and '.join(names)} also changed" if names else "")


def _build_description(made: IncidentUpdate, evidence: Evidence, explanation: Explanation) -> str:
    others = [one.observation.title or "" for one in made.moved if one.series != made.leads]
    also = f"Also changed: {'; '.join(one for one in others if one)}." if any(others) else None
    parts = [
        made.lead.description,
        also,
        evidence.note,
        explanation.words if explanation.cause else None,
    ]
    return " ".join(part for part in parts if part)


def _build_metadata(made: IncidentUpdate, evidence: Evidence) -> str:
    lead = next(one for one in made.moved if one.series == made.leads)
    found = msgspec.structs.replace(
        evidence, cause=made.explanation.numbers, rules=lead.rules, moved=_order_series(made.moved, made.leads)
    )
    return evidence_json(found)


def _order_series(moved: Sequence[ChangedSeries], lead: Series) -> list[ChangedSeries]:
    """Return the series that moved, the leading one first and marked, those without an alarm last."""
    marked = [msgspec.structs.replace(one, leads=one.series == lead) for one in moved]
    return sorted(marked, key=lambda one: (not one.leads, one.fell_too))


def apply_decision(incident: Incident, decision: str, who: str, at: datetime) -> Incident:
    """The next revision of an incident after a decision, with how large the change was then."""
    evidence = evidence_of(incident)
    sizes = {} if decision == OPEN else _collect_sizes(evidence)
    return msgspec.structs.replace(
        set_decision(incident, decision, who, at),
        revision=incident.revision + 1,
        metadata=evidence_json(msgspec.structs.replace(evidence, decided_sizes=sizes)),
    )


def apply_assignment(incident: Incident, assignee: str | None, at: datetime) -> Incident:
    """The next revision of an incident after it was assigned to a person, or to no one."""
    return msgspec.structs.replace(set_assignee(incident, assignee, at), revision=incident.revision + 1)


def _collect_sizes(evidence: Evidence) -> dict[str, float | None]:
    moved = {f"{one.series_name} {one.kind} {rule}": seen.size for one in evidence.moved for rule, seen in one.rules.items()}
    return {**{rule: seen.size for rule, seen in evidence.rules.items()}, **moved}


def _is_worth_writing(made: IncidentUpdate, before: Incident, as_of: datetime) -> bool:
    """Tell whether another revision would say something new that is worth one."""
    if before.checked_at is not None and as_of < before.checked_at:
        return False  # a look back, or a clock that was set back: what was seen later is not to be undone
    earlier, lead = made.evidence.moved, made.evidence.lead_series(before)
    if _collect_last_days(earlier) != _collect_last_days(made.moved):
        return True
    if not is_live(before):
        return False
    is_sure = made.is_confirmed and before.cause != HISTORY
    if (made.severity, is_sure) != (before.severity, before.confidence == CONFIRMED):
        return True
    aged = before.checked_at is None or as_of - before.checked_at >= NUMBERS_INTERVAL
    changed = made.leads != lead or _order_series(earlier, lead) != _order_series(made.moved, lead)
    return aged and (changed or made.explanation.numbers != made.evidence.cause)


def _collect_last_days(moved: Iterable[ChangedSeries]) -> dict[Series, dict[str, date]]:
    """The last day that each rule sees of each series that raised an alarm."""
    return {one.series: {name: seen.until for name, seen in one.rules.items()} for one in moved if not one.fell_too}


def merge_findings(before: Iterable[ChangedSeries], findings: Iterable[Finding]) -> list[ChangedSeries]:
    """Merge new findings into the series that moved.

    A series keeps its days and its worst severity; those that only moved along are as of now.
    """
    moved = {one.series: one for one in before if not one.fell_too}
    for finding in findings:
        moved[finding.series] = _merge_finding(moved.get(finding.series), finding)
    return list(moved.values())[:MAX_CHANGED_SERIES]


def _merge_finding(earlier: ChangedSeries | None, finding: Finding) -> ChangedSeries:
    rules = {} if earlier is None else dict(earlier.rules)
    rules[finding.rule] = _build_observation(finding, rules.get(finding.rule))
    if earlier is None:
        return build_changed_series(
            finding.series,
            rules,
            rule=finding.rule,
            severity=finding.severity,
            confirmed=finding.confirmed,
            interval=finding.first_days,
            fell_too=finding.fell_too,
        )
    return build_changed_series(
        earlier.series,
        rules,
        rule=earlier.rule,
        severity=max(earlier.severity, finding.severity, key=SEVERITIES.index),
        confirmed=earlier.confirmed or finding.confirmed,
        interval=finding.first_days if earlier.rule == finding.rule else earlier.interval,
    )


def _build_observation(finding: Finding, earlier: Observation | None) -> Observation:
    """Return what the rule of a finding saw, with the days that it saw before and that have left its window."""
    seen = Observation(
        **msgspec.structs.asdict(finding.numbers),
        severity=finding.severity,
        since=finding.since,
        until=finding.until,
        size=finding.size,
        title=finding.title,
        description=finding.description,
        confirmed=finding.confirmed,
    )
    if earlier is None or not seen.days or finding.rule in ESTIMATING_RULES:
        return seen
    gone = [one for one in earlier.days or () if one.day < seen.days[0].day][-MAX_PAST_DAYS:]
    return msgspec.structs.replace(seen, since=min(seen.since, earlier.since), days=[*gone, *seen.days])


def derive_references(known: Iterable[Incident]) -> dict[str, Reference]:
    """For each series on which something was decided, or of which something is over, the days that count."""
    since: dict[str, date] = {}
    cuts: dict[str, list[Span]] = defaultdict(list)
    apply_decision = [one for one in known if not is_live(one) and one.resolution != VANISHED]
    for incident in sorted(apply_decision, key=lambda one: (_decision_time(one), one.incident_id)):
        last = _last_cut_day(incident)
        for moved in evidence_of(incident).moved:
            first = _first_cut_day(moved)
            if last is not None:
                cuts[moved.key.series].append((min(first, last), last))
            elif incident.resolution == NEW_NORMAL:
                since[moved.key.series] = moved.since
    return {series: Reference(since.get(series), merge_spans(cuts.get(series, ()))) for series in since.keys() | cuts.keys()}


def find_open_changes(known: Iterable[Incident]) -> dict[str, OpenChange]:
    """The changes of a project's means whose incidents are open, by series; of several the first, with the next one the same way."""
    changes: dict[str, OpenChange] = {}
    further: dict[str, date] = {}
    # What history explains is no level that anything could fall further from.
    own = [incident for incident in known if is_live(incident) and incident.cause != HISTORY]
    live = [one for incident in own for one in evidence_of(incident).moved if not one.fell_too]
    for moved in sorted(live, key=lambda one: one.since, reverse=True):
        direction = moved.key.direction
        if moved.kind == FURTHER:
            further[moved.key.series] = moved.since
        elif moved.kind == MEAN and moved.confirmed and direction is not None:
            changes[moved.key.series] = OpenChange(direction, moved.since)
    return {series: change._replace(further_since=further.get(series)) for series, change in changes.items()}


def _first_cut_day(moved: ChangedSeries) -> date:
    """The first day that is cut out."""
    return min(moved.since, max(moved.interval[0], moved.since - DAY))


def _last_cut_day(incident: Incident) -> date | None:
    """The last day of a change that is over; None for one that goes on."""
    if incident.last_day is not None:
        return incident.last_day.date()
    seen = [one.until for one in evidence_of(incident).moved]
    if incident.resolution != NEW_NORMAL or not seen:
        return None
    return max(seen) if max(seen) < _decision_time(incident).date() - MAX_UNSEEN_DAYS * DAY else None


def _decision_time(incident: Incident) -> datetime:
    return incident.resolved_at or incident.detected_at
