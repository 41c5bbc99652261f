"""Laws of reading a file that is still being written or is damaged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import examples

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Exchange
from streams.sources.source import Reading, ReadingContext

START = datetime(2026, 11, 3, 9, tzinfo=UTC)
ROLES = [
    "user",
    "assistant",
    "assistant",
    "toolUse",
    "error",
    "toolResult",
    "mirror",
    "compaction",
    "custom",
    "leaf",
    "output",
    "claim",
]
OUTPUT = "listen=0.0.0.0:7443 workers=24 retention_days=198"
GARBAGE = ["{", "null", "[]", '{"type":"message"}', '{"type":5,"id":"x"}', "\x00\x00", '{"a":NaN}', '"text"', "}" * 40]

laws = settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])


def _entry(number: int, role: str, parent: str | None, at: datetime) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "message", "id": f"e{number}", "parentId": parent, "timestamp": at.isoformat()}
    usage = {"input": number, "output": 1}
    text = [{"type": "text", "text": f"text {number}"}, {"type": "thinking", "thinking": f"thought {number}"}]
    messages: dict[str, dict[str, Any]] = {
        "user": {"role": "user", "content": f"question {number}"},
        "assistant": {"role": "assistant", "content": text, "usage": usage, "stopReason": "stop"},
        "toolUse": {
            "role": "assistant",
            "content": [*text, {"type": "toolCall", "id": f"t{number}", "name": "exec", "arguments": {"n": number}}],
            "usage": usage,
            "stopReason": "toolUse",
        },
        "error": {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "overloaded"},
        "toolResult": {"role": "toolResult", "toolName": "memory_search", "content": []},
        "output": {"role": "toolResult", "toolName": "exec", "content": [{"type": "text", "text": OUTPUT}]},
        "claim": {"role": "assistant", "content": [{"type": "text", "text": "It uses port 8080."}], "stopReason": "stop"},
        "mirror": {"role": "assistant", "content": text[:1], "model": "delivery-mirror", "stopReason": "stop"},
    }
    if role in messages:
        return {**entry, "message": messages[role]}
    return {**entry, "type": role, "targetId": parent} if role == "leaf" else {**entry, "type": role}


@st.composite
def transcripts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Entries that branch, move the leaf, are beside the conversation and pause, each under an earlier entry, with times in order."""
    entries: list[dict[str, Any]] = [{"type": "session", "id": "s", "timestamp": START.isoformat()}]
    at = START
    ids: list[str | None] = [None]
    for number in range(draw(st.integers(1, 14))):
        at += timedelta(minutes=draw(st.sampled_from([0, 1, 1, 1, 29, 31, 300])))
        back = draw(st.sampled_from([1, 1, 1, 1, 1, 2, 3, 5]))
        entry = _entry(number, draw(st.sampled_from(ROLES)), ids[-min(back, len(ids))], at)
        if draw(st.integers(0, 9)) == 0:
            entry["appendMode"] = "side"
        if draw(st.integers(0, 9)) == 0:
            del entry["parentId"]
        entries.append(entry)
        ids.append(entry["id"])
    return entries


def _lasting(reading: Reading) -> tuple[dict[str, Any], list[Any]]:
    """Return the records without fields that are only known later (abandoned) or differ by design (ingestion)."""
    exchanges = {
        exchange.exchange_id: msgspec.structs.replace(
            exchange, ingested_at=START, tags=tuple(tag for tag in exchange.tags if tag != "abandoned")
        )
        for exchange in reading.exchanges
    }
    assert len(exchanges) == len(reading.exchanges)
    return exchanges, [msgspec.structs.replace(event, ingested_at=START) for event in reading.events]


def _assert_handed_out_again(exchanges: dict[str, Any], complete: Reading) -> None:
    """Assert that each exchange of an earlier reading is in the whole reading, unchanged unless it is revisable.

    Tool calls may come late, but none may go: they are no part of the digest by which an exchange is recognized, so they make no conflict.
    """
    all_exchanges, _ = _lasting(complete)
    assert exchanges.keys() <= all_exchanges.keys()
    for key in exchanges.keys() - complete.revisable:
        assert _without_tool_calls(exchanges[key]) == _without_tool_calls(all_exchanges[key])
        assert _count_tool_calls(exchanges[key]) <= _count_tool_calls(all_exchanges[key])


def _count_tool_calls(exchange: Exchange) -> int:
    return len(exchange.tool_calls) + exchange.omitted_tool_calls


def _without_tool_calls(exchange: Exchange) -> Exchange:
    return msgspec.structs.replace(exchange, tool_calls=(), omitted_tool_calls=0)


@laws
@given(entries=transcripts(), data=st.data())
def test_records_stay_the_same_as_the_file_grows(
    entries: list[dict[str, Any]], data: st.DataObject, read: Callable[..., Reading], context: ReadingContext
) -> None:
    """The importer reads repeatedly: a changed record would be a conflict, unless the reader lists it as revisable."""
    length = data.draw(st.integers(1, len(entries)))
    now = datetime.fromisoformat(entries[min(length, len(entries) - 1)]["timestamp"])
    early = read(entries[:length], _at(context, now))
    exchanges, events = _lasting(early)
    complete = read(entries)
    _, all_events = _lasting(complete)
    _assert_handed_out_again(exchanges, complete)
    assert events == all_events[: len(events)]


@laws
@given(entries=transcripts(), data=st.data())
def test_a_damaged_line_changes_no_other_record(
    entries: list[dict[str, Any]], data: st.DataObject, read: Callable[..., Reading]
) -> None:
    """A bad line must not affect other records, and must be reported."""
    damaged: list[Any] = list(entries)
    rubbish = data.draw(st.lists(st.sampled_from(GARBAGE), min_size=1, max_size=4))
    for line in rubbish:
        damaged.insert(data.draw(st.integers(0, len(damaged))), line)
    complete, reading = read(entries), read(damaged)
    assert complete.exchanges == reading.exchanges
    assert complete.events == reading.events
    assert complete.complete == reading.complete
    assert len(rubbish) == len(reading.faults)
    assert [damaged[fault.line - 1] for fault in reading.faults] == [fault.body.decode() for fault in reading.faults]


@laws
@given(entries=transcripts(), data=st.data())
def test_a_partly_written_line_is_ignored(
    entries: list[dict[str, Any]], data: st.DataObject, read: Callable[..., Reading], context: ReadingContext
) -> None:
    """The gateway may be writing: half a line is not a fault, and silence must not end the answer that may be in it."""
    torn = msgspec.json.encode(entries[-1]).decode()
    torn = torn[: data.draw(st.integers(1, len(torn) - 1))]
    meanwhile = _at(context, datetime.fromisoformat(entries[-2]["timestamp"]))
    before, reading = read(entries[:-1], meanwhile), read([*entries[:-1], torn], end="")
    assert (*_lasting(reading), reading.faults) == (*_lasting(before), [])
    assert not reading.complete
    _assert_handed_out_again(_lasting(reading)[0], read(entries))


def test_a_finished_answer_is_revised_when_the_partial_line_completes_it(
    read: Callable[..., Reading],
) -> None:
    """An answer that ended counts at once. The reader does not know the torn line, so it says later that the exchange changed."""
    for mode in ({}, {"appendMode": "side"}):
        question = _entry(0, "user", None, START) | mode
        answer = _entry(1, "assistant", "e0", START) | mode
        addition = _entry(2, "assistant", "e1", START) | mode
        lines = [{"type": "session", "id": "s", "timestamp": START.isoformat()}, question, answer]
        torn, complete = read([*lines, "{"], end=""), read([*lines, addition])
        assert [exchange.agent_response for exchange in torn.exchanges] == ["text 1"]
        assert [exchange.agent_response for exchange in complete.exchanges] == ["text 2"]
        assert complete.revisable == {exchange.exchange_id for exchange in torn.exchanges}


@laws
@given(entries=transcripts())
def test_every_user_message_is_in_exactly_one_exchange(entries: list[dict[str, Any]], read: Callable[..., Reading]) -> None:
    """A message without an answer is important evidence and must not be lost."""
    reading = read(entries)
    questions = [entry["message"]["content"] for entry in entries if entry.get("message", {}).get("role") == "user"]
    firsts = [exchange for exchange in reading.exchanges if "~" not in exchange.exchange_id]
    assert questions == [exchange.user_message for exchange in firsts]
    assert list(range(1, len(questions) + 1)) == [exchange.turn_number for exchange in firsts]
    assert len(reading.events) == len({event.event_id for event in reading.events})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@laws
@given(entries=transcripts(), data=st.data())
def test_any_value_in_a_field_leaves_the_rest_readable(
    entries: list[dict[str, Any]], data: st.DataObject, read: Callable[..., Reading], context: ReadingContext
) -> None:
    """Transcripts may contain anything: each line gives records or a fault, never a crash."""
    changed = [{**entry, "message": dict(entry["message"])} if "message" in entry else dict(entry) for entry in entries]
    for _ in range(data.draw(st.integers(1, 4))):
        entry = data.draw(st.sampled_from(changed))
        inner = entry["message"] if isinstance(entry.get("message"), dict) and data.draw(st.booleans()) else entry
        target = inner
        blocks = inner.get("content")
        if isinstance(blocks, list) and blocks and isinstance(blocks[0], dict) and data.draw(st.booleans()):
            target = inner["content"][0] = dict(blocks[0])
        field = data.draw(
            st.sampled_from([*target, "details", "usage", "model", "provenance", "targetId", "appendMode", "arguments"])
        )
        target[field] = data.draw(VALUES)
    reading = read(
        changed, ReadingContext("c", "p", None, context.ingested_at, context.session_gap, Redactor(RedactionSettings()))
    )
    for record in [*reading.exchanges, *reading.events]:
        encode(record)
    assert {fault.line for fault in reading.faults} <= set(range(1, len(changed) + 1))


def _at(context: ReadingContext, now: datetime) -> ReadingContext:
    return ReadingContext(context.connection, context.project, context.agent, now, context.session_gap, context.redactor)
