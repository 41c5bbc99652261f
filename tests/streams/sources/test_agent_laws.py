"""Laws of reading other agents' transcripts, whatever a file holds and however much of it is written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import claude_code_lines, codex_lines
from support.effort import examples

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from streams.log.admission import Admission, EncodedRecords
from streams.sources.claude_code_dialect import ClaudeCodeDialect
from streams.sources.codex import CodexDialect
from streams.sources.lines import MAX_LINE_BYTES, read_lines
from streams.sources.openclaw.reader import Dialect, read_session
from streams.sources.source import Reading, ReadingContext

EVERYTHING: Mapping[str, tuple[Callable[[], list[dict[str, Any]]], Callable[[], Dialect]]] = {
    "claude-code": (claude_code_lines.everything, ClaudeCodeDialect),
    "codex": (codex_lines.everything, CodexDialect),
}
WRONG: list[Any] = [None, True, 5, -1.5, 1e308, "", "x", "\ud83d", "a" * 5000, [], [5], [[]], {}, {"type": 5}, 2**70]
laws = settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])


def _body(lines: list[Any]) -> bytes:
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()


def _read(name: str, body: bytes, context: ReadingContext) -> Reading:
    dialect = EVERYTHING[name][1]()
    return read_session(read_lines(io.BytesIO(body)), context, session_id="file", agent=name, dialect=dialect)


def _check(reading: Reading, context: ReadingContext) -> None:
    """Assert that every record satisfies the contract and that ids are unique."""
    accepted = EncodedRecords()
    admission = Admission(Redactor(RedactionSettings(), b"key"), context.ingested_at)
    admission.admit(accepted, "exchanges", reading.exchanges, source="test")
    admission.admit(accepted, "agent-events", reading.events, source="test")
    assert {"exchanges", "agent-events"} >= accepted.messages.keys(), "dead letters"
    assert len(reading.exchanges) + len(reading.events) == accepted.records
    assert len(reading.events) == len({event.event_id for event in reading.events})
    assert len(reading.exchanges) == len({exchange.exchange_id for exchange in reading.exchanges})


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every field and element of a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _put(value: Any, path: tuple[Any, ...], item: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = item


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_field_of_the_wrong_type_is_a_fault_or_missing(name: str, context: ReadingContext) -> None:
    """Each field of each kind of line is tried with each type; the other lines must be read as before."""
    lines = EVERYTHING[name][0]()
    kinds = {json.dumps([line["type"], sorted(map(str, _paths(line)))]): index for index, line in enumerate(lines)}
    for index in kinds.values():
        for number, path in enumerate(_paths(lines[index])):
            # Every value with every field of every kind is 30 000 readings; each field meets two of the values.
            for wrong in WRONG[number % 7 :: 7]:
                damaged = deepcopy(lines)
                _put(damaged[index], path, wrong)
                reading = _read(name, _body(damaged), context)
                _check(reading, context)
                assert all(
                    index + 1 <= fault.line <= len(lines) for fault in reading.faults if fault.reason != "unknown_parent"
                )


@pytest.mark.parametrize("name", EVERYTHING)
@laws
@given(data=st.data())
def test_a_growing_file_cut_anywhere_gives_the_same_records(name: str, context: ReadingContext, data: st.DataObject) -> None:
    """Records of the first part of a file stay unchanged, or are listed as revisable."""
    lines: list[Any] = EVERYTHING[name][0]()
    garbage = data.draw(
        st.lists(st.sampled_from(["{", "null", "[]", '{"type":5}', '{"type":"user"}', "\x00", "}" * 40]), max_size=3)
    )
    for broken in garbage:
        lines.insert(data.draw(st.integers(0, len(lines))), broken)
    body = _body(lines)
    soon = replace(context, ingested_at=datetime(2026, 11, 3, 9, 5, tzinfo=UTC), session_gap=timedelta(minutes=30))
    part = _read(name, body[: data.draw(st.integers(0, len(body)))], soon)
    complete = _read(name, body, soon)
    assert part.events == complete.events[: len(part.events)]
    bare = [replace_tags(exchange) for exchange in complete.exchanges]
    assert all(replace_tags(exchange) in bare or exchange.exchange_id in complete.revisable for exchange in part.exchanges)
    assert {exchange.exchange_id for exchange in part.exchanges} <= {exchange.exchange_id for exchange in complete.exchanges}
    assert part.faults == complete.faults[: len(part.faults)]


def replace_tags(exchange: Any) -> Any:
    """Return the exchange without `abandoned`, which may come later."""
    import msgspec

    return msgspec.structs.replace(exchange, tags=tuple(tag for tag in exchange.tags if tag != "abandoned"))


@pytest.mark.parametrize("name", EVERYTHING)
def test_meaningless_lines_are_faults_with_their_line_number(name: str, context: ReadingContext) -> None:
    """Huge, deep or malformed lines are reported, and the rest is read."""
    lines = EVERYTHING[name][0]()
    bad = {
        "not_json": b"{",
        "not_an_object": b"[1]",
        "not_utf8": b'{"type":"\xff"}',
        "too_deep": b'{"type":"user","x":' + b"[" * 300 + b"]" * 300 + b"}",
        "too_long": b'{"type":"' + b"x" * MAX_LINE_BYTES + b'"}',
    }
    body = b"\n".join(bad.values()) + b"\n" + _body(lines)
    reading = _read(name, body, context)
    assert list(bad) == [fault.reason for fault in reading.faults]
    assert [fault.line for fault in reading.faults] == [1, 2, 3, 4, 5]
    assert len(reading.exchanges) == 5


@pytest.mark.parametrize("name", EVERYTHING)
def test_an_unknown_kind_is_reported_once_per_file(name: str, context: ReadingContext) -> None:
    """A new version's lines need attention once, not a thousand times."""
    lines = EVERYTHING[name][0]()
    extra = [{"type": "novelty", "uuid": f"n{index}", "sessionId": "s", "payload": {}} for index in range(1000)]
    reading = _read(name, _body([*lines[:3], *extra, *lines[3:]]), context)
    assert [(fault.line, fault.reason) for fault in reading.faults] == [(4, "unknown_kind")]
    assert "novelty" in reading.faults[0].detail
    assert len(reading.exchanges) == 5


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_torn_last_line_waits_for_the_next_reading(name: str, context: ReadingContext) -> None:
    """The program has written only part of it."""
    body = _body(EVERYTHING[name][0]())
    reading = _read(name, body[:-10], context)
    assert not reading.complete
    assert reading.faults == []


def test_a_message_of_three_thousand_lines_takes_linear_time(context: ReadingContext) -> None:
    """Each line repeats the message so far, up to a bound."""
    lines = claude_code_lines.Lines()
    lines.user("Well?")
    for _ in range(3_000):
        lines.said("m1", claude_code_lines.text("word " * 20))
    reading = _read("claude-code", _body(lines.lines), context)
    assert len(reading.exchanges) == 1
    _check(reading, context)
