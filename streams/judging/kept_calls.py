"""Kept calls: a worker on Kafka keeps the answers of turns that may be judged again when their session closes.

Topics are no index: of a task that is done, nothing is read back. So what its questions were answered stays in the session's state, as
long as the turn may become one of the last, and is not paid for twice. The embedded runner asks its store instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from audit.exchanges.sampling import LAST_TURNS, may_become_last
from audit.policy.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, ScoringTask
from streams.judging.judging_task import KeptCalls

KEPT_BYTES = 1_000_000
"""How much of one session is kept; beyond that the earliest turns are paid for again."""


def kept_after(
    kept: Sequence[KeptCalls], task: Record, judgements: Sequence[Judgement], policy: Policy
) -> tuple[KeptCalls, ...]:
    """What is kept after a task of which these judgements are recorded."""
    if not isinstance(task, ScoringTask):
        return tuple(kept)
    others = [one for one in kept if one.subject_id != task.exchange_id]
    if task.sampling_reason == LAST_TURNS:
        # Last turns come in their order, so nothing before this one comes again.
        return tuple(one for one in others if one.turn >= task.turn_number)
    if not judgements or not may_become_last(task.sampling_reason):
        return tuple(kept)
    this = KeptCalls(task.turn_number, task.exchange_id, tuple(map(encode, judgements)))
    newest_first = sorted((*others, this), key=lambda one: one.turn, reverse=True)
    last = newest_first[: policy.for_project(task.project).settings.sampling.always_score_last]
    sizes = accumulate(sum(map(len, one.judgements)) for one in last)
    return tuple(reversed([one for one, size in zip(last, sizes, strict=True) if size <= KEPT_BYTES]))
