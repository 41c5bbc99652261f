"""What real versions of OpenClaw played is imported whole: what is expected follows from the scripts alone.

The newest version is played in every run, the older ones in soak runs.
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
from openclaw.scenarios import CRON, CRON_ANSWER, SMALL, SMALL_WINDOW, TASK, TASK_ANSWER, TIMED, Scenario, Turn
from schemas.records import AgentEvent, Exchange
from streams.sources.openclaw.reader import find_transcripts, read_transcript
from streams.sources.openclaw.storage import find_databases, read_database
from streams.sources.source import Reading, ReadingContext

pytestmark = pytest.mark.slow

Json = dict[str, Any]
GAP = timedelta(minutes=30)


class Found:
    """What an import finds in a state folder, a while after the last word was said in it."""

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

    def of(self, says: str) -> Exchange:
        """The exchange in which something was said, which there is once."""
        (exchange,) = (one for one in self.exchanges if says in one.user_message)
        return exchange

    def told(self, exchange: Exchange, *kinds: str) -> list[tuple[AgentEvent, Json]]:
        """The events of an exchange of these types, with their payloads."""
        events = ((event, json.loads(event.payload)) for event in self.events if event.session_id == exchange.session_id)
        return [event for event in events if event[0].event in kinds and event[1].get("exchange_id") == exchange.exchange_id]


Read = Callable[[Version], tuple[Played, Found]]


@pytest.fixture(scope="module")
def read(played: Callable[[Version], Played]) -> Read:
    """What a version played and what is found of it, read once in a process."""
    known: dict[Version, tuple[Played, Found]] = {}

    def reader(version: Version) -> tuple[Played, Found]:
        if version not in known:
            folder = played(version)
            known[version] = folder, Found(folder.state)
        return known[version]

    return reader


every_version = pytest.mark.parametrize("version", PLAYED, ids=lambda version: version.name)
full_versions = pytest.mark.parametrize(
    "version", [one for one in PLAYED if one.form == JSONL or one == NEWEST], ids=lambda version: version.name
)


def turns(played: Played, *outcomes: str) -> list[tuple[Scenario, Turn]]:
    """The turns that were played of the scenarios with these outcomes, all where none are given."""
    chosen = [scenario for scenario in played.scenarios if not outcomes or scenario.outcome in outcomes]
    return [(scenario, turn) for scenario in chosen for turn in scenario.turns]


@every_version
def test_each_exchange_is_there_once(version: Version, read: Read) -> None:
    """What is missing was never judged; what is there twice counts twice."""
    played, found = read(version)
    said = Counter(
        turn.says[:40] for exchange in found.exchanges for _, turn in turns(played) if turn.says in exchange.user_message
    )
    assert said == {turn.says[:40]: 1 for _, turn in turns(played)}


@every_version
def test_answers_are_what_the_model_said_last(version: Version, read: Read) -> None:
    """An answer that is cut, joined with a remark between two calls, or taken from another turn is judged for what it is not."""
    played, found = read(version)
    for scenario, turn in turns(played, "answered"):
        exchange = found.of(turn.says)
        if scenario.name != "subagent":  # what the subagent reports is delivered as a later answer to the same question
            assert (exchange.agent_response, exchange.outcome) == (turn.answer, "answered"), scenario.name
        assert (turn.thinking or None) == exchange.agent_thinking, scenario.name
        assert scenario.agent == exchange.agent
        assert scenario.multi_user == exchange.multi_user, scenario.name


@every_version
def test_each_call_is_there_with_its_result(version: Version, read: Read) -> None:
    """Loops and failures of tools are counted by these."""
    played, found = read(version)
    for scenario, turn in turns(played):
        exchange = found.of(turn.says)
        calls = found.told(exchange, "tool_call")
        assert turn.calls == [(event.tool, payload["arguments"]) for event, payload in calls], scenario.name
        outputs = found.told(exchange, "tool_output")
        assert [call["tool_call_id"] for _, call in calls] == [output["tool_call_id"] for _, output in outputs], scenario.name
        assert [event.tool for event, _ in calls] == [event.tool for event, _ in outputs], scenario.name


@every_version
def test_the_exit_code_of_a_command_is_known(version: Version, read: Read) -> None:
    """OpenClaw calls a command that failed a tool that succeeded."""
    _, found = read(version)
    codes = [payload.get("exit_code") for _, payload in found.told(found.of("List the folder of last year."), "tool_output")]
    assert codes == [2, 0]


@every_version
def test_every_request_of_a_model_is_counted_once(version: Version, read: Read) -> None:
    """Costs are summed over these, and two accounts tell of each."""
    played, found = read(version)
    for scenario, turn in turns(played, "answered"):
        # A compaction and a subagent's report are requests of their own.
        if scenario.name not in {"compaction", "subagent"}:
            usages = found.told(found.of(turn.says), "token_usage")
            assert len(turn.steps) == len(usages), scenario.name
            assert all(event.tokens for event, _ in usages)


@every_version
def test_a_run_that_its_client_left_is_aborted_once(version: Version, read: Read) -> None:
    """The transcript and the trajectory both tell of it, or only one of them does: it is one failure."""
    played, found = read(version)
    for _, turn in turns(played, "aborted"):
        exchange = found.of(turn.says)
        failures = [event.action for event, _ in found.told(exchange, "error_event")]
        assert failures == ["aborted"]
        assert exchange.outcome in {"aborted", "no_response"}  # 2026.9 writes nothing of it into the transcript


@every_version
def test_a_provider_that_is_overloaded_shows(version: Version, read: Read) -> None:
    """Newer versions try again and keep only the last attempt in the transcript."""
    played, found = read(version)
    for scenario, turn in turns(played, "retried"):
        exchange = found.of(turn.says)
        events = Counter(event.event for event, _ in found.told(exchange, "error_event", "retry_event"))
        recovered = played.answers[turn.says] == turn.answer
        assert exchange.outcome == ("answered" if recovered else "error")
        expected = {"error_event": scenario.failed_requests, **({"retry_event": scenario.failed_requests} if recovered else {})}
        assert dict(events) == expected


@full_versions
def test_a_refusal_is_a_failure(version: Version, read: Read) -> None:
    """The gateway answers its client with an error."""
    played, found = read(version)
    for _, turn in turns(played, "refused"):
        exchange = found.of(turn.says)
        assert exchange.stop_reason == "error"
        assert [one.action for one, _ in found.told(exchange, "error_event")] == ["error"]


@full_versions
def test_memory_without_hits_is_a_miss_wrapped_or_not(version: Version, read: Read) -> None:
    """No hits, or no memory to ask: the agent answers without."""
    played, found = read(version)
    for scenario, turn in turns(played):
        if scenario.name.startswith("memory"):
            (memory,) = found.told(found.of(turn.says), "memory_event")
            assert memory[1]["tool"] == "memory_search"
            assert memory[0].action in {"miss", "recall_failed"}


@full_versions
def test_a_small_context_fills_and_is_compacted(version: Version, read: Read) -> None:
    """The fill is told by the trajectory alone, from the window of the session's entry."""
    _, found = read(version)
    events = [event for event in found.events if event.agent == SMALL and event.event == "context_event"]
    assert "compaction" in {event.action for event in events}
    fills = [json.loads(event.payload) for event in events if event.action == "context_usage"]
    assert all(
        (SMALL_WINDOW, round(100 * usage["prompt_tokens"] / SMALL_WINDOW, 1)) == (usage["context_window"], usage["saturation"])
        for usage in fills
    )
    assert version != NEWEST or fills


@full_versions
def test_a_subagent_is_tagged_and_its_task_is_there_once(version: Version, read: Read) -> None:
    """What an agent asks another one is no person's question."""
    _, found = read(version)
    (exchange,) = (one for one in found.exchanges if "subagent" in one.tags)
    assert TASK in exchange.user_message
    assert exchange.agent_response == TASK_ANSWER


@every_version
def test_which_skills_a_session_had_is_told_once(version: Version, read: Read) -> None:
    """None of them is ever used here: that can be said only where they are named."""
    _, found = read(version)
    skills = Counter(event.session_id for event in found.events if event.event == "skills_available")
    assert set(skills.values()) == {1}
    assert {exchange.session_id for exchange in found.exchanges} >= set(skills)


@every_version
def test_nothing_is_set_aside_and_nothing_is_left_for_the_next_time(version: Version, read: Read) -> None:
    """A fault here is a form that the import does not know."""
    _, found = read(version)
    assert [fault for reading in found.readings for fault in reading.faults] == []
    assert all(reading.complete for reading in found.readings)
    assert {json.loads(event.payload)["source"] for event in found.events} == {"openclaw"}
    assert len(found.events) == len({(event.session_id, event.event_id) for event in found.events})


def test_forks_rewinds_resets_compactions_and_deletions_count_once(read: Read) -> None:
    """Each of them copies or moves what was said; what is archived or taken back was said all the same."""
    played, found = read(NEWEST)
    assert played.life["compacted"] is True
    said = [turn for scenario in LIFE for turn in scenario.turns]
    found_once = {turn.says: found.of(turn.says).agent_response for turn in said}
    assert found_once == {turn.says: turn.answer for turn in said}


def test_a_fork_is_a_session_of_its_own_and_a_reset_is_told(read: Read) -> None:
    """A conversation that goes on elsewhere is judged there; one that begins anew says so."""
    _, found = read(NEWEST)
    fork, forked = (found.of(one.turns[-1].says).session_id for one in (IN_FORK, FORKED))
    assert fork != forked
    session = found.of(AFTER_RESET.turns[0].says).session_id
    assert "reset" in {event.action for event in found.events if event.session_id == session}


def test_a_manual_compaction_is_a_context_event(read: Read) -> None:
    """What an agent forgets begins there."""
    _, found = read(NEWEST)
    session = found.of("Said before the compaction.").session_id
    assert [event.action for event in found.events if event.session_id == session and event.event == "context_event"] == [
        "compaction"
    ]


def test_a_run_that_took_too_long_is_cut_off_once(read: Read) -> None:
    """Whoever starts a run says how long it may take."""
    _, found = read(NEWEST)
    exchange = found.of(TIMED)
    assert len(found.told(exchange, "error_event")) == 1
    assert [event.tool for event, _ in found.told(exchange, "tool_call")] == ["exec"]


def test_scheduled_runs_and_heartbeats_are_tagged(read: Read) -> None:
    """Nobody asked."""
    _, found = read(NEWEST)
    scheduled = found.of(CRON)
    assert scheduled.agent_response == CRON_ANSWER
    assert "cron" in scheduled.tags
    assert [exchange.agent_response for exchange in found.exchanges if "heartbeat" in exchange.tags] == ["HEARTBEAT_OK"]
