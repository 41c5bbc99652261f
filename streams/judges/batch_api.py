"""What the batch judge needs of a batch API: the calls, the batches and results that they return, and the creation of batches.

1. Each batch is created once. If the outcome of its creation is unknown, it is searched for by its plan
   (`streams.judges.batch_plans`) before another attempt.
2. A call returns its result or a failure.
3. Results are JSON lines, each decoded on its own, so that a bad line affects no other.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from schemas.errors import DriftlineError
from streams.judges.batch_plans import CANCELLED, BatchPlan, has_plan
from streams.judges.failures import PROVIDER_ERROR, TIMEOUT, ClientErrors, Failure, classify_error, one_line
from streams.judges.model_api import JudgeRequest, Message, is_simulated
from streams.judges.rate_limits import Clock

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
BATCH_ID = r"^[A-Za-z0-9_-]{1,128}$"
"""The pattern of a batch's id, which becomes part of paths."""
_MAX_CUSTOM_ID_LENGTH = 64
PAGE_SIZE = 100
"""Batches per page of the list."""
_FIRST_BACKOFF_SECONDS = 1.0
_MAX_BACKOFF_SECONDS = 60.0
_PERMANENT_STATUSES = frozenset([400, 401, 402, 403, 404, 405])
"""Statuses for which a retry is pointless."""
_NOT_FOUND = 404
_REJECTION_STATUSES = frozenset([400, 413, 422])
"""Statuses by which the API rejects the requests themselves."""
_LISTING_DELAY = timedelta(minutes=2)
"""A new batch may be missing from the list of batches for this long."""
_MAX_CLOCK_SKEW = timedelta(hours=2)
"""The largest assumed difference between our clock and the API's."""
_SEARCH_INTERVAL_SECONDS = 15.0
EXPIRED = Failure(error="the batch expired before the question was asked", outcome=TIMEOUT, billed=False)
"""The result of a request that the API did not process in time."""
UNASKED = Failure(error=CANCELLED, outcome=PROVIDER_ERROR, billed=False)
"""The result of a request whose batch was cancelled."""


class Batch(NamedTuple):
    """A batch as the API describes it."""

    batch_id: str
    size: int
    """The number of requests."""
    created_at: datetime
    ended: bool
    """True if no request is in progress and the results are available."""
    seconds: float = 0.0
    """The duration; 0 before the batch has ended."""
    plan_id: str | None = None
    """The id of its plan, empty if it has none; None if this API does not store it with the batch."""
    rejection: Failure | None = None
    """Why the API processed none of its requests; None if it did."""


class Page(NamedTuple):
    """A page of the list of batches, newest first."""

    data: Sequence[Batch]
    has_more: bool


class Result(NamedTuple):
    """The result of one request of a batch."""

    custom_id: str
    response: Message | Failure


class ResultLine(msgspec.Struct):
    """The part that a line of results has in every API."""

    custom_id: str


LineT = TypeVar("LineT", bound=ResultLine)


class BatchCalls(Protocol):
    """The calls of a batch API. Belongs to one event loop."""

    simulated: bool
    """Whether a simulated judge has answered."""
    max_requests: int
    """The API's limit on the requests of a batch."""
    max_bytes: int
    """The API's limit on the size of a batch."""

    def encode(self, custom_id: str, request: JudgeRequest) -> dict[str, Any]:
        """Return a request of a batch in the form of the API."""
        ...

    async def create(self, plan_id: str, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
        """Create a batch. If the call fails and may have been billed, the batch may exist nevertheless."""
        ...

    async def retrieve(self, batch_id: str) -> Batch | Failure:
        """Return the state of a batch."""
        ...

    async def cancel(self, batch_id: str) -> Batch | Failure:
        """Cancel a batch: the API processes none of its remaining requests."""
        ...

    async def list_page(self, after_id: str | None) -> Page | Failure:
        """Return a page of the batches of this key's workspace or project, newest first, starting after the batch `after_id`."""
        ...

    def results(self, batch_id: str) -> AsyncGenerator[Result | Failure]:
        """Yield the results of a batch that has ended, in any order. If reading fails, a failure comes last and results may be missing."""
        ...

    async def discard(self, batch_id: str) -> None:
        """Remove the texts of a batch whose verdicts are durable, where the API keeps them until they are deleted."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


async def read_lines(
    chunks: AsyncIterator[bytes],
    max_line: int,
    *,
    decode: Callable[[bytes], LineT],
    read_content: Callable[[LineT], Message | Failure],
) -> AsyncGenerator[Result]:
    """Yield the results in a body of JSON lines. Lines that are unreadable or longer than `max_line` bytes are logged and skipped."""
    async for line in _split_lines(chunks, max_line):
        if not line.strip():
            continue
        try:
            decoded = decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            _LOG.warning("a result of a batch is skipped: %s", one_line(str(error)))
            continue
        yield Result(decoded.custom_id[:_MAX_CUSTOM_ID_LENGTH], read_content(decoded))


async def _split_lines(chunks: AsyncIterator[bytes], max_line: int) -> AsyncGenerator[bytes]:
    """Yield the lines. Lines that are too long are skipped, and never held in memory completely."""
    line = bytearray()
    is_too_long = False
    async for chunk in chunks:
        pieces = chunk.split(b"\n")
        line += pieces[0]
        for piece in pieces[1:]:
            if _check_line_length(line, max_line, is_too_long=is_too_long):
                yield bytes(line)
            line = bytearray(piece)
            is_too_long = False
        if len(line) > max_line:
            line = bytearray()
            is_too_long = True
    if _check_line_length(line, max_line, is_too_long=is_too_long):
        yield bytes(line)


def _check_line_length(line: bytearray, max_line: int, *, is_too_long: bool) -> bool:
    """Return whether a complete line is short enough; log it otherwise."""
    if is_too_long or len(line) > max_line:
        _LOG.warning("a result of a batch is skipped: it has more than %d bytes", max_line)
        return False
    return True


class JudgeUnavailableError(DriftlineError):
    """The batch API is unreachable or denies access. Batches that were already created continue to run there."""

    hint = (
        "Check the address, the key and its credit, then run the same command again. It resumes the batches that were created."
    )


class TimedBody:
    """The body of a response, with a limit on the time spent waiting for bytes. An error ends it, and is stored instead of raised."""

    def __init__(self, body: AsyncIterator[bytes], seconds: float) -> None:
        self.error: Exception | None = None
        self._body = body
        self._seconds_left = seconds

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the chunks as they arrive."""
        while True:
            started_at = time.monotonic()
            try:
                async with asyncio.timeout(max(self._seconds_left, 0.0)):
                    chunk = await anext(self._body, None)
            except Exception as error:  # noqa: BLE001 - any error of the stream is an outcome of this one call
                self.error = error
                return
            self._seconds_left -= time.monotonic() - started_at
            if chunk is None:
                return
            yield chunk


class BatchClient:
    """The client of a batch API, and how its errors are classified.

    A call may take `seconds`. Reading the results of a batch may take `results_seconds`, not counting the time to process them. A result
    may have `max_line` bytes.
    """

    def __init__(
        self, client: Any, errors: ClientErrors, clock: Clock, *, seconds: float, results_seconds: float, max_line: int
    ) -> None:
        self.simulated = False
        self._errors = errors
        self._clock = clock
        self._seconds = seconds
        self._results_seconds = results_seconds
        self._max_line = max_line
        self._closed_client = client

    async def aclose(self) -> None:
        """See `BatchCalls`."""
        await self._closed_client.close()

    async def _call(self, call: Callable[[], Awaitable[Any]], decode: Callable[[bytes], T]) -> T | Failure:
        try:
            async with asyncio.timeout(self._seconds):
                response = await call()
        except Exception as error:  # noqa: BLE001 - any error of the client is an outcome of this one call
            return self._classify(error)
        self.simulated |= is_simulated(response.headers)
        try:
            return decode(response.http_response.content)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return Failure(error=f"unreadable answer: {one_line(str(error))}")

    def _classify(self, error: Exception) -> Failure:
        return classify_error(error, self._errors, secret=self._closed_client.api_key or "", wall=self._clock.wall)


class OutageBackoff:
    """The waits between calls to a failing API, until it has failed for `max_seconds` without interruption."""

    def __init__(self, clock: Clock, max_seconds: float) -> None:
        self._clock = clock
        self._max_seconds = max_seconds
        self._failing_since = math.inf
        self._failures = 0

    def reset(self) -> None:
        """Note a successful call."""
        self._failing_since = math.inf
        self._failures = 0

    async def wait(self, failure: Failure, problem: str) -> None:
        """Wait before the next call. Raises JudgeUnavailableError if a retry is pointless or the outage has lasted too long."""
        now = self._clock.now()
        self._failing_since = min(self._failing_since, now)
        if failure.status in _PERMANENT_STATUSES or now - self._failing_since > self._max_seconds:
            raise JudgeUnavailableError(f"{problem}: {failure.error}")
        delay = min(_FIRST_BACKOFF_SECONDS * 2**self._failures, _MAX_BACKOFF_SECONDS)
        self._failures = min(self._failures + 1, 10)
        _LOG.warning("%s, retrying: %s", problem, failure.error)
        await self._clock.sleep(max(delay * self._clock.jitter(), failure.retry_after or 0.0))


class BatchCreator:
    """Creates batches, and finds a batch that may have been created. Raises JudgeUnavailableError after `max_outage` seconds of failures."""

    def __init__(self, calls: BatchCalls, clock: Clock, max_outage: float) -> None:
        self._calls = calls
        self._clock = clock
        self._max_outage = max_outage

    async def create(self, plan: BatchPlan, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
        """Create a plan's batch. Return a failure if the API rejects the requests."""
        backoff = OutageBackoff(self._clock, self._max_outage)
        while True:
            response = await self._calls.create(plan.plan_id, requests)
            if isinstance(response, Batch) or response.status in _REJECTION_STATUSES:
                return response
            await backoff.wait(response, "a batch cannot be created")
            if response.billed:
                batch = await self.find(plan)
                if batch is not None:
                    return batch

    async def find(self, plan: BatchPlan) -> Batch | None:
        """Return the batch of a plan, which may or may not have been created; None if it does not exist.

        A batch may carry the id of its plan. Without it, the API shows the content of a batch only when it has ended. So any batch of the
        right size from about that time is waited for: waiting is free, and asking the questions twice is not.
        """
        other_batches: set[str] = set()
        while True:
            # Read the clock before the search, because a batch may be listed while the search is running.
            is_listed_by_now = self._now() >= plan.planned_at + _LISTING_DELAY
            has_running_candidates = False
            async with aclosing(self._list_since(plan.planned_at - _MAX_CLOCK_SKEW)) as batches:
                async for batch in batches:
                    if batch.plan_id is not None:
                        if batch.plan_id == plan.plan_id:
                            return batch
                        continue
                    if batch.size != len(plan.fingerprints) or batch.batch_id in other_batches:
                        continue
                    if not batch.ended:
                        has_running_candidates = True
                    elif await self._has_plan(batch, plan):
                        return batch
                    else:
                        other_batches.add(batch.batch_id)
            if is_listed_by_now and not has_running_candidates:
                return None
            await self._clock.sleep(_SEARCH_INTERVAL_SECONDS)

    async def _list_since(self, earliest: datetime) -> AsyncGenerator[Batch]:
        """Yield the batches that were created since `earliest`, newest first."""
        backoff = OutageBackoff(self._clock, self._max_outage)
        last_id: str | None = None
        while True:
            page = await self._calls.list_page(last_id)
            if isinstance(page, Failure):
                await backoff.wait(page, "the batches cannot be listed")
                continue
            backoff.reset()
            for batch in page.data:
                if batch.created_at < earliest:
                    return
                yield batch
            if not page.has_more or not page.data or page.data[-1].batch_id == last_id:
                return
            last_id = page.data[-1].batch_id

    async def _has_plan(self, batch: Batch, plan: BatchPlan) -> bool:
        """Return whether the first result of a batch has the plan's id; False if its results are no longer available."""
        backoff = OutageBackoff(self._clock, self._max_outage)
        while True:
            async with aclosing(self._calls.results(batch.batch_id)) as results:
                first = await anext(results, None)
            if not isinstance(first, Failure):
                return first is not None and has_plan(first.custom_id, plan.plan_id)
            if first.status == _NOT_FOUND:
                return False
            await backoff.wait(first, f"the results of batch {batch.batch_id} cannot be read")

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)
