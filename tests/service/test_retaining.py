"""The commands that delete: retention, erasure, compaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.builders import exchange
from support.clocks import NOW
from support.engines import runner_over

from analytics.store.positions import COMPACTION
from analytics.store.store import Store
from schemas.codec.single_object import encode
from streams.log.admission import EncodedRecords
from streams.log.log import SINK

Command = Callable[..., tuple[int, str, str]]
AS_OF = NOW.isoformat()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with an old session and a new one."""
    path = tmp_path / "driftline.duckdb"
    accepted = EncodedRecords()
    for session, days in (("an old session", 100), ("a new session", 10)):
        at = NOW - timedelta(days=days)
        accepted.add("exchanges", encode(exchange(session, 1, f"{session} says", occurred_at=at, ingested_at=at)))
    with Store(path) as store:
        runner = runner_over(store)
        runner.publish(accepted)
        runner.run()
    return path


def sessions(path: Path) -> list[str]:
    """The sessions that a database has."""
    with Store(path) as store:
        return [one for (one,) in store.cursor().execute("SELECT session_id FROM log.exchanges").fetchall()]


def test_retention_can_be_run_by_hand(database: Path, driftline: Command) -> None:
    """An installation without a server needs it."""
    code, told, _said = driftline("retention", "run", "--as-of", AS_OF, "--db", str(database), "--json")
    assert code == 0

    found = json.loads(told)
    assert found["exchangesPurged"] == 1
    assert found["scoresPurged"] == 1
    assert found["cutoffDate"].startswith("2026-08-03T00:00:00")
    assert sessions(database) == ["a new session"]
    code, told, _said = driftline("retention", "run", "--days", "5", "--as-of", AS_OF, "--db", str(database))
    assert code == 0
    assert "deleted: 1 exchange, 1 score" in told
    assert "begins on 2026-10-27" in told


def test_an_erased_session_is_in_no_byte_of_the_file(database: Path, driftline: Command) -> None:
    """The command also compacts the file, and names the copies that it cannot reach."""
    assert b"an old session says" in database.read_bytes()

    code, told, said = driftline(
        "erase", "--connection", "local", "--session", "an old session", "--yes", "--db", str(database)
    )
    assert code == 0

    assert "1 exchanges" in told
    assert "Backups" in said
    assert b"an old session says" not in database.read_bytes()
    assert sessions(database) == ["a new session"]
    code, told, said = driftline("erase", "--connection", "local", "--yes", "--db", str(database), "--json")
    assert code == 0
    assert json.loads(told)["erasure"]["deleted"]["exchanges"] == 1
    assert sessions(database) == []


@pytest.mark.parametrize("whose", [("--connection", ""), ("--connection", "local", "--session", "")])
def test_an_empty_name_erases_nothing(whose: tuple[str, ...], database: Path, driftline: Command) -> None:
    """An unset shell variable must be an error."""
    code, told, said = driftline("erase", *whose, "--yes", "--db", str(database))

    assert code == 2
    assert told == ""
    assert f"{whose[-2]} is empty" in said
    assert len(sessions(database)) == 2


def test_a_database_filled_by_kafka_is_erased_by_its_server(database: Path, driftline: Command) -> None:
    """A request that is not on the topic would be undone by the next rebuild."""
    with Store(database) as store, store.transaction() as transaction:
        transaction.set_watermark(SINK, "exchanges", 2)

    code, _told, said = driftline("erase", "--connection", "local", "--yes", "--db", str(database))
    assert code == 2

    assert "is filled from Kafka" in said
    assert len(sessions(database)) == 2


def test_compaction_reports_the_freed_space(database: Path, driftline: Command) -> None:
    """It also runs if it is due only because of an erasure."""
    with Store(database) as store, store.transaction() as transaction:
        transaction.set_watermark(COMPACTION, "", 1)

    code, told, _said = driftline("compact", "--db", str(database))
    assert code == 0
    assert "MB, now" in told
    assert len(sessions(database)) == 2
    code, told, _said = driftline("compact", "--db", str(database.with_name("none.duckdb")))
    assert code == 2
