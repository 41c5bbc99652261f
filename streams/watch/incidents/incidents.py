"""Incidents of findings: what is new, what goes on, what a person has decided on already. Pure: the same input makes the same records.

1. There is one open incident for each change, whichever series and rules see it (`streams.watch.incidents.grouping`). It ends when it has recovered
   (`streams.watch.incidents.recovery`), or when a person decides on it (`streams.watch.incidents.states`).
2. A live incident gets another revision when it got worse, was confirmed, another series joined it, or it goes on for another day, and at
   most once an hour when only numbers changed. Its severity is the worst it had, what is confirmed stays so, and it keeps all of its days.
3. It is told by the worst of its confirmed series. Series without an alarm of their own that moved along are listed.
4. What a person has dismissed, or called the new normal, opens nothing new while it goes on: the decided incident takes up the days, so
   that the next check knows them. It opens one when it got worse (critical instead of warning, or half as large again), or had ended and
   came back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import msgspec

from audit.drift.incident_evidence import Evidence, Moved, Sighting, evidence_json, evidence_of, moved_series
from audit.drift.watched_series import DRIFT, SEVERITIES, Key, Series, bounds_of
from audit.fingerprints import stable_id
from schemas.records import Incident
from streams.watch.incidents.causes import HISTORY, MIX, UNEXPLAINED, Explanation, combined, with_mix
from streams.watch.incidents.companions import MovedToo
from streams.watch.incidents.grouping import Group, grouped
from streams.watch.incidents.states import CONFIRMED, DISMISSED, OPEN, SUSPECTED, assigned, is_live, with_decision
from streams.watch.measured import midnight
from streams.watch.rules.findings import Finding

NUMBERS_AGAIN = timedelta(hours=1)
"""The interval at which an incident is written again for its numbers alone."""
MOST_DAYS = 90
"""Days that are kept of those that have left a rule's window."""
MOST_MOVED = 40
"""Series that an incident lists: an agent may have many failure types."""
ESTIMATING = ("sequential", "rate_ratio", "runs")
"""The rules that look at all days each time, and may find another first day."""
_LEAST_SPREAD = 0.05
"""The assumed spread of a series that never varied, as a share of its scale.

With it, the first unsafe run is not infinitely far off.
"""
NAMED = 2
"""Series that a title names besides the one that leads; more are counted."""
CauseOf = Callable[[Finding], Explanation]
"""Returns the cause of a finding: agent or judge, or the reason why it is not known."""


@dataclass(frozen=True, slots=True)
class Due:
    """An incident that is to be written: for the first time, or once more."""

    lead: Finding
    """The finding that tells of it, or one of those that were made now where another tells of it still."""
    moved: tuple[Moved, ...]
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
    def alarms(self) -> list[Moved]:
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
        goes_on = before is not None and self.evidence.lead_of(before) == self.leads
        return self.is_about_lead and (not goes_on or before is None or before.rule == self.lead.rule)


def due(
    findings: Sequence[Finding],
    known: Sequence[Incident],
    as_of: datetime,
    cause_of: CauseOf,
    moved_too: MovedToo = lambda *_: (),
) -> list[Due]:
    """The incidents that findings of one project make, given all that are known of it; none that would say nothing new."""
    found = [_due(group, cause_of, moved_too) for group in grouped(findings, known)]
    return [one for one in found if one.before is None or _says_more(one, one.before, as_of)]


def _due(group: Group, cause_of: CauseOf, moved_too: MovedToo) -> Due:
    before = group.incident
    evidence = Evidence() if before is None else evidence_of(before)
    moved = merged(evidence.moved, group.findings)
    lead = _lead(group.findings, before, moved)
    leads = lead.series
    was = None if before is None else evidence.lead_of(before)
    if was is not None and any(one.series == was for one in moved) and not _outranks(leads, was, moved):
        leads = was
        own = [one for one in group.findings if one.series == was]
        lead = next((one for one in own if one.rule == _rule(before)), next(iter(own), lead))
    made = Due(lead, tuple(moved), leads, before, evidence, _explained(group.findings, cause_of))
    if lead.key.type != DRIFT or (before is not None and not is_live(before)):
        return made
    is_worse = next(one.is_worse for one in moved if one.series == leads)
    tiers = {one.key.tier or "" for one in made.alarms}
    return replace(made, moved=tuple(merged(moved, moved_too(made.first_day, is_worse, tiers))))


def _rule(incident: Incident | None) -> str | None:
    return None if incident is None else incident.rule


def _lead(findings: Sequence[Finding], before: Incident | None, moved: Sequence[Moved]) -> Finding:
    """The finding that tells of a change: of the worst confirmed series, by the rule that told before, else by the first one."""
    best = max(findings, key=lambda one: _rank(one.series, moved))
    of_series = [one for one in findings if one.series == best.series]
    return next((one for one in of_series if one.rule == _rule(before)), of_series[0])


def _rank(series: Series, moved: Sequence[Moved]) -> tuple[bool, int, bool, float]:
    """Return the key that decides which series leads.

    Confirmed series come first, then the more severe, then those that moved the whole project by a sigma. Last comes the larger
    change, measured by its own spread.
    """
    found = next(one for one in moved if one.series == series)
    level = found.level
    low, high = bounds_of(series.key.tier)
    least = _LEAST_SPREAD * (high - low)
    off = 0.0 if level is None else abs(level.after - level.before) / max(level.sigma, least)
    return found.confirmed, SEVERITIES.index(found.severity), series.key.agent is None and off >= 1, off


def _outranks(series: Series, other: Series, moved: Sequence[Moved]) -> bool:
    """Tell whether a series is worse than the one that leads; not by numbers alone, which change every hour."""
    return _rank(series, moved)[:2] > _rank(other, moved)[:2]


def _explained(findings: Sequence[Finding], cause_of: CauseOf) -> Explanation:
    """Return the cause, from all series that raised an alarm; of several findings of one series the first one counts."""
    explanations: dict[Key, Explanation] = {}
    for one in findings:
        if not one.fell_too and explanations.get(one.key, UNEXPLAINED) is UNEXPLAINED:
            explanations[one.key] = cause_of(one)
    return combined(
        {
            key.tier if key.agent is None and key.tier else key.series: one
            for key, one in sorted(explanations.items(), key=lambda pair: str(pair[0]))
        }
    )


def record_of(made: Due, project: str, as_of: datetime, evidence: Evidence) -> Incident:
    """The record of an incident that is due, with its evidence; the same as-of gives the same record."""
    explanation = with_mix(made.explanation, evidence)
    if made.before is None:
        return _first(made, project, as_of, evidence, explanation)
    before = made.before
    if not is_live(before):
        kept = _metadata(made, made.evidence)
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
        title=_title(made, explanation) if tells else before.title,
        description=_described(made, evidence, explanation) if tells else before.description,
        metadata=_metadata(made, evidence),
        cause=explanation.cause,
        checked_at=as_of,
        confidence=CONFIRMED if is_sure else before.confidence,
        confirmed_at=before.confirmed_at or (as_of if is_sure and before.confidence != CONFIRMED else None),
        first_day=midnight(made.first_day),
    )


def _first(made: Due, project: str, as_of: datetime, evidence: Evidence, explanation: Explanation) -> Incident:
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
        title=_title(made, explanation),
        description=_described(made, evidence, explanation),
        metadata=_metadata(made, evidence),
        baseline_id=None if evidence.baseline is None else evidence.baseline.id,
        detected_at=as_of,
        rule=lead.rule,
        cause=explanation.cause,
        checked_at=as_of,
        confidence=CONFIRMED if is_sure else SUSPECTED,
        confirmed_at=as_of if is_sure else None,
        first_day=midnight(made.first_day),
    )


def _title(made: Due, explanation: Explanation) -> str:
    """The title of the finding that tells of it, with the names of what moved as well; that of a changed mix begins with the mix."""
    mix = ""
    if explanation.cause in {MIX, HISTORY}:
        changed = "The mix changed" if explanation.cause == MIX else "History was added"
        mix = f"{changed} ({explanation.shares}): "
    names = list(dict.fromkeys(one.name for one in made.moved if one.series != made.leads))
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} others"]
    return mix + made.lead.title + (f"; {' and '.join(names)} moved too" if names else "")


def _described(made: Due, evidence: Evidence, explanation: Explanation) -> str:
    others = [one.seen.title or "" for one in made.moved if one.series != made.leads]
    also = f"It moved with: {'; '.join(one for one in others if one)}." if any(others) else None
    parts = [
        made.lead.description,
        also,
        evidence.note,
        explanation.words if explanation.cause else None,
    ]
    return " ".join(part for part in parts if part)


def _metadata(made: Due, evidence: Evidence) -> str:
    lead = next(one for one in made.moved if one.series == made.leads)
    found = msgspec.structs.replace(
        evidence, cause=made.explanation.numbers, rules=lead.rules, moved=_listed(made.moved, made.leads)
    )
    return evidence_json(found)


def _listed(moved: Sequence[Moved], lead: Series) -> list[Moved]:
    """Return the series that moved, the leading one first and marked, those without an alarm last."""
    marked = [msgspec.structs.replace(one, leads=one.series == lead) for one in moved]
    return sorted(marked, key=lambda one: (not one.leads, one.fell_too))


def decided(incident: Incident, decision: str, who: str, at: datetime) -> Incident:
    """The next revision of an incident after a decision, with how large the change was then."""
    evidence = evidence_of(incident)
    sizes = {} if decision == OPEN else _sizes(evidence)
    return msgspec.structs.replace(
        with_decision(incident, decision, who, at),
        revision=incident.revision + 1,
        metadata=evidence_json(msgspec.structs.replace(evidence, decided_sizes=sizes)),
    )


def reassigned(incident: Incident, assignee: str | None, at: datetime) -> Incident:
    """The next revision of an incident after it was assigned to a person, or to no one."""
    return msgspec.structs.replace(assigned(incident, assignee, at), revision=incident.revision + 1)


def _sizes(evidence: Evidence) -> dict[str, float | None]:
    moved = {f"{one.series_name} {one.kind} {rule}": seen.size for one in evidence.moved for rule, seen in one.rules.items()}
    return {**{rule: seen.size for rule, seen in evidence.rules.items()}, **moved}


def _says_more(made: Due, before: Incident, as_of: datetime) -> bool:
    """Tell whether another revision would say something new that is worth one."""
    if before.checked_at is not None and as_of < before.checked_at:
        return False  # a look back, or a clock that was set back: what was seen later is not to be undone
    earlier, lead = made.evidence.moved, made.evidence.lead_of(before)
    if _ends(earlier) != _ends(made.moved):
        return True
    if not is_live(before):
        return False
    is_sure = made.is_confirmed and before.cause != HISTORY
    if (made.severity, is_sure) != (before.severity, before.confidence == CONFIRMED):
        return True
    aged = before.checked_at is None or as_of - before.checked_at >= NUMBERS_AGAIN
    changed = made.leads != lead or _listed(earlier, lead) != _listed(made.moved, lead)
    return aged and (changed or made.explanation.numbers != made.evidence.cause)


def _ends(moved: Iterable[Moved]) -> dict[Series, dict[str, date]]:
    """The last day that each rule sees of each series that raised an alarm."""
    return {one.series: {name: seen.until for name, seen in one.rules.items()} for one in moved if not one.fell_too}


def merged(before: Iterable[Moved], findings: Iterable[Finding]) -> list[Moved]:
    """Merge new findings into the series that moved.

    A series keeps its days and its worst severity; those that only moved along are as of now.
    """
    moved = {one.series: one for one in before if not one.fell_too}
    for finding in findings:
        moved[finding.series] = _with(moved.get(finding.series), finding)
    return list(moved.values())[:MOST_MOVED]


def _with(earlier: Moved | None, finding: Finding) -> Moved:
    rules = {} if earlier is None else dict(earlier.rules)
    rules[finding.rule] = _sighting(finding, rules.get(finding.rule))
    if earlier is None:
        return moved_series(
            finding.series,
            rules,
            rule=finding.rule,
            severity=finding.severity,
            confirmed=finding.confirmed,
            interval=finding.first_days,
            fell_too=finding.fell_too,
        )
    return moved_series(
        earlier.series,
        rules,
        rule=earlier.rule,
        severity=max(earlier.severity, finding.severity, key=SEVERITIES.index),
        confirmed=earlier.confirmed or finding.confirmed,
        interval=finding.first_days if earlier.rule == finding.rule else earlier.interval,
    )


def _sighting(finding: Finding, earlier: Sighting | None) -> Sighting:
    """Return what the rule of a finding saw, with the days that it saw before and that have left its window."""
    seen = Sighting(
        **msgspec.structs.asdict(finding.numbers),
        severity=finding.severity,
        since=finding.since,
        until=finding.until,
        size=finding.size,
        title=finding.title,
        description=finding.description,
        confirmed=finding.confirmed,
    )
    if earlier is None or not seen.days or finding.rule in ESTIMATING:
        return seen
    gone = [one for one in earlier.days or () if one.day < seen.days[0].day][-MOST_DAYS:]
    return msgspec.structs.replace(seen, since=min(seen.since, earlier.since), days=[*gone, *seen.days])
