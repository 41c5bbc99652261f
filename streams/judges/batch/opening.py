"""Opening of batches: takes up those of an earlier process and makes new ones of the questions left."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from streams.judges.batch.calls import Patience
from streams.judges.batch.making import BatchMaker
from streams.judges.batch.pending import OpenBatch, Pending, reserved
from streams.judges.batch.plans import Asked, BatchJournal, Plan, custom_id, newest
from streams.judges.failures import Failure
from streams.judges.live import Traits
from streams.judges.protocol import Verdict
from streams.judges.rate_limits import Waiting
from streams.judges.requests import Format, Rung, parameters

_LOG = logging.getLogger(__name__)
API_MOST_REQUESTS, API_MOST_BYTES = 100_000, 256_000_000
"""The API's limits for one batch."""
_RESERVED_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits on the size of batches and on the wait for them."""

    requests: int = 10_000
    """Most in one batch."""
    size: int = 32_000_000
    """Most bytes of one batch's requests; they are in memory until it is made."""
    open: int = 16
    """Most batches under way."""
    deadline: float = 25 * 3600.0
    """Seconds after which a batch is cancelled; the API lets it expire after 24 hours."""
    grace: float = 3600.0
    """Seconds after the cancellation in which it must end. Later its questions are charged in full."""
    patience: float = 3600.0
    """Seconds for which the API may fail without a break."""
    first_poll: float = 5.0
    """Seconds until a batch is looked at; they grow by half each time,"""
    last_poll: float = 60.0
    """to so many."""


class BatchOpener:
    """Takes up batches and makes new ones, and remembers how the models are to be asked."""

    def __init__(self, maker: BatchMaker, traits: Traits, journal: BatchJournal, limits: BatchLimits, waiting: Waiting) -> None:
        self._maker = maker
        self._traits = traits
        self._journal = journal
        self._limits = limits
        self._waiting = waiting
        self._rungs: dict[str, Rung] = {}

    async def take_up(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[Pending]]:
        """Earlier batches that hold questions of `todo`, and those of them for which the call budget has no money. Both leave `todo`."""
        plans = newest(await self._journal.unfinished())
        members: dict[str, list[Pending]] = {}
        for one in todo:
            if (plan := plans.get(one.fingerprint)) is not None:
                members.setdefault(plan.plan_id, []).append(one)
        opened, refused, gone = [], [], set()
        for plan in {plan.plan_id: plan for plan in plans.values() if plan.plan_id in members}.values():
            batch_id = plan.batch_id or await self._found(plan)
            if batch_id is not None:
                funded, poor = await reserved(members[plan.plan_id])
                opened.append(self._open(plan, batch_id, funded, taken_up=True))
                refused += poor
                gone |= set(funded) | set(poor)
        kept = [one for one in todo if one not in gone]
        todo.clear()
        todo.extend(kept)
        return opened, refused

    async def _found(self, plan: Plan) -> str | None:
        """The id of a plan's batch that was made and not recorded; None when there is none."""
        batch = await self._maker.find(plan)
        if batch is None:
            await self._journal.finished(plan.plan_id)
            return None
        await self._journal.created(plan.plan_id, batch.batch_id)
        return batch.batch_id

    def _open(self, plan: Plan, batch_id: str, pending: Sequence[Pending], *, taken_up: bool = False) -> OpenBatch:
        _LOG.info("batch %s: waiting for %d of %d questions", batch_id, len(pending), len(plan.fingerprints))
        named = {custom_id(one.fingerprint, plan.plan_id): one for one in pending}
        patience = Patience(self._waiting, self._limits.patience)
        is_whole = len(named) == len(plan.fingerprints)
        began = self._waiting.now()
        return OpenBatch(plan, batch_id, named, began, patience, taken_up=taken_up, is_whole=is_whole)

    async def make(self, todo: deque[Pending]) -> tuple[list[OpenBatch], list[tuple[Asked, Verdict]]]:
        """A batch of the first questions of `todo`, at most one; and the verdicts on those that are not asked after all."""
        plan_id = secrets.token_hex(8)
        chosen, requests, refused = await self._fill(todo, plan_id)
        ended = [(one.asked, one.without_money()) for one in refused]
        if not chosen:
            return [], ended
        now = datetime.fromtimestamp(self._waiting.wall(), UTC)
        plan = Plan(plan_id=plan_id, fingerprints=tuple(one.fingerprint for one in chosen), planned_at=now)
        await self._journal.planned(plan)
        made = await self._maker.make(plan, requests)
        if isinstance(made, Failure):
            await self._journal.finished(plan_id)
            return [], [*ended, *((one.asked, one.failed(made)) for one in chosen)]
        await self._journal.created(plan_id, made.batch_id)
        return [self._open(plan, made.batch_id, chosen)], ended

    async def _fill(self, todo: deque[Pending], plan_id: str) -> tuple[list[Pending], list[dict[str, Any]], list[Pending]]:
        """The questions of the next batch with their requests, money set aside; and those for which there is none."""
        chosen: list[Pending] = []
        requests: list[dict[str, Any]] = []
        refused: list[Pending] = []
        size, most = 0, min(self._limits.requests, API_MOST_REQUESTS)
        while todo and len(chosen) < most:
            group = [todo.popleft() for _ in range(min(len(todo), _RESERVED_AT_ONCE, most - len(chosen)))]
            funded, poor = await reserved(group)
            refused += poor
            for place, one in enumerate(funded):
                request = self._request(one, plan_id)
                size += len(msgspec.json.encode(request)) + 1
                if chosen and size > min(self._limits.size, API_MOST_BYTES):
                    todo.extendleft(reversed(funded[place:]))
                    return chosen, requests, refused
                chosen.append(one)
                requests.append(request)
        return chosen, requests, refused

    def _request(self, one: Pending, plan_id: str) -> dict[str, Any]:
        question = one.asking.question
        one.rung = self._rungs.get(question.model, Rung.STRUCTURED)
        asked = parameters(question, Format(one.rung, *self._traits(question.model)), secrets.token_hex(8))
        return {"custom_id": custom_id(one.fingerprint, plan_id), "params": asked}

    def step_down(self, model: str, why: str) -> None:
        """From now on the model is asked with the schema in the prompt."""
        if self._rungs.get(model) is not Rung.IN_PROMPT:
            self._rungs[model] = Rung.IN_PROMPT
            _LOG.warning("%s is asked with the schema in the prompt from now on: %s", model, why)
