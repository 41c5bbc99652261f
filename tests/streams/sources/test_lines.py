"""Lines are read in bounded memory, and unreadable ones are reported."""

from __future__ import annotations

import hashlib
import io
import tracemalloc

import pytest

from streams.sources.lines import MAX_FAULT_BODY_BYTES, MAX_LINE_BYTES, Problem, decode_line, is_torn, line_fault, read_lines


def _reasons(data: bytes) -> list[str]:
    values = [decode_line(line) for line in read_lines(io.BytesIO(data))]
    return [value.reason if isinstance(value, Problem) else "" for value in values]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":1}', ""),
        (b"\xef\xbb\xbf" + b'{"a":1}', ""),
        (b'{"a":"\x00"}', "not_json"),
        (b'{"a":"\\u0000"}', ""),
        (b'{"a":"\\ud800"}', ""),
        (b'{"a":"\xff"}', "not_utf8"),
        (b'{"a":NaN}', "not_json"),
        (b'{"a":1e999}', "not_json"),
        (b'{"a":' + b"9" * 5000 + b"}", "not_json"),
        (b'{"a":"\\ud800",}', "not_json"),
        (b'{"a":["\\ud800", NaN]}', "not_json"),
        (b"[1]", "not_an_object"),
        (b"null", "not_an_object"),
        (b'{"a":' + b"[" * 31 + b"]" * 31 + b"}", ""),
        (b'{"a":' + b"[" * 32 + b"]" * 32 + b"}", "too_deep"),
        (b'{"a":' * 100_000, "too_deep"),
        (b'{"a":"' + b"[{" * 100 + b'"}', ""),
    ],
)
def test_a_line_is_an_object_or_a_fault(line: bytes, reason: str) -> None:
    """A line that is not a JSON object of bounded depth must be reported, not guessed at."""
    assert _reasons(line + b"\n") == [reason]


def test_line_numbers_count_blank_lines_whatever_the_line_ends() -> None:
    """A fault's number must match the line number in an editor."""
    lines = list(read_lines(io.BytesIO(b'{"a":1}\r\n\n  \n{"b":2}')))
    assert [(line.number, line.body, line.ended) for line in lines] == [(1, b'{"a":1}', True), (4, b'{"b":2}', False)]


@pytest.mark.parametrize(("extra", "reason"), [(-1, ""), (0, ""), (1, "too_long"), (2, "too_long"), (5_000_000, "too_long")])
def test_a_line_over_the_limit_is_skipped_and_the_next_one_is_read(extra: int, reason: str) -> None:
    """A line of exactly the limit is read; a longer one affects no other line."""
    body = b'{"a":"' + b"x" * (MAX_LINE_BYTES - 8 + extra) + b'"}'
    assert _reasons(body + b'\n{"b":2}\n') == [reason, ""]
    first = next(read_lines(io.BytesIO(body + b"\n")))
    assert first.size == MAX_LINE_BYTES + extra
    assert first.ended is True
    fault = line_fault(first, Problem("x", "y"))
    assert fault.digest == hashlib.sha256(body).hexdigest()
    assert len(fault.body) == MAX_FAULT_BODY_BYTES


def test_an_endless_line_is_not_loaded() -> None:
    """A huge line must not need as much memory."""
    size = 96 * 1024 * 1024

    class Endless(io.RawIOBase):
        left = size

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            count = min(len(buffer), self.left)
            buffer[:count] = b"x" * count
            self.left -= count
            return count

    tracemalloc.start()
    (line,) = read_lines(io.BufferedReader(Endless()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert line.size == size
    assert line.ended is False
    assert peak < 3 * MAX_LINE_BYTES


@pytest.mark.parametrize(("data", "torn"), [(b'{"a":', True), (b'{"a":1}', False), (b'{"a":\n', False), (b"12", True)])
def test_only_an_incomplete_object_without_a_line_end_is_torn(data: bytes, torn: bool) -> None:
    """A whole object at the end of a file is complete even without a line break."""
    (line,) = read_lines(io.BytesIO(data))
    assert is_torn(line, decode_line(line)) == torn
