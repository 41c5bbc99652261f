"""Sessions of real OpenClaw versions are imported completely: the expected records follow from the scenarios alone.

The newest version is tested in every run, the older ones in soak runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from openclaw.install import JSONL, NEWEST, PLAYED, Version
from openclaw.played import AFTER_RESET, FORKED, IN_FORK, LIFE, Played
from openclaw.scenarios import (
    CRON_ANSWER,
    CRON_MESSAGE,
    SMALL_CONTEXT_AGENT,
    SMALL_CONTEXT_TOKENS,
    SUBAGENT_ANSWER,
    SUBAGENT_TASK,
    TIMED_OUT_MESSAGE,
    Scenario,
    Turn,
)
from schemas.records import AgentEvent, Exchange
from streams.sources.openclaw.reader import find_transcripts, read_transcript
from streams.sources.openclaw.storage import find_databases, read_database
from streams.sources.source import Reading, ReadingContext

pytestmark = pytest.mark.slow

Json = dict[str, Any]
GAP = timedelta(minutes=30)


class ImportedState:
    """The records that an import reads from a state folder, after all of its sessions have ended."""

    def __init__(self, state: Path) -> None:
        context = ReadingContext(
            connection="gateway",
            project="tests",
            agent=None,
            ingested_at=datetime.now(UTC) + 2 * GAP,
            session_gap=GAP,
            redactor=Redactor(RedactionSettings(), b"key"),
        )
        self.readings: list[Reading] = [read_transcript(file, context) for file in find_transcripts(state)]
        for database in find_databases(state):
            self.readings += read_database(database, context)
        self.exchanges = [exchange for reading in self.readings for exchange in reading.exchanges]
        self.events = [event for reading in self.readings for event in reading.events]

    def exchange_with(self, message: str) -> Exchange:
        """Return the only exchange with this user message."""
        (matching_exchange,) = (exchange for exchange in self.exchanges if message in exchange.user_message)
        return matching_exchange

    def events_of(self, exchange: Exchange, *event_types: str) -> list[tuple[AgentEvent, Json]]:
        """Return the events of an exchange that have these types, with their payloads."""
        events = ((event, json.loads(event.payload)) for event in self.events if event.session_id == exchange.session_id)
        return [
            (event, payload)
            for event, payload in events
            if event.event in event_types and payload.get("exchange_id") == exchange.exchange_id
        ]


Read = Callable[[Version], tuple[Played, ImportedState]]


@pytest.fixture(scope="module")
def read(played: Callable[[Version], Played]) -> Read:
    """Return a function that reads what a version played; each version is read once per process."""
    read_versions: dict[Version, tuple[Played, ImportedState]] = {}

    def reader(version: Version) -> tuple[Played, ImportedState]:
        if version not in read_versions:
            folder = played(version)
            read_versions[version] = folder, ImportedState(folder.state)
        return read_versions[version]

    return reader


every_version = pytest.mark.parametrize("version", PLAYED, ids=lambda version: version.name)
full_versions = pytest.mark.parametrize(
    "version", [version for version in PLAYED if version.form == JSONL or version == NEWEST], ids=lambda version: version.name
)


def turns(played: Played, *outcomes: str) -> list[tuple[Scenario, Turn]]:
    """Return the turns of the scenarios with these outcomes, or of all scenarios."""
    chosen = [scenario for scenario in played.scenarios if not outcomes or scenario.outcome in outcomes]
    return [(scenario, turn) for scenario in chosen for turn in scenario.turns]


@every_version
def test_each_exchange_is_imported_once(version: Version, read: Read) -> None:
    """A missing exchange is never judged; a duplicate counts twice."""
    played, imported = read(version)
    message_counts = Counter(
        turn.message[:40]
        for exchange in imported.exchanges
        for _, turn in turns(played)
        if turn.message in exchange.user_message
    )
    assert message_counts == {turn.message[:40]: 1 for _, turn in turns(played)}


@every_version
def test_the_answer_is_the_last_text_of_the_model(version: Version, read: Read) -> None:
    """The judge would rate the wrong text if an answer were cut, or mixed with remarks between calls or another turn."""
    played, imported = read(version)
    for scenario, turn in turns(played, "answered"):
        exchange = imported.exchange_with(turn.message)
        if scenario.name != "subagent":  # the report of a subagent arrives as a later answer to the same question
            assert exchange.agent_response == turn.answer, scenario.name
            assert exchange.outcome == "answered", scenario.name
        assert exchange.agent_thinking == (turn.thinking or None), scenario.name
        assert exchange.agent == scenario.agent
        assert exchange.multi_user == scenario.multi_user, scenario.name


@every_version
def test_each_tool_call_is_imported_with_its_output(version: Version, read: Read) -> None:
    """Tool loops and failures are counted from these events."""
    played, imported = read(version)
    for scenario, turn in turns(played):
        exchange = imported.exchange_with(turn.message)
        calls = imported.events_of(exchange, "tool_call")
        assert [(event.tool, payload["arguments"]) for event, payload in calls] == turn.calls, scenario.name
        outputs = imported.events_of(exchange, "tool_output")
        assert [call["tool_call_id"] for _, call in calls] == [output["tool_call_id"] for _, output in outputs], scenario.name
        assert [event.tool for event, _ in calls] == [event.tool for event, _ in outputs], scenario.name


@every_version
def test_the_exit_code_of_a_command_is_known(version: Version, read: Read) -> None:
    """OpenClaw reports success for a tool whose command failed."""
    _, imported = read(version)
    codes = [
        payload.get("exit_code")
        for _, payload in imported.events_of(imported.exchange_with("List the folder of last year."), "tool_output")
    ]
    assert codes == [2, 0]


@every_version
def test_each_model_request_is_counted_once(version: Version, read: Read) -> None:
    """Costs are sums over requests, and each request is in both the transcript and the trajectory."""
    played, imported = read(version)
    for scenario, turn in turns(played, "answered"):
        # Compactions and reports of subagents add requests.
        if scenario.name not in {"compaction", "subagent"}:
            usages = imported.events_of(imported.exchange_with(turn.message), "token_usage")
            assert len(turn.steps) == len(usages), scenario.name
            assert all(event.tokens for event, _ in usages)


@every_version
def test_a_run_whose_client_disconnects_is_aborted_once(version: Version, read: Read) -> None:
    """The abort is one failure, whether the transcript, the trajectory or both report it."""
    played, imported = read(version)
    for _, turn in turns(played, "aborted"):
        exchange = imported.exchange_with(turn.message)
        failures = [event.action for event, _ in imported.events_of(exchange, "error_event")]
        assert failures == ["aborted"]
        assert exchange.outcome in {"aborted", "no_response"}  # 2026.9 omits the abort from the transcript


@every_version
def test_an_overloaded_provider_is_reported(version: Version, read: Read) -> None:
    """Newer versions retry and keep only the last attempt in the transcript."""
    played, imported = read(version)
    for scenario, turn in turns(played, "retried"):
        exchange = imported.exchange_with(turn.message)
        events = Counter(event.event for event, _ in imported.events_of(exchange, "error_event", "retry_event"))
        recovered = played.answers[turn.message] == turn.answer
        assert exchange.outcome == ("answered" if recovered else "error")
        expected = {"error_event": scenario.failed_requests}
        if recovered:
            expected["retry_event"] = scenario.failed_requests
        assert dict(events) == expected


@full_versions
def test_a_refusal_is_a_failure(version: Version, read: Read) -> None:
    """The gateway answers its client with an error."""
    played, imported = read(version)
    for _, turn in turns(played, "refused"):
        exchange = imported.exchange_with(turn.message)
        assert exchange.stop_reason == "error"
        assert [event.action for event, _ in imported.events_of(exchange, "error_event")] == ["error"]


@full_versions
def test_memory_without_hits_is_a_miss_wrapped_or_not(version: Version, read: Read) -> None:
    """The agent answers without memory if there are no hits or the memory is unavailable."""
    played, imported = read(version)
    for scenario, turn in turns(played):
        if scenario.name.startswith("memory"):
            ((event, payload),) = imported.events_of(imported.exchange_with(turn.message), "memory_event")
            assert payload["tool"] == "memory_search"
            assert event.action in {"miss", "recall_failed"}


@full_versions
def test_a_small_context_fills_and_is_compacted(version: Version, read: Read) -> None:
    """Only the trajectory reports the fill of the context; the window is in the session's entry."""
    _, imported = read(version)
    events = [event for event in imported.events if event.agent == SMALL_CONTEXT_AGENT and event.event == "context_event"]
    assert "compaction" in {event.action for event in events}
    usages = [json.loads(event.payload) for event in events if event.action == "context_usage"]
    for usage in usages:
        assert usage["context_window"] == SMALL_CONTEXT_TOKENS
        assert usage["saturation"] == round(100 * usage["prompt_tokens"] / SMALL_CONTEXT_TOKENS, 1)
    assert version != NEWEST or usages


@full_versions
def test_a_subagent_is_tagged_and_its_task_is_imported_once(version: Version, read: Read) -> None:
    """A question from another agent must not count as a question from a person."""
    _, imported = read(version)
    (subagent_exchange,) = (exchange for exchange in imported.exchanges if "subagent" in exchange.tags)
    assert SUBAGENT_TASK in subagent_exchange.user_message
    assert subagent_exchange.agent_response == SUBAGENT_ANSWER


@every_version
def test_the_available_skills_of_a_session_are_reported_once(version: Version, read: Read) -> None:
    """A skill that is never used can be reported only if the available skills are recorded."""
    _, imported = read(version)
    skills = Counter(event.session_id for event in imported.events if event.event == "skills_available")
    assert set(skills.values()) == {1}
    assert {exchange.session_id for exchange in imported.exchanges} >= set(skills)


@every_version
def test_an_import_has_no_faults_and_is_complete(version: Version, read: Read) -> None:
    """A fault means that the import does not support a form of this version."""
    _, imported = read(version)
    assert [fault for reading in imported.readings for fault in reading.faults] == []
    assert all(reading.complete for reading in imported.readings)
    assert {json.loads(event.payload)["source"] for event in imported.events} == {"openclaw"}
    assert len(imported.events) == len({(event.session_id, event.event_id) for event in imported.events})


def test_forks_rewinds_resets_compactions_and_deletions_count_once(read: Read) -> None:
    """Each of them copies or moves messages; archived and rewound messages still happened."""
    played, imported = read(NEWEST)
    assert played.life["compacted"] is True
    expected_turns = [turn for scenario in LIFE for turn in scenario.turns]
    answers = {turn.message: imported.exchange_with(turn.message).agent_response for turn in expected_turns}
    assert answers == {turn.message: turn.answer for turn in expected_turns}


def test_a_fork_is_a_separate_session_and_a_reset_is_an_event(read: Read) -> None:
    """A fork is judged as a separate conversation, and the start of a new conversation must be visible."""
    _, imported = read(NEWEST)
    fork = imported.exchange_with(IN_FORK.turns[-1].message)
    original = imported.exchange_with(FORKED.turns[-1].message)
    assert fork.session_id != original.session_id
    session = imported.exchange_with(AFTER_RESET.turns[0].message).session_id
    assert "reset" in {event.action for event in imported.events if event.session_id == session}


def test_a_manual_compaction_is_a_context_event(read: Read) -> None:
    """The agent may forget what happened before a compaction."""
    _, imported = read(NEWEST)
    session = imported.exchange_with("Said before the compaction.").session_id
    assert [event.action for event in imported.events if event.session_id == session and event.event == "context_event"] == [
        "compaction"
    ]


def test_a_run_that_times_out_has_one_error(read: Read) -> None:
    """The caller of a run sets its timeout."""
    _, imported = read(NEWEST)
    exchange = imported.exchange_with(TIMED_OUT_MESSAGE)
    assert len(imported.events_of(exchange, "error_event")) == 1
    assert [event.tool for event, _ in imported.events_of(exchange, "tool_call")] == ["exec"]


def test_scheduled_runs_and_heartbeats_are_tagged(read: Read) -> None:
    """No person asked for these runs."""
    _, imported = read(NEWEST)
    scheduled = imported.exchange_with(CRON_MESSAGE)
    assert scheduled.agent_response == CRON_ANSWER
    assert "cron" in scheduled.tags
    assert [exchange.agent_response for exchange in imported.exchanges if "heartbeat" in exchange.tags] == ["HEARTBEAT_OK"]
