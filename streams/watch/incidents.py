"""Incidents of findings: what is new, what goes on, what a person has decided on already. Pure: the same input makes the same records.

1. There is one open incident for each type, tier and direction, whichever rules see it. It stays open until a person decides.
2. An open incident gets another revision when it got worse or goes on for another day, and at most once an hour when only numbers
   changed. Its severity is the worst it had, and it keeps all of its days.
3. What a person has decided on opens nothing new while it goes on: the decided incident takes up the days, so that the next check knows
   them. It opens one when it got worse (critical instead of warning, or half as large again), or had ended and came back.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from audit.fingerprints import canonical_json, stable_id
from schemas.records import Incident
from streams.watch.baselines import OPEN
from streams.watch.causes import Explanation
from streams.watch.findings import DRIFT, SEVERITIES, Finding, Key, worse

ACCEPTED, DISMISSED = "accepted", "dismissed"
STATUSES = (OPEN, ACCEPTED, DISMISSED)
MUCH_LARGER = 1.5
"""So many times as large as it was when a person decided on it, a change has got worse."""
NUMBERS_AGAIN = timedelta(hours=1)
"""How often an incident is written again for its numbers alone."""
MOST_DAYS = 90
"""Days that are kept of those that have left a rule's window."""
DECIDED_SIZES = "decidedSizes"
"""In the evidence: how large the change was when a person decided on it, by rule."""
CAUSE = "cause"
"""In the evidence: agent or judge, or why that is not known, with its numbers."""
CauseOf = Callable[[Finding], Explanation]
"""Told a finding: what changed, agent or judge, or why that is not known."""
ESTIMATING = "sequential"
"""The rule that looks at all days each time, and may find another first day."""


@dataclass(frozen=True, slots=True)
class Due:
    """An incident that is to be written: for the first time, or once more."""

    lead: Finding
    """The finding that tells of it."""
    findings: tuple[Finding, ...]
    """All findings about it, one a rule."""
    severity: str
    before: Incident | None
    """Its latest revision; None for a new one."""
    explanation: Explanation
    """What changed, agent or judge, or why that is not known."""

    @property
    def cause(self) -> str | None:
        """What changed, as far as anybody can tell: agent or judge."""
        return self.explanation.cause


def due(findings: Sequence[Finding], known: Sequence[Incident], as_of: datetime, cause_of: CauseOf) -> list[Due]:
    """The incidents that findings of one project make, given all that are known of it; none that would say nothing new."""
    sighted: dict[Key, list[Finding]] = defaultdict(list)
    for finding in findings:
        sighted[finding.key].append(finding)
    found = (_due(key, sightings, known, as_of, cause_of) for key, sightings in sighted.items())
    return [one for one in found if one is not None]


def _due(key: Key, findings: list[Finding], known: Sequence[Incident], as_of: datetime, cause_of: CauseOf) -> Due | None:
    same = sorted((one for one in known if key_of(one) == key), key=lambda one: (one.status == OPEN, one.detected_at))
    before = same[-1] if same else None
    if before is not None and before.status != OPEN:
        fresh = [one for one in findings if not _goes_on(before, one)]
        if fresh:
            findings, before = fresh, None
    lead = next((one for one in findings if before is not None and one.rule == before.rule), findings[0])
    so_far = [before.severity] if before is not None else []
    severity = max([*so_far, *(one.severity for one in findings)], key=SEVERITIES.index)
    made = Due(lead, tuple(findings), severity, before, cause_of(lead))
    return made if before is None or _says_more(made, before, as_of) else None


def key_of(incident: Incident) -> Key:
    """What it is about."""
    return Key(incident.type, incident.tier, incident.direction, incident.agent)


def evidence_of(incident: Incident) -> dict[str, Any]:
    """The evidence an incident carries; empty where it carries none that can be read."""
    try:
        found = json.loads(incident.metadata)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def record_of(made: Due, project: str, as_of: datetime, evidence: Mapping[str, Any]) -> Incident:
    """The record of an incident that is due, with its evidence; the same as-of gives the same record."""
    if made.before is None:
        return _first(made, project, as_of, evidence)
    before, lead = made.before, made.lead
    if before.status != OPEN:
        kept = _metadata(made, evidence_of(before))
        return msgspec.structs.replace(before, revision=before.revision + 1, metadata=kept, checked_at=as_of)
    tells = lead.rule == before.rule
    return msgspec.structs.replace(
        before,
        revision=before.revision + 1,
        severity=made.severity,
        title=lead.title if tells else before.title,
        description=_described(made, evidence) if tells else before.description,
        metadata=_metadata(made, evidence),
        cause=made.cause,
        checked_at=as_of,
    )


def _first(made: Due, project: str, as_of: datetime, evidence: Mapping[str, Any]) -> Incident:
    lead = made.lead
    kind, tier, direction, agent = lead.key
    whose = () if agent is None else (agent,)
    return Incident(
        incident_id=stable_id("incident", project, kind, tier or "", direction or "", *whose, as_of.isoformat()),
        revision=0,
        project=project,
        type=kind,
        tier=tier,
        direction=direction,
        agent=agent,
        status=OPEN,
        severity=made.severity,
        title=lead.title,
        description=_described(made, evidence),
        metadata=_metadata(made, evidence),
        baseline_id=(evidence.get("baseline") or {}).get("id"),
        detected_at=as_of,
        rule=lead.rule,
        cause=made.cause,
        checked_at=as_of,
    )


def _described(made: Due, evidence: Mapping[str, Any]) -> str:
    parts = [made.lead.description, evidence.get("note"), made.explanation.words if made.cause else None]
    return " ".join(part for part in parts if part)


def _metadata(made: Due, evidence: Mapping[str, Any]) -> str:
    return canonical_json({**evidence, CAUSE: dict(made.explanation.numbers), "rules": rules_of(made)})


def rules_of(made: Due) -> dict[str, Any]:
    """What each rule has seen of an incident, now or when it last did."""
    earlier = {} if made.before is None else seen_by_rules(made.before)
    return {**earlier, **{one.rule: _seen(one, earlier.get(one.rule)) for one in made.findings}}


def decided(incident: Incident, status: str, who: str, at: datetime) -> Incident:
    """The next revision of an incident after a decision: resolved by whom and when, or open again."""
    is_open, evidence = status == OPEN, evidence_of(incident)
    sizes = {} if is_open else {rule: seen.get("size") for rule, seen in seen_by_rules(incident).items()}
    return msgspec.structs.replace(
        incident,
        revision=incident.revision + 1,
        status=status,
        metadata=canonical_json({**evidence, DECIDED_SIZES: sizes}),
        resolved_at=None if is_open else at,
        resolved_by=None if is_open else who,
    )


def decided_changes(known: Sequence[Incident]) -> dict[str, date]:
    """For each tier the day from which its scores are known to a person: the first one of the last change of it that was decided on.

    Where that change was over when the decision came, it is the day of the decision: what held then is what is known.
    """
    latest: dict[str, date] = {}
    resolved = (one for one in known if one.type == DRIFT and one.status != OPEN and one.tier and one.resolved_at)
    for one in sorted(resolved, key=lambda one: (one.resolved_at, one.incident_id)):
        first, last = _days(one)
        at = (one.resolved_at or one.detected_at).date()
        latest[one.tier or ""] = at if first is None or last is None or last < at - timedelta(days=2) else first
    return latest


def _seen(finding: Finding, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a finding says, with the days that the rule saw before and that have left its window."""
    seen = {
        "severity": finding.severity,
        "since": f"{finding.since}",
        "until": f"{finding.until}",
        "size": round(finding.size, 3),
        "title": finding.title,
        "description": finding.description,
        **finding.numbers,
    }
    days = seen.get("days", [])
    if earlier is None or not days or finding.rule == ESTIMATING:
        return seen
    gone = [one for one in earlier.get("days", []) if one["day"] < days[0]["day"]][-MOST_DAYS:]
    return {**seen, "since": min(seen["since"], earlier["since"]), "days": [*gone, *days]}


def seen_by_rules(incident: Incident) -> dict[str, dict[str, Any]]:
    """What each rule has seen of an incident, as far as its evidence can be read."""
    rules = evidence_of(incident).get("rules")
    return {name: seen for name, seen in rules.items() if _has_days(seen)} if isinstance(rules, dict) else {}


def _has_days(seen: Any) -> bool:
    try:
        return bool(date.fromisoformat(seen["since"]) <= date.fromisoformat(seen["until"]))
    except (TypeError, KeyError, ValueError):
        return False


def _days(incident: Incident) -> tuple[date | None, date | None]:
    """The first and the last day that an incident shows."""
    seen = seen_by_rules(incident).values()
    days = [date.fromisoformat(one[end]) for one in seen for end in ("since", "until")]
    return (min(days), max(days)) if days else (None, None)


def _goes_on(before: Incident, finding: Finding) -> bool:
    """Whether a finding is but the change that a person has decided on, no worse than it was."""
    _, last = _days(before)
    if finding.known_level or last is None or finding.since > last + timedelta(days=1):
        return False
    if worse(finding.severity, before.severity):
        return False
    sizes = evidence_of(before).get(DECIDED_SIZES)
    size = sizes.get(finding.rule) if isinstance(sizes, dict) else None
    return not isinstance(size, (int, float)) or finding.size < MUCH_LARGER * size


def _says_more(made: Due, before: Incident, as_of: datetime) -> bool:
    """Whether another revision would say something new that is worth one."""
    if before.checked_at is not None and as_of < before.checked_at:
        return False  # a look back, or a clock that was set back: what was seen later is not to be undone
    earlier, now = seen_by_rules(before), rules_of(made)
    if _ends(earlier) != _ends(now):
        return True
    if before.status != OPEN:
        return False
    aged = before.checked_at is None or as_of - before.checked_at >= NUMBERS_AGAIN
    explains_more = canonical_json(dict(made.explanation.numbers)) != canonical_json(evidence_of(before).get(CAUSE))
    changed = made.cause != before.cause or explains_more or canonical_json(earlier) != canonical_json(now)
    return made.severity != before.severity or (aged and changed)


def _ends(rules: Mapping[str, Any]) -> dict[str, Any]:
    """The last day that each rule sees."""
    return {name: seen.get("until") for name, seen in rules.items()}
