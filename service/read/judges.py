"""The judge: whether anchors say that it changed, and whether its last answers can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from analytics.queries import query_rows
from audit.exchanges.states import SCORED
from schemas.lazy import duckdb
from schemas.records import Anchor
from service.text.answers import Answer, Moment
from streams.judges.rate_limits import MAX_UNREADABLE
from streams.upkeep.anchors import anchors_of, changes, rounds_of

_MAX_ROUNDS = 100
"""Maximum number of rounds in an answer, newest first."""


class AnchoredExchange(Answer, frozen=True):
    """An exchange that is judged repeatedly."""

    anchor_id: str = field(name="id")
    connection: str
    exchange_id: str
    active: Annotated[bool, Meta(description="Whether it is judged in the next round.")]
    chosen_by: Annotated[str, Meta(description="Person who chose or withdrew it.")]
    occurred_at: Moment = field(name="chosenAt")


class Round(Answer, frozen=True):
    """One round: anchors judged, anchors with a score, and the cost."""

    at: Moment
    anchors: int
    scored: int
    cost_usd: float | None


class JudgeOfTier(Answer, frozen=True):
    """The anchors' finding about the judge of a tier; sizes are parts of its scale, 0 to 1."""

    tier: str
    changed: bool
    direction: Annotated[Literal["up", "down"] | None, Meta(examples=["up"])]
    since: Annotated[Moment | None, Meta(description="The most likely first round with the change.")]
    evidence: Annotated[
        float, Meta(description="Evidence (value of a fair bet) against an unchanged judge; 200 counts as proof.")
    ]
    size: float | None
    low: float | None
    high: float | None
    anchors: int
    rounds: int


class Anchors(Answer, frozen=True):
    """The anchors of a project, their rounds, newest first, and the judge of each tier."""

    anchors: list[AnchoredExchange]
    rounds: list[Round]
    judge: list[JudgeOfTier]


class ChosenAnchors(Answer, frozen=True):
    """The newly chosen anchors."""

    anchors: list[AnchoredExchange]
    count: int


class OneAnchor(Answer, frozen=True):
    """An anchor."""

    anchor: AnchoredExchange


class BegunRound(Answer, frozen=True):
    """The round in progress; no anchors if it had already begun."""

    round: Moment
    anchors: int


def project_anchors(cursor: duckdb.DuckDBPyConnection, project: str) -> Anchors:
    """Return the anchors of a project, their rounds, newest first, and the finding about the judge of each tier."""
    judges = changes(cursor, project).items()
    return Anchors(
        anchors=[anchored_exchange(anchor) for anchor in anchors_of(cursor, project)],
        rounds=_read_rounds(rounds_of(cursor, project)),
        judge=[JudgeOfTier.of(dataclasses.asdict(change), tier=tier) for tier, change in judges],
    )


def anchored_exchange(anchor: Anchor) -> AnchoredExchange:
    """Return an anchor, without the texts of its exchange."""
    return AnchoredExchange.of(msgspec.structs.asdict(anchor))


def _read_rounds(rows: Iterable[Mapping[str, Any]]) -> list[Round]:
    rounds: dict[datetime, list[Mapping[str, Any]]] = {}
    for row in rows:
        rounds.setdefault(row["round_at"], []).append(row)
    newest = sorted(rounds.items(), reverse=True)[:_MAX_ROUNDS]
    return [
        Round(
            at=at,
            anchors=len(judged),
            scored=sum(row["disposition"] == SCORED for row in judged),
            cost_usd=None if any(row["cost_usd"] is None for row in judged) else sum(row["cost_usd"] for row in judged),
        )
        for at, judged in newest
    ]


RECENT = timedelta(days=1)
"""The period searched: a model that was not called for longer may have been replaced.

While exchanges wait, a paused model is called every ten minutes.
"""


@dataclass(frozen=True, slots=True)
class UnreadableJudge:
    """A model whose last answers cannot be read."""

    model: str
    questions: int
    """The number of consecutive unreadable answers."""
    since: datetime
    """The time of the first of them."""
    last_at: datetime
    error: str | None
    """What was wrong with the last one; it may quote the server, without secrets."""

    @property
    def summary(self) -> str:
        """Describe the problem and its beginning."""
        reason = f": {self.error}" if self.error else ""
        return f"The last {self.questions} answers of the judge {self.model} cannot be read, since {self.since:%Y-%m-%d %H:%M} UTC{reason}"

    @property
    def consequence(self) -> str:
        """Describe the effect on exchanges, and the remedy."""
        return (
            "The judge is paused and then probed with one call at a time, at least every ten minutes. Exchanges wait and are judged "
            "once its answers are readable again. Exchanges already sent to it stay unscored until driftline rejudge judges them again. "
            "Check the model and the address of the judge with driftline doctor"
        )


def unreadable_judges(cursor: duckdb.DuckDBPyConnection, project: str | None, now: datetime) -> tuple[UnreadableJudge, ...]:
    """Return the models whose last answers in a project (None: all) cannot be read."""
    values = {"project": project, "least": MAX_UNREADABLE, "from": now - RECENT}
    return tuple(UnreadableJudge(**row) for row in query_rows(cursor, "unreadable_judges", values))
