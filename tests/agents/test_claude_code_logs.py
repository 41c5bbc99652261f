"""The real Claude Code: what the logs of its runs come to, beside its own files."""

from __future__ import annotations

import json

import pytest

from agents.claude_code import ClaudeCode
from agents.conftest import Read, read_all
from streams.sources.transcript_sources import CLAUDE_CODE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logs(claude_code_logs: ClaudeCode) -> Read:
    """What is read of the logs."""
    return read_all(CLAUDE_CODE, claude_code_logs.logs)


@pytest.fixture(scope="module")
def transcripts(claude_code_logs: ClaudeCode) -> Read:
    """What is read of the program's own files of the same runs."""
    return read_all(CLAUDE_CODE, claude_code_logs.root)


def test_nothing_in_a_log_is_unknown(logs: Read) -> None:
    """A kind of line that a new version brings shows here first."""
    assert [fault for session in logs.sessions.values() for fault in session.reading.faults] == []
    assert all(session.reading.complete for session in logs.sessions.values())


def test_each_run_is_a_session_with_one_answer(logs: Read) -> None:
    """Eight runs, and a subagent's session."""
    answers = sorted(
        (exchange.agent_response, exchange.outcome)
        for session in logs.sessions.values()
        for exchange in session.reading.exchanges
    )
    assert answers == [
        ("", "error"),
        ("", "error"),
        ("At last.", "answered"),
        ("I found nothing.", "answered"),
        ("It failed.", "answered"),
        ("The helper found nothing.", "answered"),
        ("There are none.", "answered"),
        ("There are none.", "answered"),
        ("This is another way.", "answered"),
    ]
    assert len(logs.sessions) == 9


def test_a_run_counts_the_tokens_of_its_result(logs: Read, claude_code_logs: ClaudeCode) -> None:
    """Its messages count only the first of the output's tokens."""
    told = 0
    for path in claude_code_logs.logs.iterdir():
        results = (line for line in map(json.loads, path.read_text("utf-8").splitlines()) if line["type"] == "result")
        told += sum(line["usage"]["output_tokens"] for line in results)
    counted = sum(
        exchange.output_tokens or 0
        for session in logs.sessions.values()
        for exchange in session.reading.exchanges
        if "subagent" not in exchange.tags
    )
    assert told == counted > 0


def test_a_log_and_a_transcript_tell_of_the_same_calls(logs: Read, transcripts: Read) -> None:
    """The program writes both."""

    def calls(read: Read) -> list[str]:
        payloads = (json.loads(event.payload) for event in read.all_events() if event.event == "tool_call")
        return sorted(payload["tool_call_id"] for payload in payloads)

    assert calls(transcripts) == calls(logs)
