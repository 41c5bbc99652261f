"""The calls of the Message Batches API: each comes back with what was asked for, or with the failure that came instead."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from anthropic import AsyncAnthropic, AsyncStream

from schemas.errors import DriftlineError
from streams.judges.batch.results import Result, results_in
from streams.judges.failures import Failure, failure_of, one_line
from streams.judges.rate_limits import Waiting
from streams.judges.response_parsing import is_simulated

_LOG = logging.getLogger(__name__)
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
