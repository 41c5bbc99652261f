"""Run numbers are assigned once and survive retention, erasure and rebuilds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from support.builders import event
from support.clocks import TickingClock
from support.engines import rows

from analytics.deletion.deleting import ErasureScope
from analytics.deletion.retention import ErasureRun
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from streams.engine.embedded import EmbeddedRunner
from streams.log.admission import EncodedRecords
from streams.upkeep.deletion import purge

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
OLD, NEW = NOW - timedelta(days=100), NOW - timedelta(days=10)
POLICY = Policy()


@pytest.fixture
def runner(store: Store) -> EmbeddedRunner:
    """A runner of all stages over the store."""
    return EmbeddedRunner(store, POLICY, Redactor(POLICY.redaction), TickingClock(NOW))


def finish(runner: EmbeddedRunner, ended_at: datetime, *sessions: str, project: str = "ops", first_number: int = 0) -> None:
    """Ingest sessions that end at a time, each with events numbered from `first_number`."""
    accepted = EncodedRecords()
    for session in sessions:
        for number, kind in enumerate(("tool_call", "session_end"), start=first_number):
            session_event = event(session, number, type=kind, name="exec")
            accepted.add(
                "agent-events",
                encode(msgspec.structs.replace(session_event, project=project, occurred_at=ended_at, ingested_at=ended_at)),
            )
    runner.publish(accepted)
    runner.run()


def numbers(store: Store, project: str = "ops") -> dict[object, object]:
    """Return the run numbers of a project by session."""
    return {
        session: number
        for run_project, session, number in rows(store, "run_numbers", "project, session_id, number")
        if run_project == project
    }


def test_each_project_numbers_its_runs_in_the_order_of_the_log(store: Store, runner: EmbeddedRunner) -> None:
    """Users write run_002 into tickets and mean the second run that ended."""
    finish(runner, NEW, "b", "a")
    finish(runner, OLD, "z", project="web")
    finish(runner, OLD, "c")
    assert numbers(store) == {"b": 1, "a": 2, "c": 3}
    assert numbers(store, "web") == {"z": 1}


def test_a_rediagnosed_run_keeps_its_number(store: Store, runner: EmbeddedRunner) -> None:
    """Late events make another revision of the same run, even if they name another project."""
    finish(runner, NEW, "a", "b")
    finish(runner, NEW, "a", first_number=2, project="web")
    assert rows(store, "diagnoses", "session_id, revision") == [("a", 0), ("a", 1), ("b", 0)]
    assert numbers(store) == {"a": 1, "b": 2}
    assert numbers(store, "web") == {}


def test_retention_changes_and_frees_no_number(store: Store, runner: EmbeddedRunner) -> None:
    """After ninety days, run_001 in a ticket must not be another run."""
    finish(runner, OLD, "a", "b")
    finish(runner, NEW, "c")
    purge(store, POLICY, NOW)
    assert numbers(store) == {"c": 3}
    purge(store, POLICY, NOW, days=1)
    assert numbers(store) == {}
    finish(runner, NOW, "d")
    assert numbers(store) == {"d": 4}


def test_an_erasure_frees_no_number_and_leaves_no_name(store: Store, runner: EmbeddedRunner) -> None:
    """The number of the erased run is not reused, and nothing shows whose it was."""
    finish(runner, NEW, "a", "b")
    ErasureRun(store, ErasureScope.from_pairs([("local", "a")])).run()
    assert rows(store, "run_numbers", "session_id, number") == [("b", 2)]
    finish(runner, NEW, "c")
    assert numbers(store) == {"b": 2, "c": 3}


def test_a_rebuild_keeps_the_numbers(store: Store, runner: EmbeddedRunner) -> None:
    """This holds even if retention has deleted the start of earlier runs."""
    finish(runner, OLD, "a")
    finish(runner, NEW, "b", "c")
    purge(store, POLICY, NOW)
    numbers_before = numbers(store)
    assert numbers_before == {"b": 2, "c": 3}
    runner.rebuild()
    assert numbers(store) == numbers_before


def test_an_older_file_keeps_the_numbers_that_it_showed(store: Store, runner: EmbeddedRunner) -> None:
    """An upgrade must not change the numbers that users wrote into tickets."""
    finish(runner, NEW, "b", "a")
    finish(runner, NEW, "c", project="web")
    assert store.path is not None
    path = store.path
    store.cursor().execute(
        "DROP VIEW IF EXISTS main.run_numbers; DROP TABLE log.run_numbers; DELETE FROM log.watermarks WHERE consumer = 'run numbers'"
    )
    store.close()
    with Store(path) as opened:
        assert numbers(opened) == {"b": 1, "a": 2}
        assert numbers(opened, "web") == {"c": 1}
        finish(EmbeddedRunner(opened, POLICY, Redactor(POLICY.redaction), TickingClock(NOW)), NEW, "d")
        assert numbers(opened) == {"b": 1, "a": 2, "d": 3}
