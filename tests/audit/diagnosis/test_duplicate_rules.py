"""Duplicates from two sources: a transcript and a plugin report the same exchange or event unless their fields conflict."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.diagnosis.duplicate_rules import (
    CLOCKS,
    MIN_CUT,
    ReportedEvent,
    describe_differences,
    exchange_differences,
    find_duplicates,
    payload_differences,
    read_digest,
)

AT = datetime(2026, 11, 3, 9, tzinfo=UTC)
ONE_SECOND = timedelta(seconds=1)


def exchange(**fields: Any) -> dict[str, Any]:
    """Return the fields of an exchange, read from a transcript unless `content_digest` says otherwise."""
    fields_with_defaults: dict[str, Any] = {
        "session_id": "s",
        "user_message": "Is it healthy?",
        "agent_response": "No.",
        "agent_thinking": "Look first.",
        "occurred_at": AT,
        "turn_number": 1,
        "agent_model": "m",
        "input_tokens": 5,
        "output_tokens": 6,
        "stop_reason": "stop",
        "agent": "main",
        "multi_user": False,
        "labels": (),
    } | fields
    texts = (
        fields_with_defaults["user_message"],
        fields_with_defaults["agent_response"],
        fields_with_defaults["agent_thinking"],
    )
    return {"content_digest": read_digest(*texts, fields_with_defaults["occurred_at"])} | fields_with_defaults


def reported(**fields: Any) -> dict[str, Any]:
    """Return the same exchange as a sender reports it."""
    return exchange(**({"content_digest": "f" * 16} | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"turn_number": None, "agent_thinking": None},
        {"agent_model": None, "input_tokens": None, "output_tokens": None, "stop_reason": None},
        {"occurred_at": AT - ONE_SECOND},
        {"occurred_at": AT + CLOCKS},
        {"agent": "cleo", "multi_user": True},
    ],
    ids=str,
)
def test_reports_of_two_sources_are_equal_unless_a_field_conflicts(fields: dict[str, Any]) -> None:
    """A plugin does not know the turn, reads its clock earlier and may withhold thinking."""
    assert exchange_differences(exchange(), reported(**fields)) == ()
    assert exchange_differences(reported(**fields), exchange()) == ()


@pytest.mark.parametrize(
    ("fields", "differing"),
    [
        ({"agent_response": "Yes."}, ("agent_response",)),
        ({"user_message": "Is it?", "agent_model": "n"}, ("user_message", "agent_model")),
        ({"agent_thinking": "Hm."}, ("agent_thinking",)),
        ({"output_tokens": 0}, ("output_tokens",)),
        ({"occurred_at": AT + CLOCKS + ONE_SECOND}, ("occurred_at",)),
        ({"session_id": "t"}, ("session_id",)),
    ],
    ids=str,
)
def test_a_conflicting_field_is_named(fields: dict[str, Any], differing: tuple[str, ...]) -> None:
    """An answer that was changed afterwards may be tampering, so the message must name the field."""
    assert exchange_differences(exchange(), reported(**fields)) == differing
    assert exchange_differences(reported(**fields), exchange()) == differing


@pytest.mark.parametrize("make_exchange", [exchange, reported])
@pytest.mark.parametrize(
    ("fields", "differing"),
    [
        ({"occurred_at": AT + ONE_SECOND}, ("occurred_at",)),
        ({"agent_thinking": None}, ("agent_thinking",)),
        ({"agent": "cleo", "agent_response": "Yes."}, ("agent_response", "agent")),
    ],
    ids=str,
)
def test_two_different_reports_of_one_source_conflict(
    make_exchange: Any, fields: dict[str, Any], differing: tuple[str, ...]
) -> None:
    """Fields may be missing only between two sources. Between two reports of one source, a change must not be dropped silently."""
    assert (
        exchange_differences(
            make_exchange(), make_exchange(**({"content_digest": "e" * 16} if make_exchange is reported else {}) | fields)
        )
        == differing
    )


def test_a_digest_that_differs_beyond_the_record_is_a_conflict() -> None:
    """A producer's digest may cover more than the record's fields."""
    assert exchange_differences(reported(), reported(content_digest="e" * 16)) == ("content_digest",)


LETTERS = st.text(st.characters(codec="utf-8"), min_size=MIN_CUT, max_size=MIN_CUT + 40)


def cut(text: str, missing: int) -> str:
    """Return the text with the mark that senders and imports append to a cut text."""
    return f"{text}[cut: {missing} more characters]"


@given(LETTERS, st.text(min_size=1, max_size=40))
def test_a_truncated_text_is_the_same_text(start: str, end: str) -> None:
    """Senders and imports cut at different lengths."""
    untruncated = exchange(agent_response=start + end)
    assert exchange_differences(untruncated, reported(agent_response=cut(start, len(end)))) == ()
    assert exchange_differences(untruncated, reported(agent_response=cut(start, len(end) + 1))) == ("agent_response",)
    assert exchange_differences(untruncated, reported(agent_response=cut(f"{start[:-1]}{end}\0", 1))) == ("agent_response",)
    assert (
        exchange_differences(exchange(agent_response=cut(start + end, 7)), reported(agent_response=cut(start, len(end) + 7)))
        == ()
    )


def test_a_secret_beyond_the_truncation_is_no_conflict() -> None:
    """A plugin cuts before secrets are replaced, an import afterwards, so their numbers of missing characters differ."""
    untruncated = exchange(agent_response="x" * MIN_CUT + "[SECRET:generic:0f0f0f0f] and on")
    assert exchange_differences(untruncated, reported(agent_response=cut("x" * MIN_CUT, 90))) == ()


@pytest.mark.parametrize("text", ["[withheld]", cut("", 3), cut("No", 1), cut("No", 0)])
@pytest.mark.parametrize("name", ["user_message", "agent_response", "agent_thinking", "agent_model", "stop_reason"])
def test_no_text_is_a_wildcard_for_another_one(name: str, text: str) -> None:
    """Otherwise an agent could hide an answer by first writing one of these texts in its place."""
    assert exchange_differences(reported(**{name: text}), exchange(**{name: "No."})) == (name,)


STATED: dict[str, st.SearchStrategy[Any]] = {
    "user_message": st.text(max_size=20),
    "agent_response": st.text(max_size=20),
    "agent_thinking": st.text(max_size=20),
    "agent_model": st.text(max_size=8),
    "stop_reason": st.text(max_size=8),
    "session_id": st.text(max_size=8),
    "turn_number": st.integers(1, 9),
    "input_tokens": st.integers(0, 9),
    "output_tokens": st.integers(0, 9),
    "occurred_at": st.timedeltas(-CLOCKS * 3, CLOCKS * 3).map(lambda apart: AT + apart),
}
EXCHANGE_FIELDS = st.fixed_dictionaries(STATED)


@given(EXCHANGE_FIELDS, EXCHANGE_FIELDS, st.sampled_from([exchange, reported]), st.sampled_from([exchange, reported]))
def test_comparing_exchanges_is_symmetric(
    stored_fields: Any, incoming_fields: Any, make_stored: Any, make_incoming: Any
) -> None:
    """The result does not depend on which exchange came first, and no exchange conflicts with itself."""
    stored, incoming = (
        make_stored(**stored_fields),
        make_incoming(**({"content_digest": "e" * 16} if make_incoming is reported else {}) | incoming_fields),
    )
    assert exchange_differences(stored, incoming) == exchange_differences(incoming, stored)
    assert exchange_differences(stored, stored) == ()


@given(EXCHANGE_FIELDS, st.sampled_from(sorted(STATED)), st.data())
def test_any_changed_field_is_a_conflict(fields: Any, name: str, data: Any) -> None:
    """A change of a field that both exchanges state is never taken for a duplicate."""
    changed = data.draw(STATED[name].filter(lambda value: value != fields[name]))
    if name == "occurred_at" and abs(changed - fields[name]) <= CLOCKS:
        return
    assert exchange_differences(exchange(**fields), reported(**(fields | {name: changed}))) == (name,)


def payload(**fields: Any) -> dict[str, Any]:
    """Return the payload of a tool call that was read from a transcript."""
    return {
        "event": "tool_call",
        "event_id": "a1.0",
        "entry_id": "a1",
        "exchange_id": "s:u1",
        "timestamp": "2026-11-03T09:00:00+00:00",
        "tool": "exec",
        "tool_call_id": "t1",
        "arguments": {"command": "ls"},
    } | fields


@pytest.mark.parametrize(
    ("fields", "differing"),
    [
        ({}, ()),
        ({"timestamp": "2026-11-03T09:00:02.5+00:00", "exchange_id": "s:u1~a1"}, ()),
        ({"arguments": {"withheld": "0f"}}, ()),
        ({"arguments": {"command": "rm"}}, ("arguments",)),
        ({"arguments": "[withheld]"}, ("arguments",)),
        ({"tool": {"withheld": "0f"}}, ("tool",)),
        ({"timestamp": "2026-11-03T10:00:00+00:00"}, ("timestamp",)),
        ({"timestamp": "someday", "tool": "read"}, ("tool", "timestamp")),
        ({"entry_id": "a2"}, ("entry_id",)),
    ],
    ids=str,
)
def test_events_of_one_entry_are_compared_by_their_common_fields(fields: dict[str, Any], differing: tuple[str, ...]) -> None:
    """Plugin and import report an entry at different times, and a plugin may withhold arguments."""
    assert payload_differences(payload(), payload(**fields)) == differing
    assert payload_differences(payload(**fields), payload()) == differing


def test_a_field_missing_in_one_report_is_no_conflict() -> None:
    """A hook knows the duration of a call, a transcript may not."""
    assert payload_differences(payload(), payload(duration_ms=84)) == ()
    assert payload_differences(payload(duration_ms=84), payload()) == ()


@pytest.mark.parametrize("entry", [{"entry_id": "a1"}, {"told_by": "hook"}], ids=str)
def test_an_older_event_without_a_source_conflicts_with_none(entry: dict[str, str]) -> None:
    """Databases of older versions hold events without a source."""
    old_event = {"event": "tool_call", "event_id": "1"} | entry
    assert payload_differences(old_event, old_event | {"source": "openclaw"}) == ()
    assert payload_differences(old_event | {"source": "openclaw"}, old_event) == ()
    assert payload_differences(old_event | {"source": "openclaw"}, old_event | {"source": "codex"}) == ("source",)


def test_events_without_an_entry_are_compared_completely() -> None:
    """A sender that restarts its numbering must get an error instead of losing events."""
    event = {"event": "tool_call", "event_id": "1", "n": 1, "timestamp": 1}
    assert payload_differences(event, event | {"n": 2}) == ("n",)
    assert payload_differences(event, event | {"timestamp": 2}) == ("timestamp",)
    assert payload_differences(event, {name: value for name, value in event.items() if name != "n"}) == ("n",)


@pytest.mark.parametrize("fields", [{}, {"entry_id": "a1"}, {"told_by": "hook"}], ids=str)
def test_an_event_with_a_source_equals_the_earlier_one_without(fields: dict[str, Any]) -> None:
    """Events delivered before senders named their source may be delivered again with it."""
    event = {"event": "tool_call", "event_id": "1", "timestamp": 1793696410000, **fields}
    assert payload_differences(event, event | {"source": "openclaw"}) == ()
    assert payload_differences(event | {"source": "openclaw"}, event) == ()
    assert "n" in payload_differences(event | {"n": 1}, event | {"n": 2, "source": "openclaw"})


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2))
PAYLOADS = st.dictionaries(st.sampled_from(["event_id", "entry_id", "timestamp", "arguments", "result", "tool"]), JSON)


@given(PAYLOADS, PAYLOADS)
def test_comparing_payloads_is_symmetric(stored: Any, incoming: Any) -> None:
    """An exception here would block every delivery of the session, so any JSON must be comparable."""
    assert payload_differences(stored, incoming) == payload_differences(incoming, stored)
    assert payload_differences(stored, stored) == ()


def test_the_list_of_field_names_is_bounded() -> None:
    """Senders choose the names, and they appear in every answer and dead letter."""
    assert describe_differences(()) == ""
    assert describe_differences(("a", "b")) == " (it differs in a, b)"
    suffix = describe_differences([str(number) * 500 for number in range(1, 20)])
    assert suffix.endswith(" and 9 more)")
    assert len(suffix) < 1000


def event(
    key: int, seconds: float = 0, *, by_hook: bool = False, session: str = "s", received_after: float = 0, **fields: Any
) -> ReportedEvent:
    """Return an event that was received when it occurred, or `received_after` seconds after AT if that is later."""
    origin = {"told_by": "hook"} if by_hook else {"entry_id": f"e{key}"}
    payload = {"event": "tool_output", "tool": "exec", "tool_call_id": "t1"} | origin | fields
    occurred_at = AT + timedelta(seconds=seconds)
    return ReportedEvent(
        key, ("north", session), occurred_at, max(occurred_at, AT + timedelta(seconds=received_after)), payload
    )


def duplicate_keys(stored: Iterable[ReportedEvent], incoming: Iterable[ReportedEvent]) -> list[int]:
    """Return the keys of the incoming events that are duplicates of stored ones."""
    return sorted(find_duplicates(stored, incoming))


@pytest.mark.parametrize("by_hook", [True, False])
def test_an_event_of_a_hook_is_found_in_the_transcript_and_vice_versa(*, by_hook: bool) -> None:
    """Hooks do not know the entry of a tool's result; counting it twice would look like a loop."""
    stored, incoming = event(0, by_hook=by_hook), event(7, 3, by_hook=not by_hook)
    assert duplicate_keys([stored], [incoming]) == [7]


def test_an_event_of_a_hook_is_found_in_the_trajectory() -> None:
    """An aborted run has no transcript entry, but the plugin reports it and the trajectory contains it."""
    occurred_at, payload = event(0).occurred_at, {"event": "error_event", "action": "aborted"}
    from_trajectory = ReportedEvent(0, ("north", "s"), occurred_at, occurred_at, {**payload, "told_by": "trajectory"})
    from_hook = ReportedEvent(1, ("north", "s"), occurred_at, occurred_at, {**payload, "told_by": "hook"})
    assert duplicate_keys([from_trajectory], [from_hook]) == [1]
    assert duplicate_keys([from_hook], [from_trajectory]) == [0]


@pytest.mark.parametrize(
    "changes",
    [
        {"tool_call_id": "t2"},
        {"tool": "read"},
        {"event": "memory_event"},
        {"session": "other"},
        {"by_hook": False},
        {"seconds": CLOCKS.total_seconds() + 1},
        {"event": "session_end"},
        {"tool_call_id": None},
        {"tool_call_id": ""},
        {"told_by": "us"},
    ],
    ids=str,
)
def test_another_call_is_not_a_duplicate(changes: dict[str, Any]) -> None:
    """Events that only look alike happened twice."""
    assert duplicate_keys([event(0)], [event(1, **({"by_hook": True} | changes))]) == []


def test_each_event_has_at_most_one_duplicate() -> None:
    """If a hook reported one compaction and the transcript has two, only one of the two is a duplicate."""
    compactions = [event(number, number * 60, event="context_event", action="compaction") for number in (1, 2)]
    from_hook = [event(number, number * 60, by_hook=True, event="context_event", action="compaction") for number in (1, 2, 3)]
    assert duplicate_keys(from_hook[:1], compactions) == [1]
    assert duplicate_keys(from_hook, compactions) == [1, 2]
    assert duplicate_keys(compactions, from_hook) == [1, 2]


STEP: dict[str, Any] = {"event": "error_event", "action": "error"}


@pytest.mark.parametrize(
    ("from_transcript", "from_hook", "are_duplicates"),
    [
        ({"is_error": True}, {"is_error": False}, False),
        ({"is_error": True}, {}, True),
        ({"exit_code": 0}, {"exit_code": 1}, False),
        ({"result": "all of it"}, {"result": "all…(truncated)…"}, True),
        ({"event": "tool_call", "arguments": {"command": "ls"}}, {"event": "tool_call", "arguments": {"command": "rm"}}, False),
        ({"event": "tool_call", "arguments": {"command": "ls"}}, {"event": "tool_call", "arguments": {"withheld": "0f"}}, True),
        ({"event": "memory_event", "action": "hit"}, {"event": "memory_event", "action": "miss"}, False),
        (STEP | {"message": "timeout"}, STEP | {"message": "refused"}, False),
        ({"event": "retry_event", "action": "retry"}, {"event": "retry_event", "action": "retry"}, True),
        ({"event": "retry_event", "action": "retry"}, {"event": "retry_event", "action": "retry", "seconds": 121}, False),
        (STEP | {"message": "timeout"}, STEP | {"message": "timeout", "seconds": 121}, False),
        ({"event": "token_usage", "usage": {"total": 0}}, {"event": "token_usage", "usage": {"total": 0}}, False),
        ({"event": "token_usage", "usage": {"total": 9}}, {"event": "token_usage", "usage": {"total": 9}}, True),
    ],
    ids=str,
)
def test_another_outcome_is_not_a_duplicate(
    from_transcript: dict[str, Any], from_hook: dict[str, Any], *, are_duplicates: bool
) -> None:
    """A failure that the transcript calls a success is evidence and must be kept."""
    assert duplicate_keys([event(0, **from_transcript)], [event(7, by_hook=True, **from_hook)]) == (
        [7] if are_duplicates else []
    )
    assert duplicate_keys([event(0, by_hook=True, **from_hook)], [event(7, **from_transcript)]) == (
        [7] if are_duplicates else []
    )


def test_an_event_cannot_duplicate_a_later_one() -> None:
    """Failures of a loop that continues after an import must not be matched with the imported ones."""
    stored = [event(0, 0, received_after=30, **STEP)]
    assert duplicate_keys(stored, [event(1, 89, by_hook=True, **STEP)]) == [1]
    assert duplicate_keys(stored, [event(1, 91, by_hook=True, **STEP)]) == []
    loop = [event(key, key, received_after=30) for key in range(3)]
    assert duplicate_keys(loop, [event(3, 91, by_hook=True)]) == [], "ids of calls that are given again and again tell nothing"
    assert duplicate_keys([event(0, 0)], [event(1, 300, by_hook=True)]) == [1], (
        "a call that is there once is the same, however late it is told"
    )


def test_a_conflicting_event_does_not_take_the_match_of_another() -> None:
    """Of two calls with the same id, the conflicting one is skipped and the other is matched."""
    stored = [event(0, 0, is_error=True), event(1, 1, is_error=False)]
    assert duplicate_keys(stored, [event(3, 2, by_hook=True, is_error=False)]) == [3]
    assert duplicate_keys(stored, [event(3, 2, by_hook=True, is_error=False), event(4, 3, by_hook=True, is_error=True)]) == [
        3,
        4,
    ]


def test_a_duplicate_is_found_behind_many_older_events() -> None:
    """Some tools are called hundreds of times in ten minutes, all with one id."""
    stored = [event(key, key, received_after=key, by_hook=True) for key in range(500)]
    assert find_duplicates(stored, [event(900, 500)]) == {900: 440}


MOMENTS = st.lists(st.tuples(st.integers(0, 900), st.sampled_from([True, False, None])), max_size=12)


@given(stored_moments=MOMENTS, new_moments=MOMENTS, by_hook=st.booleans())
def test_each_stored_event_explains_at_most_one_incoming_event(stored_moments: Any, new_moments: Any, *, by_hook: bool) -> None:
    """Each stored event explains at most one incoming event, so events that happened more often are kept."""
    stored = [
        event(key, seconds, received_after=900, by_hook=by_hook, is_error=state)
        for key, (seconds, state) in enumerate(stored_moments)
    ]
    incoming = [event(key, seconds, by_hook=not by_hook, is_error=state) for key, (seconds, state) in enumerate(new_moments)]
    pairs = find_duplicates(stored, incoming)
    assert len(set(pairs.values())) == len(pairs)
    assert pairs == find_duplicates(stored[::-1], incoming[::-1])
    assert all(abs(stored[stored_key].occurred_at - incoming[key].occurred_at) <= CLOCKS for key, stored_key in pairs.items())
