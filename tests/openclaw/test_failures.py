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
from pathlib import Path
from typing import Any

import pytest

from audit.detectors.detectors import DETECTORS
from openclaw.evidence import EVIDENCE, Grade, evidence_table
from openclaw.fleet_runs import Fleet, play
from openclaw.install import Installed
from openclaw.plays import KINDS, PLANTS, build_failing_conversation, healthy
from openclaw.verdicts import diagnosis_of, events_of
from schemas.records import AgentEvent
from streams.sources.openclaw.storage import find_databases

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = ("retry", "polling", "all_fine", "recall", "total", "skill")
"""A healthy kind beside each failure: the one that looks most like it."""
pytestmark = pytest.mark.slow
Json = dict[str, Any]


@pytest.fixture(scope="module")
def fleet(newest_openclaw: Installed, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """One run with each failure planted, and six healthy ones, through one real gateway."""
    kinds = list(KINDS)
    talks = [build_failing_conversation(name, 0) for name in PLANTS] + [healthy(kinds.index(kind)) for kind in HEALTHY]
    return play(newest_openclaw, tmp_path_factory.mktemp("fleet"), talks)


@pytest.fixture(scope="module")
def events(fleet: Fleet) -> dict[str, list[AgentEvent]]:
    """The events of each session as an import of the next day reads them."""
    return events_of(fleet.state)


@pytest.mark.parametrize("failure_type", PLANTS)
def test_a_real_run_shows_the_failure_that_was_planted_and_no_other(
    failure_type: str, fleet: Fleet, events: dict[str, list[AgentEvent]]
) -> None:
    """The evidence is in what OpenClaw itself wrote down, by the way that the table of the docs names."""
    (run,) = [run for run in fleet.runs if run.planted == failure_type]
    own = events[run.session_id or ""]
    (row,) = [row for row in EVIDENCE if row.failure_type == failure_type]

    causes = {cause.type: cause for cause in diagnosis_of(own).causes}
    assert causes.keys() - {"cost_explosion"} == {failure_type} - {"cost_explosion"}, "a loop of many calls is expensive, too"
    assert failure_type in causes
    evidence = [event for event in own if event.event == row.imported.event]
    assert evidence
    assert all(("derived_by" in event.payload) == (row.imported.grade is Grade.DERIVED) for event in evidence)


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_real_healthy_run_shows_no_failure(kind: str, fleet: Fleet, events: dict[str, list[AgentEvent]]) -> None:
    """A retry, polling, a quiet log, a memory with hits, a sum and a skill that is followed are how agents work."""
    (run,) = [run for run in fleet.runs if run.kind == kind]

    found = diagnosis_of(events[run.session_id or ""])
    assert found.causes == ()
    assert found.readiness_level == "ready_for_runtime"
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


def test_the_table_names_every_detector_that_counts_and_stands_in_the_docs() -> None:
    """If it does not, put what `openclaw.evidence.evidence_table()` of the tests returns into docs/openclaw.md."""
    counted = [detector.failure_type for detector in DETECTORS if detector.failure.weight]
    assert counted == [row.failure_type for row in EVIDENCE]
    assert {*counted} == set(PLANTS)
    assert evidence_table() in (ROOT / "docs/openclaw.md").read_text("utf-8")
