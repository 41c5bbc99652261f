"""The real Claude Code: what its own files come to."""

from __future__ import annotations

import pytest

from agents.claude_code import ClaudeCode
from agents.conftest import ImportedFolder, read_all
from streams.sources.transcript_sources import CLAUDE_CODE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def read(claude_code_run: ClaudeCode) -> ImportedFolder:
    """Return the records of its folder."""
    return read_all(CLAUDE_CODE, claude_code_run.root)


def test_every_line_of_its_files_is_understood(read: ImportedFolder) -> None:
    """A new version may add kinds of lines; this test finds them first."""
    faults = [fault for session in read.sessions.values() for fault in session.reading.faults]
    assert faults == []
    assert all(session.reading.complete for session in read.sessions.values())


def test_each_question_is_one_exchange_in_its_session(read: ImportedFolder) -> None:
    """Four sessions: the first, its subagent's, its fork, and one that failed."""
    exchanges = [exchange for session in read.sessions.values() for exchange in session.reading.exchanges]
    questions = [exchange.user_message for exchange in exchanges]
    messages = sorted(question for question in questions if not question.startswith("<task-notification>"))
    assert messages == [
        "Are you busy?",
        "Ask a helper.",
        "Go another way.",
        "Helper: look around.",
        "How many files are here?",
        "Nothing works.",
        "Try what fails.",
        "Which model are you?",
    ]
    assert len(read.sessions) == 4


def test_a_tool_loop_is_an_answer_with_its_call_and_its_cost(read: ImportedFolder, claude_code_run: ClaudeCode) -> None:
    """One message of three blocks is three lines with the same usage, which counts once."""
    session = read.session_with("How many files")
    exchange = session.exchange("How many files")
    assert exchange.agent_response == "There are none."
    assert exchange.agent_thinking == "I should list."
    assert exchange.stop_reason == "end_turn"
    calls, outputs = session.payloads("tool_call", exchange), session.payloads("tool_output", exchange)
    assert [(call["tool"], call["arguments"]["command"]) for call in calls] == [("Bash", "echo none")]
    assert [(output["tool"], output["is_error"], output["result"]) for output in outputs] == [("Bash", False, "none")]
    assert [call["tool_call_id"] for call in calls] == [output["tool_call_id"] for output in outputs]
    assert len(session.payloads("token_usage", exchange)) == 2
    assert {payload["source"] for payload in calls + outputs} == {"claude-code"}
    assert claude_code_run.root.is_dir()


def test_failed_tools_are_told_with_their_exit_code(read: ImportedFolder) -> None:
    """Two calls of one message, whose results hang below different lines."""
    session = read.session_with("Try what fails.")
    exchange = session.exchange("Try what fails.")
    outputs = session.payloads("tool_output", exchange)
    assert {(output["tool"], output["is_error"], output.get("exit_code")) for output in outputs} == {
        ("Bash", True, 3),
        ("Read", True, None),
    }
    assert exchange.agent_response == "It failed."


def test_an_overloaded_model_is_an_error_and_a_retry(read: ImportedFolder) -> None:
    """The program tries again by itself."""
    session = read.session_with("Are you busy?")
    exchange = session.exchange("Are you busy?")
    assert len(session.payloads("error_event", exchange)) == len(session.payloads("retry_event", exchange)) == 1
    assert exchange.agent_response == "At last."
    assert exchange.outcome == "answered"


def test_a_refused_request_is_an_exchange_that_ended_in_an_error(read: ImportedFolder) -> None:
    """What the program shows instead of an answer is none."""
    session = read.session_with("Nothing works.")
    exchange = session.exchange("Nothing works.")
    assert exchange.agent_response == ""
    assert exchange.outcome == "error"
    assert [error["message"] for error in session.payloads("error_event", exchange)] == ["API Error: 400 scripted"]


def test_a_subagent_is_a_session_of_its_own_and_its_end_no_question_of_the_user(read: ImportedFolder) -> None:
    """The session is told when the subagent is done, in the user's place."""
    helper, asker = read.session_with("Helper: look around."), read.session_with("Ask a helper.")
    exchange = helper.exchange("Helper")
    assert exchange.tags == ("subagent",)
    assert exchange.agent_response == "I found nothing."
    assert exchange.session_id.startswith(f"{asker.exchange('Ask a helper.').session_id}.agent-")
    notices = [notice for notice in asker.reading.exchanges if notice.user_message.startswith("<task-notification>")]
    assert all(notice.tags == ("internal",) for notice in notices)
    assert [call["tool"] for call in asker.payloads("tool_call", asker.exchange("Ask a helper."))] == ["Agent"]


def test_a_fork_counts_only_what_it_adds(read: ImportedFolder) -> None:
    """The program copies every line into the fork's file."""
    fork = read.session_with("Go another way.")
    assert [exchange.user_message for exchange in fork.reading.exchanges] == ["Go another way."]
    assert [event.event for event in fork.events] == ["token_usage"]
    ids = [(event.session_id, event.event_id) for event in read.all_events()]
    assert len(ids) == len(set(ids))


def test_a_compaction_and_the_change_of_the_model_after_it_are_events(read: ImportedFolder) -> None:
    """The commands that began them are no exchanges."""
    session = read.session_with("Which model are you?")
    compactions = [compaction for compaction in session.payloads("context_event") if compaction["action"] == "compaction"]
    assert [compaction["trigger"] for compaction in compactions] == ["manual"]
    assert compactions[0]["tokens_before"] > compactions[0]["tokens_after"] > 0
    models = [transition["model"] for transition in session.payloads("state_transition")]
    assert models == ["claude-sonnet-5-5", "claude-opus-5-5"]
    assert session.exchange("Which model").agent_model == "claude-opus-5-5"
