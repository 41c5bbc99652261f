"""Batches of the Message Batches API: the calls, and the results.

1. A batch is made once: one that may have been made already is looked for, by its plan (`streams.judges.batch_plans`), before it is
   made again.
2. A call comes back with its result, or with the failure that came instead.
3. Results are JSON lines, each read by itself, so a bad line spoils nothing but itself.
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
    """The results in a body of JSON lines. No more than `most` bytes of a line are held; what cannot be read is left out and logged."""
    async for line in _lines(chunks, most):
        result = None if line is None else _read(line)
        if result is not None:
            yield result


async def _lines(chunks: AsyncIterator[bytes], most: int) -> AsyncGenerator[bytes | None]:
    """Each line that is not blank; None for one that is too long."""
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
    """The API answered the request with an error, which is not billed. It stands inside a response of the error, or alone."""
    inner = error.get("error") if isinstance(error, dict) else None
    said = inner if isinstance(inner, dict) else error if isinstance(error, dict) else {}
    kind, words = str(said.get("type", "error")), str(said.get("message", "no details"))
    return Failure(words=one_line(f"{kind}: {words}"), billed=False, blames_format=blames_format(words))


_PATH = "/v1/messages/batches"
_PAGE = 100
_FIRST_BACKOFF, _LAST_BACKOFF = 1.0, 60.0
_HOPELESS = frozenset([400, 401, 402, 403, 404, 405])
"""Statuses with which the same call will be answered tomorrow, too."""
T = TypeVar("T")


class JudgeUnavailableError(DriftlineError):
    """The batch API cannot be reached, or does not let us in; what it was given before goes on there."""

    hint = "See to the address, the key and its credit, then run the same command again: batches that were made are taken up."


class Counts(msgspec.Struct):
    """Requests of a batch by what came of them."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class Batch(msgspec.Struct):
    """A batch as the API shows it."""

    batch_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")] = msgspec.field(name="id")
    processing_status: str
    created_at: datetime
    request_counts: Counts
    ended_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """True if its results are there."""
        return self.processing_status == "ended"

    @property
    def size(self) -> int:
        """Number of its requests."""
        return sum(msgspec.structs.astuple(self.request_counts))

    @property
    def seconds(self) -> float:
        """Seconds that it took; 0 before its end."""
        took = 0.0 if self.ended_at is None else (self.ended_at - self.created_at).total_seconds()
        return max(took, 0.0)


class Page(msgspec.Struct):
    """A page of the list of batches, the newest first."""

    data: list[Batch]
    has_more: bool = False


_BATCH, _PAGES = msgspec.json.Decoder(Batch), msgspec.json.Decoder(Page)


class BatchCalls:
    """Makes the calls. Belongs to one event loop.

    Each has `seconds`, and the results of a batch `results_seconds`, in which waiting for bytes alone counts.
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
        """Make a batch. Of a failure that may have been billed it is not known whether there is a batch now."""
        raw = self._client.messages.batches.with_raw_response
        return await self._call(lambda: raw.create(requests=requests), _BATCH.decode)  # type: ignore[arg-type]

    async def retrieve(self, batch_id: str) -> Batch | Failure:
        """Read the state of a batch."""
        return await self._call(lambda: self._client.messages.batches.with_raw_response.retrieve(batch_id), _BATCH.decode)

    async def cancel(self, batch_id: str) -> Batch | Failure:
        """Ask no more of its questions."""
        return await self._call(lambda: self._client.messages.batches.with_raw_response.cancel(batch_id), _BATCH.decode)

    async def page(self, after: str | None) -> Page | Failure:
        """Batches of the key's workspace, those that were made before `after`, the newest first."""
        raw = self._client.messages.batches.with_raw_response
        more = {} if after is None else {"after_id": after}
        return await self._call(lambda: raw.list(limit=_PAGE, **more), _PAGES.decode)  # type: ignore[arg-type]

    async def results(self, batch_id: str) -> AsyncGenerator[Result | Failure]:
        """The results of a batch that has ended, in any order; a failure comes last, and others may be missing then."""
        try:
            # The address that the API names for them is not used: key and texts go where they always go, through a gateway, too.
            stream = await self._client.get(
                f"{_PATH}/{batch_id}/results",
                cast_to=object,
                options={"headers": {"accept": "application/x-jsonl, application/binary"}},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except Exception as error:  # noqa: BLE001 - whatever the client trips over is an outcome of this one call
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
        """Give back connections."""
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
    """A body that is read for so many seconds at most; what went wrong with it is kept instead of raised."""

    def __init__(self, body: AsyncIterator[bytes], seconds: float) -> None:
        self.error: Exception | None = None
        self._body = body
        self._left = seconds

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The bytes as they come. Only waiting for them counts: what is done with them in between may take its time."""
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(max(self._left, 0.0)):
                    chunk = await anext(self._body, None)
            except Exception as error:  # noqa: BLE001 - whatever breaks the stream is an outcome of this one call
                self.error = error
                return
            self._left -= time.monotonic() - began
            if chunk is None:
                return
            yield chunk


class Patience:
    """The limit on asking a failing API again: until it has failed for so many seconds without a break."""

    def __init__(self, waiting: Waiting, seconds: float) -> None:
        self._waiting = waiting
        self._seconds = seconds
        self._since = math.inf
        self._failures = 0

    def over(self) -> None:
        """A call went well."""
        self._since, self._failures = math.inf, 0

    async def bear(self, failure: Failure, what: str) -> None:
        """Wait before the next call. JudgeUnavailableError when waiting has lasted too long, or is of no use."""
        now = self._waiting.now()
        self._since = min(self._since, now)
        if failure.status in _HOPELESS or now - self._since > self._seconds:
            raise JudgeUnavailableError(f"{what}: {failure.words}")
        delay = min(_FIRST_BACKOFF * 2**self._failures, _LAST_BACKOFF)
        self._failures = min(self._failures + 1, 10)
        _LOG.warning("%s: %s; trying again", what, failure.words)
        await self._waiting.sleep(max(delay * self._waiting.jitter(), failure.after or 0.0))


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

    async def make(self, plan: BatchPlan, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
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

    async def find(self, plan: BatchPlan) -> Batch | None:
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
                    elif await self._has_plan(batch, plan):
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

    async def _has_plan(self, batch: Batch, plan: BatchPlan) -> bool:
        """Tell by a batch's first result whether its results carry the plan's id.

        A batch whose results are gone belongs to no plan.
        """
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
