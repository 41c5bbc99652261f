"""Codex rollouts as exchanges and events."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.codex_lines import SESSION, Lines, everything, exec_output

from schemas.errors import InputError
from streams.sources.codex import CodexDialect, find_codex, read_codex
from streams.sources.lines import read_lines
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext
from streams.sources.zstd import zstd

Read = Callable[[Sequence[Any]], Reading]


@pytest.fixture
def read_rollout(context: ReadingContext) -> Read:
    """Read lines as one rollout."""

    def reader(lines: Sequence[Any]) -> Reading:
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        return read_session(read_lines(io.BytesIO(body)), context, session_id="file", agent=None, dialect=CodexDialect())

    return reader


def _payloads(reading: Reading, event: str) -> list[dict[str, Any]]:
    return [json.loads(record.payload) for record in reading.events if record.event == event]


def test_a_rollout_gives_these_exchanges(read_rollout: Read) -> None:
    """Each question has its answer; a turn that the program started itself is tagged."""
    reading = read_rollout(everything())
    assert reading.session_ids == [SESSION]
    assert reading.faults == []
    assert [
        (exchange.user_message, exchange.agent_response, exchange.outcome, exchange.tags) for exchange in reading.exchanges
    ] == [
        ("Is the backup healthy?", "No: the disk is full.", "answered", ()),
        ("And db3?", "It is fine.", "answered", ()),
        ("<goal_context>go on</goal_context>", "I go on.", "answered", ("internal",)),
        ("Stop.", "", "aborted", ()),
        ("Again?", "", "error", ()),
    ]
    assert reading.exchanges[0].agent_thinking == "Look at the log."
    assert [exchange.agent_model for exchange in reading.exchanges[:2]] == ["gpt-x", "gpt-y"]
    assert [exchange.stop_reason for exchange in reading.exchanges] == ["stop", "stop", "stop", "aborted", "error"]


def test_every_event_names_its_source_and_its_exchange(read_rollout: Read) -> None:
    """Thresholds depend on the source, and costs on the exchange."""
    reading = read_rollout(everything())
    ids = {exchange.exchange_id for exchange in reading.exchanges}
    payloads = [json.loads(event.payload) for event in reading.events]
    assert {payload["source"] for payload in payloads} == {"codex"}
    assert ids == {payload["exchange_id"] for payload in payloads if "exchange_id" in payload}
    assert [payload["event"] for payload in payloads if "exchange_id" not in payload][:1] == ["state_transition"]
    assert len(payloads) == len({event.event_id for event in reading.events})


def test_a_repeated_usage_counts_once(read_rollout: Read) -> None:
    """The program repeats the last count with each tool output."""
    reading = read_rollout(everything())
    assert [payload["usage"]["total"] for payload in _payloads(reading, "token_usage")] == [110, 220, 330, 165, 176]
    first = _payloads(reading, "token_usage")[0]["usage"]
    assert first == {"input": 50, "cache_read": 50, "cache_write": 0, "output": 10, "total": 110}
    assert reading.exchanges[0].input_tokens == 300
    assert reading.exchanges[0].output_tokens == 30


@pytest.mark.parametrize("order", ["record first", "count first", "two at once", "records alone"])
def test_a_response_reported_by_two_kinds_of_lines_counts_once(read_rollout: Read, order: str) -> None:
    """Newer versions write a record of each response beside the count, and may drop the count."""
    lines = Lines()
    lines.turn("Which port?")
    lines.said("8080.")
    responses = [(100, 10), (40, 4)]
    if order == "two at once":
        for input_tokens, output_tokens in responses:
            _record_usage(lines, input_tokens, output_tokens)
        for input_tokens, output_tokens in responses:
            lines.usage(input_tokens, output_tokens)
    else:
        for input_tokens, output_tokens in responses:
            if order == "count first":
                lines.usage(input_tokens, output_tokens)
            _record_usage(lines, input_tokens, output_tokens)
            _record_usage(lines, input_tokens, output_tokens)  # with the same id
            if order == "record first":
                lines.usage(input_tokens, output_tokens)
    reading = read_rollout(lines.lines)
    assert reading.faults == []
    assert [payload["usage"]["total"] for payload in _payloads(reading, "token_usage")] == [110, 44]
    assert reading.exchanges[0].input_tokens == 140
    assert reading.exchanges[0].output_tokens == 14


def test_the_request_of_a_compaction_counts(read_rollout: Read) -> None:
    """No count includes it although it is the largest request; it appeared to be free."""
    lines = Lines()
    lines.turn("Which port?")
    lines.said("8080.")
    _record_usage(lines, 100, 10)
    lines.usage(100, 10)
    _record_usage(lines, 900, 90)
    lines.add("compacted", message="", replacement_history=[])
    reading = read_rollout(lines.lines)
    assert [payload["usage"]["total"] for payload in _payloads(reading, "token_usage")] == [110, 990]


def _record_usage(lines: Lines, read: int, written: int) -> None:
    usage = {"input_tokens": read, "cached_input_tokens": read // 2, "output_tokens": written, "total_tokens": read + written}
    lines.add("token_usage_record", response_id=f"resp_{read}", turn_id="t", usage=usage, turn_token_usage=usage)


def test_the_fill_of_the_context_is_a_percentage(read_rollout: Read) -> None:
    """It is the last usage relative to the window in the rollout."""
    reading = read_rollout(everything())
    fills = [event.saturation for event in reading.events if event.event == "context_event"]
    assert fills == [11.0, 22.0, 33.0, None, 16.5, 17.6]
    compaction = next(payload for payload in _payloads(reading, "context_event") if payload["action"] == "compaction")
    assert compaction["tokens_before"] == 330
    assert compaction["summary"] == "So far: the disk is full."


def test_a_finished_command_has_its_exit_code_and_duration(read_rollout: Read) -> None:
    """What the program reports about a command takes precedence over the output for the model."""
    outputs = _payloads(read_rollout(everything()), "tool_output")
    assert [(output["tool"], output["is_error"], output["exit_code"], output.get("duration_ms")) for output in outputs] == [
        ("exec_command", True, 3, 1500.0),
        ("apply_patch", False, 0, None),
    ]
    assert [output["result"] for output in outputs] == ["ERROR: disk full", "ok"]


@pytest.mark.parametrize(
    ("output", "is_error", "code"),
    [
        (exec_output(0, "fine"), False, 0),
        (exec_output(2, "bad"), True, 2),
        ("unsupported call: no_such_tool", True, None),
        ("Process exited with code 7", False, None),
        ({"content": "no", "success": False}, True, None),
        ([{"type": "input_text", "text": "fine"}], False, None),
        (None, False, None),
    ],
)
def test_without_a_report_the_output_shows_whether_the_call_failed(
    read_rollout: Read, output: Any, is_error: bool, code: int | None
) -> None:
    """Without the program's report, the head of the output decides; its text proves nothing."""
    lines = Lines()
    lines.turn("Well?")
    lines.call("c1", "exec_command", cmd="x")
    lines.output("c1", output)
    outputs = _payloads(read_rollout(lines.lines), "tool_output")
    assert [(output["is_error"], output.get("exit_code")) for output in outputs] == [(is_error, code)]


def test_a_tools_namespace_is_part_of_its_name(read_rollout: Read) -> None:
    """Two servers may have a tool of the same name."""
    lines = Lines()
    lines.turn("Well?")
    lines.item("function_call", call_id="c1", name="spawn_agent", namespace="multi_agent_v1", arguments="{not json")
    call = _payloads(read_rollout(lines.lines), "tool_call")[0]
    assert call["tool"] == "multi_agent_v1.spawn_agent"
    assert call["arguments"] == "{not json"


def test_a_failure_ends_in_an_error_and_the_next_request_is_a_retry(read_rollout: Read) -> None:
    """A turn that reports its failure twice has one error."""
    lines = Lines()
    lines.turn("Well?")
    lines.event("error", message="502")
    lines.event("task_complete", error={"message": "502"})
    reading = read_rollout(everything())
    assert [payload["message"] for payload in _payloads(reading, "error_event")] == ["503", "interrupted", "400 scripted"]
    assert len(_payloads(reading, "retry_event")) == 1
    assert [payload["message"] for payload in _payloads(read_rollout(lines.lines), "error_event")] == ["502"]


def test_an_answer_that_ends_with_a_call_has_no_text(read_rollout: Read) -> None:
    """Text before a call is not an answer."""
    lines = Lines()
    lines.turn("Well?")
    lines.said("Let me look.")
    lines.call("c1", "exec_command", cmd="x")
    lines.usage(10, 1)
    assert [(exchange.agent_response, exchange.outcome) for exchange in read_rollout(lines.lines).exchanges] == [
        ("", "no_response")
    ]


def test_old_versions_are_read_by_line_and_by_the_start_of_a_text(read_rollout: Read) -> None:
    """Earlier versions wrote the context as user texts."""
    lines = Lines(ordinals=False)
    lines.user("<environment_context>…</environment_context>", None)
    lines.user("# AGENTS.md instructions for /srv", None)
    lines.event("task_started")
    lines.user("Well?", None)
    lines.said("Yes.")
    reading = read_rollout(lines.lines)
    assert [(exchange.user_message, exchange.agent_response, exchange.exchange_id) for exchange in reading.exchanges] == [
        ("Well?", "Yes.", f"{SESSION}:line-5")
    ]


def test_an_answer_to_a_damaged_question_does_not_answer_the_previous_one(read_rollout: Read) -> None:
    """The turn lines tell that it is another turn."""
    lines = Lines()
    lines.turn("One?")
    lines.said("One.")
    lines.event("task_started")
    lines.add("response_item", type="message", role="user", content=5)
    lines.said("Two.")
    reading = read_rollout(lines.lines)
    assert [(exchange.user_message, exchange.agent_response) for exchange in reading.exchanges] == [("One?", "One.")]
    assert [fault.reason for fault in reading.faults] == ["wrong_type"]


@pytest.mark.parametrize("meta", [{"source": {"subagent": {"thread_spawn": {}}}}, {"parent_thread_id": "p"}])
def test_a_subagents_rollout_is_tagged(read_rollout: Read, meta: dict[str, Any]) -> None:
    """No user asked the question."""
    lines = Lines(**meta)
    lines.turn("Look around.")
    lines.said("Nothing.")
    assert [exchange.tags for exchange in read_rollout(lines.lines).exchanges] == [("subagent",)]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_old_compressed_rollouts_are_read(tmp_path: Path, context: ReadingContext) -> None:
    """The program compresses them, and both files may exist meanwhile."""
    day = tmp_path / "sessions" / "2026" / "11" / "03"
    plain = "".join(json.dumps(line) + "\n" for line in everything()).encode()
    _write(day / "rollout-a.jsonl", plain)
    _write(day / "rollout-a.jsonl.zst", zstd.compress(plain))
    _write(day / "rollout-b.jsonl.zst", zstd.compress(plain))
    _write(day / "other.jsonl", plain)
    paths = find_codex(tmp_path)
    assert [path.name for path in paths] == ["rollout-a.jsonl", "rollout-b.jsonl.zst"]
    first, second = (read_codex(path, context) for path in paths)
    assert first == second
    assert len(first.exchanges) == 5


def test_an_invalid_compressed_rollout_is_refused_with_its_name(tmp_path: Path, context: ReadingContext) -> None:
    """One damaged file must not stop the others."""
    path = tmp_path / "rollout-a.jsonl.zst"
    path.write_bytes(b"no zstd")
    with pytest.raises(InputError, match="rollout-a"):
        read_codex(path, context)


def test_a_truncated_compressed_rollout_is_read_up_to_the_cut(tmp_path: Path, context: ReadingContext) -> None:
    """A copy that is incomplete has whole lines already, and the rest may follow."""
    lines = [json.dumps(line) + "\n" for line in everything()]
    head, tail = "".join(lines[:-2]).encode(), "".join(lines[-2:]).encode()
    path = tmp_path / "rollout-a.jsonl.zst"
    path.write_bytes(zstd.compress(head + tail[:20]) + zstd.compress(tail[20:])[:-8])

    truncated = read_codex(path, context)
    path.write_bytes(zstd.compress(head + tail[:20]))
    torn = read_codex(path, context)

    assert truncated == torn
    assert truncated.faults == []
    assert truncated.complete is False
    assert truncated.session_ids == [SESSION]
    assert len(truncated.exchanges) >= 3


def test_every_frame_of_a_compressed_rollout_is_read(tmp_path: Path, context: ReadingContext) -> None:
    """A program that appends to a compressed file adds a frame."""
    plain = "".join(json.dumps(line) + "\n" for line in everything()).encode()
    path = tmp_path / "rollout-a.jsonl.zst"
    path.write_bytes(zstd.compress(plain))
    expected = read_codex(path, context)

    path.write_bytes(zstd.compress(plain[:999]) + zstd.compress(plain[999:]))

    assert read_codex(path, context) == expected


def test_a_compressed_bomb_is_read_in_bounded_memory(tmp_path: Path, context: ReadingContext) -> None:
    """A line of a gigabyte may compress to a few bytes."""
    path = tmp_path / "rollout-a.jsonl.zst"
    path.write_bytes(zstd.compress(b"x" * (40 * 1024 * 1024) + b"\n" + json.dumps(everything()[0]).encode() + b"\n"))
    reading = read_codex(path, context)
    assert [fault.reason for fault in reading.faults] == ["too_long"]
    assert reading.session_ids == [SESSION]


@pytest.mark.parametrize(
    ("texts", "question"),
    [
        ([], "[image]"),
        (["<image>", "</image>"], "[image]"),
        (["<image name=[Image #1]>", "And this?", "</image>"], "And this?"),
    ],
)
def test_a_turn_without_text_has_a_placeholder(read_rollout: Read, texts: list[str], question: str) -> None:
    """Codex writes tags around an image, which are not the user's text."""
    lines = Lines()
    lines.event("task_started", turn_id="t")
    blocks = [
        {"type": "input_image", "image_url": "data:image/png;base64,eA=="},
        *({"type": "input_text", "text": said} for said in texts),
    ]
    lines.item("message", role="user", content=blocks)
    lines.said("I see.")
    lines.event("task_complete")
    assert [exchange.user_message for exchange in read_rollout(lines.lines).exchanges] == [question]
