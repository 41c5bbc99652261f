"""Which detector sees what: real runs with one planted failure each, and real healthy runs beside them.

One gateway plays all of them; what its state folder holds is read as an import reads it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.detectors import DETECTORS
from audit.policy import RedactionSettings
from audit.polling import is_polling
from audit.redaction import Redactor
from openclaw.fleet_runs import Fleet, play
from openclaw.install import Installed
from openclaw.plays import KINDS, PLANTS, healthy, planted
from schemas.records import AgentEvent
from streams.sources.openclaw_evidence import EVIDENCE, Grade, evidence_table
from streams.sources.openclaw_sqlite import find_databases, read_database
from streams.sources.reading import ReadingContext

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = ("retry", "polling", "all_fine", "recall", "total", "skill")
"""A healthy kind beside each failure: the one that looks most like it."""
FRESH_TOKENS = 50_000
"""New tokens in one exchange that no healthy run comes to."""
pytestmark = pytest.mark.slow
Json = dict[str, Any]


@pytest.fixture(scope="module")
def fleet(newest_openclaw: Installed, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """One run with each failure planted, and six healthy ones, through one real gateway."""
    kinds = list(KINDS)
    talks = [planted(name, 0) for name in PLANTS] + [healthy(kinds.index(kind)) for kind in HEALTHY]
    return play(newest_openclaw, tmp_path_factory.mktemp("fleet"), talks)


@pytest.fixture(scope="module")
def events(fleet: Fleet) -> dict[str, list[AgentEvent]]:
    """The events of each session as an import of the next day reads them."""
    context = ReadingContext(
        "conn", "ops", None, datetime.now(UTC) + timedelta(days=1), timedelta(minutes=30), Redactor(RedactionSettings())
    )
    found: dict[str, list[AgentEvent]] = {}
    for path in find_databases(fleet.state):
        for reading in read_database(path, context):
            assert not reading.faults
            found[reading.session_ids[0]] = reading.events
    return found


def _shown(events: list[AgentEvent]) -> Iterator[str]:
    """The failure types that the events are evidence of, each as often as there is any."""
    calls: Counter[tuple[str, str | None]] = Counter()
    tokens: Counter[str] = Counter()
    prompt_before = None
    for event in events:
        payload = json.loads(event.payload)
        exchange = payload.get("exchange_id", "")
        if event.event == "tool_call" and not is_polling(event.tool, payload.get("arguments")):
            calls[exchange, event.call_key] += 1
        elif event.event == "token_usage":
            prompt, fresh = _fresh(payload["usage"], prompt_before)
            tokens[exchange] += fresh
            prompt_before = prompt
        elif event.event == "output_use" and event.used is False:
            yield "ignoring_tool_outputs"
        elif event.event == "memory_event" and event.action in ("miss", "recall_failed"):
            yield "memory_degradation"
        elif event.event == "context_event" and (event.action == "compaction" or (event.saturation or 0) >= 85):
            yield "context_pollution"
        elif event.event == "skill_event":
            yield "skill_failure"
    if max(calls.values(), default=0) >= 3:
        yield "infinite_tool_loop"
    if max(tokens.values(), default=0) >= FRESH_TOKENS:
        yield "cost_explosion"


def _fresh(usage: Json, before: int | None) -> tuple[int, int]:
    """The prompt of a request, and its new tokens: those that neither the cache nor the request before it had."""
    read, output = usage["cache_read"], usage["output"]
    prompt = usage["input"] + read + usage["cache_write"]
    return prompt, output + (max(0, prompt - max(read, before)) if before is not None else 0)


@pytest.mark.parametrize("failure_type", PLANTS)
def test_a_real_run_shows_the_failure_that_was_planted_and_no_other(
    failure_type: str, fleet: Fleet, events: dict[str, list[AgentEvent]]
) -> None:
    """The evidence is in what OpenClaw itself wrote down, by the way that the table of the docs names."""
    (run,) = [run for run in fleet.runs if run.planted == failure_type]
    own = events[run.session_id or ""]
    (row,) = [row for row in EVIDENCE if row.failure_type == failure_type]

    assert set(_shown(own)) == {failure_type}
    evidence = [event for event in own if event.event == row.imported.event]
    assert evidence
    assert all(("derived_by" in event.payload) == (row.imported.grade is Grade.DERIVED) for event in evidence)


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_real_healthy_run_shows_no_failure(kind: str, fleet: Fleet, events: dict[str, list[AgentEvent]]) -> None:
    """A retry, polling, a quiet log, a memory with hits, a sum and a skill that is followed are how agents work."""
    (run,) = [run for run in fleet.runs if run.kind == kind]

    assert list(_shown(events[run.session_id or ""])) == []
    assert any(event.event == "token_usage" for event in events[run.session_id or ""])


def test_trajectories_hold_what_the_table_says(fleet: Fleet) -> None:
    """The second account of a run tells calls, results and completions; not what was used or followed."""
    told: dict[str, Counter[str]] = defaultdict(Counter)
    for session, event in _trajectory(fleet.state):
        told[session][event["type"]] += 1
        assert not {"used", "referenced", "invoked"} & event["data"].keys()
    for row in EVIDENCE:
        (run,) = [run for run in fleet.runs if run.planted == row.failure_type]
        counts = told[run.session_id or ""]
        assert (row.trajectory.grade is Grade.BLIND) == (row.trajectory.event is None)
        assert row.trajectory.event is None or counts[row.trajectory.event] > 0


def _trajectory(state: Path) -> Iterator[tuple[str, Json]]:
    for path in find_databases(state):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            for session, text in connection.execute("SELECT session_id, event_json FROM trajectory_runtime_events"):
                yield session, json.loads(text)


def test_the_plugin_sends_what_the_table_says() -> None:
    """It derives nothing: for outputs and skills it is blind until an import ran."""
    library = ROOT / "examples/openclaw-plugin/lib"
    sent = {name for file in library.glob("*.js") for name in re.findall(r'event: "([a-z_]+)"', file.read_text("utf-8"))}

    for row in EVIDENCE:
        assert (row.plugin.grade is Grade.TOLD) == (row.plugin.event in sent)
    assert not {"output_use", "skill_event"} & sent


def test_the_table_names_every_detector_and_stands_in_the_docs() -> None:
    """If it does not, put what `streams.sources.openclaw_evidence.evidence_table()` returns into docs/openclaw.md."""
    assert [row.failure_type for row in EVIDENCE if row.failure_type] == sorted(
        (row.failure_type for row in EVIDENCE), key=[detector.failure_type for detector in DETECTORS].index
    )
    assert {row.failure_type for row in EVIDENCE} == {detector.failure_type for detector in DETECTORS} == set(PLANTS)
    assert evidence_table() in (ROOT / "docs/openclaw.md").read_text("utf-8")
