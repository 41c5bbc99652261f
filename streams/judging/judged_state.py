"""The state of a judged stage for one session: its position, what was spent, and on Kafka the calls of its newest turns.

Topics are no index: nothing is read back of a task that is done. A worker on Kafka therefore keeps the answers about a turn in
the state as long as the turn may become one of the last. So they are not paid for twice. The embedded runner asks its store
instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated

import msgspec

from audit.exchanges.sampling import LAST_TURNS, may_become_last
from audit.policy.policy import Policy
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError
from schemas.records import Judgement, Record, ScoringTask

KEPT_BYTES = 1_000_000
"""Bytes of one session that are kept; beyond that the earliest turns are paid for again."""


class KeptCalls(msgspec.Struct, frozen=True, array_like=True):
    """The judgements of a turn that may be judged again as one of its session's last."""

    turn: int
    subject_id: str
    judgements: tuple[bytes, ...]
    """Encoded."""


class JudgedState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one session in a stage that asks a judge."""

    next_offset: int = 0
    spent: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Nano-USD its judge calls have cost, where one cap holds for all of them."""
    kept: tuple[KeptCalls, ...] = ()
    """The judgements of its newest turns that may be judged again when it closes, ascending; only if no store can tell."""

    def recorded_of(self, subject_id: str) -> list[Judgement]:
        """Return the judgements kept of a subject.

        Those that cannot be read count for nothing: at worst a question is asked again.
        """
        judgements: list[Judgement] = []
        for message in (message for calls in self.kept if calls.subject_id == subject_id for message in calls.judgements):
            with contextlib.suppress(RecordError):
                record = decode(message)
                judgements += [record] if isinstance(record, Judgement) else []
        return judgements


STATE = msgspec.msgpack.Decoder(JudgedState)


def kept_after(
    kept: Sequence[KeptCalls], task: Record, judgements: Sequence[Judgement], policy: Policy
) -> tuple[KeptCalls, ...]:
    """Return the calls to keep after a task of which these judgements are recorded."""
    if not isinstance(task, ScoringTask):
        return tuple(kept)
    others = [calls for calls in kept if calls.subject_id != task.exchange_id]
    if task.sampling_reason == LAST_TURNS:
        # Last turns come in their order, so nothing before this one comes again.
        return tuple(calls for calls in others if calls.turn >= task.turn_number)
    if not judgements or not may_become_last(task.sampling_reason):
        return tuple(kept)
    this = KeptCalls(task.turn_number, task.exchange_id, tuple(map(encode, judgements)))
    newest_first = sorted((*others, this), key=lambda calls: calls.turn, reverse=True)
    last = newest_first[: policy.for_project(task.project).settings.sampling.always_score_last]
    sizes = accumulate(sum(map(len, calls.judgements)) for calls in last)
    return tuple(reversed([calls for calls, size in zip(last, sizes, strict=True) if size <= KEPT_BYTES]))
