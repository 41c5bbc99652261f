"""Normalizing raw events: what is read, ignored and refused, with hostile input."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.effort import examples

from audit.diagnosis.events import (
    MAX_DEPTH,
    MAX_TOKENS,
    UNNAMED,
    normalise_event,
    normalise_session,
    raw_event,
    to_record,
    unique_ids,
)
from audit.fingerprints import canonical_json, digest
from audit.times import parse_timestamp
from schemas.errors import BoundsError, InputError, RecordError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["\ud800", "\u202eevil\x00", 2**63, 10**400, "tool_call", " IGNORED "]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "event",
    "type",
    "event_id",
    "timestamp",
    "tool",
    "tool_name",
    "name",
    "skill",
    "args",
    "arguments",
    "params",
    "action",
    "status",
    "used",
    "referenced",
    "invoked",
    "saturation",
    "saturation_score",
    "usage",
    "total",
    "total_tokens",
]
EVENT_TYPES = st.sampled_from(["tool_call", "tool_output", "token_usage", "memory_event", "context_event", "skill_event"])
HOSTILE = st.dictionaries(st.sampled_from(FIELDS), JSON) | st.builds(
    lambda event, rest: {**rest, "event": event}, EVENT_TYPES, st.dictionaries(st.sampled_from(FIELDS[1:]), JSON)
)


def nested(depth: int) -> list[Any]:
    """Return `depth` nested arrays."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("raw", "event"),
    [
        ({"event": "tool_call", "type": "other"}, "tool_call"),
        ({"type": "decision"}, "decision"),
        ({"event": "", "type": "decision"}, "decision"),
        ({"event": 5}, "process_output"),
        ({"event": " tool_call "}, "tool_call"),
        ({"event": "brand_new"}, "brand_new"),
        ({}, "process_output"),
    ],
)
def test_type_is_event_else_type_else_process_output(raw: dict[str, Any], event: str) -> None:
    """Sources name the type differently, and an event without a type is still evidence."""
    assert normalise_event(raw, 0).event == event


@pytest.mark.parametrize(
    ("given_id", "event_id"),
    [
        ("e1", "e1"),
        (17, "17"),
        (1.5, "1.5"),
        ("", "event_7"),
        ("  ", "event_7"),
        (None, "event_7"),
        (True, "event_7"),
        ([], "event_7"),
        (float("nan"), "event_7"),
        pytest.param(10**3000, "event_7", id="huge"),
    ],
)
def test_event_id_is_given_or_made_from_the_position(given_id: Any, event_id: str) -> None:
    """Every event needs an id, so that evidence can refer to it."""
    assert normalise_event({"event_id": given_id}, 7).event_id == event_id


def test_payload_is_the_raw_event_with_type_and_id_filled_in() -> None:
    """The payload keeps everything the source sent, and the caller's object is not changed."""
    raw = {"type": "decision", "why": {"because": [1]}, "timestamp": "2025-01-01T00:00:00Z"}
    event = normalise_event(raw, 3)
    assert event.payload == {**raw, "event": "decision", "event_id": "event_3"}
    assert event.timestamp == "2025-01-01T00:00:00Z"
    assert set(raw) == {"type", "why", "timestamp"}
    assert normalise_event({}, 0).timestamp is None
    assert "timestamp" not in normalise_event({}, 0).payload


@pytest.mark.parametrize(
    ("raw", "tool"),
    [
        ({"event": "tool_call", "tool": "a", "tool_name": "b", "name": "c"}, "a"),
        ({"event": "tool_call", "tool": " ", "tool_name": "b", "name": "c"}, "b"),
        ({"event": "tool_output", "tool": 3, "name": "c"}, "c"),
        ({"event": "tool_call"}, None),
        ({"event": "skill_event", "name": "c"}, None),
    ],
)
def test_tool_is_tool_else_tool_name_else_name(raw: dict[str, Any], tool: str | None) -> None:
    """Only calls and their outputs name a tool; the name of another event is something else."""
    assert normalise_event(raw, 0).tool == tool


def test_call_key_is_the_digest_of_tool_and_arguments() -> None:
    """The order of member names must not matter, and the key must be reproducible."""
    first = normalise_event({"event": "tool_call", "tool": "t", "args": {"a": 1, "b": [2]}}, 0)
    second = normalise_event({"event": "tool_call", "tool_name": "t", "params": {"b": [2], "a": 1}}, 1)
    assert digest(canonical_json(["t", {"a": 1, "b": [2]}])) == first.call_key == second.call_key
    assert normalise_event({"event": "tool_output", "tool": "t"}, 0).call_key is None


@pytest.mark.parametrize("arguments", [{}, {"args": None}, {"args": {}}, {"arguments": {}}, {"params": None, "args": {}}])
def test_missing_null_and_empty_arguments_are_the_same_call(arguments: dict[str, Any]) -> None:
    """Leaving out empty arguments is the same as sending them."""
    plain = normalise_event({"event": "tool_call", "tool": "t"}, 0).call_key
    assert plain == normalise_event({"event": "tool_call", "tool": "t", **arguments}, 0).call_key


@pytest.mark.parametrize("arguments", [[], "", 0, False, [1], "x", {"a": None}])
def test_other_arguments_make_another_call(arguments: Any) -> None:
    """Only null and the empty object mean no arguments."""
    plain = normalise_event({"event": "tool_call", "tool": "t"}, 0).call_key
    assert plain != normalise_event({"event": "tool_call", "tool": "t", "args": arguments}, 0).call_key


def test_a_call_without_a_tool_never_equals_a_named_call() -> None:
    """Calls without a tool or arguments must not be compared, or loops would be reported that do not exist."""
    unnamed = normalise_event({"event": "tool_call", "skill": "t", "args": {"a": 1}}, 0)
    named_call = normalise_event({"event": "tool_call", "tool": "t", "args": {"a": 1}}, 0)
    assert unnamed.tool is None
    assert UNNAMED + digest(canonical_json(["t", {"a": 1}])) == unnamed.call_key
    assert named_call.call_key != unnamed.call_key
    assert UNNAMED + digest(canonical_json(["tool_call", None])) == normalise_event({"event": "tool_call"}, 0).call_key


def test_action_and_status_are_words_in_lower_case() -> None:
    """Detectors compare words in any spelling; a value that is not text is ignored."""
    event = normalise_event({"action": " Recall_FAILED ", "status": "MISS\n"}, 0)
    assert event.action == "recall_failed"
    assert event.status == "miss"
    assert normalise_event({"action": 3}, 0).action is None
    assert normalise_event({"status": " "}, 0).status is None


@pytest.mark.parametrize("field", ["used", "referenced", "invoked"])
@pytest.mark.parametrize(
    ("value", "read"), [(True, True), (False, False), (0, None), ("false", None), (None, None), ([], None)]
)
def test_flags_are_json_booleans_only(field: str, value: Any, read: bool | None) -> None:
    """Only false denies use; 0 or a word must not be read as a failure."""
    assert getattr(normalise_event({field: value}, 0), field) is read


@pytest.mark.parametrize(
    ("raw", "saturation"),
    [
        ({"saturation": 85}, 85.0),
        ({"saturation": 84.9, "saturation_score": 99}, 84.9),
        ({"saturation": "90", "saturation_score": 91}, 91.0),
        ({"saturation": True}, None),
        ({"saturation": float("nan")}, None),
        ({"saturation": float("inf")}, None),
        pytest.param({"saturation": 10**400}, float(MAX_TOKENS), id="huge"),
        ({}, None),
    ],
)
def test_saturation_is_a_finite_number(raw: dict[str, Any], saturation: float | None) -> None:
    """NaN compares false with everything and must not decide anything."""
    assert normalise_event(raw, 0).saturation == saturation


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ({"usage": {"total": 5, "total_tokens": 6}, "total": 7}, 5),
        ({"usage": {"total_tokens": 6}, "total": 7}, 6),
        ({"usage": {"total": 0}, "total": 7}, 0),
        ({"usage": {}, "total": 7, "total_tokens": 8}, 7),
        ({"usage": [1], "total_tokens": 8}, 8),
        ({"usage": {"total": True}, "total": 9}, 9),
        ({"usage": {"total": -1}}, None),
        ({"usage": {"total": 12.9}}, 12),
        ({"usage": {"total": float("inf")}}, None),
        ({"usage": {"total": 2**53 + 1}}, MAX_TOKENS),
        ({"usage": {"total": 1e300}}, MAX_TOKENS),
        ({"usage": {"total": "12"}}, None),
        ({}, None),
    ],
)
def test_tokens_are_the_first_usable_total(raw: dict[str, Any], tokens: int | None) -> None:
    """Token totals are bounded non-negative integers, so that sums are exact."""
    event = normalise_event({"event": "token_usage", **raw}, 0)
    assert event.tokens == tokens
    assert type(tokens) is type(event.tokens)
    assert normalise_event({"event": "decision", **raw}, 0).tokens is None


@pytest.mark.parametrize("raw", [None, [], "tool_call", 3, [("event", "x")]])
def test_an_event_that_is_not_an_object_is_refused(raw: Any) -> None:
    """A nested list of events is a mistake that the sender must be told about."""
    with pytest.raises(InputError, match=r"events\[4\]: is \w+, not a JSON object"):
        normalise_event(raw, 4)


@pytest.mark.parametrize("field", ["args", "result"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_nesting_beyond_the_limit_is_refused_by_name(field: str, depth: int) -> None:
    """Deep nesting would exhaust the stack when the event is written as JSON."""
    with pytest.raises(BoundsError, match=rf"events\[2\]\.{field}: is nested deeper than 32 levels"):
        normalise_event({"event": "tool_call", "tool": "t", field: nested(depth)}, 2)


def test_nesting_at_the_limit_is_accepted() -> None:
    """The limit itself is allowed, with and without a value at the bottom."""
    full = nested(MAX_DEPTH)
    innermost = full
    while innermost:
        innermost = innermost[0]
    innermost.append(1)
    for value in (nested(MAX_DEPTH), full):
        assert value == normalise_event({"event": "tool_call", "tool": "t", "args": value}, 0).payload["args"]


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), {3: 4}, {"a": {None: 1}}, [10**5000], {"a": [datetime.now]}])
def test_a_value_outside_json_is_refused_with_its_field(value: Any) -> None:
    """A Python caller may pass values that JSON does not have; the message names the field."""
    with pytest.raises(BoundsError, match=r"events\[0\]\.args: holds a "):
        normalise_event({"event": "tool_call", "tool": "t", "args": value}, 0)


def test_a_field_name_that_is_not_text_is_refused() -> None:
    """Canonical JSON sorts names, which fails for mixed types."""
    with pytest.raises(BoundsError, match="holds a name that is not text"):
        normalise_event({3: "x", "event": "tool_call"}, 0)  # type: ignore[dict-item]


def test_invalid_characters_are_replaced() -> None:
    """A single broken character must not lose the evidence of a session."""
    event = normalise_event({"event": "tool\ud800", "args": {"a": [float("nan"), "\udfff\ud83d\ude00"]}, "x": float("-inf")}, 0)
    assert event.event == "tool\ufffd"
    assert event.payload["args"] == {"a": [None, "\ufffd\U0001f600"]}
    assert event.payload["x"] is None


@settings(deadline=None, max_examples=examples(300))
@given(raw=HOSTILE)
@example(raw={"event": "tool_call", "args": nested(40)})
@example(raw={"event": "token_usage", "usage": {"total": 10**400}})
def test_any_event_is_accepted_or_refused_with_an_input_error(raw: dict[str, Any]) -> None:
    """Hostile events become evidence or a dead letter without a crash; accepted events can be stored."""
    try:
        event = normalise_event(raw, 0)
    except InputError:
        return
    assert event.payload == json.loads(canonical_json(event.payload).encode())
    columns = msgspec.structs.asdict(event)
    del columns["payload"], columns["timestamp"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(columns)) == columns


def test_repeated_ids_of_a_session_get_a_suffix() -> None:
    """Evidence and graph refer to events by id, so an id must be unique."""
    events = normalise_session(
        [{"event_id": "a"}, {"event_id": "a"}, {"event_id": "a#2"}, {"event_id": "a"}, {"event_id": "b"}]
    )
    assert [event.event_id for event in events] == ["a", "a#2", "a#2#2", "a#3", "b"]
    assert [event.event_id for event in events] == [event.payload["event_id"] for event in events]


@settings(deadline=None)
@given(ids=st.lists(st.sampled_from(["a", "a#2", "a#2#2", "a#3", "b", "b#2", "r", "r#2"])))
def test_unique_ids_avoid_reserved_ones_and_keep_the_first_of_each(ids: list[str]) -> None:
    """No choice of ids makes two events one, and making ids unique twice changes nothing more."""
    unique = unique_ids(ids, reserved={"r"})
    assert len(ids) == len(set(unique))
    assert "r" not in unique
    assert unique_ids(unique, reserved={"r"}) == unique
    assert all(new.startswith(old) for old, new in zip(ids, unique, strict=True))


def test_a_hundred_thousand_equal_ids_are_made_unique_in_linear_time() -> None:
    """Searching for a free suffix from the start each time would take quadratic time."""
    ids = [f"a#{n}" for n in range(2, 50_000)] + ["a"] * 50_000
    assert len(ids) == len(set(unique_ids(ids)))


def test_a_record_has_the_columns_of_the_event() -> None:
    """The stage folds records, so reading one must give the normalized event."""
    raw = {"event": "tool_call", "tool": "t", "action": "A", "status": "S", "used": True, "saturation": 3}
    event = normalise_event(raw, 0)
    moment = datetime(2025, 1, 1, tzinfo=UTC)
    record = to_record(
        event,
        connection="c",
        project="p",
        agent=None,
        session_id="s",
        seq=9,
        occurred_at=moment,
        ingested_at=moment,
        payload_json=canonical_json(event.payload),
    )
    columns = msgspec.structs.asdict(event)
    del columns["payload"], columns["timestamp"]
    assert columns == {name: getattr(record, name) for name in columns}
    assert event.payload == raw_event(record.payload)
    assert record.seq == 9
    assert record.session_id == "s"
    assert record.occurred_at == moment


@pytest.mark.parametrize("payload", ["", "{", "[]", "3", pytest.param("[" * 100_000, id="deep"), '{"a": "\\ud800"'])
def test_a_damaged_payload_is_reported_as_an_error_of_the_record(payload: str) -> None:
    """A page that shows raw events must not fail on any of them."""
    with pytest.raises(RecordError, match=r"^payload: "):
        raw_event(payload)


MOMENT = datetime(2025, 3, 4, 5, 6, 7, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        "2025-03-04T05:06:07.250Z",
        "2025-03-04T05:06:07.250000123Z",
        " 2025-03-04 05:06:07.25 ",
        "2025-03-04T07:06:07.25+02:00",
        MOMENT.timestamp(),
        int(MOMENT.timestamp() * 1000),
        int(MOMENT.timestamp() * 1000) * 1000,
        MOMENT.timestamp() * 1000.0,
    ],
)
def test_times_are_parsed_in_every_common_format(value: Any) -> None:
    """Sources write ISO 8601 or numbers of seconds, milliseconds or microseconds."""
    assert parse_timestamp(value) == MOMENT
    assert parse_timestamp(value).utcoffset() == timedelta(0)  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [None, "", "  "])
def test_no_time_is_none(value: Any) -> None:
    """A missing time is filled in with the time of ingestion elsewhere."""
    assert parse_timestamp(value) is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("yesterday", "neither"),
        ("2025-13-01T00:00:00Z", "neither"),
        pytest.param("9" * 100_000, "neither", id="long"),
        ("\ud800", "neither"),
        ("9999-12-31T23:59:59-10:00", "neither"),
        (True, "neither"),
        ([], "neither"),
        ({"at": 1}, "neither"),
        (float("nan"), "neither"),
        (float("inf"), "neither"),
        pytest.param(10**400, "neither", id="huge"),
        (2**63, "neither"),
        ("1970-01-01T00:00:00Z", "outside"),
        ("1999-12-31T23:59:59.999999Z", "outside"),
        ("2100-01-01T00:00:00Z", "outside"),
        ("2000-01-01T00:00:00+00:01", "outside"),
        (0, "outside"),
        (-5, "outside"),
        (4_102_444_800, "outside"),
    ],
)
def test_impossible_times_are_refused_with_a_reason(value: Any, reason: str) -> None:
    """A wrong clock would date records into the far future; messages stay short."""
    with pytest.raises(ValueError, match=reason) as caught:
        parse_timestamp(value)
    assert len(str(caught.value)) < 200


@settings(deadline=None)
@given(moment=st.datetimes(datetime(2000, 1, 2), datetime(2099, 12, 31)), hours=st.integers(-12, 12))  # noqa: DTZ001
def test_iso_times_keep_their_instant(moment: datetime, hours: int) -> None:
    """Any offset gives the same instant, to the microsecond."""
    utc = moment.replace(tzinfo=UTC)
    assert parse_timestamp(utc.astimezone(timezone(timedelta(hours=hours))).isoformat()) == utc
    assert utc == parse_timestamp(moment.isoformat())
    assert parse_timestamp((utc - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)) == utc
