"""The trajectory adds what the transcript lacks, once, and nothing that the transcript has."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.bounds import MAX_ID
from streams.sources.openclaw.reader import find_transcripts, read_transcript
from streams.sources.openclaw.storage import read_database
from streams.sources.source import Reading, ReadingContext

START = datetime(2026, 11, 3, 9, 0, tzinfo=UTC)
MODEL = {"provider": "anthropic", "modelId": "claude-sonnet-5-5"}
USAGE = {"input": 100, "output": 10, "cacheRead": 900, "cacheWrite": 0}
Json = dict[str, Any]


def at(seconds: float) -> str:
    """Return a time in the session."""
    return (START + timedelta(seconds=seconds)).isoformat()


def told(kind: str, seconds: float, *, run: str = "run-1", **data: Any) -> Json:
    """Return a line of a trajectory."""
    return {"type": kind, "ts": at(seconds), "runId": run, **MODEL, "data": data}


def run_of(*events: Json, run: str = "run-1", start: float = 1, end: float = 9, **ended: Any) -> list[Json]:
    """Return a whole run: its first line, these lines, and its last."""
    first, last = told("session.started", start, run=run), told("session.ended", end, run=run, **{"status": "success", **ended})
    return [first, *events, last]


def message(name: str, seconds: float, role: str, run: str | None = "run-1", **body: Any) -> Json:
    """Return a message of a transcript; `run` is its run id."""
    content = {"role": role, "content": [{"type": "text", "text": name}], **body}
    if run is not None:
        content["__openclaw"] = {"runId": run}
    return {"type": "message", "id": name, "timestamp": at(seconds), "message": content}


HEADER = {"type": "session", "version": 3, "id": "s-1", "timestamp": at(0)}
QUESTION = message("q", 1, "user", None)
ANSWER = message("a", 8, "assistant", stopReason="stop", usage=USAGE)


def read(
    folder: Path,
    context: ReadingContext,
    transcript: Sequence[Json],
    trajectory: Iterable[Json | str],
    entry: Json | None = None,
) -> Reading:
    """Return the reading of a transcript with a trajectory, and a conversation entry, beside it."""
    sessions = folder / "agents" / "ops" / "sessions"
    sessions.mkdir(parents=True, exist_ok=True)
    lines = [line if isinstance(line, str) else json.dumps(line, separators=(",", ":")) for line in trajectory]
    (sessions / "s-1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in transcript), "utf-8")
    (sessions / "s-1.trajectory.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    if entry is not None:
        (sessions / "sessions.json").write_text(json.dumps({"agent:ops:main": {"sessionId": "s-1", **entry}}), "utf-8")
    (file,) = find_transcripts(folder)
    return read_transcript(file, context)


def added(reading: Reading) -> list[Json]:
    """Return the payloads of the events that come from the trajectory."""
    payloads = (json.loads(event.payload) for event in reading.events)
    return [payload for payload in payloads if payload.get("told_by") == "trajectory"]


def kinds(reading: Reading) -> list[tuple[str, str | None]]:
    """Return type and action of these events."""
    return [(payload["event"], payload.get("action")) for payload in added(reading)]


def test_entries_in_both_accounts_count_once(tmp_path: Path, context: ReadingContext) -> None:
    """The trajectory of a healthy run must not change any count."""
    call = message("c", 2, "assistant", stopReason="toolUse", usage=USAGE)
    call["message"]["content"] = [{"type": "toolCall", "id": "t-1", "name": "exec", "arguments": {"command": "ls"}}]
    result = message("r", 4, "toolResult", toolCallId="t-1", toolName="exec")
    both = {"input": 200, "output": 20, "cacheRead": 1800, "cacheWrite": 0}
    trajectory = run_of(
        told("tool.call", 2, toolCallId="t-1", name="exec", args={"command": "ls"}),
        told("tool.result", 4, toolCallId="t-1", name="exec", success=True, result={"content": []}),
        told("model.completed", 8, stopReason="stop", usage=both),
    )
    assert added(read(tmp_path, context, [HEADER, QUESTION, call, result, ANSWER], trajectory)) == []


def test_a_call_missing_in_the_transcript_is_added_with_its_result(tmp_path: Path, context: ReadingContext) -> None:
    """A gateway killed during a run may have recorded its calls in only one of the two."""
    trajectory = run_of(
        told("tool.call", 2, toolCallId="t-1", name="memory_search", args={"query": "zebra"}),
        told("tool.result", 4, toolCallId="t-1", name="memory_search", success=True, result={"details": {"results": []}}),
    )
    call, output, memory = added(read(tmp_path, context, [HEADER, QUESTION], trajectory))
    assert call["event"] == "tool_call"
    assert call["tool"] == "memory_search"
    assert call["arguments"] == {"query": "zebra"}
    assert output["event"] == "tool_output"
    assert output["is_error"] is False
    assert output["tool_call_id"] == "t-1"
    assert memory["event"] == "memory_event"
    assert memory["action"] == "miss"
    assert {payload["source"] for payload in (call, output, memory)} == {"openclaw"}


def test_a_call_inside_a_wrapped_one_is_that_of_the_transcript(tmp_path: Path, context: ReadingContext) -> None:
    """The trajectory has both the wrapper's call and the inner call; the transcript's is already unwrapped."""
    call = message("c", 2, "assistant", stopReason="toolUse", usage=USAGE)
    wrapped = {"id": "memory_search", "args": {"query": "zebra"}}
    call["message"]["content"] = [{"type": "toolCall", "id": "t-1", "name": "tool_call", "arguments": wrapped}]
    result = message("r", 4, "toolResult", toolCallId="t-1", toolName="tool_call")
    inner = "tool_search_code:t-1:memory_search:1"
    trajectory = run_of(
        told("tool.call", 2, toolCallId="t-1", name="tool_call", args=wrapped),
        told("tool.call", 2, toolCallId=inner, name="memory_search", args=wrapped["args"]),
        told("tool.result", 3, toolCallId=inner, name="memory_search", success=True, result={}),
        told("tool.result", 3, toolCallId="t-1", name="tool_call", success=True, result={}),
    )
    assert added(read(tmp_path, context, [HEADER, QUESTION, call, result, ANSWER], trajectory)) == []


@pytest.mark.parametrize(
    ("end", "action"),
    [
        ({"aborted": True}, "aborted"),
        ({"externalAbort": True}, "aborted"),
        ({"aborted": True, "timedOut": True}, "timed_out"),
        ({"idleTimedOut": True}, "timed_out"),
        ({"timedOutDuringToolExecution": True}, "timed_out"),
        ({"timedOutByRunBudget": True}, "timed_out"),
    ],
    ids=str,
)
def test_an_interrupted_run_is_a_failure_even_without_a_trace_in_the_transcript(
    end: Json, action: str, tmp_path: Path, context: ReadingContext
) -> None:
    """A run without any trace in the transcript is the one to look for."""
    (failure,) = added(read(tmp_path, context, [HEADER, QUESTION], run_of(**end)))
    assert failure["event"] == "error_event"
    assert failure["action"] == action
    assert failure["run_id"] == "run-1"


@pytest.mark.parametrize("stop", ["aborted", "error"])
def test_a_failure_in_the_transcript_is_not_reported_again(stop: str, tmp_path: Path, context: ReadingContext) -> None:
    """One timeout is one failure."""
    entry = message("a", 9, "assistant", stopReason=stop)
    assert added(read(tmp_path, context, [HEADER, QUESTION, entry], run_of(aborted=True, timedOut=True))) == []


def test_retried_requests_are_failures_and_retries(tmp_path: Path, context: ReadingContext) -> None:
    """Since 2026.9 the transcript has only the last attempt: an overloaded provider would look healthy."""
    failed = [{"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "529 overloaded"}]
    trajectory = run_of(
        told("model.completed", 2, stopReason="error", messagesSnapshot=failed),
        told("session.started", 4),
        told("model.completed", 8, stopReason="stop", usage=USAGE),
    )
    reading = read(tmp_path, context, [HEADER, QUESTION, ANSWER], trajectory)
    assert kinds(reading) == [("error_event", "error"), ("retry_event", "retry")]
    assert added(reading)[0]["message"] == "529 overloaded"


def test_usage_missing_in_the_transcript_is_added(tmp_path: Path, context: ReadingContext) -> None:
    """Paid requests count, whether or not their answer was kept."""
    more = {"input": 150, "output": 30, "cacheRead": 1900, "cacheWrite": 5}
    trajectory = run_of(told("model.completed", 8, stopReason="stop", usage=more))
    (usage,) = added(read(tmp_path, context, [HEADER, QUESTION, ANSWER], trajectory))
    assert usage["usage"] == {"input": 50, "cache_read": 1000, "cache_write": 5, "output": 20, "total": 1075}


def test_messages_without_a_run_are_matched_by_their_times(tmp_path: Path, context: ReadingContext) -> None:
    """Before 2026.9 messages have no run id."""
    answers = [message(f"a{number}", 8 + 20 * number, "assistant", None, stopReason="stop", usage=USAGE) for number in (0, 1)]
    trajectory = run_of(told("model.completed", 8, stopReason="stop", usage=USAGE)) + run_of(
        told("model.completed", 28, run="run-2", stopReason="stop", usage=USAGE), run="run-2", start=21, end=29
    )
    questions = [QUESTION, message("q2", 21, "user", None)]
    lines = [HEADER, questions[0], answers[0], questions[1], answers[1]]
    assert added(read(tmp_path, context, lines, trajectory)) == []


@pytest.mark.parametrize(
    ("tokens", "entry", "expected"),
    [
        (60_000, {"contextTokens": 100_000}, 60.0),
        (49_900, {"contextTokens": 100_000}, None),
        (60_000, {}, None),
        (60_000, {"contextTokens": "100000"}, None),
        (60_000, {"contextTokens": 100_000, "model": "another"}, None),
        (120_000, {"contextTokens": 100_000}, None),
    ],
)
def test_the_fill_of_a_context_is_reported_if_both_figures_are_known(
    tokens: int, entry: Json, expected: float | None, tmp_path: Path, context: ReadingContext
) -> None:
    """A guessed window would report nearly empty contexts as full."""
    cache = {"lastCallUsage": {"contextUsage": {"promptTokens": tokens}}}
    trajectory = run_of(told("model.completed", 8, stopReason="stop", promptCache=cache))
    model = {"modelProvider": "anthropic", "model": "claude-sonnet-5-5"}
    reading = read(tmp_path, context, [HEADER, QUESTION, ANSWER], trajectory, model | entry)
    assert [event.saturation for event in reading.events if event.saturation] == ([] if expected is None else [expected])


def test_the_skills_of_a_session_are_listed_once_per_set(tmp_path: Path, context: ReadingContext) -> None:
    """An unused skill can only be detected if it is known to be available."""
    sets = [["deploy", "backup"], ["backup", "deploy"], ["deploy"]]
    trajectory = [
        line
        for number, names in enumerate(sets)
        for line in run_of(
            told("trace.metadata", 1, run=f"run-{number}", skills={"entries": [{"name": name} for name in names]}),
            run=f"run-{number}",
        )
    ]
    payloads = added(read(tmp_path, context, [HEADER, QUESTION, ANSWER], trajectory))
    assert [payload["skills"] for payload in payloads] == [["backup", "deploy"], ["deploy"]]
    assert {payload["event"] for payload in payloads} == {"skills_available"}


def test_an_entrys_snapshot_gives_the_skills_of_a_shortened_trajectory(tmp_path: Path, context: ReadingContext) -> None:
    """OpenClaw drops lists from a line that is too long."""
    trajectory = run_of(told("trace.metadata", 1, skills="[Truncated]"))
    entry = {"skillsSnapshot": {"skills": [{"name": "deploy"}]}}
    (payload,) = added(read(tmp_path, context, [HEADER, QUESTION, ANSWER], trajectory, entry))
    assert payload["skills"] == ["deploy"]


def test_a_run_waits_for_its_transcript(tmp_path: Path, context: ReadingContext) -> None:
    """The trajectory may be ahead of the transcript: entries about to be written must not count twice."""
    trajectory = run_of(aborted=True)
    soon = replace(context, ingested_at=START + timedelta(seconds=30))
    reading = read(tmp_path, soon, [HEADER, QUESTION], trajectory)
    assert added(reading) == []
    assert reading.complete is False
    later = replace(context, ingested_at=START + timedelta(minutes=2))
    assert kinds(read(tmp_path, later, [HEADER, QUESTION], trajectory)) == [("error_event", "aborted")]


def test_records_stay_the_same_as_the_files_grow(tmp_path: Path, context: ReadingContext) -> None:
    """Importing again must change nothing: ids and contents depend only on the run."""
    first = run_of(
        told("tool.call", 2, toolCallId="t-1", name="exec", args={}), told("model.completed", 8, usage=USAGE), aborted=True
    )
    second = run_of(run="run-2", start=100, end=110, timedOut=True)
    early = added(read(tmp_path, context, [HEADER, QUESTION], first))
    late = added(read(tmp_path, context, [HEADER, QUESTION, message("q2", 99, "user", None)], [*first, *second]))
    assert early == late[: len(early)]
    assert len(late) == len({payload["event_id"] for payload in late})


@pytest.mark.parametrize("run", ["r" * 10_000, "ä" * 250], ids=["long", "letters"])
def test_run_ids_of_any_length_give_valid_ids(run: str, tmp_path: Path, context: ReadingContext) -> None:
    """Clients choose run ids."""
    reading = read(tmp_path, context, [HEADER, QUESTION], run_of(run=run, aborted=True))
    assert kinds(reading) == [("error_event", "aborted")]
    assert all(len(event.event_id) <= MAX_ID for event in reading.events)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "trajectory_not_json"),
        ('{"type":"session.ended","runId":"r","data":[]}', "trajectory_wrong_type"),
        ('{"type":"session.ended","runId":"r","ts":"never","data":{}}', "trajectory_bad_timestamp"),
    ],
)
def test_a_damaged_line_is_reported_and_affects_no_other(
    line: str, reason: str, tmp_path: Path, context: ReadingContext
) -> None:
    """Malformed lines are counted, never ignored."""
    reading = read(tmp_path, context, [HEADER, QUESTION], [line, *run_of(aborted=True)])
    assert [fault.reason for fault in reading.faults] == [reason]
    assert kinds(reading) == [("error_event", "aborted")]


def test_prompts_are_never_read(tmp_path: Path, context: ReadingContext) -> None:
    """They are most of a trajectory, and hold everything that the agent knows."""
    huge = '{"type":"context.compiled","data":' + "x" * 1000
    assert read(tmp_path, context, [HEADER, QUESTION, ANSWER], [huge, *run_of()]).faults == []


def test_database_rows_are_read_like_lines_of_a_file(tmp_path: Path, context: ReadingContext) -> None:
    """The storage form must not change the records."""
    trajectory = run_of(told("prompt.submitted", 1), told("model.completed", 8, usage=USAGE), aborted=True)
    expected = added(read(tmp_path / "files", context, [HEADER, QUESTION], trajectory))
    path = tmp_path / "agents" / "ops" / "agent" / "openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("transcript_events", "trajectory_runtime_events"):
            connection.execute(f"CREATE TABLE {table} (session_id TEXT, seq INTEGER, event_json TEXT)")
        for table, lines in (("transcript_events", [HEADER, QUESTION]), ("trajectory_runtime_events", trajectory)):
            rows = [("s-1", seq, json.dumps(line, separators=(",", ":"))) for seq, line in enumerate(lines)]
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
    (reading,) = read_database(path, context)
    assert added(reading) == expected
