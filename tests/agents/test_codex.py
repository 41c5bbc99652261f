"""The real Codex: what its own files come to."""

from __future__ import annotations

import pytest
from support.model_apis.messages import SUMMARY

from agents.codex import Codex
from agents.conftest import ImportedFolder, read_all
from streams.sources.transcript_sources import CODEX

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def read(codex_run: Codex) -> ImportedFolder:
    """Return the records of its folder."""
    return read_all(CODEX, codex_run.root)


def test_every_line_of_its_files_is_understood(read: ImportedFolder) -> None:
    """A new version may add kinds of lines; this test finds them first."""
    faults = [fault for session in read.sessions.values() for fault in session.reading.faults]
    assert faults == []
    assert all(session.reading.complete for session in read.sessions.values())


def test_each_question_is_one_exchange_in_its_session(read: ImportedFolder) -> None:
    """Seven sessions: the first, its fork, one with a subagent and the subagent's, and three more."""
    exchanges = [exchange for session in read.sessions.values() for exchange in session.reading.exchanges]
    # Codex writes a user message about the interruption, and may write more before it stops.
    messages = sorted(exchange.user_message for exchange in exchanges if "internal" not in exchange.tags)
    assert messages == [
        "Are you busy?",
        "Ask a helper.",
        "Go another way.",
        "Helper: look around.",
        "How many files are here?",
        "Nothing works.",
        "Read a lot.",
        "Take your time.",
        "Try what fails.",
        "Which model are you?",
    ]
    assert len(read.sessions) == 7


def test_a_tool_loop_is_an_answer_with_its_call_and_its_cost(read: ImportedFolder) -> None:
    """Codex reports each usage twice."""
    session = read.session_with("How many files")
    exchange = session.exchange("How many files")
    assert exchange.agent_response == "There are none."
    assert exchange.agent_thinking == "I should list."
    calls, outputs = session.payloads("tool_call", exchange), session.payloads("tool_output", exchange)
    assert [(call["tool"], call["arguments"]["cmd"]) for call in calls] == [("exec_command", "echo none")]
    assert [(output["tool"], output["is_error"], output["exit_code"], output["result"]) for output in outputs] == [
        ("exec_command", False, 0, "none\n")
    ]
    usages = [usage["usage"]["total"] for usage in session.payloads("token_usage", exchange)]
    assert len(usages) == 2
    assert sum(usages) == (exchange.input_tokens or 0) + (exchange.output_tokens or 0)
    assert {payload["source"] for payload in calls + outputs} == {"codex"}


def test_the_fill_of_the_context_grows_with_the_session(read: ImportedFolder) -> None:
    """It is what a run out of context is known by before it happens."""
    fills = [event.saturation for event in read.session_with("How many files").events if event.saturation is not None]
    assert len(fills) >= 5
    assert fills == sorted(fills)
    assert all(0 < fill < 100 for fill in fills)


def test_failed_tools_are_told_with_their_exit_code(read: ImportedFolder) -> None:
    """A command that failed, and a tool that there is none of."""
    session = read.session_with("Try what fails.")
    exchange = session.exchange("Try what fails.")
    outputs = session.payloads("tool_output", exchange)
    assert {(output["tool"], output["is_error"], output.get("exit_code")) for output in outputs} == {
        ("exec_command", True, 3),
        ("no_such_tool", True, None),
    }
    assert exchange.agent_response == "It failed."


def test_a_model_that_was_overloaded_for_a_moment_leaves_no_trace(read: ImportedFolder) -> None:
    """The program tries again and writes nothing of it: what cannot be known is not told."""
    session = read.session_with("Are you busy?")
    exchange = session.exchange("Are you busy?")
    assert session.payloads("error_event", exchange) == []
    assert exchange.agent_response == "At last."
    assert exchange.outcome == "answered"


@pytest.mark.parametrize(("question", "outcome"), [("Nothing works.", "error"), ("Take your time.", "aborted")])
def test_a_turn_that_failed_or_was_interrupted_has_no_answer(read: ImportedFolder, question: str, outcome: str) -> None:
    """Both are told by one event."""
    session = read.session_with(question)
    exchange = session.exchange(question)
    assert exchange.agent_response == ""
    assert exchange.outcome == outcome
    assert [error["action"] for error in session.payloads("error_event", exchange)] == [outcome]


def test_a_subagent_is_a_session_of_its_own(read: ImportedFolder) -> None:
    """It is asked by an agent, whose end may come before its own."""
    helper, asker = read.session_with("Helper: look around."), read.session_with("Ask a helper.")
    assert helper.exchange("Helper").tags == ("subagent",)
    assert helper.reading.session_ids != asker.reading.session_ids
    assert [call["tool"] for call in asker.payloads("tool_call")] == ["multi_agent_v1.spawn_agent"]


def test_a_fork_counts_only_what_it_adds(read: ImportedFolder) -> None:
    """The program names where the fork begins and copies nothing."""
    fork = read.session_with("Go another way.")
    assert [exchange.user_message for exchange in fork.reading.exchanges] == ["Go another way."]
    assert sum(event.event == "token_usage" for event in fork.events) == 1


def test_a_compaction_is_an_event_and_its_summary_no_answer(read: ImportedFolder) -> None:
    """The model is asked for the summary in the middle of the turn."""
    session = read.session_with("Read a lot.")
    assert session.exchange("Read a lot.").agent_response == "I read a lot."
    compactions = [compaction for compaction in session.payloads("context_event") if compaction["action"] == "compaction"]
    assert len(compactions) == 1
    assert SUMMARY.text in compactions[0]["summary"]


def test_a_change_of_the_model_is_an_event(read: ImportedFolder) -> None:
    """The first model is told, too."""
    session = read.session_with("Which model are you?")
    assert [transition["model"] for transition in session.payloads("state_transition")] == ["stand-in-model", "another-model"]
    assert session.exchange("Which model").agent_model == "another-model"
