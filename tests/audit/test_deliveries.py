"""Two accounts of one thing: what an import reads and what a plugin told are the same where they do not contradict each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.deliveries import CLOCKS, Told, exchange_differences, payload_differences, read_digest, twins

AT = datetime(2026, 11, 3, 9, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def exchange(**fields: Any) -> dict[str, Any]:
    """What an exchange states; read from a transcript unless a digest says otherwise."""
    said: dict[str, Any] = {
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
    } | fields
    texts = (said["user_message"], said["agent_response"], said["agent_thinking"])
    return {"content_digest": read_digest(*texts, said["occurred_at"])} | said


def told(**fields: Any) -> dict[str, Any]:
    """The same exchange as a sender tells it."""
    return exchange(**({"content_digest": "f" * 16} | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"turn_number": None, "agent_thinking": None},
        {"agent_model": None, "input_tokens": None, "output_tokens": None, "stop_reason": None},
        {"occurred_at": AT - SECOND},
        {"occurred_at": AT + CLOCKS},
        {"agent": "cleo", "multi_user": True},
    ],
    ids=str,
)
def test_what_was_told_is_what_was_read_where_nothing_contradicts(fields: dict[str, Any]) -> None:
    """A plugin knows no turn, reads its clock earlier and may keep thinking back: the exchange is the same one."""
    assert () == exchange_differences(exchange(), told(**fields))
    assert () == exchange_differences(told(**fields), exchange())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"agent_response": "Yes."}, ("agent_response",)),
        ({"user_message": "Is it?", "agent_model": "n"}, ("user_message", "agent_model")),
        ({"agent_thinking": "Hm."}, ("agent_thinking",)),
        ({"output_tokens": 0}, ("output_tokens",)),
        ({"occurred_at": AT + CLOCKS + SECOND}, ("occurred_at",)),
        ({"session_id": "t"}, ("session_id",)),
    ],
    ids=str,
)
def test_what_contradicts_is_named(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    """An answer that was changed afterwards is evidence of something, and whoever looks has to know where to look."""
    assert named == exchange_differences(exchange(), told(**fields))
    assert named == exchange_differences(told(**fields), exchange())


@pytest.mark.parametrize("both", [exchange, told])
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"occurred_at": AT + SECOND}, ("occurred_at",)),
        ({"agent_thinking": None}, ("agent_thinking",)),
        ({"agent": "cleo", "agent_response": "Yes."}, ("agent_response", "agent")),
    ],
    ids=str,
)
def test_one_source_that_says_something_else_contradicts_itself(
    both: Any, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    """Only what comes in twice over two ways may be told in two ways; what a sender changes would be dropped in silence."""
    assert named == exchange_differences(both(), both(**({"content_digest": "e" * 16} if both is told else {}) | fields))


def test_a_digest_that_differs_for_what_is_kept_nowhere_is_named_itself() -> None:
    """A producer may digest more than the record holds."""
    assert ("content_digest",) == exchange_differences(told(), told(content_digest="e" * 16))


@given(st.text(min_size=2, max_size=40))
def test_a_text_that_was_cut_is_the_same_text(text: str) -> None:
    """Senders and imports cut at different lengths."""
    start = text[: len(text) // 2]
    cut = f"{start}[cut: {len(text)} more characters]"
    assert () == exchange_differences(exchange(agent_response=text), told(agent_response=cut))
    other = f"{start}\0[cut: 9 more characters]"
    if not text.startswith(f"{start}\0"):
        assert ("agent_response",) == exchange_differences(exchange(agent_response=text), told(agent_response=other))


def payload(**fields: Any) -> dict[str, Any]:
    """The payload of a call that a transcript tells of."""
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
    ("fields", "named"),
    [
        ({}, ()),
        ({"timestamp": "2026-11-03T09:00:02.5+00:00", "exchange_id": "s:u1~a1"}, ()),
        ({"arguments": {"withheld": "0f"}}, ()),
        ({"arguments": {"command": "rm"}}, ("arguments",)),
        ({"timestamp": "2026-11-03T10:00:00+00:00"}, ("timestamp",)),
        ({"timestamp": "someday", "tool": "read"}, ("tool", "timestamp")),
        ({"entry_id": "a2"}, ("entry_id",)),
    ],
    ids=str,
)
def test_events_of_one_entry_are_compared_by_what_both_state(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    """The plugin and the import tell of one entry at two times, and a plugin may keep arguments back."""
    assert named == payload_differences(payload(), payload(**fields))
    assert named == payload_differences(payload(**fields), payload())


def test_what_one_account_of_an_entry_leaves_out_is_no_contradiction() -> None:
    """A hook knows how long a call took, a transcript need not."""
    assert () == payload_differences(payload(), payload(duration_ms=84))
    assert () == payload_differences(payload(duration_ms=84), payload())


def test_events_of_no_entry_are_compared_in_full() -> None:
    """Whoever numbers events anew after a restart must hear of it."""
    one = {"event": "tool_call", "event_id": "1", "n": 1, "timestamp": 1}
    assert ("n",) == payload_differences(one, one | {"n": 2})
    assert ("timestamp",) == payload_differences(one, one | {"timestamp": 2})
    assert ("n",) == payload_differences(one, {name: value for name, value in one.items() if name != "n"})


def event(place: int, seconds: float = 0, *, by_hook: bool = False, session: str = "s", **fields: Any) -> Told:
    """An event as its twin is sought."""
    origin = {"told_by": "hook"} if by_hook else {"entry_id": f"e{place}"}
    said = {"event": "tool_output", "tool": "exec", "tool_call_id": "t1"} | origin | fields
    return Told(place, ("north", session), AT + timedelta(seconds=seconds), said)


@pytest.mark.parametrize("by_hook", [True, False])
def test_what_a_hook_told_is_found_in_the_transcript_and_the_other_way_round(*, by_hook: bool) -> None:
    """OpenClaw tells plugins no entry of a tool's result; an import that counted it again would tell of a loop."""
    held, given = event(0, by_hook=by_hook), event(7, 3, by_hook=not by_hook)
    assert [7] == twins([held], [given])


@pytest.mark.parametrize(
    "other",
    [
        {"tool_call_id": "t2"},
        {"tool": "read"},
        {"event": "memory_event"},
        {"session": "other"},
        {"by_hook": False},
        {"seconds": CLOCKS.total_seconds() + 1},
        {"event": "session_end"},
        {"tool_call_id": None},
    ],
    ids=str,
)
def test_another_call_is_no_twin(other: dict[str, Any]) -> None:
    """What is merely alike happened twice."""
    assert [] == twins([event(0)], [event(1, **({"by_hook": True} | other))])


def test_each_event_has_one_twin_at_most() -> None:
    """Two compactions that the transcript tells of are two, where a hook told of one."""
    compactions = [event(place, place * 60, event="context_event", action="compaction") for place in (1, 2)]
    hooked = [event(place, place * 60, by_hook=True, event="context_event", action="compaction") for place in (1, 2, 3)]
    assert [1] == twins(hooked[:1], compactions)
    assert [1, 2] == twins(hooked, compactions)
    assert [1, 2] == twins(compactions, hooked)
