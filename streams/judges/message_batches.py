"""The Message Batches API of Anthropic, as `streams.judges.batch_api.BatchCalls`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from anthropic import AsyncAnthropic, AsyncStream

from streams.judges.batch_api import (
    BATCH_ID,
    EXPIRED,
    PAGE_SIZE,
    UNASKED,
    Batch,
    BatchClient,
    Page,
    Result,
    ResultLine,
    TimedBody,
    read_lines,
)
from streams.judges.failures import Failure, names_output_format, one_line
from streams.judges.messages_api import ERRORS, message_parameters, read_message
from streams.judges.model_api import JudgeRequest, Message, is_simulated
from streams.judges.rate_limits import Clock

_PATH = "/v1/messages/batches"
_UNASKED_FAILURES = {"expired": EXPIRED, "canceled": UNASKED}


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _Line(ResultLine):
    result: _Result


def _read_content(line: _Line) -> Message | Failure:
    result = line.result
    if result.type == "succeeded":
        return read_message(bytes(result.message))
    if result.type == "errored":
        return _read_error(result.error)
    if result.type in _UNASKED_FAILURES:
        return _UNASKED_FAILURES[result.type]
    return Failure(error=f"the result has an unknown type: {one_line(result.type)}")


def _read_error(error: Any) -> Failure:
    """Return the failure for an error of the API, which is not billed. The error may be wrapped in an error response."""
    fields = error if isinstance(error, dict) else {}
    if isinstance(fields.get("error"), dict):
        fields = fields["error"]
    error_type = str(fields.get("type", "error"))
    message = str(fields.get("message", "no details"))
    return Failure(error=one_line(f"{error_type}: {message}"), billed=False, rejects_format=names_output_format(message))


read_results = partial(read_lines, decode=msgspec.json.Decoder(_Line).decode, read_content=_read_content)
"""Yields the results of a batch; see `streams.judges.batch_api.read_lines`."""


class _Counts(msgspec.Struct):
    """The number of a batch's requests by outcome."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class _Batch(msgspec.Struct):
    batch_id: Annotated[str, msgspec.Meta(pattern=BATCH_ID)] = msgspec.field(name="id")
    processing_status: str
    created_at: datetime
    request_counts: _Counts
    ended_at: datetime | None = None

    @property
    def batch(self) -> Batch:
        """The batch in the terms of every API."""
        seconds = 0.0 if self.ended_at is None else max((self.ended_at - self.created_at).total_seconds(), 0.0)
        size = sum(msgspec.structs.astuple(self.request_counts))
        return Batch(self.batch_id, size, self.created_at, self.processing_status == "ended", seconds)


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False


_BATCH_DECODER = msgspec.json.Decoder(_Batch)
_PAGE_DECODER = msgspec.json.Decoder(_Page)


class MessageBatches(BatchClient):
    """The calls of the Message Batches API; see `streams.judges.batch_api.BatchCalls`."""

    max_requests = 100_000
    max_bytes = 256_000_000

    def __init__(self, client: AsyncAnthropic, clock: Clock, *, seconds: float, results_seconds: float, max_line: int) -> None:
        super().__init__(client, ERRORS, clock, seconds=seconds, results_seconds=results_seconds, max_line=max_line)
        self._client = client

    def encode(self, custom_id: str, request: JudgeRequest) -> dict[str, Any]:
        """See `BatchCalls`."""
        return {"custom_id": custom_id, "params": message_parameters(request)}

    async def create(self, plan_id: str, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
        """See `BatchCalls`."""
        del plan_id  # the API keeps it only as part of the custom ids
        raw = self._client.messages.batches.with_raw_response
        return await self._call(lambda: raw.create(requests=requests), _decode_batch)  # type: ignore[arg-type]

    async def retrieve(self, batch_id: str) -> Batch | Failure:
        """See `BatchCalls`."""
        raw = self._client.messages.batches.with_raw_response
        return await self._call(lambda: raw.retrieve(batch_id), _decode_batch)

    async def cancel(self, batch_id: str) -> Batch | Failure:
        """See `BatchCalls`."""
        raw = self._client.messages.batches.with_raw_response
        return await self._call(lambda: raw.cancel(batch_id), _decode_batch)

    async def list_page(self, after_id: str | None) -> Page | Failure:
        """See `BatchCalls`."""
        raw = self._client.messages.batches.with_raw_response
        cursor = {} if after_id is None else {"after_id": after_id}
        return await self._call(lambda: raw.list(limit=PAGE_SIZE, **cursor), _decode_page)  # type: ignore[arg-type]

    async def results(self, batch_id: str) -> AsyncGenerator[Result | Failure]:
        """See `BatchCalls`."""
        try:
            # Ignore the results address in the API's response: key and texts must go to the configured address, even behind a gateway.
            stream = await self._client.get(
                f"{_PATH}/{batch_id}/results",
                cast_to=object,
                options={"headers": {"accept": "application/x-jsonl, application/binary"}},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except Exception as error:  # noqa: BLE001 - any error of the client is an outcome of this one call
            yield self._classify(error)
            return
        self.simulated |= is_simulated(stream.response.headers)
        body = TimedBody(stream.response.aiter_bytes(), self._results_seconds)
        try:
            async with aclosing(read_results(body.chunks(), self._max_line)) as results:
                async for result in results:
                    yield result
        finally:
            await stream.response.aclose()
        if body.error is not None:
            yield self._classify(body.error)

    async def discard(self, batch_id: str) -> None:
        """See `BatchCalls`. The API deletes the texts itself, after 29 days."""


def _decode_batch(content: bytes) -> Batch:
    return _BATCH_DECODER.decode(content).batch


def _decode_page(content: bytes) -> Page:
    page = _PAGE_DECODER.decode(content)
    return Page([batch.batch for batch in page.data], page.has_more)
