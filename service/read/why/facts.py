"""Facts about an incident as its evidence has them; what is missing or cannot be read is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self, TypeVar

import msgspec

from audit.drift.slices import VALUE
from audit.drift.watched_series import SPIKE, TIERS
from schemas.records import Incident
from service.read.why.slices import Compared, Deployed, Slice, WhichPart, deployments_of, which_part_of
from service.text.rounding import counted, grouped
from streams.watch.incidents.causes import HISTORY, MIX
from streams.watch.incidents.incidents import CAUSE
from streams.watch.incidents.moves import Moved, evidence_of, moved_of, seen_by_rules
from streams.watch.incidents.reasons import has_risen, moved_dimensions
from streams.watch.rules.run_rules import RUNS
from streams.watch.run_measures import TRUST

JUDGED = frozenset(TIERS) - {"tier1"}
"""The tiers that a judge scores."""
NEW_SHARE = 0.05
"""The share of the exchanges before a change up to which a version was not there yet."""
_ROLLED_OUT = ("version", "prompt", "release", "build", "commit", "model")
"""Parts of the names of labels whose values people deploy."""
Row = Mapping[str, Any]
Number = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")


class Count(msgspec.Struct, frozen=True):
    """The number of something before a change and since it, of how many."""

    before: Number
    after: Number
    all_before: Number
    all_after: Number
    name: str = ""
    kind: str = ""

    @property
    def row(self) -> Row:
        """The counts as the rules of evidence take them."""
        return msgspec.structs.asdict(self)

    @property
    def swapped(self) -> Self:
        """The same with before and after exchanged: a share that fell has risen the other way."""
        return msgspec.structs.replace(
            self, before=self.after, after=self.before, all_before=self.all_after, all_after=self.all_before
        )


class Dimension(msgspec.Struct, frozen=True):
    """The judge's scores of a dimension before and since."""

    dimension: str
    judged_before: int
    judged_after: int
    sessions_before: int
    sessions_after: int
    mean_before: float | None = None
    mean_after: float | None = None
    error_before: float | None = None
    error_after: float | None = None


class Example(msgspec.Struct, frozen=True, rename="camel"):
    """An exchange that moved the mean, or a usual one from before."""

    score_id: str
    session_id: str
    turn_number: int
    exchange_timestamp: str
    score: float
    exchange_id: str | None = None
    connection: str | None = None
    agent: str | None = None
    reason: str = ""


class RunExample(msgspec.Struct, frozen=True, rename="camel"):
    """A run that moved a series."""

    run_id: str
    session_id: str
    connection: str | None = None
    ended_at: str | None = None
    agent: str | None = None
    trust_score: float | None = None
    failures: list[str] = []


@dataclass(frozen=True)
class Facts:
    """An incident with its evidence, part by part."""

    incident: Incident

    @cached_property
    def evidence(self) -> dict[str, Any]:
        """The evidence; empty if it cannot be read."""
        return evidence_of(self.incident)

    @cached_property
    def moved(self) -> list[Moved]:
        """The series that moved, the leading one first."""
        return moved_of(self.incident)

    @property
    def is_worse(self) -> bool:
        """True if the leading series moved for the worse, and where that is not known."""
        return self.moved[0].is_worse if self.moved else True

    @property
    def is_spike(self) -> bool:
        """True if it is about the rate of anomalies."""
        return self.incident.type == SPIKE

    @property
    def unit(self) -> str:
        """Name the unit of the traffic: a judged tier has scores of judged turns alone."""
        return "judged turn" if self.is_judged and not self.is_spike else "exchange"

    @property
    def is_of_runs(self) -> bool:
        """True if the leading series is of an agent's runs."""
        return self.incident.rule == RUNS

    @property
    def is_judged(self) -> bool:
        """True if the leading series is a tier that a judge scores."""
        return self.incident.tier in JUDGED

    @cached_property
    def seen(self) -> Row:
        """The observation of the rule that tells of it."""
        rules = seen_by_rules(self.incident)
        return rules.get(self.incident.rule) or next(iter(rules.values()), {})

    @property
    def since(self) -> str | None:
        """The first day of the change."""
        day = self.seen.get("since")
        return day if isinstance(day, str) else None

    def number(self, name: str) -> float | None:
        """Return a number that the rule saw."""
        value = self.seen.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @property
    def extent(self) -> str:
        """Say of how many runs, exchanges or scores the levels of the title are, since the change and before; empty if that is not known."""
        since = f"since {self.since}"
        if self.is_spike:
            found = self.spike
            return "" if found is None else _of_both(found, "exchange", since)
        if self.is_of_runs:
            return self._runs_extent(since)
        sides = [self._scores(side) for side in ("After", "Before")]
        return "" if None in sides else f"{sides[0]} {since}, {sides[1]} before"

    def _runs_extent(self, since: str) -> str:
        after, before = self.number("runsAfter"), self.number("runsBefore")
        level = self.moved[0].level if self.moved else None
        if after is None or before is None:
            return ""
        if level is None or self.incident.tier == TRUST:
            return f"{counted(round(after), 'run')} {since}, {grouped(before)} before"
        row = {"all_before": round(before), "all_after": round(after)}
        found = _count({**row, "before": self._whole("havingBefore"), "after": self._whole("havingAfter")}, "name")
        return "" if found is None else _of_both(found, "run", since)

    def _whole(self, name: str) -> int | None:
        """Return a count that the rule saw; None if it did not record it: no count is computed from a rate."""
        value = self.number(name)
        return None if value is None else round(value)

    def _scores(self, side: str) -> str | None:
        scores, sessions = self.number(f"scores{side}"), self.number(f"sessions{side}")
        if scores is None or sessions is None:
            return None
        return f"{counted(round(scores), 'score')} of {counted(round(sessions), 'session')}"

    @cached_property
    def flags(self) -> list[Count]:
        """The checks of Tier 1 with their exchanges."""
        return self._counts("flags", "flag")

    @cached_property
    def reasons(self) -> list[Count]:
        """The reasons of rules and judge, by kind."""
        return self._counts("reasons", "reason")

    def reason(self, kind: str) -> Count | None:
        """Return the count of a kind that has no further names."""
        return next((one for one in self.reasons if one.kind == kind), None)

    @property
    def spike(self) -> Count | None:
        """The anomalies that the rule of rates compared; None for another rule."""
        row = {
            "before": self._whole("baselineAnomalies"),
            "all_before": self._whole("baselineExchanges"),
            "after": self._whole("anomalies"),
            "all_after": self._whole("exchanges"),
        }
        return _count(row, "name")

    @cached_property
    def failures(self) -> list[Count]:
        """The failures of the agent's runs."""
        return self._counts("failures", "failure")

    @cached_property
    def mix(self) -> list[Count]:
        """The judged exchanges by the reason for which they were sampled."""
        rows = [row for row in self._rows("samplingMix") if all(isinstance(row.get(one), int) for one in ("before", "after"))]
        before, after = (sum(row[side] for row in rows) for side in ("before", "after"))
        return [one for row in rows if (one := _count({**row, "all_before": before, "all_after": after}, "sampling_reason"))]

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The dimensions that moved with the tier by more than chance, the largest move first."""
        found = list(_converted(self._rows("dimensions"), Dimension))
        rows = moved_dimensions([msgspec.structs.asdict(one) for one in found], self.incident.direction)
        return [Dimension(**row) for row in rows]

    @cached_property
    def exchanges(self) -> list[Example]:
        """The exchanges with the largest effect, the largest first."""
        return list(_converted(self._rows("exchanges"), Example))

    @cached_property
    def usual(self) -> list[Example]:
        """A few exchanges from before the change, as they were then."""
        return list(_converted(self._rows("usual"), Example))

    @cached_property
    def runs(self) -> list[RunExample]:
        """The runs with the largest effect, the largest first."""
        return list(_converted(self._rows("runs"), RunExample))

    @cached_property
    def which_part(self) -> WhichPart | None:
        """The part of the traffic that moved."""
        return which_part_of(self.evidence)

    @cached_property
    def deployments(self) -> list[Deployed]:
        """The deployments on the days when the change may have begun."""
        return deployments_of(self.evidence)

    @property
    def new_version(self) -> Slice | None:
        """The part of the traffic that moved, if it is a version that was hardly there before the change; None for another."""
        best = self.which_part.found if self.which_part is not None else None
        if best is None:
            return None
        is_version = best.label in {one.label for one in self.deployments} or any(part in best.label for part in _ROLLED_OUT)
        return best if best.kind == VALUE and is_version and best.share_before <= NEW_SHARE < best.share_after else None

    @property
    def compared(self) -> list[Compared]:
        """The part of the traffic that moved, and the one that most exchanges had before; empty without both."""
        which = self.which_part
        if which is None or which.found is None or which.back_to is None:
            return []
        is_new = self.new_version is not None
        return [
            Compared(which.found, "began with the change" if is_new else "stands out"),
            Compared(which.back_to, "to go back to" if is_new and self.is_worse else "most exchanges before"),
        ]

    @cached_property
    def cause(self) -> Row:
        """The finding of the anchors, with the numbers."""
        found = self.evidence.get(CAUSE)
        return found if isinstance(found, dict) else {}

    @property
    def mix_words(self) -> str:
        """The explanation by the mix of the traffic, if that is the cause; else empty."""
        which = self.which_part
        return which.mix.words if self.incident.cause in {MIX, HISTORY} and which is not None and which.mix is not None else ""

    @property
    def cause_reasons(self) -> list[str]:
        """The reasons why the anchors can or cannot tell, for each tier that a judge scores and that was asked about."""
        tiers = self.cause.get("tiers")
        known = tiers if isinstance(tiers, dict) else {self.incident.tier: self.cause}
        return [
            one["reason"]
            for tier, one in known.items()
            if tier in JUDGED and isinstance(one, dict) and isinstance(one.get("reason"), str)
        ]

    def risen(self, counts: Iterable[Count], *, fewest: int = 3) -> list[Count]:
        """Return the counts whose share moved with the change by more than chance: rose with one for the worse, else fell."""
        return [one for one in counts if has_risen((one if self.is_worse else one.swapped).row, fewest=fewest)]

    def _rows(self, name: str) -> list[Row]:
        found = self.evidence.get(name)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def _counts(self, name: str, label: str) -> list[Count]:
        return [one for row in self._rows(name) if (one := _count(row, label)) is not None]


def _of_both(found: Count, thing: str, since: str) -> str:
    after = f"{grouped(found.after)} of {counted(found.all_after, thing)} {since}"
    return f"{after}, {grouped(found.before)} of {grouped(found.all_before)} before"


def _count(row: Row, label: str) -> Count | None:
    try:
        found = msgspec.convert({**row, "name": row.get(label, "")}, Count)
    except msgspec.ValidationError:
        return None
    return found if found.before <= found.all_before and found.after <= found.all_after else None


def _converted(rows: Iterable[Row], kind: type[T]) -> Iterable[T]:
    for row in rows:
        try:
            yield msgspec.convert(row, kind)
        except msgspec.ValidationError:
            continue
