"""Two accounts of one thing: what an import reads and what a plugin told are the same where they do not contradict each other."""

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
    Told,
    exchange_differences,
    named_differences,
    payload_differences,
    read_digest,
    twins,
)

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
        "labels": (),
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
    assert exchange_differences(exchange(), told(**fields)) == ()
    assert exchange_differences(told(**fields), exchange()) == ()


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
    assert exchange_differences(exchange(), told(**fields)) == named
    assert exchange_differences(told(**fields), exchange()) == named


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
    assert exchange_differences(both(), both(**({"content_digest": "e" * 16} if both is told else {}) | fields)) == named


def test_a_digest_that_differs_for_what_is_kept_nowhere_is_named_itself() -> None:
    """A producer may digest more than the record holds."""
    assert exchange_differences(told(), told(content_digest="e" * 16)) == ("content_digest",)


LETTERS = st.text(st.characters(codec="utf-8"), min_size=MIN_CUT, max_size=MIN_CUT + 40)


def cut(text: str, missing: int) -> str:
    """The text as senders and imports show that it was cut."""
    return f"{text}[cut: {missing} more characters]"


@given(LETTERS, st.text(min_size=1, max_size=40))
def test_a_text_that_was_cut_is_the_same_text(start: str, end: str) -> None:
    """Senders and imports cut at different lengths."""
    whole = exchange(agent_response=start + end)
    assert exchange_differences(whole, told(agent_response=cut(start, len(end)))) == ()
    assert exchange_differences(whole, told(agent_response=cut(start, len(end) + 1))) == ("agent_response",)
    assert exchange_differences(whole, told(agent_response=cut(f"{start[:-1]}{end}\0", 1))) == ("agent_response",)
    assert (
        exchange_differences(exchange(agent_response=cut(start + end, 7)), told(agent_response=cut(start, len(end) + 7))) == ()
    )


def test_a_secret_beyond_the_cut_is_no_contradiction() -> None:
    """A plugin cuts before secrets are taken out, an import afterwards: they count different characters."""
    whole = exchange(agent_response="x" * MIN_CUT + "[SECRET:generic:0f0f0f0f] and on")
    assert exchange_differences(whole, told(agent_response=cut("x" * MIN_CUT, 90))) == ()


@pytest.mark.parametrize("text", ["[withheld]", cut("", 3), cut("No", 1), cut("No", 0)])
@pytest.mark.parametrize("name", ["user_message", "agent_response", "agent_thinking", "agent_model", "stop_reason"])
def test_no_word_in_a_text_stands_for_any_other_text(name: str, text: str) -> None:
    """An agent that wrote one of these first would have its real answer taken for a repetition, and nobody would see it."""
    assert exchange_differences(told(**{name: text}), exchange(**{name: "No."})) == (name,)


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
SAID = st.fixed_dictionaries(STATED)


@given(SAID, SAID, st.sampled_from([exchange, told]), st.sampled_from([exchange, told]))
def test_exchanges_are_compared_the_same_from_either_side(one: Any, other: Any, first: Any, second: Any) -> None:
    """Whichever came first, the same is said of both; and nothing contradicts itself."""
    held, given = first(**one), second(**({"content_digest": "e" * 16} if second is told else {}) | other)
    assert exchange_differences(held, given) == exchange_differences(given, held)
    assert exchange_differences(held, held) == ()


@given(SAID, st.sampled_from(sorted(STATED)), st.data())
def test_any_field_that_was_changed_contradicts(said: Any, name: str, data: Any) -> None:
    """No change of what both accounts state may be taken for a repetition."""
    changed = data.draw(STATED[name].filter(lambda value: value != said[name]))
    if name == "occurred_at" and abs(changed - said[name]) <= CLOCKS:
        return
    assert exchange_differences(exchange(**said), told(**(said | {name: changed}))) == (name,)


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
        ({"arguments": "[withheld]"}, ("arguments",)),
        ({"tool": {"withheld": "0f"}}, ("tool",)),
        ({"timestamp": "2026-11-03T10:00:00+00:00"}, ("timestamp",)),
        ({"timestamp": "someday", "tool": "read"}, ("tool", "timestamp")),
        ({"entry_id": "a2"}, ("entry_id",)),
    ],
    ids=str,
)
def test_events_of_one_entry_are_compared_by_what_both_state(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    """The plugin and the import tell of one entry at two times, and a plugin may keep arguments back."""
    assert payload_differences(payload(), payload(**fields)) == named
    assert payload_differences(payload(**fields), payload()) == named


def test_what_one_account_of_an_entry_leaves_out_is_no_contradiction() -> None:
    """A hook knows how long a call took, a transcript need not."""
    assert payload_differences(payload(), payload(duration_ms=84)) == ()
    assert payload_differences(payload(duration_ms=84), payload()) == ()


@pytest.mark.parametrize("entry", [{"entry_id": "a1"}, {"told_by": "hook"}], ids=str)
def test_an_event_of_before_that_names_no_source_contradicts_none_that_does(entry: dict[str, str]) -> None:
    """A queue or an import of a newer version meets databases in which no event says where it comes from."""
    before = {"event": "tool_call", "event_id": "1"} | entry
    assert payload_differences(before, before | {"source": "openclaw"}) == ()
    assert payload_differences(before | {"source": "openclaw"}, before) == ()
    assert payload_differences(before | {"source": "openclaw"}, before | {"source": "codex"}) == ("source",)


def test_events_of_no_entry_are_compared_in_full() -> None:
    """Whoever numbers events anew after a restart must hear of it."""
    one = {"event": "tool_call", "event_id": "1", "n": 1, "timestamp": 1}
    assert payload_differences(one, one | {"n": 2}) == ("n",)
    assert payload_differences(one, one | {"timestamp": 2}) == ("timestamp",)
    assert payload_differences(one, {name: value for name, value in one.items() if name != "n"}) == ("n",)


@pytest.mark.parametrize("fields", [{}, {"entry_id": "a1"}, {"told_by": "hook"}], ids=str)
def test_an_event_that_names_its_source_is_the_one_that_did_not(fields: dict[str, Any]) -> None:
    """Events were delivered before senders named their source; delivering them again changes nothing."""
    one = {"event": "tool_call", "event_id": "1", "timestamp": 1793696410000, **fields}
    assert payload_differences(one, one | {"source": "openclaw"}) == ()
    assert payload_differences(one | {"source": "openclaw"}, one) == ()
    assert "n" in payload_differences(one | {"n": 1}, one | {"n": 2, "source": "openclaw"})


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2))
PAYLOADS = st.dictionaries(st.sampled_from(["event_id", "entry_id", "timestamp", "arguments", "result", "tool"]), JSON)


@given(PAYLOADS, PAYLOADS)
def test_payloads_are_compared_the_same_from_either_side(one: Any, other: Any) -> None:
    """Whatever senders put into a payload: a comparison that fails would end every delivery of the session."""
    assert payload_differences(one, other) == payload_differences(other, one)
    assert payload_differences(one, one) == ()


def test_names_of_fields_are_told_within_bounds() -> None:
    """A sender chooses them: ten thousand of any length would come back in each answer and each dead letter."""
    assert named_differences(()) == ""
    assert named_differences(("a", "b")) == " (it differs in a, b)"
    words = named_differences([str(number) * 500 for number in range(1, 20)])
    assert words.endswith(" and 9 more)")
    assert len(words) < 1000


def event(place: int, seconds: float = 0, *, by_hook: bool = False, session: str = "s", came: float = 0, **fields: Any) -> Told:
    """An event as its twin is sought; it came in at once, or at `came` seconds."""
    origin = {"told_by": "hook"} if by_hook else {"entry_id": f"e{place}"}
    said = {"event": "tool_output", "tool": "exec", "tool_call_id": "t1"} | origin | fields
    at = AT + timedelta(seconds=seconds)
    return Told(place, ("north", session), at, max(at, AT + timedelta(seconds=came)), said)


def left_out(held: Iterable[Told], given: Iterable[Told]) -> list[int]:
    """The places of the given events that are twins of held ones."""
    return sorted(twins(held, given))


@pytest.mark.parametrize("by_hook", [True, False])
def test_what_a_hook_told_is_found_in_the_transcript_and_the_other_way_round(*, by_hook: bool) -> None:
    """OpenClaw tells plugins no entry of a tool's result; an import that counted it again would tell of a loop."""
    held, given = event(0, by_hook=by_hook), event(7, 3, by_hook=not by_hook)
    assert left_out([held], [given]) == [7]


def test_what_a_hook_told_is_found_in_the_trajectory() -> None:
    """A run that was aborted is in no entry: the plugin tells of it, and so does the second account that an import reads."""
    (at, said) = event(0).at, {"event": "error_event", "action": "aborted"}
    read = Told(0, ("north", "s"), at, at, {**said, "told_by": "trajectory"})
    told = Told(1, ("north", "s"), at, at, {**said, "told_by": "hook"})
    assert left_out([read], [told]) == [1]
    assert left_out([told], [read]) == [0]


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
        {"tool_call_id": ""},
        {"told_by": "us"},
    ],
    ids=str,
)
def test_another_call_is_no_twin(other: dict[str, Any]) -> None:
    """What is merely alike happened twice."""
    assert left_out([event(0)], [event(1, **({"by_hook": True} | other))]) == []


def test_each_event_has_one_twin_at_most() -> None:
    """Two compactions that the transcript tells of are two, where a hook told of one."""
    compactions = [event(place, place * 60, event="context_event", action="compaction") for place in (1, 2)]
    hooked = [event(place, place * 60, by_hook=True, event="context_event", action="compaction") for place in (1, 2, 3)]
    assert left_out(hooked[:1], compactions) == [1]
    assert left_out(hooked, compactions) == [1, 2]
    assert left_out(compactions, hooked) == [1, 2]


STEP: dict[str, Any] = {"event": "error_event", "action": "error"}


@pytest.mark.parametrize(
    ("one", "other", "is_twin"),
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
def test_what_states_another_outcome_is_no_twin(one: dict[str, Any], other: dict[str, Any], *, is_twin: bool) -> None:
    """A failure that a transcript tells of as a success is evidence, and must not vanish as a repetition."""
    assert left_out([event(0, **one)], [event(7, by_hook=True, **other)]) == ([7] if is_twin else [])
    assert left_out([event(0, by_hook=True, **other)], [event(7, **one)]) == ([7] if is_twin else [])


def test_what_came_in_before_something_happened_is_no_account_of_it() -> None:
    """A loop that goes on after an import: each further failure would be taken for one that the import told of."""
    read = [event(0, 0, came=30, **STEP)]
    assert left_out(read, [event(1, 89, by_hook=True, **STEP)]) == [1]
    assert left_out(read, [event(1, 91, by_hook=True, **STEP)]) == []
    loop = [event(place, place, came=30) for place in range(3)]
    assert left_out(loop, [event(3, 91, by_hook=True)]) == [], "ids of calls that are given again and again tell nothing"
    assert left_out([event(0, 0)], [event(1, 300, by_hook=True)]) == [1], (
        "a call that is there once is the same, however late it is told"
    )


def test_one_that_contradicts_does_not_take_the_twin_of_another() -> None:
    """Of two calls of one id the second is found beside the first."""
    held = [event(0, 0, is_error=True), event(1, 1, is_error=False)]
    assert left_out(held, [event(3, 2, by_hook=True, is_error=False)]) == [3]
    assert left_out(held, [event(3, 2, by_hook=True, is_error=False), event(4, 3, by_hook=True, is_error=True)]) == [3, 4]


def test_a_twin_is_found_behind_many_that_are_too_old() -> None:
    """A tool whose calls all have one id is called hundreds of times in ten minutes."""
    held = [event(place, place, came=place, by_hook=True) for place in range(500)]
    assert twins(held, [event(900, 500)]) == {900: 440}


MOMENTS = st.lists(st.tuples(st.integers(0, 900), st.sampled_from([True, False, None])), max_size=12)


@given(held=MOMENTS, new=MOMENTS, by_hook=st.booleans())
def test_never_more_are_left_out_than_there_are_others(held: Any, new: Any, *, by_hook: bool) -> None:
    """Each event that is left out stands for one that the log has: what happened more often stays."""
    ones = [event(place, at, came=900, by_hook=by_hook, is_error=state) for place, (at, state) in enumerate(held)]
    others = [event(place, at, by_hook=not by_hook, is_error=state) for place, (at, state) in enumerate(new)]
    found = twins(ones, others)
    assert len(set(found.values())) == len(found)
    assert found == twins(ones[::-1], others[::-1])
    assert all(abs(ones[of].at - others[place].at) <= CLOCKS for place, of in found.items())
