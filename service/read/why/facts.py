"""Facts about an incident from its evidence, and the words for slices of the traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from audit.drift.incident_evidence import (
    EVERYWHERE,
    NO_LABELS,
    TOO_FEW,
    Cause,
    Count,
    Dimension,
    Evidence,
    Moved,
    ReasonCount,
    Sighting,
    SliceRow,
    WhichPart,
    evidence_of,
)
from audit.drift.slices import VALUE
from audit.drift.watched_series import SPIKE, TIERS
from schemas.records import Incident
from service.text.rounding import counted, grouped
from streams.watch.evidence import HISTORY, MIX
from streams.watch.measures import TRUST
from streams.watch.rules import RUNS

JUDGED = frozenset(TIERS) - {"tier1"}
"""The tiers that a judge scores."""
NEW_SHARE = 0.05
"""The maximum share of exchanges before a change for a version to count as new."""
MISSING = "\u2013"
_ROLLED_OUT = ("version", "prompt", "release", "build", "commit", "model")
"""Substrings in the names of labels whose values are deployed."""
CountT = TypeVar("CountT", bound=Count)


class Compared(NamedTuple):
    """A slice that the explanation compares with another slice of the same label, and its role."""

    row: SliceRow
    role: str


@dataclass(frozen=True)
class Facts:
    """An incident with its evidence, part by part."""

    incident: Incident

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence; empty if it cannot be read."""
        return evidence_of(self.incident)

    @property
    def moved(self) -> list[Moved]:
        """The changed series, the leading one first."""
        return self.evidence.moved

    @property
    def is_worse(self) -> bool:
        """True if the leading series changed for the worse, or if that is unknown."""
        return self.moved[0].is_worse if self.moved else True

    @property
    def is_spike(self) -> bool:
        """True if the incident is about the anomaly rate."""
        return self.incident.type == SPIKE

    @property
    def unit(self) -> str:
        """The unit of the counts: judged turns for a judged tier, otherwise exchanges."""
        return "judged turn" if self.is_judged and not self.is_spike else "exchange"

    @property
    def is_of_runs(self) -> bool:
        """True if the leading series is of an agent's runs."""
        return self.incident.rule == RUNS

    @property
    def is_judged(self) -> bool:
        """True if the leading series is a tier that a judge scores."""
        return self.incident.tier in JUDGED

    @property
    def seen(self) -> Sighting | None:
        """The observation of the rule that raised the incident."""
        return self.evidence.seen_by(self.incident.rule)

    @property
    def since(self) -> str | None:
        """The first day of the change."""
        return None if self.seen is None else f"{self.seen.since}"

    @property
    def extent(self) -> str:
        """The numbers of runs, exchanges or scores behind the title's levels, since the change and before; empty if unknown."""
        seen, since = self.seen, f"since {self.since}"
        if seen is None:
            return ""
        if self.is_spike:
            return "" if self.spike is None else _of_both(self.spike, "exchange", since)
        if self.is_of_runs:
            return self._runs_extent(seen, since)
        sides = [(seen.scores_after, seen.sessions_after), (seen.scores_before, seen.sessions_before)]
        texts = [f"{counted(n, 'score')} of {counted(of, 'session')}" for n, of in sides if n is not None and of is not None]
        return f"{texts[0]} {since}, {texts[1]} before" if len(texts) == len(sides) else ""

    def _runs_extent(self, seen: Sighting, since: str) -> str:
        after, before = seen.runs_after, seen.runs_before
        level = self.moved[0].level if self.moved else None
        if after is None or before is None:
            return ""
        if level is None or self.incident.tier == TRUST:
            return f"{counted(after, 'run')} {since}, {grouped(before)} before"
        having = _count(seen.having_before, before, seen.having_after, after)
        return "" if having is None else _of_both(having, "run", since)

    def reason(self, kind: str) -> Count | None:
        """Return the count of a kind of reason that needs no further name."""
        return next((one for one in self.evidence.reasons if one.kind == kind), None)

    @property
    def spike(self) -> Count | None:
        """The anomaly counts that the rate rule compared; None for another rule."""
        seen = self.seen
        if seen is None:
            return None
        return _count(seen.baseline_anomalies, seen.baseline_exchanges, seen.anomalies, seen.exchanges)

    @cached_property
    def mix(self) -> list[ReasonCount]:
        """The judged exchanges by the reason for which they were sampled."""
        rows = self.evidence.sampling_mix
        before, after = sum(row.before for row in rows), sum(row.after for row in rows)
        return [
            ReasonCount(reason=row.sampling_reason, before=row.before, after=row.after, all_before=before, all_after=after)
            for row in rows
        ]

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The dimensions that changed with the tier by more than chance, the largest change first."""
        moved = [one for one in self.evidence.dimensions if one.has_moved(self.incident.direction)]
        return sorted(moved, key=lambda one: (-abs(one.change), one.dimension))

    @property
    def which_part(self) -> WhichPart | None:
        """The comparison of slices; None in evidence from versions without it."""
        return self.evidence.slices

    @property
    def new_version(self) -> SliceRow | None:
        """The changed slice if it is a version that hardly existed before the change; otherwise None."""
        best = self.which_part.found if self.which_part is not None else None
        if best is None:
            return None
        is_version = best.label in {one.label for one in self.evidence.deployments} or any(
            part in best.label for part in _ROLLED_OUT
        )
        return best if best.kind == VALUE and is_version and best.share_before <= NEW_SHARE < best.share_after else None

    @property
    def compared(self) -> list[Compared]:
        """The changed slice, and the slice that most exchanges had before; empty unless both exist."""
        which = self.which_part
        if which is None or which.found is None or which.back_to is None:
            return []
        is_new = self.new_version is not None
        return [
            Compared(which.found, "began with the change" if is_new else "stands out"),
            Compared(which.back_to, "to go back to" if is_new and self.is_worse else "most exchanges before"),
        ]

    @property
    def cause(self) -> Cause:
        """The finding of the anchors, with the numbers."""
        return self.evidence.cause

    @property
    def mix_words(self) -> str:
        """The explanation by a changed traffic mix, if that is the cause; otherwise empty."""
        which = self.which_part
        return which.mix.words if self.incident.cause in {MIX, HISTORY} and which is not None and which.mix is not None else ""

    @property
    def cause_reasons(self) -> list[str]:
        """The reasons why anchors can or cannot tell the cause, for each affected tier that a judge scores."""
        tiers = self.cause.tiers or {self.incident.tier or "": self.cause}
        return [one.reason for tier, one in tiers.items() if tier in JUDGED and one.reason is not None]

    def risen(self, counts: Iterable[CountT], *, fewest: int = 3) -> list[CountT]:
        """Return the counts whose share changed with the incident by more than chance: rose if it is for the worse, otherwise fell."""
        return [one for one in counts if one.has_risen(is_fall=not self.is_worse, fewest=fewest)]


def _of_both(count: Count, thing: str, since: str) -> str:
    after = f"{grouped(count.after)} of {counted(count.all_after, thing)} {since}"
    return f"{after}, {grouped(count.before)} of {grouped(count.all_before)} before"


def _count(before: int | None, all_before: int | None, after: int | None, all_after: int | None) -> Count | None:
    """Return the counts that a rule recorded; None if it did not, because counts are never computed from a rate."""
    if before is None or all_before is None or after is None or all_after is None:
        return None
    return Count(before=before, all_before=all_before, after=after, all_after=all_after)


def slice_counts(row: SliceRow) -> str:
    """Return the exchanges of a slice, before and after; those with a judged score if the change is of one."""
    is_known = row.exchanges_before or row.exchanges_after  # evidence of earlier versions has no judged counts
    return f"{grouped(row.exchanges_before)} → {grouped(row.exchanges_after)}" if is_known else MISSING


def slice_means(row: SliceRow) -> str:
    """Return the means of a slice, before and after."""
    return " → ".join(MISSING if mean is None else f"{mean:.3f}" for mean in (row.mean_before, row.mean_after))


def slice_rates(row: SliceRow) -> str:
    """Return the means of a slice as rates of anomalies, before and after."""
    return " → ".join("none" if mean is None else f"{mean:.1%}" for mean in (row.mean_before, row.mean_after))


def part_explained(best: SliceRow) -> str:
    """Format the fraction of a change that a slice explains, at most all of it."""
    return f"{min(best.explained, 1.0):.0%}"


def which_part_words(which: WhichPart) -> str:
    """Describe the changed slice in one or two sentences."""
    if which.state == TOO_FEW:
        before, after = which.sessions.get("before", 0), which.sessions.get("after", 0)
        return (
            f"There are too few sessions to compare slices: {before} before and {after} after the change; each side needs "
            f"{which.needed}, and the means must differ."
        )
    if which.state == NO_LABELS:
        return (
            "The exchanges cannot be told apart: all are of one agent and one model, and none has labels. "
            "Send labels such as agent_version with exchanges to see which part changed."
        )
    if which.state == EVERYWHERE or not which.slices:
        return f"No slice stands out: the change is similar in all {which.tried} slices by label, agent and model."
    best = which.slices[0]
    mixed = abs(best.mix.amount) > abs(best.within.amount)
    how = f"the mix moved, its share went {best.shares}" if mixed else f"inside the slice the mean went {slice_means(best)}"
    twins = f" The same exchanges are {', '.join(one.name for one in best.same_as)}." if best.same_as else ""
    return (
        f"{best.name} explains {part_explained(best)} of the change: {how}.{twins} "
        f"{which.unexplained:+.3f} points of the change remain unexplained."
    )
