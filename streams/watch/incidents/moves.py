"""Moves of an incident: its series in the evidence, each with what every rule saw of it.

The series that leads has its rules beside the list, where records of versions before have them; such a record is a list of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, NamedTuple

import msgspec

from audit.drift.watched_series import MEAN, SEVERITIES, SPREAD, UP, Key, Series
from schemas.records import Incident
from streams.watch.rules.findings import Finding

DAY = timedelta(days=1)
MOST_DAYS = 90
"""Days that are kept of those that have left a rule's window."""
MOST_MOVED = 40
"""Series that an incident lists: an agent may have many failure types."""
ESTIMATING = ("sequential", "rate_ratio", "runs")
"""The rules that look at all days each time, and may find another first day."""
MOVED_TOO = "moved_too"
"""Instead of a rule: the series raised no alarm of its own."""
_LEVELS = {
    "sequential": ("meanBefore", "meanAfter"),
    MOVED_TOO: ("meanBefore", "meanAfter"),
    "runs": ("meanBefore", "meanAfter"),
    "rate_ratio": ("baselineRate", "rate"),
}
Seen = Mapping[str, Any]
"""The observation of a rule, in the form of the evidence."""


class Level(NamedTuple):
    """The level of a series before and after, and the spread of one session's mean."""

    before: float
    after: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A series that moved in an incident."""

    series: Series
    rule: str
    """The rule that tells of it."""
    severity: str
    """The worst it had."""
    confirmed: bool
    fell_too: bool
    """It raised no alarm of its own."""
    interval: tuple[date, date]
    """The days that may be the first one of the change."""
    rules: Mapping[str, Seen]
    """The observations of each rule, of now or of when it last saw the change."""

    @property
    def key(self) -> Key:
        """The series that moved, and its direction."""
        return self.series.key

    @property
    def seen(self) -> Seen:
        """The observation of the rule that leads."""
        return self.rules.get(self.rule) or next(iter(self.rules.values()))

    @property
    def is_worse(self) -> bool:
        """True if it moved for the worse."""
        return self.series.is_worse

    @property
    def since(self) -> date:
        """Its first day."""
        return min(date.fromisoformat(one["since"]) for one in self.rules.values())

    @property
    def until(self) -> date:
        """The last day that any rule saw it on."""
        return max(date.fromisoformat(one["until"]) for one in self.rules.values())

    @property
    def level(self) -> Level | None:
        """The level before and after; None if the rule's observation does not contain it, and for a spread."""
        return None if self.series.kind == SPREAD else level_of(self.rule, self.key.direction, self.seen)

    @property
    def name(self) -> str:
        """The everyday name of the series."""
        return self.series.name


def level_of(rule: str, direction: str | None, seen: Seen) -> Level | None:
    """Return the level before and after and the spread from a rule's observation; None if it does not contain them."""
    if rule == "consecutive_days":
        mean, sigma, deviation = (_number(seen, name) for name in ("mean", "stddev", "deviation"))
        if mean is None or sigma is None or deviation is None:
            return None
        return Level(mean, mean + (deviation * sigma if direction == UP else -deviation * sigma), sigma)
    before, after = (_number(seen, name) for name in _LEVELS.get(rule, ("", "")))
    if before is None or after is None:
        return None
    if rule == "rate_ratio":
        return Level(before, after, (max(after * (1 - after), 0.0)) ** 0.5)
    return Level(before, after, _number(seen, "sigma") or 0.0)


def evidence_of(incident: Incident) -> dict[str, Any]:
    """The evidence an incident carries; empty where it carries none that can be read."""
    try:
        found = _read(incident.metadata)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _read(text: str) -> Any:
    """Read JSON. What a strict reader refuses, such as NaN, is read as before: by one that takes three times as long."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return json.loads(text)


def seen_by_rules(incident: Incident) -> dict[str, dict[str, Any]]:
    """Return what each rule has seen of the series that leads an incident, as far as its evidence can be read."""
    return _readable(evidence_of(incident).get("rules"))


def series_of(incident: Incident) -> Series:
    """The series that leads an incident."""
    return _lead_of(incident, evidence_of(incident))


def _lead_of(incident: Incident, evidence: Mapping[str, Any]) -> Series:
    kind = next((one.get("kind") for one in _entries(evidence) if one.get("leads")), MEAN)
    return Series(
        Key(incident.type, incident.tier, incident.direction, incident.agent), kind if isinstance(kind, str) else MEAN
    )


def moved_of(incident: Incident) -> list[Moved]:
    """Return the series that moved in an incident, the leading one first; without a list, the one that the record is about."""
    evidence = evidence_of(incident)
    lead = _lead_of(incident, evidence)
    rules = _readable(evidence.get("rules"))
    listed = [_entry(one, incident.type, rules) for one in _entries(evidence)]
    found = [one for one in listed if one is not None]
    if not any(one.series == lead for one in found) and rules:
        rule = incident.rule if incident.rule in rules else next(iter(rules))
        since = date.fromisoformat(rules[rule]["since"])
        known = {"rule": rule, "severity": incident.severity, "confirmed": incident.confidence == "confirmed"}
        found.append(Moved(series=lead, fell_too=False, interval=(since, since), rules=rules, **known))  # type: ignore[arg-type]
    return sorted(found, key=lambda one: one.series != lead)


def merged(before: Sequence[Moved], findings: Iterable[Finding]) -> list[Moved]:
    """Merge new findings into the series that moved.

    A series keeps its days and its worst severity; those that only moved along are as of now.
    """
    known = {one.series: one for one in before if not one.fell_too}
    for finding in findings:
        known[finding.series] = _with(known.get(finding.series), finding)
    return list(known.values())[:MOST_MOVED]


def listed(moved: Sequence[Moved], lead: Series, *, with_rules: bool = True) -> list[dict[str, Any]]:
    """Return the list as JSON.

    What the rules saw of the leading series stands beside it. Without `with_rules` the list has no observation at all.
    """
    return [
        _document(one, leads=one.series == lead, with_rules=with_rules)
        for one in sorted(moved, key=lambda one: (one.series != lead, one.fell_too))
    ]


def _with(earlier: Moved | None, finding: Finding) -> Moved:
    rules = {} if earlier is None else dict(earlier.rules)
    seen = _seen(finding, rules.get(finding.rule))
    first = Moved(
        series=finding.series,
        rule=finding.rule,
        severity=finding.severity,
        confirmed=finding.confirmed,
        fell_too=finding.fell_too,
        interval=finding.first_days,
        rules={**rules, finding.rule: seen},
    )
    if earlier is None:
        return first
    tells = earlier.rule == finding.rule
    return replace(
        earlier,
        severity=max(earlier.severity, finding.severity, key=SEVERITIES.index),
        confirmed=earlier.confirmed or finding.confirmed,
        interval=first.interval if tells else earlier.interval,
        rules=first.rules,
    )


def _seen(finding: Finding, earlier: Seen | None) -> dict[str, Any]:
    """Return the observation in a finding, with the days that the rule saw before and that have left its window."""
    seen = {
        "severity": finding.severity,
        "since": f"{finding.since}",
        "until": f"{finding.until}",
        "size": finding.size,
        "title": finding.title,
        "description": finding.description,
        "confirmed": finding.confirmed,
        **finding.numbers,
    }
    days = seen.get("days", [])
    if earlier is None or not days or finding.rule in ESTIMATING:
        return seen
    gone = [one for one in earlier.get("days", []) if one["day"] < days[0]["day"]][-MOST_DAYS:]
    return {**seen, "since": min(seen["since"], earlier["since"]), "days": [*gone, *days]}


def _document(moved: Moved, *, leads: bool, with_rules: bool) -> dict[str, Any]:
    level = moved.level
    return {
        "series": moved.key.series,
        "tier": moved.key.tier,
        "agent": moved.key.agent,
        "direction": moved.key.direction,
        "kind": moved.series.kind,
        "name": moved.name,
        "from": None if level is None else level.before,
        "to": None if level is None else level.after,
        "since": f"{moved.since}",
        "interval": [f"{day}" for day in moved.interval],
        "until": f"{moved.until}",
        "severity": moved.severity,
        "rule": moved.rule,
        "confirmed": moved.confirmed,
        "fellToo": moved.fell_too,
        "leads": leads,
        **({} if leads or not with_rules else {"rules": dict(moved.rules)}),
    }


def _entry(entry: Mapping[str, Any], kind: str, lead_rules: Mapping[str, Seen]) -> Moved | None:
    """One entry of the list; None where it cannot be read."""
    try:
        rules = lead_rules if entry.get("leads") else _readable(entry["rules"])
        key = Key(kind, entry["tier"], entry["direction"], entry["agent"])
        first, last = (date.fromisoformat(day) for day in entry["interval"])
        severity = entry["severity"]
        if not rules or severity not in SEVERITIES:
            return None
        return Moved(
            series=Series(key, entry["kind"]),
            rule=entry["rule"],
            severity=severity,
            confirmed=bool(entry["confirmed"]),
            fell_too=bool(entry["fellToo"]),
            interval=(first, last),
            rules=rules,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _entries(evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = evidence.get("moved")
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _readable(rules: Any) -> dict[str, dict[str, Any]]:
    return {name: seen for name, seen in rules.items() if _has_days(seen)} if isinstance(rules, dict) else {}


def _has_days(seen: Any) -> bool:
    try:
        return bool(date.fromisoformat(seen["since"]) <= date.fromisoformat(seen["until"]))
    except (TypeError, KeyError, ValueError):
        return False


def _number(seen: Seen, name: str) -> float | None:
    value = seen.get(name)
    return float(value) if isinstance(value, (int, float)) else None
