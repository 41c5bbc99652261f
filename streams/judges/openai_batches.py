"""The Batch API of OpenAI, as `streams.judges.batch_api.BatchCalls`: a file of requests, a batch of it, and files of results.

1. A batch carries the id of its plan as metadata, so that it is recognized while it is still running.
2. Requests that succeeded are in one file, those that failed, expired or were cancelled in another.
3. If a file of requests is invalid, the batch fails as a whole: nothing was asked, nothing is billed.
4. The API keeps files until they are deleted or expire, so all three are deleted once the verdicts are durable.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from openai import AsyncOpenAI

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
from streams.judges.model_api import JudgeRequest, Message, is_simulated
from streams.judges.openai_apis import (
    ERRORS,
    chat_parameters,
    limit_name,
    read_chat_completion,
    read_response,
    response_parameters,
)
from streams.judges.rate_limits import Clock

_LOG = logging.getLogger(__name__)
_METADATA = "driftline_plan"
"""The name of the plan's id in the metadata of a batch."""
_FILE_NAME = "driftline.jsonl"
_SUCCESS = 200
_ENDED = frozenset(["completed", "failed", "expired", "cancelled"])
_FAILED = "failed"
_UNASKED_FAILURES = {"batch_expired": EXPIRED, "batch_cancelled": UNASKED}


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw()


class _Line(ResultLine):
    response: _Response | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Line)


class _Errors(msgspec.Struct):
    data: list[dict[str, Any]] | None = None


class _Counts(msgspec.Struct):
    total: int = 0


class _Batch(msgspec.Struct):
    batch_id: Annotated[str, msgspec.Meta(pattern=BATCH_ID)] = msgspec.field(name="id")
    status: str
    created_at: int
    input_file_id: Annotated[str, msgspec.Meta(pattern=BATCH_ID)]
    output_file_id: Annotated[str, msgspec.Meta(pattern=BATCH_ID)] | None = None
    error_file_id: Annotated[str, msgspec.Meta(pattern=BATCH_ID)] | None = None
    errors: _Errors | None = None
    request_counts: _Counts | None = None
    metadata: dict[str, str] | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None

    @property
    def batch(self) -> Batch:
        """The batch in the terms of every API."""
        ended_at = self.completed_at or self.failed_at or self.expired_at or self.cancelled_at or self.created_at
        return Batch(
            self.batch_id,
            size=self.request_counts.total if self.request_counts else 0,
            created_at=datetime.fromtimestamp(self.created_at, UTC),
            ended=self.status in _ENDED,
            seconds=float(max(ended_at - self.created_at, 0)),
            plan_id=(self.metadata or {}).get(_METADATA, ""),
            rejection=self._read_rejection() if self.status == _FAILED else None,
        )

    def _read_rejection(self) -> Failure:
        errors = (self.errors.data if self.errors else None) or [{}]
        return _read_error(errors[0])


class _Page(msgspec.Struct):
    data: list[_Batch]
    has_more: bool = False


class _File(msgspec.Struct):
    file_id: Annotated[str, msgspec.Meta(pattern=BATCH_ID)] = msgspec.field(name="id")


_BATCH_DECODER = msgspec.json.Decoder(_Batch)
_PAGE_DECODER = msgspec.json.Decoder(_Page)
_FILE_DECODER = msgspec.json.Decoder(_File)


class OpenAIBatches(BatchClient):
    """The calls of the Batch API for Chat Completions or the Responses API; see `streams.judges.batch_api.BatchCalls`."""

    max_requests = 50_000
    max_bytes = 200_000_000

    def __init__(
        self,
        client: AsyncOpenAI,
        clock: Clock,
        *,
        responses: bool,
        seconds: float,
        results_seconds: float,
        max_line: int,
    ) -> None:
        super().__init__(client, ERRORS, clock, seconds=seconds, results_seconds=results_seconds, max_line=max_line)
        self._client = client
        self._responses = responses

    @property
    def _endpoint(self) -> Any:
        return "/v1/responses" if self._responses else "/v1/chat/completions"

    def encode(self, custom_id: str, request: JudgeRequest) -> dict[str, Any]:
        """See `BatchCalls`."""
        if self._responses:
            body = response_parameters(request) | {"max_output_tokens": request.max_tokens, "store": False}
        else:
            body = chat_parameters(request) | {limit_name(self._client.base_url.host): request.max_tokens}
        return {"custom_id": custom_id, "method": "POST", "url": self._endpoint, "body": body}

    async def create(self, plan_id: str, requests: Sequence[dict[str, Any]]) -> Batch | Failure:
        """See `BatchCalls`."""
        lines = b"".join(msgspec.json.encode(request) + b"\n" for request in requests)
        files = self._client.files.with_raw_response
        upload = await self._call(
            lambda: files.create(file=(_FILE_NAME, lines, "application/jsonl"), purpose="batch"), _FILE_DECODER.decode
        )
        if isinstance(upload, Failure):
            return replace(upload, billed=False)  # without the file there is no batch
        raw = self._client.batches.with_raw_response
        created = await self._call(
            lambda: raw.create(
                input_file_id=upload.file_id,
                endpoint=self._endpoint,
                completion_window="24h",
                metadata={_METADATA: plan_id},
            ),
            _decode_batch,
        )
        if isinstance(created, Failure) and not created.billed:
            await self._delete_file(upload.file_id)
        return created

    async def retrieve(self, batch_id: str) -> Batch | Failure:
        """See `BatchCalls`."""
        batch = await self._retrieve(batch_id)
        return batch if isinstance(batch, Failure) else batch.batch

    async def cancel(self, batch_id: str) -> Batch | Failure:
        """See `BatchCalls`."""
        raw = self._client.batches.with_raw_response
        return await self._call(lambda: raw.cancel(batch_id), _decode_batch)

    async def list_page(self, after_id: str | None) -> Page | Failure:
        """See `BatchCalls`."""
        raw = self._client.batches.with_raw_response
        cursor = {} if after_id is None else {"after": after_id}
        return await self._call(lambda: raw.list(limit=PAGE_SIZE, **cursor), _decode_page)  # type: ignore[arg-type]

    async def results(self, batch_id: str) -> AsyncGenerator[Result | Failure]:
        """See `BatchCalls`."""
        batch = await self._retrieve(batch_id)
        if isinstance(batch, Failure):
            yield batch
            return
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                async with aclosing(self._read_file(file_id)) as results:
                    async for result in results:
                        yield result

    async def _read_file(self, file_id: str) -> AsyncGenerator[Result | Failure]:
        try:
            async with self._client.files.with_streaming_response.content(file_id) as response:
                self.simulated |= is_simulated(response.headers)
                body = TimedBody(response.iter_bytes(), self._results_seconds)
                results = read_lines(body.chunks(), self._max_line, decode=_DECODER.decode, read_content=self._read_content)
                async with aclosing(results):
                    async for result in results:
                        yield result
        except Exception as error:  # noqa: BLE001 - any error of the client is an outcome of this one call
            yield self._classify(error)
            return
        if body.error is not None:
            yield self._classify(body.error)

    def _read_content(self, line: _Line) -> Message | Failure:
        if line.response is None:
            return _read_error(line.error)
        body = bytes(line.response.body)
        if line.response.status_code != _SUCCESS:
            try:
                return _read_error(msgspec.json.decode(body).get("error"))
            except (msgspec.DecodeError, AttributeError):
                return Failure(error=f"HTTP {line.response.status_code}", billed=False)
        return read_response(body) if self._responses else read_chat_completion(body)

    async def discard(self, batch_id: str) -> None:
        """See `BatchCalls`."""
        batch = await self._retrieve(batch_id)
        if isinstance(batch, Failure):
            _LOG.warning("the files of batch %s cannot be deleted: %s", batch_id, batch.error)
            return
        for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                await self._delete_file(file_id)

    async def _delete_file(self, file_id: str) -> None:
        files = self._client.files.with_raw_response
        deleted = await self._call(lambda: files.delete(file_id), bytes)
        if isinstance(deleted, Failure):
            _LOG.warning("the file %s of a batch cannot be deleted: %s", file_id, deleted.error)

    async def _retrieve(self, batch_id: str) -> _Batch | Failure:
        raw = self._client.batches.with_raw_response
        return await self._call(lambda: raw.retrieve(batch_id), _BATCH_DECODER.decode)


def _decode_batch(content: bytes) -> Batch:
    return _BATCH_DECODER.decode(content).batch


def _decode_page(content: bytes) -> Page:
    page = _PAGE_DECODER.decode(content)
    return Page([batch.batch for batch in page.data], page.has_more)


def _read_error(error: Any) -> Failure:
    """Return the failure for an error of a request or of a file; the API bills neither."""
    fields = error if isinstance(error, dict) else {}
    code = str(fields.get("code") or fields.get("type") or "error")
    if code in _UNASKED_FAILURES:
        return _UNASKED_FAILURES[code]
    message = str(fields.get("message", "no details"))
    return Failure(error=one_line(f"{code}: {message}"), billed=False, rejects_format=names_output_format(message))
