"""Logs of `claude -p --output-format stream-json`, which some people keep instead of a transcript."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.claude_code_lines import call, text

from audit.file_kinds import detect_non_claude_code
from streams.sources.source import EVERY_SESSION, Reading, ReadingContext
from streams.sources.transcript_sources import CLAUDE_CODE

Json = dict[str, Any]
SESSION, OTHER = "0b000000-0000-4000-8000-00000000000a", "0b000000-0000-4000-8000-00000000000b"
PROMPT = "[the prompt is not in the log]"


class Log:
    """Writes the lines of runs; each has a uuid and a time unless the version is an old one."""

    def __init__(self, session: str = SESSION, *, prefix: str = "run1", has_times: bool = True) -> None:
        self.lines: list[Json] = []
        self._session, self._prefix, self._has_times = session, prefix, has_times

    def add(self, kind: str, **fields: Any) -> None:
        """Add a line."""
        number = len(self.lines)
        at = {"timestamp": f"2026-11-03T09:00:{number:02}.000Z"} if self._has_times and kind in ("assistant", "user") else {}
        ids = {"session_id": self._session, "uuid": f"{self._prefix}-{number:04}", "parent_tool_use_id": None}
        self.lines.append({"type": kind, **ids, **at, **fields})

    def begin(self) -> None:
        """Add the start of a run."""
        self.add("system", subtype="init", cwd="/srv", model="claude-x", tools=["Bash"])

    def said(self, message_id: str, *blocks: Json, **fields: Any) -> None:
        """Add a line of a message, which counts only the first of its output tokens."""
        usage = {"input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 1}
        message = {"id": message_id, "role": "assistant", "model": "claude-x", "content": list(blocks)}
        self.add("assistant", message={**message, "stop_reason": None, "usage": usage}, **fields)

    def returned(self, call_id: str, output: str, **fields: Any) -> None:
        """Add the result of a tool."""
        block = {"type": "tool_result", "tool_use_id": call_id, "content": output}
        self.add("user", message={"role": "user", "content": [block]}, **fields)

    def end(self, answer: str | None, *, is_error: bool = False, **fields: Any) -> None:
        """Add the result of a run of two messages."""
        usage = {"input_tokens": 20, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 0, "output_tokens": 40}
        result_fields = {"usage": usage, "num_turns": 2, "duration_ms": 5000, "subtype": "success", **fields}
        self.add("result", is_error=is_error, result=answer, **result_fields)

    def whole_run(self, answer: str = "Two files.") -> None:
        """Add a run with a tool call."""
        self.begin()
        self.said("msg_1", text("Let me look."), call("toolu_1", "Bash", command="ls"))
        self.returned("toolu_1", "a b")
        self.said("msg_2", text(answer))
        self.end(answer, stop_reason="end_turn")


@pytest.fixture
def later(context: ReadingContext) -> ReadingContext:
    """Return a context one day after the log was written."""
    return replace(context, ingested_at=datetime.now(UTC) + timedelta(days=1))


def _write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def _read(path: Path, context: ReadingContext) -> list[Reading]:
    return list(CLAUDE_CODE.read(path, context, EVERY_SESSION))


def _payloads(reading: Reading, kind: str) -> list[Json]:
    return [json.loads(event.payload) for event in reading.events if event.event == kind]


@pytest.mark.parametrize("has_times", [True, False])
def test_a_run_is_a_session_with_its_final_answer(tmp_path: Path, later: ReadingContext, *, has_times: bool) -> None:
    """The result has the answer and the tokens that no message counts; the prompt is missing."""
    log = Log(has_times=has_times)
    log.whole_run()
    path = _write(tmp_path / "job.jsonl", log.lines)
    run_time = datetime(2026, 11, 3, 12, tzinfo=UTC)
    os.utime(path, (run_time.timestamp(), run_time.timestamp()))
    [reading] = _read(path, later)
    assert reading.session_ids == [f"{SESSION}.run-run1-000"]
    assert reading.faults == []
    [exchange] = reading.exchanges
    assert exchange.user_message == PROMPT
    assert exchange.agent_response == "Two files."
    assert exchange.outcome == "answered"
    assert exchange.stop_reason == "end_turn"
    assert exchange.tags == ()
    assert exchange.input_tokens == 220
    assert exchange.output_tokens == 40
    assert exchange.occurred_at == (datetime(2026, 11, 3, 9, 0, 1, tzinfo=UTC) if has_times else run_time)
    assert sum(payload["usage"]["total"] for payload in _payloads(reading, "token_usage")) == 260
    assert len(_payloads(reading, "tool_call")) == len(_payloads(reading, "tool_output")) == 1
    [end] = [payload for payload in _payloads(reading, "state_transition") if payload["action"] == "run_result"]
    assert end["num_turns"] == 2
    assert end["is_error"] is False
    assert end["duration_ms"] == 5000


def test_runs_of_one_log_are_separate_sessions(tmp_path: Path, later: ReadingContext) -> None:
    """People append runs of one or several sessions to one file, some of them concurrent."""
    first, second, resumed = Log(), Log(OTHER, prefix="run2"), Log(prefix="run3")
    for log, answer in ((first, "One."), (second, "Two."), (resumed, "Three.")):
        log.whole_run(answer)
    mixed = [line for pair in zip(first.lines, second.lines, strict=True) for line in pair]
    readings = _read(_write(tmp_path / "all.jsonl", [*mixed, *resumed.lines]), later)
    answers = {reading.session_ids[0]: [exchange.agent_response for exchange in reading.exchanges] for reading in readings}
    assert answers == {
        f"{SESSION}.run-run1-000": ["One."],
        f"{OTHER}.run-run2-000": ["Two."],
        f"{SESSION}.run-run3-000": ["Three."],
    }


def test_partial_messages_add_nothing(tmp_path: Path, later: ReadingContext) -> None:
    """`--include-partial-messages` also writes each message piece by piece."""
    log = Log()
    log.begin()
    log.add("stream_event", event={"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Tw"}})
    log.said("msg_1", text("Two files."))
    log.end("Two files.")
    path = _write(tmp_path / "job.jsonl", log.lines)
    assert detect_non_claude_code(path.read_bytes()) is None
    [reading] = _read(path, later)
    assert [exchange.agent_response for exchange in reading.exchanges] == ["Two files."]
    assert reading.faults == []


def test_a_failed_run_is_an_exchange_that_ended_in_an_error(tmp_path: Path, later: ReadingContext) -> None:
    """A run may fail without a message about it."""
    log = Log()
    log.begin()
    log.said("msg_1", call("toolu_1", "Bash", command="ls"))
    log.returned("toolu_1", "a b")
    log.end(None, is_error=True, subtype="error_max_turns", errors=["Reached maximum number of turns (1)"])
    [reading] = _read(_write(tmp_path / "job.jsonl", log.lines), later)
    [exchange] = reading.exchanges
    assert exchange.agent_response == ""
    assert exchange.outcome == "error"
    assert exchange.stop_reason == "error"
    assert [payload["message"] for payload in _payloads(reading, "error_event")] == ["Reached maximum number of turns (1)"]


def test_a_failure_reported_by_a_message_is_one_error(tmp_path: Path, later: ReadingContext) -> None:
    """The result repeats what was shown instead of an answer; each retried request is a separate error."""
    log = Log()
    log.begin()
    log.add("system", subtype="api_retry", attempt=1, error_status=529, error="overloaded")
    log.said("msg_1", text("API Error: 529"), is_api_error_message=True)
    log.end("API Error: 529", is_error=True)
    [reading] = _read(_write(tmp_path / "job.jsonl", log.lines), later)
    assert [exchange.outcome for exchange in reading.exchanges] == ["error"]
    assert [payload["message"] for payload in _payloads(reading, "error_event")] == ["529 overloaded", "API Error: 529"]


def test_a_repeated_prompt_is_the_question(tmp_path: Path, later: ReadingContext) -> None:
    """With `--replay-user-messages` the program repeats the prompt."""
    log = Log()
    log.begin()
    log.add("user", message={"role": "user", "content": "How many files?"}, isReplay=True)
    log.said("msg_1", text("Two files."))
    log.end("Two files.")
    [reading] = _read(_write(tmp_path / "job.jsonl", log.lines), later)
    assert [exchange.user_message for exchange in reading.exchanges] == ["How many files?"]


def test_a_subagent_is_its_own_session_with_the_prompt_of_its_call(tmp_path: Path, later: ReadingContext) -> None:
    """Its lines are mixed with those of the agent that started it."""
    log = Log()
    log.begin()
    log.said("msg_1", call("toolu_agent", "Agent", prompt="Look around."))
    log.said("msg_h", text("Nothing here."), parent_tool_use_id="toolu_agent", agent_id="a1")
    log.returned("toolu_agent", "Nothing here.")
    log.said("msg_2", text("Nothing."))
    log.end("Nothing.")
    main, helper = _read(_write(tmp_path / "job.jsonl", log.lines), later)
    assert [(exchange.user_message, exchange.agent_response) for exchange in main.exchanges] == [(PROMPT, "Nothing.")]
    assert [(exchange.user_message, exchange.agent_response, exchange.tags) for exchange in helper.exchanges] == [
        ("Look around.", "Nothing here.", ("subagent",))
    ]
    assert helper.session_ids == [f"{main.session_ids[0]}.agent-a1"]


def test_a_log_with_only_the_result_is_an_exchange(tmp_path: Path, later: ReadingContext) -> None:
    """`--output-format json` prints only the result."""
    log = Log(has_times=False)
    log.end("Two files.")
    [reading] = _read(_write(tmp_path / "job.jsonl", log.lines), later)
    assert [(exchange.agent_response, exchange.input_tokens, exchange.output_tokens) for exchange in reading.exchanges] == [
        ("Two files.", 220, 40)
    ]


@pytest.mark.parametrize("has_times", [True, False])
def test_a_growing_log_cut_anywhere_gives_the_same_records(tmp_path: Path, context: ReadingContext, *, has_times: bool) -> None:
    """A follower reads a log while it is written; a run without times is read when it has ended."""
    soon = replace(context, ingested_at=datetime.now(UTC), session_gap=timedelta(days=365))
    first, second = Log(has_times=has_times), Log(OTHER, prefix="run2", has_times=has_times)
    first.whole_run()
    second.whole_run()
    lines = [*first.lines, "noise", *second.lines]
    path = tmp_path / "job.jsonl"
    moment = datetime(2026, 11, 3, 12, tzinfo=UTC).timestamp()

    def events_of(count: int) -> dict[str, list[Any]]:
        os.utime(_write(path, lines[:count]), (moment, moment))
        return {reading.session_ids[0]: list(reading.events) for reading in _read(path, soon) if reading.session_ids}

    complete = events_of(len(lines))
    for count in range(1, len(lines)):
        for session, events in events_of(count).items():
            assert events == complete[session][: len(events)]
            assert has_times or len(events) == len(complete[session])


def test_invalid_lines_are_dead_letters_with_their_line_number(tmp_path: Path, later: ReadingContext) -> None:
    """The log of a job may contain shell output."""
    log = Log()
    log.whole_run()
    path = _write(tmp_path / "job.jsonl", [*log.lines[:2], "npm warn old", *log.lines[2:]])
    readings = _read(path, later)
    assert [(fault.line, fault.reason) for reading in readings for fault in reading.faults] == [(3, "not_json")]
    assert [len(reading.exchanges) for reading in readings] == [1, 0]
    assert sum(len(reading.session_ids) for reading in readings) == 1


def test_logs_are_found_below_a_folder(tmp_path: Path) -> None:
    """Jobs leave them under any name."""
    log = Log()
    log.whole_run()
    path = _write(tmp_path / "job.jsonl", log.lines)
    _write(tmp_path / "other.jsonl", [{"session_id": "a", "event": "tool_call"}])
    assert CLAUDE_CODE.find(tmp_path) == [path]


def test_of_several_copies_of_a_log_the_most_complete_is_read(tmp_path: Path) -> None:
    """A copy made in the middle of a run lacks its end."""
    log = Log()
    log.whole_run()
    part, complete = _write(tmp_path / "a.jsonl", log.lines[:-2]), _write(tmp_path / "b.jsonl", log.lines)
    other = Log(OTHER, prefix="run2")
    other.whole_run()
    separate = _write(tmp_path / "c.jsonl", other.lines)
    assert CLAUDE_CODE.session_files_in(CLAUDE_CODE.find(tmp_path)) == [(complete, (part,)), (separate, ())]
