"""The synthetic fleet holds what it says it holds: no more, no less, and the same every time."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from audit.diagnosis.diagnosis import diagnose_events
from audit.diagnosis.events import raw_event
from audit.exchanges.tier1 import check_structure
from audit.policy import RedactionSettings, shipped_methodologies
from audit.redaction import Redactor
from driftline_trial.demo.fleet import FAULTS, FleetPlan, write_fleet, write_large_tree
from driftline_trial.demo.script import SCRIPT_END, moment_before
from schemas.records import AgentEvent
from streams.sources.event_files import read_event_file
from streams.sources.openclaw.reader import find_transcripts, read_transcript
from streams.sources.source import Reading, ReadingContext


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> FleetPlan:
    """A fleet as `driftline demo` writes it."""
    return write_fleet(tmp_path_factory.mktemp("fleet"), SCRIPT_END)


@pytest.fixture(scope="module")
def context() -> ReadingContext:
    """A reading the day after the fleet's last one, with the built-in secrets taken out."""
    return ReadingContext(
        "demo", "demo", None, moment_before(SCRIPT_END, -2), timedelta(minutes=30), Redactor(RedactionSettings())
    )


@pytest.fixture(scope="module")
def readings(plan: FleetPlan, context: ReadingContext) -> dict[str, Reading]:
    """Every transcript of the fleet, read, by session."""
    found = [read_transcript(path, context) for path in find_transcripts(plan.root)]
    return {reading.session_ids[0]: reading for reading in found}


def _events(plan: FleetPlan, readings: dict[str, Reading], context: ReadingContext) -> dict[str, list[AgentEvent]]:
    events = {session: list(reading.events) for session, reading in readings.items()}
    for reading in read_event_file(plan.root / "events.jsonl", context):
        assert not reading.faults
        for event in reading.events:
            events.setdefault(event.session_id, []).append(event)
    return events


def _digests(root: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(root.rglob("*")):
        if file.is_file():
            yield str(file.relative_to(root)), hashlib.sha256(file.read_bytes()).hexdigest()


def test_one_seed_gives_the_same_bytes_and_another_gives_others(plan: FleetPlan, tmp_path: Path) -> None:
    """Documentation and tests quote numbers from it."""
    again, other = tmp_path / "again", tmp_path / "other"
    assert list(_digests(plan.root)) == list(_digests((write_fleet(again, SCRIPT_END), again)[1]))
    assert list(_digests(plan.root)) != list(_digests((write_fleet(other, SCRIPT_END, seed=8), other)[1]))


def test_the_fleet_is_of_the_size_that_was_promised(plan: FleetPlan) -> None:
    """Small enough for a first minute, large enough to show weeks."""
    size = sum(file.stat().st_size for file in plan.root.rglob("*") if file.is_file())
    assert 1_000_000 < size < 10_000_000
    assert 250 < len(plan.sessions) < 400
    assert len(plan.sessions) == len({session.session_id for session in plan.sessions})


def test_exactly_the_planted_failures_are_diagnosed(
    plan: FleetPlan, readings: dict[str, Reading], context: ReadingContext
) -> None:
    """The whole way from file to diagnosis: a miss is a blind detector or reader, a surplus a false alarm."""
    events = _events(plan, readings, context)
    found = {}
    for session in plan.sessions:
        raw = [raw_event(event.payload) for event in events[session.session_id]]
        causes = diagnose_events(session.session_id, raw)["failure_causes"]
        found[session.session_id] = {cause["type"] for cause in causes}
    assert found == {session.session_id: session.failures for session in plan.sessions}
    assert len(set().union(*found.values())) == 6


def test_exactly_the_planted_flags_are_raised(plan: FleetPlan, readings: dict[str, Reading]) -> None:
    """Tier 1 must flag what was planted and nothing of the ordinary talk."""
    methodology = shipped_methodologies()["default"]
    found = {}
    for reading in readings.values():
        for exchange in reading.exchanges:
            flags = check_structure(exchange.user_message, exchange.agent_response, methodology).flags
            found.update(dict.fromkeys([exchange.exchange_id], "/".join(flags)) if flags else {})
    assert found == {key: flag for session in plan.sessions for key, flag in session.flags.items()}


def test_faults_tags_and_torn_lines_are_where_they_were_planted(plan: FleetPlan, readings: dict[str, Reading]) -> None:
    """What is said to be damaged must be what is reported as damaged."""
    transcripts = [session for session in plan.sessions if session.source != "events.jsonl"]
    assert len(transcripts) == len(readings)
    for session in transcripts:
        reading = readings[session.session_id]
        assert session.faults == len(reading.faults)
        assert session.is_torn == (not reading.complete)
        assert session.tags == {
            exchange.exchange_id: "/".join(exchange.tags) for exchange in reading.exchanges if exchange.tags
        }
        assert {exchange.agent for exchange in reading.exchanges} == {session.agent}


def test_no_planted_secret_gets_through(plan: FleetPlan, readings: dict[str, Reading]) -> None:
    """Secrets must be gone before a record exists; the files themselves must hold them, or this would test nothing."""
    written = "".join((plan.root / session.source).read_text(encoding="utf-8") for session in plan.sessions if session.secrets)
    kept = str([*readings.values()])
    for secret in plan.secrets:
        assert secret in written
        assert secret not in kept
    assert any(exchange.redactions for reading in readings.values() for exchange in reading.exchanges)


def test_every_fault_is_planted_and_the_worse_agent_is_worse(plan: FleetPlan, readings: dict[str, Reading]) -> None:
    """A demonstration in which nothing happens demonstrates nothing."""
    assert set(FAULTS) <= {name for session in plan.sessions for name in session.planted}
    flagged: dict[bool, list[bool]] = {False: [], True: []}
    for session in plan.sessions:
        if session.agent == plan.degraded_agent:
            for exchange in readings[session.session_id].exchanges:
                late = exchange.occurred_at.date() >= plan.degraded_from
                flagged[late].append(exchange.exchange_id in session.flags)
    assert sum(flagged[True]) / len(flagged[True]) > 0.25
    assert sum(flagged[False]) / len(flagged[False]) < 0.05


def test_a_large_tree_is_written_in_constant_memory(tmp_path: Path, context: ReadingContext) -> None:
    """The import benchmark asks for a gigabyte."""
    tracemalloc.start()
    files = write_large_tree(tmp_path, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found = find_transcripts(tmp_path)
    assert files == len(found)
    assert 4_000_000 <= sum(file.stat().st_size for file in found) < 5_000_000
    assert peak < 3_000_000
    reading = read_transcript(found[0], context)
    assert reading.session_ids == [found[0].stem]
    assert reading.faults == []
    assert len(reading.exchanges) > 100
