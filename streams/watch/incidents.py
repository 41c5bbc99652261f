"""Incidents from findings: which findings are new, which belong to a known incident, and which a person has already decided on.

The functions are pure: the same input gives the same records.

Grouping of findings into changes, and their match with known incidents:

1. Findings in the same direction (better or worse) are one change if their first days overlap or are at most a day apart, whatever series
   and rules they come from: tiers, runs, behavior, anomalies. Findings about the same version or other label, or the same tool, are one
   change if they begin within a week, because a version reaches one agent after another.
2. A series stays with the live incident that has it. A finding about another series joins a live incident of the same days.
3. A decided incident absorbs the findings of a change that continues. Nothing new opens unless the change gets worse, or ended and
   came back.
4. The recovery from a change that is not over belongs to that change: it opens nothing, unless it goes half as far again.

Incidents and their revisions:

1. There is one open incident per change. It ends when it has recovered, or when a person decides on it (`streams.watch.lifecycle`).
2. A live incident gets another revision if it got worse, was confirmed, another series joined it, or it was seen on another day. If only
   numbers changed, it gets one at most every hour. Its severity is the worst so far, it stays confirmed, and it keeps all of its days. An
   incident that a change of the judge explains completely is a notice: no agent got worse.
3. The worst confirmed series leads the incident: it gives the title and the description. Series that changed along without an alarm are
   listed.
4. A change that a person dismissed or called the new normal opens no new incident while it continues. The decided incident is revised
   with its newest days, so that the next check knows them. A new incident opens if the change got worse (critical instead of warning, or
   half as large again), or ended and came back.

A snoozed incident wakes when its change gets worse (`describe_worsening`): when it becomes more severe or confirmed, or when a series has
certainly changed more than it was estimated to have at the snooze. "Certainly" is the nearer end of the rule's interval for the size. The
estimate alone would not do: it moves with every check. Nor would the nearer end against its own earlier value, which grows with the number
of sessions even if the change stays as it is. A rule without an interval must find 1.5 times the size.

The reference of each series (`derive_references`, `find_open_changes`) follows from its known incidents:

1. "This is the new normal" moves the reference of all series of the incident to their first day. The latest such decision counts.
2. The days of a change that is over are excluded: a change that recovered, that a person marked as fixed, or that was dismissed and ended.
   The excluded span begins a day before the most probable first day if the interval of the first day allows that.
3. A change that was over before it was called the new normal is excluded as well, because the level before it is normal again.
4. A change that continues, whether open, acknowledged or dismissed, does not affect the reference, and neither does a suspected change
   that vanished. A further change in the same direction is searched for within the days of an open one; its days are then excluded from
   the first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import msgspec

from audit.drift.incident_evidence import ChangedSeries, Evidence, Observation, build_changed_series, evidence_json, evidence_of
from audit.drift.series import Reference, Span, merge_spans
from audit.drift.watched_series import (
    BEHAVIOUR,
    DOWN,
    DRIFT,
    FURTHER,
    MEAN,
    NOTICE,
    OTHER_TOOLS,
    SEVERITIES,
    TOOL_ERRORS,
    UP,
    Key,
    Series,
    bounds_of,
    is_more_severe,
    lower_first,
    name_slice,
)
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
    is_snoozed,
    set_assignee,
    set_decision,
    set_snooze,
    wake,
)
from streams.watch.measures import midnight

MIN_GROWTH_FACTOR = 1.5
"""A change has got worse if it is this many times as large as it was at the decision."""
MAX_ROLLOUT_TIME = timedelta(days=7)
"""Time in which a version or a tool reaches the agents that it changes."""
Days = tuple[date, date]


@dataclass(slots=True)
class Group:
    """The findings about one change, and its incident; None for a new one."""

    incident: Incident | None
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class _KnownIncident:
    """A known incident with the series that changed in it."""

    incident: Incident
    evidence: Evidence
    changed_series: Mapping[Series, ChangedSeries]

    @classmethod
    def of(cls, incident: Incident) -> _KnownIncident:
        """Read the evidence of an incident."""
        evidence = evidence_of(incident)
        return cls(incident, evidence, {changed.series: changed for changed in evidence.moved})

    def has(self, series: Series) -> bool:
        """Return whether a series changed in the incident. The leading series did, even if the evidence cannot be read."""
        return series in self.changed_series or series == self.evidence.lead_series(self.incident)

    @property
    def is_live(self) -> bool:
        return is_live(self.incident)

    @property
    def continues(self) -> bool:
        """True if the change is not known to be over."""
        return self.is_live or (self.incident.status == DISMISSED and self.incident.last_day is None)


def group_findings(findings: Sequence[Finding], incidents: Sequence[Incident]) -> list[Group]:
    """Group the findings of a project by change, given its known incidents."""
    oldest_first = sorted(incidents, key=lambda incident: (incident.detected_at, incident.incident_id))
    known = [_KnownIncident.of(incident) for incident in oldest_first]
    groups: dict[str, Group] = {}
    unmatched: list[list[Finding]] = []
    for series, series_findings in _group_by_series(findings).items():
        changes = [finding for finding in series_findings if not any(_is_recovery(finding, candidate) for candidate in known)]
        for incident, matched in _match_incidents(series, changes, known):
            if incident is None:
                unmatched.append(matched)
            else:
                groups.setdefault(incident.incident_id, Group(incident, [])).findings += matched
    # A resolved incident with a last day is over, so its repetitions are dropped.
    continuing = [group for group in groups.values() if group.incident is None or not _is_over(group.incident)]
    return [*continuing, *_cluster_findings(unmatched)]


def _match_incidents(
    series: Series, findings: list[Finding], known: Sequence[_KnownIncident]
) -> Iterator[tuple[Incident | None, list[Finding]]]:
    """Yield the incidents to which the findings about a series belong, each with its findings; None for those of no known incident."""
    own = _find_own_incident(series, findings, known)
    if own is not None:
        if findings:
            yield own.incident, findings
        return
    remaining = findings
    latest = next((candidate for candidate in reversed(known) if candidate.has(series)), None)
    if latest is not None:
        repetitions = [finding for finding in findings if _is_repetition(latest, series, finding)]
        remaining = [finding for finding in findings if finding not in repetitions]
        if repetitions:
            yield latest.incident, repetitions
    if remaining:
        match = _find_matching_incident(series, remaining, known)
        yield None if match is None else match.incident, remaining


def _is_over(incident: Incident) -> bool:
    return incident.status == RESOLVED and incident.last_day is not None


def _group_by_series(findings: Sequence[Finding]) -> dict[Series, list[Finding]]:
    by_series: dict[Series, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_series[finding.series].append(finding)
    return by_series


def _find_own_incident(series: Series, findings: Sequence[Finding], known: Sequence[_KnownIncident]) -> _KnownIncident | None:
    """Return the newest live incident in which the series raised an alarm.

    Otherwise return the newest one in which it changed along, if the days of the findings match.
    """
    live = [candidate for candidate in reversed(known) if candidate.is_live and candidate.has(series)]
    for candidate in live:
        if series not in candidate.changed_series or not candidate.changed_series[series].fell_too:
            return candidate
    return next((candidate for candidate in live if _matches_incident(findings, candidate)), None)


def _find_matching_incident(
    series: Series, findings: Sequence[Finding], known: Sequence[_KnownIncident]
) -> _KnownIncident | None:
    """Return the newest live incident of the same change, or else a decided one whose decision covers all findings."""
    matching = [candidate for candidate in reversed(known) if _matches_incident(findings, candidate)]
    for candidate in matching:
        if candidate.is_live:
            return candidate
    for candidate in matching:
        # If the incident has the series itself, the findings are worse than what was decided on.
        if not candidate.has(series) and all(_is_covered(candidate, finding) for finding in findings):
            return candidate
    return None


def _is_covered(known: _KnownIncident, finding: Finding) -> bool:
    """Return whether a person's decision also covers a finding about another series of the same change."""
    incident = known.incident
    # The decision covers changes as severe as those of the series, even if the incident is only a notice.
    severities = [changed.severity for changed in known.changed_series.values()]
    if is_more_severe(finding.severity, max([incident.severity, *severities], key=SEVERITIES.index)):
        return False
    return incident.last_day is None or finding.since <= incident.last_day.date()


def _matches_incident(findings: Sequence[Finding], known: _KnownIncident) -> bool:
    """Return whether findings have the direction and the first days of an incident."""
    alarms = [changed for changed in known.changed_series.values() if not changed.fell_too]
    if not alarms or not findings:
        return False
    finding = findings[0]
    if all(finding.series.opposes(alarm.series) for alarm in alarms):
        return False
    if any(_share_part(finding.key, alarm.key) and _are_near(finding.since, alarm.since) for alarm in alarms):
        return True
    incident_days = _intersect([alarm.interval for alarm in alarms])
    return _are_close(finding.first_days, finding.since, incident_days, alarms[0].since)


def _share_part(key: Key, other: Key) -> bool:
    """Return whether two series are about the same slice, such as a version, or about the errors of the same tool."""
    if key.slice is not None:
        return key.slice == other.slice
    tool_errors = BEHAVIOUR + TOOL_ERRORS
    tier = key.tier or ""
    return tier.startswith(tool_errors) and tier != tool_errors + OTHER_TOOLS and tier == other.tier


def _are_near(since: date, other_since: date) -> bool:
    return abs(since - other_since) <= MAX_ROLLOUT_TIME


def _intersect(intervals: Sequence[Days]) -> Days:
    """Return the days that all intervals share, or else the first interval."""
    first = max(interval[0] for interval in intervals)
    last = min(interval[1] for interval in intervals)
    return (first, last) if first <= last else intervals[0]


def _are_close(days: Days, since: date, other_days: Days, other_since: date) -> bool:
    """Return whether two intervals of first days overlap, or the most probable first days are at most a day apart."""
    overlap = days[0] <= other_days[1] and other_days[0] <= days[1]
    return overlap or abs(since - other_since) <= DAY


def _cluster_findings(unmatched: Sequence[Sequence[Finding]]) -> list[Group]:
    """Group the findings of new changes: the findings of each series join the first cluster that they match."""
    clusters: list[list[Sequence[Finding]]] = []
    for series_findings in sorted(unmatched, key=lambda findings: findings[0].since):
        for cluster in clusters:
            if _are_same_change(series_findings[0], [findings[0] for findings in cluster]):
                cluster.append(series_findings)
                break
        else:
            clusters.append([series_findings])
    return [Group(None, [finding for findings in cluster for finding in findings]) for cluster in clusters]


def _are_same_change(finding: Finding, cluster: Sequence[Finding]) -> bool:
    first = cluster[0]
    if any(finding.series.opposes(member.series) for member in cluster):
        return False
    if any(_share_part(finding.key, member.key) and _are_near(finding.since, member.since) for member in cluster):
        return True
    cluster_days = _intersect([member.first_days for member in cluster])
    return _are_close(finding.first_days, finding.since, cluster_days, first.since)


def _is_recovery(finding: Finding, known: _KnownIncident) -> bool:
    """Return whether a finding is only the recovery from a change that continues."""
    opposite = finding.key._replace(direction=DOWN if finding.key.direction == UP else UP)
    changed = known.changed_series.get(Series(opposite, finding.kind))
    if changed is None or changed.fell_too or not known.continues or finding.since <= changed.since:
        return False
    sizes = [observation.size for observation in changed.rules.values() if observation.size is not None]
    return not sizes or finding.size < MIN_GROWTH_FACTOR * max(sizes)


def _is_repetition(known: _KnownIncident, series: Series, finding: Finding) -> bool:
    """Return whether a finding is only the change that was decided on, and no worse."""
    incident = known.incident
    if _is_over(incident):
        return incident.last_day is not None and finding.since <= incident.last_day.date()
    changed = known.changed_series.get(series)
    if changed is None or finding.known_level or finding.since > changed.until + DAY:
        return False
    if is_more_severe(finding.severity, changed.severity):
        return False
    size = _decided_size(known.evidence, series, finding.rule)
    return size is None or finding.size < MIN_GROWTH_FACTOR * size


def _decided_size(evidence: Evidence, series: Series, rule: str) -> float | None:
    """Return the size of a change at the last decision or snooze; None if unknown."""
    sizes = evidence.decided_sizes
    return sizes.get(f"{series.key.series} {series.kind} {rule}", sizes.get(rule))


NUMBERS_INTERVAL = timedelta(hours=1)
"""The shortest interval between revisions of an incident if only its numbers changed."""
MAX_PAST_DAYS = 90
"""Days that an observation keeps after they have left the window of its rule."""
MAX_CHANGED_SERIES = 40
"""Series that an incident lists, because an agent may have many types of failure."""
ESTIMATING_RULES = ("sequential", "versions", "rate_ratio", "runs", "sessions", "behaviour")
"""The rules that examine all days at each check, and may then find another first day."""
_MIN_SIGMA_SHARE = 0.05
"""The smallest assumed spread of a series, as a share of its scale.

Without it, the first unsafe run of a series that never varied would be infinitely many standard deviations away.
"""
ExplainFinding = Callable[[Finding], Explanation]
"""Returns the cause of a finding (agent or judge), or the reason why it is unknown."""


@dataclass(frozen=True, slots=True)
class IncidentUpdate:
    """An incident that needs a record: its first one or another revision."""

    finding: Finding
    """The finding about the leading series, or another new finding if there is none."""
    changed_series: tuple[ChangedSeries, ...]
    """The series that changed, now and before."""
    lead_series: Series
    """The series that gives the title and the description."""
    previous: Incident | None
    """The latest revision; None for a new incident."""
    evidence: Evidence
    """The evidence of the latest revision; empty for a new incident."""
    explanation: Explanation
    """The cause according to the anchors (agent or judge), or the reason why it is unknown."""

    @property
    def alarms(self) -> list[ChangedSeries]:
        """The series that raised an alarm."""
        return [changed for changed in self.changed_series if not changed.fell_too]

    @property
    def severity(self) -> str:
        """The worst severity so far; a notice if only the judge changed."""
        if self.explanation.is_only_judge:
            return NOTICE
        severities = [alarm.severity for alarm in self.alarms]
        if self.previous is not None:
            severities.append(self.previous.severity)
        return max(severities, key=SEVERITIES.index)

    @property
    def is_confirmed(self) -> bool:
        """True if the change is or was confirmed."""
        was_confirmed = self.previous is not None and self.previous.confidence == CONFIRMED
        return was_confirmed or any(alarm.confirmed for alarm in self.alarms)

    @property
    def first_day(self) -> date:
        """The first day of the change."""
        return next(changed.since for changed in self.changed_series if changed.series == self.lead_series)

    @property
    def is_about_lead(self) -> bool:
        """True if the new finding is about the leading series, so that evidence is gathered again."""
        return self.lead_series == self.finding.series

    @property
    def renews_text(self) -> bool:
        """True if the title and the description are written again from the new finding."""
        if not self.is_about_lead:
            return False
        keeps_lead = self.previous is not None and self.evidence.lead_series(self.previous) == self.lead_series
        return not keeps_lead or self.previous is None or self.previous.rule == self.finding.rule


def plan_updates(
    findings: Sequence[Finding],
    incidents: Sequence[Incident],
    as_of: datetime,
    explain: ExplainFinding,
    find_companions: FindCompanions = lambda *_: (),
) -> list[IncidentUpdate]:
    """Return the incidents of a project that need a record because of the findings, given all known incidents."""
    updates = [_plan_update(group, explain, find_companions) for group in group_findings(findings, incidents)]
    return [update for update in updates if update.previous is None or _is_worth_writing(update, update.previous, as_of)]


def _plan_update(group: Group, explain: ExplainFinding, find_companions: FindCompanions) -> IncidentUpdate:
    previous = group.incident
    evidence = Evidence() if previous is None else evidence_of(previous)
    changed_series = merge_findings(evidence.moved, group.findings)
    finding, lead_series = _choose_lead(group.findings, previous, evidence, changed_series)
    explanation = _explain_findings(group.findings, explain)
    if explanation is UNEXPLAINED and isinstance(evidence.cause.cause, str):
        # The findings of today are about other series, of which anchors say nothing. What they said of the incident remains.
        explanation = Explanation(evidence.cause.cause, evidence.cause.words or "", evidence.cause)
    update = IncidentUpdate(finding, tuple(changed_series), lead_series, previous, evidence, explanation)
    if lead_series.key.type != DRIFT or (previous is not None and not is_live(previous)):
        return update
    if lead_series.is_worse is None:
        return update
    agent = lead_series.key.agent
    alarmed_tiers = {alarm.key.tier or "" for alarm in update.alarms if alarm.key.agent == agent}
    companions = find_companions(agent, update.first_day, lead_series.is_worse, alarmed_tiers)
    return replace(update, changed_series=tuple(merge_findings(changed_series, companions)))


def _choose_lead(
    findings: Sequence[Finding], previous: Incident | None, evidence: Evidence, changed_series: Sequence[ChangedSeries]
) -> tuple[Finding, Series]:
    """Return the finding and the series that describe a change.

    The leading series of the previous revision stays, unless a series of the findings outranks it.
    """
    best = max(findings, key=lambda finding: _rank(finding.series, changed_series)).series
    previous_lead = None if previous is None else evidence.lead_series(previous)
    if previous_lead is None or all(changed.series != previous_lead for changed in changed_series):
        return _choose_finding(findings, best, previous), best
    if _outranks(best, previous_lead, changed_series):
        return _choose_finding(findings, best, previous), best
    if any(finding.series == previous_lead for finding in findings):
        return _choose_finding(findings, previous_lead, previous), previous_lead
    return _choose_finding(findings, best, previous), previous_lead


def _choose_finding(findings: Sequence[Finding], series: Series, previous: Incident | None) -> Finding:
    """Return the finding about a series from the rule of the previous revision, or else the first one."""
    candidates = [finding for finding in findings if finding.series == series]
    for finding in candidates:
        if previous is not None and finding.rule == previous.rule:
            return finding
    return candidates[0]


def _rank(series: Series, changed_series: Sequence[ChangedSeries]) -> tuple[bool, bool, bool, int, bool, float]:
    """Return the sort key that decides which series leads.

    Confirmed series come first, then those that are better or worse by themselves, then those of an agent if at most half of the agents
    changed, then the more severe ones, then those that changed for the whole project by at least a standard deviation. The last criterion is
    the size of the change in standard deviations.
    """
    changed = next(entry for entry in changed_series if entry.series == series)
    level = changed.level
    low, high = bounds_of(series.key.tier)
    min_sigma = _MIN_SIGMA_SHARE * (high - low)
    deviations = 0.0 if level is None else abs(level.after - level.before) / max(level.sigma, min_sigma)
    numbers = changed.observation
    is_of_few_agents = 2 * (numbers.agents_changed or math.inf) <= (numbers.agents or 0) and series.key.agent is not None
    is_project_wide = series.key.agent is None and deviations >= 1
    is_decided = series.is_worse is not None
    return changed.confirmed, is_decided, is_of_few_agents, SEVERITIES.index(changed.severity), is_project_wide, deviations


def _outranks(series: Series, lead_series: Series, changed_series: Sequence[ChangedSeries]) -> bool:
    """Return whether a series ranks above the leading one, before sizes: they do not count, because they change every hour."""
    return _rank(series, changed_series)[:4] > _rank(lead_series, changed_series)[:4]


def _explain_findings(findings: Sequence[Finding], explain: ExplainFinding) -> Explanation:
    """Return the cause according to all series that raised an alarm; the first conclusive finding of each series counts."""
    explanations: dict[Key, Explanation] = {}
    for finding in findings:
        if not finding.fell_too and explanations.get(finding.key, UNEXPLAINED) is UNEXPLAINED:
            explanations[finding.key] = explain(finding)
    by_name: dict[str, Explanation] = {}
    for key, explanation in sorted(explanations.items(), key=lambda item: str(item[0])):
        name = key.tier if key.agent is None and key.tier else key.series
        by_name[name] = explanation
    return combine_explanations(by_name)


def build_record(update: IncidentUpdate, project: str, as_of: datetime, evidence: Evidence) -> Incident:
    """Return the record of an incident with its evidence. The same as-of gives the same record."""
    explanation = apply_mix(update.explanation, evidence)
    previous = update.previous
    if previous is None:
        return _build_first_revision(update, project, as_of, evidence, explanation)
    if not is_live(previous):
        return msgspec.structs.replace(
            previous,
            revision=previous.revision + 1,
            metadata=_build_metadata(update, update.evidence),
            checked_at=as_of,
            last_day=None if previous.status == DISMISSED else previous.last_day,
        )
    key = update.lead_series.key
    is_confirmed = update.is_confirmed and explanation.cause != HISTORY
    is_newly_confirmed = is_confirmed and previous.confidence != CONFIRMED
    evidence = msgspec.structs.replace(evidence, decided_sizes=update.evidence.decided_sizes)
    record = msgspec.structs.replace(
        previous,
        revision=previous.revision + 1,
        type=key.type,
        tier=key.tier,
        direction=key.direction,
        agent=key.agent,
        severity=update.severity,
        metadata=_build_metadata(update, evidence),
        cause=explanation.cause,
        checked_at=as_of,
        confidence=CONFIRMED if is_confirmed else previous.confidence,
        confirmed_at=previous.confirmed_at or (as_of if is_newly_confirmed else None),
        first_day=midnight(update.first_day),
    )
    worsening = describe_worsening(previous, record, update) if is_snoozed(previous, as_of) else None
    if worsening is not None:
        record = wake(record, worsening, as_of)
    if not update.renews_text:
        return record
    return msgspec.structs.replace(
        record,
        rule=update.finding.rule,
        title=_build_title(update, project, explanation, evidence),
        description=_build_description(update, evidence, explanation),
    )


def describe_worsening(snoozed: Incident, record: Incident, update: IncidentUpdate) -> str | None:
    """Return why a revision of a snoozed incident is worse than at the snooze; None if it is not."""
    if is_more_severe(record.severity, snoozed.severity):
        return f"It is {record.severity} now, no longer {snoozed.severity}."
    if record.confidence == CONFIRMED != snoozed.confidence:
        return "It is confirmed now, no longer only suspected."
    for changed in update.alarms:
        for rule, observation in changed.rules.items():
            earlier = _decided_size(update.evidence, changed.series, rule)
            if earlier is not None and _certain_size(observation) > earlier:
                return f"{changed.name} has changed further: certainly by more than at the snooze."
    return None


def _certain_size(observation: Observation) -> float:
    """Return the size that a change has with certainty; without an interval, what is left after dividing by the growth factor."""
    if observation.change_interval is None:
        return (observation.size or 0.0) / MIN_GROWTH_FACTOR
    low, high = observation.change_interval
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high))


def _build_first_revision(
    update: IncidentUpdate, project: str, as_of: datetime, evidence: Evidence, explanation: Explanation
) -> Incident:
    finding = update.finding
    # A change that is explained by imported history did not happen on that day, so it raises no alert.
    is_confirmed = update.is_confirmed and explanation.cause != HISTORY
    incident_type, tier, direction, agent, slice_name = finding.key
    identity = [project, incident_type, tier or "", direction or ""]
    identity += [part for part in (agent, slice_name) if part]
    if finding.kind != MEAN:
        identity.append(finding.kind)
    return Incident(
        incident_id=stable_id("incident", *identity, as_of.isoformat()),
        revision=0,
        project=project,
        type=incident_type,
        tier=tier,
        direction=direction,
        agent=agent,
        status=OPEN,
        severity=update.severity,
        title=_build_title(update, project, explanation, evidence),
        description=_build_description(update, evidence, explanation),
        metadata=_build_metadata(update, evidence),
        baseline_id=None if evidence.baseline is None else evidence.baseline.id,
        detected_at=as_of,
        rule=finding.rule,
        cause=explanation.cause,
        checked_at=as_of,
        confidence=CONFIRMED if is_confirmed else SUSPECTED,
        confirmed_at=as_of if is_confirmed else None,
        first_day=midnight(update.first_day),
    )


def _build_title(update: IncidentUpdate, project: str, explanation: Explanation, evidence: Evidence) -> str:
    """Return the title of the leading finding, with the reason if it is not the agent, and the names of the other series.

    If one version alone was deployed on the possible first days of the change, the title names it with the day.
    """
    reason = ""
    finding = update.finding
    if explanation.is_only_judge:
        # The judge is the project's, even if only one of its agents is judged.
        finding = replace(finding, owner=project)
        reason = "the judge changed, so "
    elif explanation.cause in {MIX, HISTORY}:
        mix_change = "the mix changed" if explanation.cause == MIX else "history was added"
        reason = f"{mix_change} ({explanation.shares}), so "
    lead = update.lead_series
    versions = {
        f"{deployment.label} {deployment.version}"
        for deployment in evidence.deployments
        if lead.key.agent is None or deployment.agent in (None, lead.key.agent)
    }
    deployed = f", with {name_slice(versions.pop())}" if len(versions) == 1 else ""
    title = finding.write_title(reason=reason, version=deployed)
    return title + _name_other_series(update.changed_series, lead, update.finding.owner)


def _name_other_series(changed_series: Sequence[ChangedSeries], lead: Series, owner: str) -> str:
    """Return the names of the series that changed beside the leading one, for the end of a title."""
    # The project's series of the tier changed because of the agent's.
    whole = Series(lead.key._replace(agent=None), lead.kind)
    names = dict.fromkeys(
        lower_first(series.measure if series.key.agent in (None, owner) else series.name)
        for changed in changed_series
        if (series := changed.series) not in (lead, whole)
    )
    first, *others = names or [""]
    more = f" and {len(others)} more" if len(others) > 1 else "".join(f" and {other}" for other in others)
    return f"; also {first}{more}" if first else ""


def _build_description(update: IncidentUpdate, evidence: Evidence, explanation: Explanation) -> str:
    others = [changed.observation.title for changed in update.changed_series if changed.series != update.lead_series]
    titles = "; ".join(title for title in others if title)
    parts = [
        update.finding.description,
        f"Also changed: {titles}." if titles else None,
        evidence.note,
        explanation.text if explanation.cause else None,
    ]
    return " ".join(part for part in parts if part)


def _build_metadata(update: IncidentUpdate, evidence: Evidence) -> str:
    lead = next(changed for changed in update.changed_series if changed.series == update.lead_series)
    complete = msgspec.structs.replace(
        evidence,
        cause=update.explanation.numbers,
        rules=lead.rules,
        moved=_order_series(update.changed_series, update.lead_series),
    )
    return evidence_json(complete)


def _order_series(changed_series: Sequence[ChangedSeries], lead_series: Series) -> list[ChangedSeries]:
    """Return the series with the leading one marked and first, and those without an alarm last."""
    marked = [msgspec.structs.replace(changed, leads=changed.series == lead_series) for changed in changed_series]
    return sorted(marked, key=lambda changed: (not changed.leads, changed.fell_too))


def apply_decision(incident: Incident, decision: str, author: str, time: datetime) -> Incident:
    """Return the next revision of an incident after a decision, with the sizes of the change at that time."""
    evidence = evidence_of(incident)
    sizes = {} if decision == OPEN else _collect_sizes(evidence)
    return msgspec.structs.replace(
        set_decision(incident, decision, author, time),
        revision=incident.revision + 1,
        metadata=evidence_json(msgspec.structs.replace(evidence, decided_sizes=sizes)),
    )


def apply_assignment(incident: Incident, assignee: str | None, time: datetime) -> Incident:
    """Return the next revision of an incident after it was assigned; None leaves it unassigned."""
    return msgspec.structs.replace(set_assignee(incident, assignee, time), revision=incident.revision + 1)


def apply_snooze(incident: Incident, until: datetime | None, author: str, time: datetime) -> Incident:
    """Return the next revision of an incident after it was snoozed or woken, with the sizes of the change at that time."""
    evidence = evidence_of(incident)
    return msgspec.structs.replace(
        set_snooze(incident, until, author, time),
        revision=incident.revision + 1,
        metadata=evidence_json(msgspec.structs.replace(evidence, decided_sizes=_collect_sizes(evidence))),
    )


def _collect_sizes(evidence: Evidence) -> dict[str, float | None]:
    sizes: dict[str, float | None] = {rule: observation.size for rule, observation in evidence.rules.items()}
    for changed in evidence.moved:
        for rule, observation in changed.rules.items():
            sizes[f"{changed.series_name} {changed.kind} {rule}"] = observation.size
    return sizes


def _is_worth_writing(update: IncidentUpdate, previous: Incident, as_of: datetime) -> bool:
    """Return whether another revision would contain something new."""
    if previous.checked_at is not None and as_of < previous.checked_at:
        return False  # the check looks back, or the clock was set back: later observations must not be overwritten
    earlier_series = update.evidence.moved
    if _collect_last_days(earlier_series) != _collect_last_days(update.changed_series):
        return True
    if not is_live(previous):
        return False
    is_confirmed = update.is_confirmed and previous.cause != HISTORY
    if update.severity != previous.severity or is_confirmed != (previous.confidence == CONFIRMED):
        return True
    if previous.checked_at is not None and as_of - previous.checked_at < NUMBERS_INTERVAL:
        return False
    earlier_lead = update.evidence.lead_series(previous)
    return (
        update.lead_series != earlier_lead
        or _order_series(earlier_series, earlier_lead) != _order_series(update.changed_series, update.lead_series)
        or update.explanation.numbers != update.evidence.cause
    )


def _collect_last_days(changed_series: Iterable[ChangedSeries]) -> dict[Series, dict[str, date]]:
    """Return the last day that each rule observed, by series that raised an alarm."""
    return {
        changed.series: {rule: observation.until for rule, observation in changed.rules.items()}
        for changed in changed_series
        if not changed.fell_too
    }


def merge_findings(changed_series: Iterable[ChangedSeries], findings: Iterable[Finding]) -> list[ChangedSeries]:
    """Merge new findings into the series that changed.

    A series that raised an alarm keeps its days and its worst severity. Series without an alarm are replaced by the new findings.
    """
    merged = {changed.series: changed for changed in changed_series if not changed.fell_too}
    for finding in findings:
        merged[finding.series] = _merge_finding(merged.get(finding.series), finding)
    return list(merged.values())[:MAX_CHANGED_SERIES]


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
    """Return the observation of a finding's rule, with the earlier days that have left the window of the rule."""
    observation = Observation(
        **msgspec.structs.asdict(finding.numbers),
        severity=finding.severity,
        since=finding.since,
        until=finding.until,
        size=finding.size,
        title=finding.title,
        description=finding.description,
        confirmed=finding.confirmed,
    )
    if earlier is None or not observation.days or finding.rule in ESTIMATING_RULES:
        return observation
    past_days = [day for day in earlier.days or () if day.day < observation.days[0].day][-MAX_PAST_DAYS:]
    return msgspec.structs.replace(
        observation, since=min(observation.since, earlier.since), days=[*past_days, *observation.days]
    )


def derive_references(incidents: Iterable[Incident]) -> dict[str, Reference]:
    """Return the days that count as reference, for each series with a decision or with a change that is over."""
    since: dict[str, date] = {}
    cuts: dict[str, list[Span]] = defaultdict(list)
    ended = [incident for incident in incidents if not is_live(incident) and incident.resolution != VANISHED]
    for incident in sorted(ended, key=lambda incident: (_decision_time(incident), incident.incident_id)):
        last = _last_cut_day(incident)
        for changed in evidence_of(incident).moved:
            series = changed.key.series
            if last is not None:
                cuts[series].append((min(_first_cut_day(changed), last), last))
            elif incident.resolution == NEW_NORMAL:
                since[series] = changed.since
    return {series: Reference(since.get(series), merge_spans(cuts.get(series, ()))) for series in since.keys() | cuts.keys()}


def find_open_changes(incidents: Iterable[Incident]) -> dict[str, OpenChange]:
    """Return, by series, the first change of a mean whose incident is open, and the further change in the same direction."""
    # A gap between live and imported exchanges is not a level from which a mean could change further.
    live = [incident for incident in incidents if is_live(incident) and incident.cause != HISTORY]
    alarms = [changed for incident in live for changed in evidence_of(incident).moved if not changed.fell_too]
    changes: dict[str, OpenChange] = {}
    further_since: dict[str, date] = {}
    for alarm in sorted(alarms, key=lambda changed: changed.since, reverse=True):
        direction = alarm.key.direction
        if alarm.kind == FURTHER:
            further_since[alarm.key.series] = alarm.since
        elif alarm.kind == MEAN and alarm.confirmed and direction is not None:
            changes[alarm.key.series] = OpenChange(direction, alarm.since)
    return {series: change._replace(further_since=further_since.get(series)) for series, change in changes.items()}


def _first_cut_day(changed: ChangedSeries) -> date:
    """Return the first excluded day of a change that is over."""
    return min(changed.since, max(changed.interval[0], changed.since - DAY))


def _last_cut_day(incident: Incident) -> date | None:
    """Return the last excluded day of a change that is over; None if the change continues."""
    if incident.last_day is not None:
        return incident.last_day.date()
    last_days = [changed.until for changed in evidence_of(incident).moved]
    if incident.resolution != NEW_NORMAL or not last_days:
        return None
    is_over = max(last_days) < _decision_time(incident).date() - MAX_UNSEEN_DAYS * DAY
    return max(last_days) if is_over else None


def _decision_time(incident: Incident) -> datetime:
    return incident.resolved_at or incident.detected_at
