"""Slices of an incident in words and rows, for its page and for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from audit.drift.slices import NOT_GIVEN, OTHER, VALUE
from service.text.rounding import grouped
from streams.watch.incidents.slices import EVERYWHERE, FOUND, NO_LABELS, TOO_FEW

MISSING = "\u2013"


class Amount(msgspec.Struct, frozen=True):
    """Points of the score, with a 95 % interval."""

    amount: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The amount with its interval."""
        return f"{self.amount:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


class Named(msgspec.Struct, frozen=True):
    """The name of a slice."""

    label: str
    kind: str
    value: str

    @property
    def name(self) -> str:
        """The slice as people call it."""
        return f"{self.label}: {({NOT_GIVEN: 'not given', OTHER: 'other values'}).get(self.kind, self.value)}"


class Slice(Named, frozen=True, rename="camel"):
    """One slice."""

    share_before: float
    share_after: float
    mix: Amount
    within: Amount
    explained: float
    stands_out: bool
    mean_before: float | None = None
    mean_after: float | None = None
    same_as: list[Named] = []
    exchanges_before: int = 0
    exchanges_after: int = 0

    @property
    def shares(self) -> str:
        """Its shares of the weight, before and after."""
        return f"{self.share_before:.0%} → {self.share_after:.0%}"

    @property
    def means(self) -> str:
        """Its means, before and after."""
        return " → ".join(MISSING if mean is None else f"{mean:.3f}" for mean in (self.mean_before, self.mean_after))

    @property
    def rates(self) -> str:
        """Its means as rates of anomalies, before and after."""
        return " → ".join("none" if mean is None else f"{mean:.1%}" for mean in (self.mean_before, self.mean_after))

    @property
    def counts(self) -> str:
        """Its exchanges, before and after; those with a judged score if the change is of one. Evidence of earlier versions has none."""
        known = self.exchanges_before or self.exchanges_after
        return f"{grouped(self.exchanges_before)} → {grouped(self.exchanges_after)}" if known else MISSING


class Compared(NamedTuple):
    """A slice that the explanation compares with another one of its label, and what it is there for."""

    row: Slice
    role: str


class ChangedMix(msgspec.Struct, frozen=True):
    """The label whose shares explain a change."""

    label: str
    shares: str
    words: str


class WhichPart(msgspec.Struct, frozen=True):
    """The evidence on the part of the traffic that moved."""

    state: str
    slices: list[Slice] = []
    usual: Slice | None = None
    """The slice of the best one's label that most exchanges were in right before."""
    change: Amount | None = None
    unexplained: float = 0.0
    tried: int = 0
    sessions: dict[str, int] = {}
    needed: int = 0
    mix: ChangedMix | None = None
    """None where parts of the traffic explain the change by themselves, or none does."""

    @property
    def found(self) -> Slice | None:
        """The slice that stands out; None without one."""
        return self.slices[0] if self.state == FOUND and self.slices and self.slices[0].stands_out else None

    @property
    def back_to(self) -> Slice | None:
        """The value to go back to: what most exchanges had right before, if they were scored; None without one."""
        usual = self.usual
        is_known = usual is not None and usual.kind == VALUE and usual.mean_before is not None
        return usual if self.found is not None and is_known else None

    @property
    def listed(self) -> list[Slice]:
        """The slices that explain most, and the one to go back to among them: it explains little, because it stayed as it was."""
        known = {(one.label, one.kind, one.value) for one in self.slices}
        back = self.back_to
        is_missing = back is not None and (back.label, back.kind, back.value) not in known
        return [*self.slices[:1], back, *self.slices[1:]] if back is not None and is_missing else self.slices

    @property
    def summary(self) -> str:
        """The answer in one or two sentences."""
        if self.state == TOO_FEW:
            before, after = self.sessions.get("before", 0), self.sessions.get("after", 0)
            return (
                f"There are too few sessions to compare slices: {before} before and {after} after the change; each side needs "
                f"{self.needed}, and the means must differ."
            )
        if self.state == NO_LABELS:
            return (
                "The exchanges cannot be told apart: all are of one agent and one model, and none has labels. "
                "Send labels such as agent_version with exchanges to see which part changed."
            )
        if self.state == EVERYWHERE or not self.slices:
            return f"No slice stands out: the change is similar in all {self.tried} slices by label, agent and model."
        return _best(self.slices[0], self.unexplained)


class Deployed(msgspec.Struct, frozen=True):
    """A deployment on one of the days on which a change may have begun."""

    label: str
    version: str
    at: str
    by: str
    agent: str | None = None
    comment: str | None = None
    url: str | None = None

    @property
    def name(self) -> str:
        """The name of the deployed version."""
        return f"{self.label} {self.version}" + (f" of {self.agent}" if self.agent else "")

    @property
    def link(self) -> str | None:
        """The address with more about it, if a browser may open it."""
        return self.url if self.url and self.url.startswith(("https://", "http://")) else None


def deployments_of(evidence: Mapping[str, Any]) -> list[Deployed]:
    """Return the deployments that the evidence of an incident names; none if it has none that can be read."""
    try:
        return msgspec.convert(evidence.get("deployments") or [], list[Deployed])
    except msgspec.ValidationError:
        return []


def which_part_of(evidence: Mapping[str, Any]) -> WhichPart | None:
    """Return the evidence of an incident on slices; None if it has none, as before there were any."""
    try:
        found = msgspec.convert(evidence.get("slices"), WhichPart)
    except msgspec.ValidationError:
        return None
    return found if found.state in (FOUND, EVERYWHERE, NO_LABELS, TOO_FEW) else None


def part_explained(best: Slice) -> str:
    """Write the part of a change that a slice explains; one beyond all of it is all of it."""
    return f"{min(best.explained, 1.0):.0%}"


def _best(best: Slice, unexplained: float) -> str:
    mixed = abs(best.mix.amount) > abs(best.within.amount)
    how = f"the mix moved, its share went {best.shares}" if mixed else f"inside the slice the mean went {best.means}"
    twins = f" The same exchanges are {', '.join(one.name for one in best.same_as)}." if best.same_as else ""
    return (
        f"{best.name} explains {part_explained(best)} of the change: {how}.{twins} "
        f"{unexplained:+.3f} points of the change remain unexplained."
    )
