"""Rollouts that start with another session's history, and rollouts of old versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support.codex_lines import Lines, exec_output

from schemas.errors import InputError
from service.write.input_files import check_input_file
from streams.sources.codex import find_codex, read_codex
from streams.sources.source import Reading, ReadingContext
from streams.sources.transcript_sources import CODEX
from streams.sources.zstd import zstd

Json = dict[str, Any]

PARENT, CHILD, SIBLING = (f"01a2000{number}-0000-7000-8000-000000000000" for number in range(3))


def _parent() -> Lines:
    lines = Lines()
    lines.lines[0]["payload"]["id"] = PARENT
    lines.user("<environment_context></environment_context>", "environments.environment_context")
    lines.turn("Which disk is full?")
    lines.call("call_df", "exec_command", cmd="df")
    lines.usage(100, 10)
    lines.output("call_df", exec_output(1, "/dev/sda1 100%"))
    lines.said("The first.")
    lines.usage(200, 20)
    lines.event("task_complete", last_agent_message="The first.")
    return lines


def _copy(parent: Lines, session: str, *, minute: int = 30, has_meta: bool = True, **named: Any) -> Lines:
    """Return a rollout that starts with a copy of another, rewritten at one time."""
    lines = Lines(**named)
    lines.lines[0]["payload"] |= {"id": session, "timestamp": f"2026-11-03T09:{minute}:00.000Z"}
    for line in deepcopy(parent.lines[0 if has_meta else 1 :]):
        lines.add(line["type"], **line["payload"])
    for line in lines.lines:
        line["timestamp"] = f"2026-11-03T09:{minute}:00.500Z"
    lines._read, lines._written = parent._read, parent._written
    return lines


def _go_on(lines: Lines, question: str = "And the second?", answer: str = "It is empty.") -> None:
    lines.turn(question)
    lines.said(answer)
    lines.usage(50, 5)


def _write(root: Path, session: str, lines: Sequence[Json]) -> Path:
    path = root / "sessions" / "2026" / "11" / "03" / f"rollout-2026-11-03T09-00-00-{session}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def _read_all(root: Path, context: ReadingContext) -> dict[str, Reading]:
    readings = [read_codex(path, context) for path in find_codex(root)]
    return {reading.session_ids[0]: reading for reading in readings}


def _questions(reading: Reading) -> list[str]:
    return [exchange.user_message for exchange in reading.exchanges]


def _kinds(readings: dict[str, Reading]) -> list[str]:
    return sorted(event.event for reading in readings.values() for event in reading.events)


@pytest.mark.parametrize(
    "named",
    [
        {"forked_from_id": PARENT},
        {"parent_thread_id": PARENT},
        {"source": {"subagent": {"thread_spawn": {"parent_thread_id": PARENT, "depth": 1}}}},
    ],
)
@pytest.mark.parametrize("has_meta", [True, False])
@pytest.mark.parametrize("kept", [None, 9])
def test_a_copied_history_counts_in_its_first_session(
    tmp_path: Path, context: ReadingContext, named: Json, kept: int | None, *, has_meta: bool
) -> None:
    """The copies have new times and ordinals and may be incomplete, but the same content."""
    parent = _parent()
    part = Lines()
    part.lines = parent.lines[:kept]
    part._read, part._written = (100, 10) if kept else (parent._read, parent._written)
    child = _copy(part, CHILD, has_meta=has_meta, **named)
    _go_on(child)
    _go_on(parent, "Delete the logs.", "Done.")
    _write(tmp_path, PARENT, parent.lines)
    _write(tmp_path, CHILD, child.lines)
    readings = _read_all(tmp_path, context)
    assert _questions(readings[PARENT]) == ["Which disk is full?", "Delete the logs."]
    assert _questions(readings[CHILD]) == ["And the second?"]
    kinds = _kinds(readings)
    assert kinds.count("tool_call") == 1
    assert kinds.count("tool_output") == 1
    assert kinds.count("token_usage") == 4
    assert readings[CHILD].exchanges[0].input_tokens == 50
    assert readings[CHILD].exchanges[0].output_tokens == 5


@pytest.mark.parametrize(
    "places", [("a/2026/11/03/rollout-1.jsonl", "a/2026/11/04/rollout-2.jsonl"), ("rollout-2.jsonl", "rollout-1.jsonl")]
)
def test_a_parent_is_found_by_its_content_and_not_by_its_name(
    tmp_path: Path, context: ReadingContext, places: tuple[str, str]
) -> None:
    """People copy rollouts into other folders under other names."""
    parent, child = _parent(), _copy(_parent(), CHILD, forked_from_id=PARENT)
    _go_on(child)
    for folder, lines in zip(places, (parent, child), strict=True):
        (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder).write_text("".join(json.dumps(line) + "\n" for line in lines.lines), "utf-8")
    readings = _read_all(tmp_path, context)
    assert _questions(readings[PARENT]) == ["Which disk is full?"]
    assert _questions(readings[CHILD]) == ["And the second?"]


def test_a_compressed_parent_is_compared_as_well(tmp_path: Path, context: ReadingContext) -> None:
    """The program compresses finished rollouts."""
    parent, child = _parent(), _copy(_parent(), CHILD, forked_from_id=PARENT)
    _go_on(child)
    plain = _write(tmp_path, PARENT, parent.lines)
    plain.with_name(f"{plain.name}.zst").write_bytes(zstd.compress(plain.read_bytes()))
    plain.unlink()
    _write(tmp_path, CHILD, child.lines)
    assert _questions(_read_all(tmp_path, context)[CHILD]) == ["And the second?"]


def test_a_history_without_its_first_session_counts_in_the_oldest_copy(tmp_path: Path, context: ReadingContext) -> None:
    """A parent may have a hundred forks."""
    for minute, session in ((40, CHILD), (30, SIBLING)):
        copy = _copy(_parent(), session, minute=minute, forked_from_id=PARENT)
        _go_on(copy, f"And after {minute}?")
        _write(tmp_path, session, copy.lines)
    readings = _read_all(tmp_path, context)
    assert _questions(readings[SIBLING]) == ["Which disk is full?", "And after 30?"]
    assert _questions(readings[CHILD]) == ["And after 40?"]


def test_a_subagent_without_copied_history_counts_in_full(tmp_path: Path, context: ReadingContext) -> None:
    """It names its parent but starts with its own task."""
    child = Lines(parent_thread_id=PARENT)
    child.lines[0]["payload"]["id"] = CHILD
    _go_on(child, "Look at the second disk.")
    _write(tmp_path, PARENT, _parent().lines)
    _write(tmp_path, CHILD, child.lines)
    reading = _read_all(tmp_path, context)[CHILD]
    assert _questions(reading) == ["Look at the second disk."]
    assert {event.event for event in reading.events} == {"state_transition", "context_event", "token_usage"}


def test_a_fork_that_repeats_its_parents_next_question_counts_its_own_answer(tmp_path: Path, context: ReadingContext) -> None:
    """People fork a session to ask the same question again."""
    parent = _parent()
    child = _copy(parent, CHILD, forked_from_id=PARENT)
    _go_on(parent, "Try again.", "Still full.")
    _go_on(child, "Try again.", "Now it is empty.")
    _write(tmp_path, PARENT, parent.lines)
    _write(tmp_path, CHILD, child.lines)
    exchanges = _read_all(tmp_path, context)[CHILD].exchanges
    assert [(exchange.user_message, exchange.agent_response) for exchange in exchanges] == [("Try again.", "Now it is empty.")]


def test_a_growing_fork_cut_anywhere_gives_the_same_records(tmp_path: Path, context: ReadingContext) -> None:
    """A follower reads a fork while its history is copied."""
    child = _copy(_parent(), CHILD, forked_from_id=PARENT)
    _go_on(child)
    _write(tmp_path, PARENT, _parent().lines)
    path = _write(tmp_path, CHILD, child.lines)
    complete = list(read_codex(path, context).events)
    for count in range(1, len(child.lines)):
        part = list(read_codex(_write(tmp_path, CHILD, child.lines[:count]), context).events)
        assert part == complete[: len(part)]


OLD = "5f00c0de-1111-4222-8333-444455556666"
OLD_ITEMS: list[Json] = [
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "<environment_context>\n</environment_context>"}],
    },
    {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": "How large is the log?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Measure it."}]},
    {
        "type": "local_shell_call",
        "id": "lsc_1",
        "call_id": "call_1",
        "status": "completed",
        "action": {"type": "exec", "command": ["du"]},
    },
    {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"5M","metadata":{"exit_code":0}}'},
    {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Five megabytes."}]},
]
OLD_HEADER: Json = {"id": OLD, "timestamp": "2025-06-02T08:00:00.000Z", "instructions": None, "git": {"branch": "main"}}


def _check_old(reading: Reading) -> None:
    assert reading.session_ids == [OLD]
    assert reading.faults == []
    exchange = reading.exchanges[0]
    assert exchange.user_message == "How large is the log?"
    assert exchange.agent_response == "Five megabytes."
    assert exchange.agent_thinking == "Measure it."
    assert exchange.occurred_at.isoformat() == "2025-06-02T08:00:00+00:00"
    assert [event.event for event in reading.events] == ["tool_call", "tool_output"]


def test_a_rollout_of_bare_items_is_read(tmp_path: Path, context: ReadingContext) -> None:
    """Versions before autumn 2025 wrote items without an envelope, and state marks between them."""
    marked = [part for item in OLD_ITEMS for part in (item, {"record_type": "state"})]
    _check_old(read_codex(_write(tmp_path, OLD, [OLD_HEADER, *marked]), context))


def test_a_rollout_of_one_json_object_is_found_and_read(tmp_path: Path, context: ReadingContext) -> None:
    """The first versions wrote a whole session as one object."""
    path = tmp_path / "sessions" / f"rollout-2025-04-20-{OLD}.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"session": OLD_HEADER, "items": OLD_ITEMS}, indent=2), "utf-8")
    assert find_codex(tmp_path) == [path]
    _check_old(read_codex(path, context))
    path.write_text("[]", "utf-8")
    with pytest.raises(InputError, match="has no session"):
        read_codex(path, context)


def test_a_codex_exec_log_is_refused_with_the_file_to_use_instead(tmp_path: Path) -> None:
    """Every line was set aside as unknown, and the import found nothing."""
    path = tmp_path / "rollout-run.jsonl"
    path.write_text('{"type":"thread.started","thread_id":"a"}\n{"type":"turn.started"}\n', "utf-8")
    with pytest.raises(InputError, match="codex exec") as refused:
        check_input_file(path, CODEX)
    assert "sessions" in str(refused.value.hint)
