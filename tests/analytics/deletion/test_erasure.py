"""Erasure: nothing of a session is left, in any table and in no byte of the file, and nothing of it comes back."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec
import polars as pl
import pytest
from support.builders import event, exchange, score
from support.clocks import NOW
from support.engines import engine_over, rows, runner_over
from support.erased_sessions import KEPT, MARKER, SESSION, records_of_session
from support.sample_records import SampleMaker

from analytics.deletion.compaction import compact, measure_space
from analytics.deletion.deleting import ERASURES
from analytics.store.store import Store, Transaction
from analytics.sums.daily import refresh_daily
from schemas.codec.single_object import encode
from schemas.records import (
    Alert,
    ImportProgress,
)
from schemas.registry import current_schemas
from streams.log.admission import EncodedRecords
from streams.replay.plan import folder_of
from streams.upkeep.deletion import erase, erasure, erasures, remains, request_erasure


def store_session(store: Store, samples: SampleMaker, session: str, marker: str) -> None:
    """Store everything that a database can contain about a session."""
    with store.transaction() as transaction:
        for topic, record in records_of_session(samples, session, marker):
            transaction.append(topic, [encode(record)])
        transaction.set_states("intake", {f"local/{session}": marker.encode()}, 1)
        path = f"/home/{session}.jsonl"
        transaction.set_progress(
            [ImportProgress(source="openclaw", path=path, size=1, modified_ns=1, complete=True, settings_digest="")]
        )
        body = msgspec.json.encode({"text": marker, "details": {"connection": "local", "sessionId": session}}).decode()
        transaction.set_alerts([alert(session, body)])
    store.checkpoint()


def alert(session: str, body: str) -> Alert:
    """Return an alert about a session."""
    return Alert(
        alert_id=session, channel="webhook", kind="telemetry", subject_id=f"local/{session}", severity="warning", body=body,
        created_at=NOW, not_before=NOW, attempts=1, status="delivered",
    )  # fmt: skip


def store_request(store: Store, connection: str, session: str | None) -> None:
    """Store an erasure request as if it came from a topic."""
    with store.transaction() as transaction:
        transaction.append(ERASURES, [encode(erasure(connection, session, "root", None, NOW))], skip_known=True)


@pytest.mark.parametrize("session", [SESSION, None])
def test_no_byte_of_an_erased_session_is_left(tmp_path: Path, samples: SampleMaker, session: str | None) -> None:
    """A marker in every text of a session must not be found in the compacted file."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        store_session(store, samples, SESSION, MARKER)
        store_session(store, samples, KEPT, "kept")
        refresh_daily(store)
        rows_before = count_rows(store)
        assert MARKER.encode() in path.read_bytes()
        store_request(store, "local", session)

        erase(store, NOW)

        rows_after = count_rows(store)
    for table, count in rows_after.items():
        if table not in {
            "incidents",
            "incident_outlines",
            "erasures",
            "stage_state",
            "watermarks",
            "daily_exchanges",
            "daily_scores",
            "hourly_scores",
            "hourly_behaviour",
            "baselines",
            "alerts",
        }:
            assert (count == rows_before[table] - rows_before[table] // 2) if session else count <= rows_before[table] // 2, (
                table
            )
    assert measure_space(path).is_worth_it
    compact(path)
    assert MARKER.encode() not in path.read_bytes()
    assert session is None or b"kept answer" in path.read_bytes()
    assert not [file for file in tmp_path.iterdir() if file != path and MARKER.encode() in file.read_bytes()]


def test_later_records_of_an_erased_session_are_refused(store: Store) -> None:
    """An agent that does not know of the erasure keeps sending; nothing of it is written, judged or paid for."""

    async def run() -> None:
        async with engine_over(store) as engine:
            assert (await engine.ingest_exchange(exchange(SESSION, 1))).outcome == "written"
            await request_erasure(engine, erasure("local", SESSION, "root", "please", engine.now()))
            assert not rows(store, "exchanges")
            assert (await engine.ingest_exchange(exchange(SESSION, 2))).outcome == "known"
            assert (await engine.ingest_exchange(exchange(KEPT, 1))).outcome == "written"
            assert (await engine.publish("agent-events", [event(SESSION, 1)])).written == 0
            await engine.wait_until_drained()

    asyncio.run(run())
    assert rows(store, "exchanges", "session_id") == [(KEPT,)]
    assert rows(store, "scores", "session_id") == [(KEPT,)]
    assert rows(store, "agent_events") == []
    ((only_erasure,),) = (erasures(store),)
    assert only_erasure.done is not None
    assert only_erasure.done.deleted["exchanges"] == 1


def test_a_rebuild_does_not_restore_an_erased_session(store: Store) -> None:
    """Neither a rebuild nor a repeated import may restore it."""
    runner = runner_over(store)
    accepted = EncodedRecords()
    for record in (exchange(SESSION, 1), exchange(KEPT, 1)):
        accepted.add("exchanges", encode(record))
    runner.publish(accepted)
    runner.run()
    store_request(store, "local", SESSION)
    assert erase(store, NOW) == 1
    assert erase(store, NOW) == 0

    runner.rebuild()
    runner.publish(accepted)
    runner.run()

    assert rows(store, "exchanges", "session_id") == [(KEPT,)]
    assert rows(store, "scores", "session_id") == [(KEPT,)]
    assert [one.done.deleted["exchanges"] for one in erasures(store) if one.done is not None] == [1]
    assert {key for (key,) in rows(store, "stage_state", "key", "key") if key.startswith("local")} == {f"local/{KEPT}"}


def test_daily_sums_are_recomputed_after_an_erasure(store: Store) -> None:
    """The sums of a day include the erased scores."""
    with store.transaction() as transaction:
        transaction.append("scores", [encode(score(SESSION, 1)), encode(score(KEPT, 1)), encode(score(KEPT, 2))])
    refresh_daily(store)
    assert rows(store, "daily_scores", "sum(exchanges)::INTEGER") == [(3,)]
    assert rows(store, "hourly_scores", "sum(exchanges)::INTEGER") == [(3,)]
    store_request(store, "local", SESSION)

    erase(store, NOW)

    assert rows(store, "daily_scores", "sum(exchanges)::INTEGER") == [(2,)]
    assert rows(store, "hourly_scores", "sum(exchanges)::INTEGER") == [(2,)]
    with store.transaction() as transaction:
        transaction.append("scores", [encode(score(KEPT, 3))])
    refresh_daily(store)
    assert rows(store, "daily_scores", "sum(exchanges)::INTEGER") == [(3,)]
    assert rows(store, "hourly_scores", "sum(exchanges)::INTEGER") == [(3,)]


def test_an_interrupted_erasure_is_completed_by_the_next(
    store: Store, samples: SampleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between two deletions, the request remains and the rest is deleted."""
    store_session(store, samples, SESSION, MARKER)
    store_request(store, "local", SESSION)
    delete_at, steps = Transaction.delete_at, iter(range(100))

    def interrupted_delete(transaction: Transaction, name: str, positions: pl.DataFrame) -> int:
        if next(steps) % 3 == 2:
            raise KeyboardInterrupt
        return delete_at(transaction, name, positions)

    monkeypatch.setattr(Transaction, "delete_at", interrupted_delete)
    for _ in range(20):
        with contextlib.suppress(KeyboardInterrupt):
            erase(store, NOW)
    monkeypatch.undo()

    remaining = {table: count for table, count in count_rows(store).items() if count}
    assert {table: remaining[table] for table in remaining if table not in ("stage_state", "watermarks")} == {
        "incidents": 1,
        "incident_outlines": 1,
        "erasures": 1,
    }
    assert MARKER not in str(rows(store, "incidents") + rows(store, "incident_outlines"))


def test_a_start_without_anything_to_erase_rewrites_no_file(tmp_path: Path, samples: SampleMaker) -> None:
    """Every start repeats all erasures, so rewriting the file each time would be wasteful."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        store_session(store, samples, SESSION, MARKER)
        store_request(store, "local", SESSION)
        erase(store, NOW)
    compact(path)
    with Store(path) as store:
        erase(store, NOW, all_again=True)

    assert not measure_space(path).holds_erased


def test_every_incident_about_an_erased_session_is_redacted(
    store: Store, samples: SampleMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incidents are read in groups, and rewritten while others are still to be read."""
    monkeypatch.setattr("analytics.deletion.retention.MAX_INCIDENTS", 2)
    evidence = msgspec.json.encode({"exchanges": [{"connection": "local", "sessionId": SESSION, "reason": MARKER}]}).decode()
    (template,) = samples.records("Incident", 1)
    incidents = [
        msgspec.structs.replace(template, incident_id=f"i{number}", revision=0, metadata=evidence) for number in range(5)
    ]
    with store.transaction() as transaction:
        transaction.append("incidents", [encode(incident) for incident in incidents])
    store_request(store, "local", SESSION)
    erase(store, NOW)
    assert rows(store, "incidents", "metadata") == [('{"exchanges":[{"erased":true}]}',)] * 5
    assert next(one.done.deleted["incidents"] for one in erasures(store) if one.done is not None) == 5


def test_replays_with_records_of_an_erased_session_are_deleted(tmp_path: Path) -> None:
    """They are separate files beside the database, and can be repeated."""
    path = tmp_path / "fleet.duckdb"
    folder = folder_of(path)
    folder.mkdir()
    for name, session in (("theirs", SESSION), ("others", KEPT)):
        with Store(folder / f"{name}.duckdb") as replay, replay.transaction() as transaction:
            transaction.append("scores", [encode(score(session, 1))])
    with Store(path) as store:
        store_request(store, "local", SESSION)
        erase(store, NOW)
        (erasure,) = erasures(store)

    assert erasure.done is not None
    assert list(erasure.done.replays) == ["theirs"]
    assert [file.name for file in folder.glob("*.duckdb")] == ["others.duckdb"]


def test_a_repeated_erasure_erases_again(store: Store) -> None:
    """Records that arrived meanwhile are erased too, but the request stays one record."""

    async def run() -> None:
        async with engine_over(store) as engine:
            for _ in range(2):
                await request_erasure(engine, erasure("local", None, "root", None, engine.now()))

    asyncio.run(run())
    assert len(erasures(store)) == 1
    assert len(remains(store)) == 2


def count_rows(store: Store) -> dict[str, int]:
    """Return the number of rows by table."""
    return {schema.table: len(rows(store, schema.table, "1")) for schema in current_schemas().values()}
