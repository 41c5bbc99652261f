"""Reading the results of a batch: JSON lines as they come, each by itself, so that a bad one spoils nothing but itself."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple

import msgspec

from streams.judges.batch.plans import CANCELLED
from streams.judges.failures import PROVIDER_ERROR, TIMEOUT, Failure, blames_format, one_line
from streams.judges.response_parsing import Message, read_message

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
    kind, words = str(said.get("type", "error")), str(said.get("message", "no more is said"))
    return Failure(words=one_line(f"{kind}: {words}"), billed=False, blames_format=blames_format(words))
