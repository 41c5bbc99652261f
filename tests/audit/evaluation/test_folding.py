"""Sessions as runs: their content and cost, which errors are resolved, and which identifiers they contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import builders

from audit.cost import ListedPrice
from audit.diagnosis.events import normalise_session
from audit.evaluation.run import (
    Artifact,
    Failure,
    Run,
    SessionRecords,
    ToolCall,
    ToolResult,
    Trace,
    Turn,
    is_recorded_as,
    normalize_path,
    run_of,
    trace_of,
)
from schemas.records import Exchange, FailureCause

OWN = {"own": ListedPrice.model_validate({"input": 1.0, "output": 10.0, "source": "own", "readOn": "2026-11-21"})}
Json = dict[str, Any]


def build_session(*events: Json, exchanges: Sequence[Exchange] = (), **fields: Any) -> SessionRecords:
    """Return the records of the session `s`, with events normalized as at ingestion."""
    payloads = [event.payload for event in normalise_session(events)]
    return SessionRecords(
        connection="conn-1", project="ops", session_id="session-1", exchanges=exchanges, events=payloads, **fields
    )


def fold_run(*events: Json, exchanges: Sequence[Exchange] = (), **fields: Any) -> Run:
    """Return the run of such a session."""
    return run_of(build_session(*events, exchanges=exchanges, **fields), OWN)


def exchange_at_minute(number: int, response: str = "Done.", **fields: object) -> Exchange:
    """Return exchange `number`, at minute `number`."""
    return builders.exchange("s", number, response, **fields)


def timestamp(minutes: float) -> str:
    """Return the timestamp of an event."""
    return (builders.START + timedelta(minutes=minutes)).isoformat()


def test_turns_are_the_exchanges_in_the_order_of_time() -> None:
    """The final answer is that of the last exchange, regardless of the order of arrival."""
    run = fold_run(
        exchanges=[exchange_at_minute(2, "B", agent_model="own"), exchange_at_minute(1, "A", agent="bot", agent_model="older")]
    )

    assert tuple(turn.agent_response for turn in run.turns) == ("A", "B")
    assert run.final_response == "B"
    assert run.status == "answered"
    assert run.agent == "bot"
    assert run.model == "own"
    assert builders.START + timedelta(minutes=1) == run.started_at
    assert builders.START + timedelta(minutes=2) == run.ended_at
    assert not run.has_events


def test_an_abandoned_branch_is_no_part_of_the_run_but_was_paid_for() -> None:
    """If a user rewrote a message, only the second answer is part of the run, but both were billed."""
    abandoned = exchange_at_minute(2, "Old", tags=("abandoned",), agent_model="own", input_tokens=100, output_tokens=1)
    current = exchange_at_minute(1, "New", agent_model="own", input_tokens=10, output_tokens=1)
    run = fold_run(
        {"event": "tool_call", "tool": "rm", "exchange_id": "s:2"},
        {"event": "error_event", "message": "no", "exchange_id": "s:2"},
        {"event": "tool_call", "tool": "ls", "exchange_id": "s:1"},
        exchanges=[abandoned, current],
    )

    assert run.turns == (Turn("Is the backup healthy?", "New", "answered"),)
    assert run.steps == (ToolCall("ls", None),)
    assert run.failures == ()
    assert run.input_tokens == 110
    assert run.output_tokens == 2
    assert run.cost_usd == 130e-6


def test_a_heartbeat_does_not_end_a_run() -> None:
    """Heartbeats wake agents long after the task; HEARTBEAT_OK is not the answer to it, unless there is nothing else."""
    heartbeat = exchange_at_minute(2, "HEARTBEAT_OK", tags=("heartbeat",))

    assert fold_run(exchanges=[exchange_at_minute(1), heartbeat]).final_response == "Done."
    assert fold_run(exchanges=[heartbeat]).final_response == "HEARTBEAT_OK"


@pytest.mark.parametrize("outcome", ["no_response", "error", "aborted"])
def test_a_run_ends_as_its_last_exchange_did(outcome: str) -> None:
    """An earlier answer does not replace it."""
    assert fold_run(exchanges=[exchange_at_minute(1), exchange_at_minute(2, "", outcome=outcome)]).status == outcome


@pytest.mark.parametrize(
    ("events", "status", "final"),
    [
        ([], "no_response", ""),
        ([{"event": "tool_call", "tool": "ls"}], "no_response", ""),
        ([{"event": "process_end", "response": "42"}], "answered", "42"),
        ([{"event": "decision", "text": "Ship it."}, {"event": "session_end"}], "answered", "Ship it."),
        ([{"event": "session_end", "status": "completed", "summary": "All done."}], "answered", "All done."),
        ([{"event": "process_end", "status": "cancelled"}], "aborted", ""),
        ([{"event": "process_end", "exit_code": 2, "output": "half"}], "error", "half"),
    ],
)
def test_a_run_without_exchanges_ends_as_its_events_say(events: list[Json], status: str, final: str) -> None:
    """Agents that only send events are evaluated as well."""
    run = fold_run(*events)

    assert run.status == status
    assert run.final_response == final


def test_calls_and_results_are_steps_in_the_order_of_the_log() -> None:
    """A result without a tool's name has the tool of its call."""
    run = fold_run(
        {"event": "tool_call", "name": "exec", "params": {"cmd": "ls"}, "tool_call_id": "k"},
        {"event": "memory_event", "action": "miss"},
        {"event": "tool_output", "tool_call_id": "k", "result": "a\nb", "status": "ignored"},
        {"event": "tool_call", "tool": "exec", "args": {}},
    )

    assert run.steps == (ToolCall("exec", {"cmd": "ls"}), ToolResult("exec", "a\nb", failed=False), ToolCall("exec", None))


@pytest.mark.parametrize(
    ("fields", "failed"),
    [
        ({"is_error": True}, True),
        ({"error": "no such file"}, True),
        ({"error": {"code": 5}}, True),
        ({"success": False}, True),
        ({"exit_code": 1}, True),
        ({"tool_status": "Failed"}, True),
        ({"status": "timeout"}, True),
        ({"is_error": False, "exit_code": 0, "error": None, "status": "ok", "success": True}, False),
        ({"is_error": "yes", "error": "", "exit_code": "1"}, False),
        ({"status": "ignored", "used": False}, False),
    ],
)
def test_a_result_says_whether_it_failed(fields: Json, *, failed: bool) -> None:
    """A flag of the wrong type is ignored, and an unused output is not a failure."""
    (result,) = fold_run({"event": "tool_output", "tool": "t", **fields}).steps

    assert isinstance(result, ToolResult)
    assert result.failed == failed


ERROR: Json = {"event": "error_event", "message": "overloaded"}
TOOL_ERROR: Json = {"event": "error_event", "tool": "exec", "error": {"message": "no disk"}}


@pytest.mark.parametrize(
    ("events", "is_resolved"),
    [
        ([ERROR], False),
        ([ERROR, {"event": "retry_event"}], False),
        ([ERROR, {"event": "retry_event"}, {"event": "tool_call", "tool": "ls"}], True),
        ([ERROR, {"event": "tool_output", "tool": "ls", "result": "a"}], True),
        ([ERROR, {"event": "tool_output", "tool": "ls", "is_error": True}], False),
        ([ERROR, {"event": "token_usage", "tokens": 1}], False),
        ([{"event": "tool_call", "tool": "ls"}, ERROR], False),
        ([{**ERROR, "recovered": True}], True),
        ([TOOL_ERROR, {"event": "tool_call", "tool": "exec"}], False),
        ([TOOL_ERROR, {"event": "tool_output", "tool": "ls", "result": "a"}], False),
        ([TOOL_ERROR, {"event": "tool_output", "tool": "exec", "is_error": True}], False),
        ([TOOL_ERROR, {"event": "tool_output", "tool": "exec", "result": "a"}], True),
    ],
)
def test_an_error_is_a_failure_unless_the_run_recovers(events: list[Json], *, is_resolved: bool) -> None:
    """A resolved error blocked nothing; a tool that never worked again did."""
    expected = [Failure("error_event", "exec: no disk" if TOOL_ERROR in events else "overloaded")]

    assert list(fold_run(*events).failures) == ([] if is_resolved else expected)


@pytest.mark.parametrize(
    ("error", "outcomes", "is_resolved"),
    [
        ({**ERROR, "timestamp": timestamp(1.5)}, ["answered"], True),
        ({**ERROR, "timestamp": timestamp(1.5)}, ["answered", "no_response"], True),
        ({**ERROR, "timestamp": timestamp(2.5)}, ["answered", "no_response"], False),
        ({**ERROR, "timestamp": timestamp(1.5)}, ["no_response", "answered"], True),
        ({**ERROR, "timestamp": timestamp(2.5), "exchange_id": "s:1"}, ["answered", "no_response"], True),
        (ERROR, ["answered", "no_response"], False),
        (ERROR, ["no_response", "answered"], True),
        ({**TOOL_ERROR, "timestamp": timestamp(1.5)}, ["answered"], False),
    ],
)
def test_an_answer_resolves_the_error_before_it(error: Json, outcomes: list[str], *, is_resolved: bool) -> None:
    """A question that was answered on the second try was not blocked; the judge decides whether a missing tool matters."""
    exchanges = [exchange_at_minute(number, outcome=outcome) for number, outcome in enumerate(outcomes, start=1)]

    assert (not fold_run(error, exchanges=exchanges).failures) == is_resolved


def test_a_run_that_ends_in_an_error_has_one_failure() -> None:
    """The judge must learn of a bad end even without an event; with one, it is listed once."""
    broken = exchange_at_minute(1, "", outcome="error")

    assert fold_run(exchanges=[broken]).failures == (Failure("error", "The run ended in an error."),)
    assert fold_run(ERROR, exchanges=[broken]).failures == (Failure("error_event", "overloaded"),)
    assert fold_run({"event": "process_end", "exit_code": 3}).failures == (Failure("process_end", "ended with exit code 3"),)


def test_causes_of_the_diagnosis_are_failures() -> None:
    """They follow the errors of the run itself."""
    cause = FailureCause(
        type="infinite_tool_loop",
        severity="high",
        impact_score=-20,
        causal_chain=(),
        description="Tool call repeated 3 times.",
        evidence_count=1,
        evidence=(),
        remediation="Cap retries.",
    )

    assert fold_run(ERROR, failure_causes=[cause]).failures == (
        Failure("error_event", "overloaded"),
        Failure("infinite_tool_loop", "Tool call repeated 3 times."),
    )


def test_the_last_content_of_an_artifact_counts() -> None:
    """Paths are normalized; an event without content keeps the earlier one; a deletion removes the artifact."""
    run = fold_run(
        {"event": "artifact", "path": "./a.md", "content": "one", "excerpt": "o"},
        {"event": "artifact", "path": "gone", "text": "x"},
        {"event": "artifact", "path": "b.json", "content": {"k": [1]}},
        {"event": "artifact", "path": "a.md", "excerpt": "two"},
        {"event": "artifact", "path": ".\\a.md"},
        {"event": "artifact", "path": "gone", "action": "Deleted"},
        {"event": "artifact", "content": "of nothing"},
    )

    assert run.artifacts == (Artifact("b.json", '{"k":[1]}'), Artifact(".\\a.md", "two"))


def usage(input_tokens: int, output_tokens: int, **fields: Any) -> Json:
    """Return a token_usage event."""
    return {"event": "token_usage", "usage": {"input": input_tokens, "output": output_tokens, **fields}}


KNOWN = {"agent_model": "own", "input_tokens": 1000, "output_tokens": 10}


@pytest.mark.parametrize(
    ("exchanges", "events", "expected"),
    [
        ([], [], (None, None, None, None)),
        ([KNOWN, KNOWN], [], (2000, 20, 2020, 2200e-6)),
        ([KNOWN, {"agent_model": "own"}], [], (None, None, None, None)),
        ([KNOWN, {"agent_response": "", "outcome": "no_response"}], [], (1000, 10, 1010, 1100e-6)),
        ([{**KNOWN, "agent_model": "unheard-of"}], [], (1000, 10, 1010, None)),
        ([{}], [usage(5, 2), usage(3, 1)], (8, 3, 11, None)),
        ([{}], [{**usage(5, 2), "model": "own"}], (5, 2, 7, 25e-6)),
        ([{}], [usage(5, 2), {"event": "token_usage", "usage": {"total": 9}}], (None, None, 16, None)),
        ([{}], [usage(5, 2), {"event": "token_usage"}], (None, None, None, None)),
        ([KNOWN], [usage(100, 10, cache_read=900)], (1000, 10, 1010, (100 + 90 + 100) * 1e-6)),
        ([KNOWN], [usage(100, 1)], (1000, 10, 1010, 1100e-6)),
        ([{**KNOWN, "agent_model": "unheard-of"}], [usage(1000, 10, cost_usd=0.5)], (1000, 10, 1010, 0.5)),
        ([{**KNOWN, "agent_model": "unheard-of"}], [usage(1000, 10, cost_usd=0)], (1000, 10, 1010, None)),
        ([{**KNOWN, "agent_model": "unheard-of"}], [usage(9, 1, cost_usd=0.5), usage(991, 9)], (1000, 10, 1010, None)),
    ],
)
def test_the_usage_of_a_run_is_complete_or_unknown(
    exchanges: list[Json], events: list[Json], expected: tuple[int | None, int | None, int | None, float | None]
) -> None:
    """A partial cost would make a run look cheap, and tokens from the prompt cache cost a tenth."""
    numbered_exchanges = [
        exchange_at_minute(number, **{"response": "Done.", **_renamed(fields)})
        for number, fields in enumerate(exchanges, start=1)
    ]
    run = fold_run(*events, exchanges=numbered_exchanges)

    input_tokens, output_tokens, total_tokens, cost_usd = expected
    assert run.input_tokens == input_tokens
    assert run.output_tokens == output_tokens
    assert run.total_tokens == total_tokens
    assert run.cost_usd == (None if cost_usd is None else pytest.approx(cost_usd, abs=1e-12))


def test_the_usage_of_a_truncated_run_is_unknown() -> None:
    """The unread part cost money as well."""
    run = fold_run(exchanges=[exchange_at_minute(1, **KNOWN)], is_whole=False)

    assert run.total_tokens is None
    assert run.cost_usd is None
    assert run.is_whole is False


def _renamed(fields: Json) -> Json:
    return {"response" if name == "agent_response" else name: value for name, value in fields.items()}


def test_names_of_machines_are_collected_at_every_depth() -> None:
    """An identifier that is not collected here may reach the judge inside a text."""
    run = fold_run(
        {"event": "session_start", "event_id": "ev-77", "hostname": "build-7.internal", "cwd": "/srv/agents/bot"},
        {"event": "x", "container": {"id": "3f2a9c", "name": "runner-1", "labels": {"team": "platform-team"}}},
        {"event": "x", "meta": [{"runId": "run_123", "Image-Name": "ghcr.io/a/b:1"}], "request_id": 1234567},
        {"event": "x", "trace_id": ["aaaa-1", "bbbb-2"], "pod": None, "span_id": 12, "host": "local"},
        exchanges=[exchange_at_minute(1, exchange_id="exchange:1")],
    )

    assert run.identifiers == {
        "conn-1", "session-1", "exchange:1", "ev-77", "build-7.internal", "/srv/agents/bot", "3f2a9c", "runner-1", "run_123",
        "ghcr.io/a/b:1", "1234567", "aaaa-1", "bbbb-2",
    }  # fmt: skip


def test_a_run_starts_and_ends_with_its_first_and_last_record() -> None:
    """An idle session is closed long after its end, so the closing time is not the run's. An invalid time is ignored."""
    late = datetime(2026, 12, 1, tzinfo=UTC)
    run = fold_run(
        {"event": "x", "timestamp": timestamp(9)},
        {"event": "x", "timestamp": "soon"},
        exchanges=[exchange_at_minute(1)],
        closed_at=late,
    )
    silent = fold_run({"event": "x"}, closed_at=late)

    assert builders.START + timedelta(minutes=1) == run.started_at
    assert builders.START + timedelta(minutes=9) == run.ended_at
    assert silent.started_at is None
    assert silent.ended_at == late


def test_folding_is_linear_in_the_number_of_errors() -> None:
    """An agent whose calls all fail, ten thousand times, must not delay the evaluation of others."""
    broken = [{"event": "error_event", "tool": f"t{number}", "message": "no"} for number in range(10_000)]
    calls = [{"event": "tool_call", "tool": "ls"} for _ in range(10_000)]
    start = process_time()

    run = fold_run(*broken, *calls, exchanges=[exchange_at_minute(number) for number in range(1_000)])

    assert len(run.failures) == 10_000
    assert process_time() - start < 10


texts = st.text(st.characters(codec="utf-8"), max_size=8)
words = st.sampled_from(["a", "exec", "ls", "./a", "failed", "answered", "s:1", "", "2026-10-01T09:05:00+00:00"]) | texts
values = st.recursive(
    words | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("tool", "name", "args", "result", "error", "exit_code", "status", "message", "path", "content", "exchange_id", "timestamp", "usage", "tool_call_id", "response", "host", "action", "recovered", "model", "agent")  # fmt: skip
TYPES = ("tool_call", "tool_output", "artifact", "error_event", "retry_event", "decision", "process_end", "session_end", "token_usage", "session_start")  # fmt: skip
events = st.lists(
    st.builds(lambda kind, fields: {**fields, "event": kind}, st.sampled_from(TYPES), st.dictionaries(st.sampled_from(FIELDS), values, max_size=6)),
    max_size=10,
)  # fmt: skip
exchanges = st.lists(
    st.builds(
        lambda number, response, outcome, tags: exchange_at_minute(number, response, outcome=outcome, tags=tags),
        st.integers(0, 9),
        words,
        st.sampled_from(["answered", "no_response", "error", "aborted", "something_new"]),
        st.sampled_from([(), ("abandoned",), ("heartbeat",)]),
    ),
    max_size=4,
    unique_by=lambda exchange: exchange.exchange_id,
)


@settings(deadline=None)
@given(events, exchanges, st.randoms(use_true_random=False))
def test_folding_never_raises_and_ignores_the_order_of_exchanges(
    given_events: list[Json], given_exchanges: list[Exchange], chance: Any
) -> None:
    """Events may have any fields, and tables return exchanges in any order."""
    shuffled = list(given_exchanges)
    chance.shuffle(shuffled)

    run = fold_run(*given_events, exchanges=given_exchanges)

    assert run == fold_run(*given_events, exchanges=shuffled)
    assert run.status == (run.turns[-1].status if run.turns else run.status)
    assert run.final_response == (run.turns[-1].agent_response if run.turns else "")


@settings(deadline=None)
@given(events, st.integers(0, 10))
def test_events_may_come_in_parts(given_events: list[Json], cut: int) -> None:
    """Reading a log at once or in batches gives the same run."""
    payloads: list[Mapping[str, Any]] = [event.payload for event in normalise_session(given_events)]
    parts = Trace()
    for part in (payloads[:cut], payloads[cut:]):
        for event in part:
            parts.take(event)

    assert trace_of(iter(payloads)) == parts


names = st.lists(st.sampled_from(["a", "b.md", "..a", "c d"]), min_size=1, max_size=3)


@settings(deadline=None)
@given(names, st.sampled_from(["", "./", "x/../", ".//"]), st.sampled_from(["/", "\\", "/./"]))
def test_a_path_is_the_same_however_it_is_written(parts: list[str], start: str, slash: str) -> None:
    """The case is written on one machine, the artifact recorded on another."""
    path, variant = "/".join(parts), start + slash.join(parts)

    assert normalize_path(path) == normalize_path(variant)
    assert is_recorded_as(variant, path)
    assert is_recorded_as(variant, f"/home/joe/{path}")
    assert is_recorded_as(variant, f"D:\\work\\{path}")
    assert not is_recorded_as(variant, f"other/{path}")
    assert not is_recorded_as(f"/srv/{path}", path)
