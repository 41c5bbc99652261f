"""Numbers of runs: given once, whatever is deleted, erased or made again."""

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
    """What runs the stages over the store."""
    return EmbeddedRunner(store, POLICY, Redactor(POLICY.redaction), TickingClock(NOW))


def finish(runner: EmbeddedRunner, at: datetime, *sessions: str, project: str = "ops", first: int = 0) -> None:
    """Take in sessions that end at a time, one after another, each with events from number `first` on."""
    accepted = EncodedRecords()
    for session in sessions:
        for number, kind in enumerate(("tool_call", "session_end"), start=first):
            said = event(session, number, type=kind, name="exec")
            accepted.add("agent-events", encode(msgspec.structs.replace(said, project=project, occurred_at=at, ingested_at=at)))
    runner.publish(accepted)
    runner.run()


def numbers(store: Store, project: str = "ops") -> dict[object, object]:
    """Number by session."""
    return {
        session: number
        for named, session, number in rows(store, "run_numbers", "project, session_id, number")
        if named == project
    }


def test_each_project_counts_its_runs_in_the_order_of_the_log(store: Store, runner: EmbeddedRunner) -> None:
    """People write run_002 into tickets, and mean the second that ended."""
    finish(runner, NEW, "b", "a")
    finish(runner, OLD, "z", project="web")
    finish(runner, OLD, "c")
    assert numbers(store) == {"b": 1, "a": 2, "c": 3}
    assert numbers(store, "web") == {"z": 1}


def test_a_run_that_is_diagnosed_again_keeps_its_number(store: Store, runner: EmbeddedRunner) -> None:
    """Late events make another revision of the same run, also where they name another project."""
    finish(runner, NEW, "a", "b")
    finish(runner, NEW, "a", first=2, project="web")
    assert rows(store, "diagnoses", "session_id, revision") == [("a", 0), ("a", 1), ("b", 0)]
    assert numbers(store) == {"a": 1, "b": 2}
    assert numbers(store, "web") == {}


def test_retention_moves_no_number_and_frees_none(store: Store, runner: EmbeddedRunner) -> None:
    """Else run_001 of a ticket would be another run after ninety days."""
    finish(runner, OLD, "a", "b")
    finish(runner, NEW, "c")
    purge(store, POLICY, NOW)
    assert numbers(store) == {"c": 3}
    purge(store, POLICY, NOW, days=1)
    assert numbers(store) == {}
    finish(runner, NOW, "d")
    assert numbers(store) == {"d": 4}


def test_an_erasure_moves_no_number_and_leaves_no_name(store: Store, runner: EmbeddedRunner) -> None:
    """The erased run's number is given to no other, and nothing says whose it was."""
    finish(runner, NEW, "a", "b")
    ErasureRun(store, ErasureScope.from_pairs([("local", "a")])).run()
    assert rows(store, "run_numbers", "session_id, number") == [("b", 2)]
    finish(runner, NEW, "c")
    assert numbers(store) == {"b": 2, "c": 3}


def test_numbers_stay_when_everything_is_made_again(store: Store, runner: EmbeddedRunner) -> None:
    """Also behind those of runs whose beginning retention has deleted."""
    finish(runner, OLD, "a")
    finish(runner, NEW, "b", "c")
    purge(store, POLICY, NOW)
    before = numbers(store)
    assert before == {"b": 2, "c": 3}
    runner.rebuild()
    assert numbers(store) == before


def test_a_file_from_before_numbers_were_kept_gets_those_it_showed(store: Store, runner: EmbeddedRunner) -> None:
    """Opening it with this version must not change what was written into tickets."""
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
