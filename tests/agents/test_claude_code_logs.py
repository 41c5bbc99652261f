"""Logs of the real Claude Code are imported completely and agree with its own files."""

from __future__ import annotations

import json

import pytest

from agents.claude_code import ClaudeCode
from agents.conftest import ImportedFolder, read_all
from streams.sources.transcript_sources import CLAUDE_CODE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logs(claude_code_logs: ClaudeCode) -> ImportedFolder:
    """Return the records of the logs."""
    return read_all(CLAUDE_CODE, claude_code_logs.logs)


@pytest.fixture(scope="module")
def transcripts(claude_code_logs: ClaudeCode) -> ImportedFolder:
    """Return the records of the program's own files of the same runs."""
    return read_all(CLAUDE_CODE, claude_code_logs.root)


def test_every_line_of_a_log_is_understood(logs: ImportedFolder) -> None:
    """A new version may add kinds of lines; this test finds them first."""
    assert [fault for session in logs.sessions.values() for fault in session.reading.faults] == []
    assert all(session.reading.complete for session in logs.sessions.values())


def test_each_run_is_a_session_with_one_answer(logs: ImportedFolder) -> None:
    """There are eight runs and the session of a subagent."""
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


def test_a_run_counts_the_tokens_of_its_result(logs: ImportedFolder, claude_code_logs: ClaudeCode) -> None:
    """The messages in a log count only the first output tokens."""
    tokens_in_results = 0
    for path in claude_code_logs.logs.iterdir():
        results = (line for line in map(json.loads, path.read_text("utf-8").splitlines()) if line["type"] == "result")
        tokens_in_results += sum(line["usage"]["output_tokens"] for line in results)
    tokens_in_exchanges = sum(
        exchange.output_tokens or 0
        for session in logs.sessions.values()
        for exchange in session.reading.exchanges
        if "subagent" not in exchange.tags
    )
    assert tokens_in_results > 0
    assert tokens_in_exchanges == tokens_in_results


def test_a_log_and_a_transcript_have_the_same_tool_calls(logs: ImportedFolder, transcripts: ImportedFolder) -> None:
    """The program writes both, so a difference is an error of the import."""

    def calls(read: ImportedFolder) -> list[str]:
        payloads = (json.loads(event.payload) for event in read.all_events() if event.event == "tool_call")
        return sorted(payload["tool_call_id"] for payload in payloads)

    assert calls(transcripts) == calls(logs)
