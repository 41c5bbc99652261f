"""Batches of the Message Batches API: the calls, and the results.

1. A batch is created once: if it may exist already, it is searched for by its plan (`streams.judges.batch_plans`) before it is created
   again.
2. A call returns its result or a failure.
3. Results are JSON lines, each read by itself, so a bad line affects no other.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from anthropic import AsyncAnthropic, AsyncStream

from schemas.errors import DriftlineError
from streams.judges.batch_plans import CANCELLED, BatchPlan, has_plan
from streams.judges.messages_api import (
    PROVIDER_ERROR,
    TIMEOUT,
    Failure,
    Message,
    blames_format,
    failure_of,
    is_simulated,
    one_line,
    read_message,
)
from streams.judges.rate_limits import Waiting

_LOG = logging.getLogger(__name__)
_MAX_NAME = 64
_UNASKED = {
    "expired": Failure(words="the batch expired before the question was asked", outcome=TIMEOUT, billed=False),
    "canceled": Failure(words=CANCELLED, outcome=PROVIDER_ERROR, billed=False),
}


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


class Result(NamedTuple):
    """The result of one request of a batch."""

    custom_id: str
    came: Message | Failure


_DECODER = msgspec.json.Decoder(_Line)


async def results_in(chunks: AsyncIterator[bytes], most: int) -> AsyncGenerator[Result]:
    """Yield the results in a body of JSON lines. At most `most` bytes of a line are held; unreadable lines are skipped and logged."""
    async for line in _lines(chunks, most):
        result = None if line is None else _read(line)
        if result is not None:
            yield result


async def _lines(chunks: AsyncIterator[bytes], most: int) -> AsyncGenerator[bytes | None]:
    """Yield each line that is not blank; None for one that is too long."""
    line, too_long = bytearray(), False
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        line += first
        for piece in rest:
            yield _whole(line, most, too_long=too_long)
            line, too_long = bytearray(piece), False
        if len(line) > most:
            line, too_long = bytearray(), True
    yield _whole(line, most, too_long=too_long)


def _whole(line: bytearray, most: int, *, too_long: bool) -> bytes | None:
    if too_long or len(line) > most:
        _LOG.warning("a result of a batch is left out: it has more than %d bytes", most)
        return None
    return bytes(line)


def _read(line: bytes) -> Result | None:
    if not line.strip():
        return None
    try:
        read = _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        _LOG.warning("a result of a batch is left out: %s", one_line(str(error)))
        return None
    return Result(read.custom_id[:_MAX_NAME], _came(read.result))


def _came(result: _Result) -> Message | Failure:
    if result.type == "succeeded":
        return read_message(bytes(result.message))
    if result.type == "errored":
        return _errored(result.error)
    return _UNASKED.get(result.type) or Failure(words=f"a result of an unknown kind: {one_line(result.type)}")


def _errored(error: Any) -> Failure:
    """Return the failure in an error of the API, which is not billed. The error may be wrapped in an error response."""
    inner = error.get("error") if isinstance(error, dict) else None
    said = inner if isinstance(inner, dict) else error if isinstance(error, dict) else {}
    kind, words = str(said.get("type", "error")), str(said.get("message", "no details"))
    return Failure(words=one_line(f"{kind}: {words}"), billed=False, blames_format=blames_format(words))


_PATH = "/v1/messages/batches"
_PAGE = 100
_FIRST_BACKOFF, _LAST_BACKOFF = 1.0, 60.0
_HOPELESS = frozenset([400, 401, 402, 403, 404, 405])
"""Statuses that a repetition of the call does not change."""
T = TypeVar("T")


class JudgeUnavailableError(DriftlineError):
    """The batch API cannot be reached or refuses access; batches that it has continue there."""

    hint = "See to the address, the key and its credit, then run the same command again: batches that were made are taken up."


class Counts(msgspec.Struct):
    """Number of requests of a batch by outcome."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class Batch(msgspec.Struct):
    """A batch in the API's responses."""

    batch_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")] = msgspec.field(name="id")
    processing_status: str
    created_at: datetime
    request_counts: Counts
    ended_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """True if its results are available."""
        return self.processing_status == "ended"

    @property
    def size(self) -> int:
        """Number of its requests."""
        return sum(msgspec.structs.astuple(self.request_counts))

    @property
    def seconds(self) -> float:
        """Its duration in seconds; 0 before its end."""
        took = 0.0 if self.ended_at is None else (self.ended_at - self.created_at).total_seconds()
        return max(took, 0.0)


class Page(msgspec.Struct):
    """A page of the list of batches, newest first."""

    data: list[Batch]
    has_more: bool = False


_BATCH, _PAGES = msgspec.json.Decoder(Batch), msgspec.json.Decoder(Page)


class BatchCalls:
    """Makes the calls. Belongs to one event loop.

    Each call may take `seconds`, and the results of a batch `results_seconds`, which counts only the time spent waiting for bytes.
    """

    def __init__(
        self, client: AsyncAnthropic, waiting: Waiting, *, seconds: float, results_seconds: float, max_line: int
    ) -> None:
        self.simulated = False
        """Whether a simulated judge has answered."""
        self._client = client
        self._waiting = waiting
        self._seconds = seconds
        self._results_seconds = results_seconds
        self._max_line = max_line

    async def create(self, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
        """Create a batch. After a failure that may have been billed, it is unknown whether the batch exists."""
        raw = self._client.messages.batches.with_raw_response
        return await self._call(lambda: raw.create(requests=requests), _BATCH.decode)  # type: ignore[arg-type]

    async def retrieve(self, batch_id: str) -> Batch | Failure:
        """Read the state of a batch."""
        return await self._call(lambda: self._client.messages.batches.with_raw_response.retrieve(batch_id), _BATCH.decode)

    async def cancel(self, batch_id: str) -> Batch | Failure:
        """Cancel a batch: no more of its questions are asked."""
        return await self._call(lambda: self._client.messages.batches.with_raw_response.cancel(batch_id), _BATCH.decode)

    async def page(self, after: str | None) -> Page | Failure:
        """Return the batches of the key's workspace that were created before the batch `after`, newest first."""
        raw = self._client.messages.batches.with_raw_response
        more = {} if after is None else {"after_id": after}
        return await self._call(lambda: raw.list(limit=_PAGE, **more), _PAGES.decode)  # type: ignore[arg-type]

    async def results(self, batch_id: str) -> AsyncGenerator[Result | Failure]:
        """Yield the results of a batch that has ended, in any order; a failure comes last, and others may be missing then."""
        try:
            # Ignore the address that the API gives for the results: key and texts must go to the configured address, even behind a gateway.
            stream = await self._client.get(
                f"{_PATH}/{batch_id}/results",
                cast_to=object,
                options={"headers": {"accept": "application/x-jsonl, application/binary"}},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except Exception as error:  # noqa: BLE001 - any error of the client is an outcome of this one call
            yield self._failure(error)
            return
        self.simulated |= is_simulated(stream.response.headers)
        bytes_of = _Bounded(stream.response.aiter_bytes(), self._results_seconds)
        try:
            async with aclosing(results_in(bytes_of.chunks(), self._max_line)) as found:
                async for result in found:
                    yield result
        finally:
            await stream.response.aclose()
        if bytes_of.error is not None:
            yield self._failure(bytes_of.error)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _call(self, call: Callable[[], Awaitable[Any]], read: Callable[[bytes], T]) -> T | Failure:
        try:
            async with asyncio.timeout(self._seconds):
                response = await call()
        except Exception as error:  # noqa: BLE001 - as above
            return self._failure(error)
        self.simulated |= is_simulated(response.headers)
        try:
            return read(response.http_response.content)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return Failure(words=f"unreadable answer: {one_line(str(error))}")

    def _failure(self, error: Exception) -> Failure:
        return failure_of(error, secret=self._client.api_key or "", wall=self._waiting.wall)


class _Bounded:
    """A body with a time limit for reading; an error is stored instead of raised."""

    def __init__(self, body: AsyncIterator[bytes], seconds: float) -> None:
        self.error: Exception | None = None
        self._body = body
        self._left = seconds

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the bytes as they come. Only the time spent waiting for bytes counts, not the time to process them."""
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(max(self._left, 0.0)):
                    chunk = await anext(self._body, None)
            except Exception as error:  # noqa: BLE001 - any error of the stream is an outcome of this one call
                self.error = error
                return
            self._left -= time.monotonic() - began
            if chunk is None:
                return
            yield chunk


class Patience:
    """The limit on retrying a failing API: until it has failed for `seconds` without interruption."""

    def __init__(self, waiting: Waiting, seconds: float) -> None:
        self._waiting = waiting
        self._seconds = seconds
        self._since = math.inf
        self._failures = 0

    def over(self) -> None:
        """Note a successful call."""
        self._since, self._failures = math.inf, 0

    async def bear(self, failure: Failure, what: str) -> None:
        """Wait before the next call. Raises JudgeUnavailableError if the wait has been too long, or is pointless."""
        now = self._waiting.now()
        self._since = min(self._since, now)
        if failure.status in _HOPELESS or now - self._since > self._seconds:
            raise JudgeUnavailableError(f"{what}: {failure.words}")
        delay = min(_FIRST_BACKOFF * 2**self._failures, _LAST_BACKOFF)
        self._failures = min(self._failures + 1, 10)
        _LOG.warning("%s: %s; trying again", what, failure.words)
        await self._waiting.sleep(max(delay * self._waiting.jitter(), failure.after or 0.0))


_FAULTS_OF_REQUESTS = frozenset([400, 413, 422])
"""Statuses that blame the requests alone."""
_SETTLING = timedelta(minutes=2)
"""The time after its plan within which a batch may still appear in the list of batches."""
_CLOCKS = timedelta(hours=2)
"""The largest difference between our clock and the API's."""
_PAUSE = 15.0


class BatchMaker:
    """Creates batches, and finds the batch of a plan again."""

    def __init__(self, calls: BatchCalls, waiting: Waiting, patience: float) -> None:
        self._calls = calls
        self._waiting = waiting
        self._patience = patience

    async def make(self, plan: BatchPlan, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
        """Create a plan's batch. Returns a failure if the API rejects the requests; raises JudgeUnavailableError for other errors."""
        patience = Patience(self._waiting, self._patience)
        while True:
            came = await self._calls.create(requests)
            if isinstance(came, Batch) or came.status in _FAULTS_OF_REQUESTS:
                return came
            await patience.bear(came, "a batch cannot be made")
            found = await self.find(plan) if came.billed else None
            if found is not None:
                return found

    async def find(self, plan: BatchPlan) -> Batch | None:
        """Return the batch of a plan that may or may not have been created; None if it does not exist.

        The API does not show the content of a batch before it has ended. So a batch from about that time with as many requests is
        waited for: waiting is free, asking twice is not.
        """
        strangers: set[str] = set()
        while True:
            late = self._now() >= plan.planned_at + _SETTLING  # before the search, because a batch may appear during the search
            waits = False
            async with aclosing(self._since(plan.planned_at - _CLOCKS)) as listed:
                async for batch in listed:
                    if batch.size != len(plan.fingerprints) or batch.batch_id in strangers:
                        continue
                    if not batch.ended:
                        waits = True
                    elif await self._has_plan(batch, plan):
                        return batch
                    else:
                        strangers.add(batch.batch_id)
            if late and not waits:
                return None
            await self._waiting.sleep(_PAUSE)

    async def _since(self, earliest: datetime) -> AsyncGenerator[Batch]:
        """Yield the batches that were created since `earliest`, newest first."""
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

    async def _has_plan(self, batch: Batch, plan: BatchPlan) -> bool:
        """Return whether the first result of a batch has the plan's id; False if its results are gone."""
        patience = Patience(self._waiting, self._patience)
        while True:
            async with aclosing(self._calls.results(batch.batch_id)) as results:
                first = await anext(results, None)
            if not isinstance(first, Failure):
                return first is not None and has_plan(first.custom_id, plan.plan_id)
            if first.status == 404:
                return False
            await patience.bear(first, f"the results of batch {batch.batch_id} cannot be read")

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._waiting.wall(), UTC)
