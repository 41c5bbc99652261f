"""Making a batch once: one that may or may not have been made is looked for before it is made again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from streams.judges.batch.calls import Batch, BatchCalls, Patience
from streams.judges.batch.plans import Plan, is_of
from streams.judges.failures import Failure
from streams.judges.rate_limits import Waiting

_FAULTS_OF_REQUESTS = frozenset([400, 413, 422])
"""Statuses that say that the requests are at fault, and nothing else."""
_SETTLING = timedelta(minutes=2)
"""The time after its plan in which a batch may still turn up in the list of batches."""
_CLOCKS = timedelta(hours=2)
"""The largest difference between our clock and the API's."""
_PAUSE = 15.0


class BatchMaker:
    """Makes batches and finds those of a plan again."""

    def __init__(self, calls: BatchCalls, waiting: Waiting, patience: float) -> None:
        self._calls = calls
        self._waiting = waiting
        self._patience = patience

    async def make(self, plan: Plan, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
        """The plan's batch; or the failure where the API holds the requests to be wrong. JudgeUnavailableError for anything else."""
        patience = Patience(self._waiting, self._patience)
        while True:
            came = await self._calls.create(requests)
            if isinstance(came, Batch) or came.status in _FAULTS_OF_REQUESTS:
                return came
            await patience.bear(came, "a batch cannot be made")
            found = await self.find(plan) if came.billed else None
            if found is not None:
                return found

    async def find(self, plan: Plan) -> Batch | None:
        """The batch of a plan that may or may not have been made; None when there is none.

        The API does not show what a batch holds before it has ended. So one that was made about then and has as many requests is
        waited for: to wait costs nothing, to ask twice does.
        """
        strangers: set[str] = set()
        while True:
            late = (
                self._now() >= plan.planned_at + _SETTLING
            )  # before looking: what turns up while we look is seen by the next look
            waits = False
            async with aclosing(self._since(plan.planned_at - _CLOCKS)) as listed:
                async for batch in listed:
                    if batch.size != len(plan.fingerprints) or batch.batch_id in strangers:
                        continue
                    if not batch.ended:
                        waits = True
                    elif await self._is_of(batch, plan):
                        return batch
                    else:
                        strangers.add(batch.batch_id)
            if late and not waits:
                return None
            await self._waiting.sleep(_PAUSE)

    async def _since(self, earliest: datetime) -> AsyncGenerator[Batch]:
        """Batches that were made since then, the newest first."""
        patience = Patience(self._waiting, self._patience)
        after: str | None = None
        while True:
            page = await self._calls.page(after)
            if isinstance(page, Failure):
                await patience.bear(page, "the batches cannot be listed")
                continue
            patience.over()
            for batch in page.data:
                if batch.created_at < earliest:
                    return
                yield batch
            if not page.has_more or not page.data or page.data[-1].batch_id == after:
                return
            after = page.data[-1].batch_id

    async def _is_of(self, batch: Batch, plan: Plan) -> bool:
        """Tell by a batch's first result whether its results carry the plan's id.

        A batch whose results are gone belongs to no plan.
        """
        patience = Patience(self._waiting, self._patience)
        while True:
            async with aclosing(self._calls.results(batch.batch_id)) as results:
                first = await anext(results, None)
            if not isinstance(first, Failure):
                return first is not None and is_of(first.custom_id, plan.plan_id)
            if first.status == 404:
                return False
            await patience.bear(first, f"the results of batch {batch.batch_id} cannot be read")

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._waiting.wall(), UTC)
