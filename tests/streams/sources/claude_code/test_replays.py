"""A history that a program writes again with other uuids counts once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.claude_code_lines import Lines, call, text, thinking

from streams.sources.claude_code_files import find_claude_code, read_claude_code
from streams.sources.source import Reading, ReadingContext

Json = dict[str, Any]


def _tell(lines: Lines, *, with_last: bool = True) -> None:
    """Return a conversation of two questions, with new uuids and times at each call."""
    lines.last = None
    lines.user("Which ports are open?")
    lines.said("msg_ports", thinking("Scan."), stop="tool_use", requestId="req_1")
    called = lines.said("msg_ports", call("toolu_scan", "Bash", command="ss -l"), stop="tool_use", requestId="req_1")
    lines.result("toolu_scan", "22, 80", parent=called)
    lines.said("msg_open", text("22 and 80."), requestId="req_2")
    if with_last:
        lines.user("Close 80.")
        lines.said("msg_closed", text("Closed."), requestId="req_3")


def _write(path: Path, lines: Sequence[Json]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def _answers(reading: Reading) -> list[tuple[str, str]]:
    return [(exchange.user_message, exchange.agent_response) for exchange in reading.exchanges]


def _kinds(reading: Reading) -> list[str]:
    return [event.event for event in reading.events]


WHOLE = [("Which ports are open?", "22 and 80."), ("Close 80.", "Closed."), ("And 443?", "It was closed.")]


@pytest.mark.parametrize("replays", [1, 3])
@pytest.mark.parametrize("with_last", [True, False])
def test_a_history_repeated_with_new_uuids_counts_once(
    tmp_path: Path, context: ReadingContext, replays: int, *, with_last: bool
) -> None:
    """A resumed session may repeat its history: calls and tokens were counted twice, and an answer was repeated in its text."""
    lines = Lines()
    _tell(lines)
    for _ in range(replays):
        _tell(lines, with_last=with_last)
    lines.user("And 443?")
    lines.said("msg_443", text("It was closed."), requestId="req_4")
    reading = read_claude_code(_write(tmp_path / "a.jsonl", lines.lines), context)
    assert sorted(WHOLE) == sorted(_answers(reading))
    assert reading.faults == []
    kinds = _kinds(reading)
    assert kinds.count("tool_call") == 1
    assert kinds.count("tool_output") == 1
    assert kinds.count("token_usage") == 4
    assert sum(exchange.input_tokens or 0 for exchange in reading.exchanges) == 4 * 117


def test_a_repeated_history_cut_anywhere_gives_the_same_records(tmp_path: Path, context: ReadingContext) -> None:
    """A follower reads a replay while it is written."""
    lines = Lines()
    _tell(lines)
    _tell(lines)
    lines.user("And 443?")
    lines.said("msg_443", text("It was closed."), requestId="req_4")
    complete = read_claude_code(_write(tmp_path / "a.jsonl", lines.lines), context)
    events = list(complete.events)
    for count in range(len(lines.lines)):
        part = read_claude_code(_write(tmp_path / "a.jsonl", lines.lines[:count]), context)
        assert list(part.events) == events[: len(part.events)]


def test_a_question_asked_twice_is_two_exchanges(tmp_path: Path, context: ReadingContext) -> None:
    """Only a repeated answer is a repetition: people write `go on` more than once."""
    lines = Lines()
    for number in range(3):
        lines.user("Go on.")
        lines.said(f"msg_{number}", text(f"Step {number}."), requestId=f"req_{number}")
    lines.user("Go on.")
    lines.user("No, stop.")
    lines.said("msg_stop", text("Stopped."))
    reading = read_claude_code(_write(tmp_path / "a.jsonl", lines.lines), context)
    steps = [("Go on.", f"Step {number}.") for number in range(3)]
    assert _answers(reading) == [*steps, ("Go on.", ""), ("No, stop.", "Stopped.")]


def test_a_history_repeated_in_a_later_transcript_counts_in_the_first(tmp_path: Path, context: ReadingContext) -> None:
    """A fork by another program keeps only the ids of the model's messages."""
    first = Lines("s1", prefix="a")
    _tell(first)
    later = Lines("s2", prefix="b", minute=20)
    _tell(later)
    later.user("And 443?")
    later.said("msg_443", text("It was closed."), requestId="req_4")
    folder = tmp_path / "projects" / "-srv"
    _write(folder / "z.jsonl", first.lines)
    _write(folder / "a.jsonl", later.lines)
    readings = {
        reading.session_ids[0]: reading for reading in (read_claude_code(path, context) for path in find_claude_code(tmp_path))
    }
    assert _answers(readings["s1"]) == WHOLE[:2]
    assert _answers(readings["s2"]) == WHOLE[2:]
    kinds = [kind for reading in readings.values() for kind in _kinds(reading)]
    assert kinds.count("tool_call") == 1
    assert kinds.count("tool_output") == 1
    assert kinds.count("token_usage") == 4


def test_message_ids_made_up_by_a_gateway_join_no_sessions(tmp_path: Path, context: ReadingContext) -> None:
    """Some gateways number the messages of each session from one."""
    folder = tmp_path / "projects" / "-srv"
    for number in range(2):
        lines = Lines(f"s{number}", prefix=f"s{number}-", minute=10 * number)
        lines.user("One?")
        lines.said("1", text("One."))
        _write(folder / f"s{number}.jsonl", lines.lines)
    assert [len(read_claude_code(path, context).exchanges) for path in find_claude_code(tmp_path)] == [1, 1]


def test_a_rewritten_block_counts_its_additional_tokens_and_its_text_once(tmp_path: Path, context: ReadingContext) -> None:
    """Some versions write a message while it grows; the last count is that of the whole message."""
    lines = Lines()
    lines.user("Well?")
    lines.said("msg_1", text("Yes."), stop=None, usage={"input_tokens": 10, "output_tokens": 1})
    lines.said("msg_1", text("Yes."), stop="end_turn", usage={"input_tokens": 10, "output_tokens": 9})
    exchange = read_claude_code(_write(tmp_path / "a.jsonl", lines.lines), context).exchanges[0]
    assert exchange.agent_response == "Yes."
    assert exchange.input_tokens == 10
    assert exchange.output_tokens == 9
