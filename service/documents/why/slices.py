"""Slices of an incident in words and rows, for its page and for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from audit.drift.slices import NOT_GIVEN, OTHER
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


class Row(Named, frozen=True, rename="camel"):
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


class WhichPart(msgspec.Struct, frozen=True):
    """The evidence on the part of the traffic that moved."""

    state: str
    slices: list[Row] = []
    usual: Row | None = None
    """The slice of the best one's label that most exchanges were in right before."""
    change: Amount | None = None
    unexplained: float = 0.0
    tried: int = 0
    sessions: dict[str, int] = {}
    needed: int = 0

    @property
    def found(self) -> Row | None:
        """The slice that stands out; None without one."""
        return self.slices[0] if self.state == FOUND and self.slices and self.slices[0].stands_out else None

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


def part_explained(best: Row) -> str:
    """Write the part of a change that a slice explains; one beyond all of it is all of it."""
    return f"{min(best.explained, 1.0):.0%}"


def _best(best: Row, unexplained: float) -> str:
    mixed = abs(best.mix.amount) > abs(best.within.amount)
    how = f"the mix moved, its share went {best.shares}" if mixed else f"inside the slice the mean went {best.means}"
    twins = f" The same exchanges are {', '.join(one.name for one in best.same_as)}." if best.same_as else ""
    return (
        f"{best.name} explains {part_explained(best)} of the change: {how}.{twins} "
        f"{unexplained:+.3f} points of the change remain unexplained."
    )
