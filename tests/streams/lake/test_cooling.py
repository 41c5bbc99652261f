"""Details of old days leave the database once the lake has them, and nothing that counts changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from support.builders import closing as session_closing
from support.builders import event, exchange, judgement, score
from support.clocks import TickingClock
from support.engines import rows
from support.lakes import fill_store, put_all

from analytics.lake import Lake, rows_of
from analytics.store.positions import COMPACTION
from analytics.store.store import Store
from analytics.sums.daily import query_days, refresh_daily
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.errors import LakeError
from schemas.records import Record, Review
from streams.engine.embedded import EmbeddedRunner
from streams.log.admission import EncodedRecords
from streams.upkeep.deletion import HotDays, erase, erasure, purge

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
OLD, NEW = NOW - timedelta(days=20), NOW - timedelta(days=2)
POLICY = Policy()
ANSWERS = {1: "It is done.", 2: ""}
PERIOD = {"from": NOW - timedelta(days=60), "to": datetime(2026, 11, 2, tzinfo=UTC)}


def shifted(record: Any, at: datetime) -> Any:
    """Return a record at another time."""
    fields = {
        name: at for name in ("occurred_at", "ingested_at", "closed_at", "judged_at", "exchange_at") if hasattr(record, name)
    }
    return msgspec.structs.replace(record, **fields)


def records_of(session: str, at: datetime) -> list[tuple[str, Record]]:
    """Return the records of a finished session with two turns, an event with a failed call, and a paid judgement."""
    failed = event(session, 1, event="tool_call", event_id="e1", tool="search", status="error")
    return [
        *(
            ("exchanges", shifted(exchange(session, number, ANSWERS[number]), at + timedelta(minutes=number)))
            for number in (1, 2)
        ),
        ("judgements", shifted(judgement(session, 1), at + timedelta(minutes=2))),
        ("agent-events", shifted(failed, at + timedelta(minutes=1))),
        ("agent-events", shifted(session_closing(session, 2), at + timedelta(minutes=5))),
        ("exchanges", shifted(session_closing(session, 2), at + timedelta(minutes=5))),
    ]


def publish(store: Store, *records: tuple[str, Record]) -> None:
    """Ingest records and run all stages."""
    accepted = EncodedRecords()
    for topic, record in records:
        accepted.add(topic, encode(record))
    runner = EmbeddedRunner(store, POLICY, Redactor(POLICY.redaction), TickingClock(NOW))
    runner.publish(accepted)
    runner.run()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake with an old and a new session, and a third one that a person has scored."""
    with Store(None) as source:
        publish(source, *records_of("old", OLD), *records_of("new", NEW), *records_of("reviewed", OLD))
        ((score_id,),) = source.cursor().execute("SELECT score_id FROM scores WHERE exchange_id = 'reviewed:1'").fetchall()
        review = Review(
            review_id="r1", project="ops", subject_id=score_id, kind="human_score", reviewer="ann", occurred_at=OLD, ingested_at=OLD
        )  # fmt: skip
        publish(source, ("reviews", review))
        put_all(tmp_path / "lake", source)
    return tmp_path / "lake"


@pytest.fixture
def store(lake: Path) -> Iterator[Store]:
    """Return a database with everything that is in the lake."""
    with Store(None) as filled:
        fill_store(lake, filled)
        yield filled


def cool(store: Store, lake: Path, now: datetime = NOW) -> None:
    """Keep the details of ten days."""
    purge(store, POLICY, now, hot=HotDays(10, Lake(str(lake))))


def answers(store: Store) -> dict[str, Any]:
    """Return what lists, trends, costs and totals say about all days."""
    first_page: dict[str, Any] = {"last_number": None, "last_text": None, "last_id": None, "limit": 50, "down": True}
    period = {"since": PERIOD["from"], "until": PERIOD["to"]}

    def ask(name: str, **values: Any) -> list[dict[str, Any]]:
        with closing(store.cursor()) as cursor:
            return query_days(cursor, name, {"project": "ops"} | values)

    sessions = dict.fromkeys(
        ("agent", "anomalies", "failure", "readiness", "version", "tool", "tool_error", "turns", "ids", "tier", "least", "most")
    )
    runs = dict.fromkeys(("readiness", "agents", "failure", "least", "most"))
    summary = ask("project_summary")[0]
    return {
        "projects": ask("projects", **PERIOD, as_of=NOW),
        "summary": {name: summary[name] for name in summary if name != "unscored_reasons"},
        "exchanges": ask("total_exchanges", **period, agent=None, anomalies=None),
        "costs": ask("daily_costs", as_of=PERIOD["to"], days=60),
        "sessions": [
            {name: row[name] for name in row if name not in {"question", "events", "tool_calls"}}
            for row in ask("list_sessions", **period, **sessions, **first_page, sort="turns")
        ],
        "costs by session": ask("judge_costs", by="session", **PERIOD),
        "runs": ask("list_runs", **period, **runs, **first_page, sort="run"),
    }


def sessions_in(store: Store, table: str) -> set[str]:
    """Return the sessions with rows in a log table."""
    return {session for (session,) in store.cursor().execute(f"SELECT DISTINCT session_id FROM log.{table}").fetchall()}


def test_sums_and_lists_are_the_same_before_and_after(store: Store, lake: Path) -> None:
    """Only details leave: a list of a year ago must have the same sessions, runs, costs and totals."""
    refresh_daily(store)
    before = answers(store)
    assert before["runs"]
    assert before["costs"]
    cool(store, lake)
    assert sessions_in(store, "exchanges") == {"new", "reviewed"}
    assert sessions_in(store, "agent_events") == {"new"}
    assert answers(store) == before


def test_what_people_have_scored_stays(store: Store, lake: Path) -> None:
    """Agreement is computed from single scores, of which there are few."""
    cool(store, lake)
    stored = store.cursor().execute("SELECT exchange_id FROM exchanges WHERE session_id = 'reviewed'").fetchall()
    assert stored == [("reviewed:1",)]
    assert store.count("reviews") == 1
    assert store.count("diagnoses") == 3


def test_only_what_the_lake_has_leaves(store: Store, tmp_path: Path) -> None:
    """A lake that is behind, or whose first sink started after the topics had lost records, must not cost a record."""
    partial = Lake(str(tmp_path / "partial"))
    partial.create()
    for name, topic in (("Score", "scores"), ("Exchange", "exchanges")):
        second = store.read(topic, 1, 1)[name].with_columns(_partition=pl.lit(0, pl.Int32), received_at=pl.lit(NOW))
        partial.commit(name, rows_of(name, topic, second), {(topic, 0): 2})
    before = {table: sorted(rows(store, table, "_offset")) for table in ("exchanges", "scores", "judgements", "agent_events")}
    cool(store, tmp_path / "partial")
    for table, offsets in before.items():
        left = sorted(rows(store, table, "_offset"))
        assert left == [offset for offset in offsets if offset[0] != 1 or table in {"judgements", "agent_events"}], table
    with pytest.raises(LakeError, match="not a lake"):
        cool(store, tmp_path / "none")


def test_late_records_do_not_change_the_sums_of_cold_days(store: Store, lake: Path) -> None:
    """The day would be added up from the late record alone."""
    cool(store, lake)
    before = answers(store)
    late = [shifted(score("late", 1), OLD)]
    with store.transaction() as transaction:
        transaction.append("scores", [encode(record) for record in late])
        transaction.append("exchanges", [encode(shifted(exchange("late", 1), OLD))])
        transaction.append("judgements", [encode(shifted(judgement("late", 1), OLD))])
    refresh_daily(store)
    after = answers(store)
    assert after["exchanges"] == before["exchanges"]
    assert after["costs"] == before["costs"]
    assert after["sessions"] == before["sessions"]


def test_the_policy_still_deletes_for_good(store: Store, lake: Path) -> None:
    """Past the policy's days, sums that name sessions go as they go with their records."""
    cool(store, lake)
    assert sessions_in(store, "session_scores") == {"old", "new", "reviewed"}
    cool(store, lake, OLD + timedelta(days=POLICY.defaults.retention_days or 0, hours=30))
    assert sessions_in(store, "session_scores") == {"new"}
    assert sessions_in(store, "session_costs") == {"new"}
    assert sessions_in(store, "diagnoses") == {"new"}
    assert len(rows(store, "daily_scores", "1")) > 1


def test_an_erasure_reaches_the_sums_of_cold_days(store: Store, lake: Path) -> None:
    """No row that names the session may stay, although its records are not here to find it by."""
    cool(store, lake)
    request_erasure(store, "old")
    erase(store, NOW)
    for table in ("session_scores", "session_costs", "diagnoses", "run_numbers"):
        assert "old" not in sessions_in(store, table), table
    assert "new" in sessions_in(store, "session_scores")
    failures = store.cursor().execute("SELECT unnest(examples).session_id FROM log.daily_failures").fetchall()
    assert failures
    assert ("old",) not in failures


def test_an_erasure_of_sums_alone_makes_compaction_due(store: Store, lake: Path) -> None:
    """The wording of an error is in the free space of the file then."""
    cool(store, lake)
    request_erasure(store, "old")
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.diagnoses WHERE session_id = 'old'")
        transaction.set_watermark(COMPACTION, "", 0)
    erase(store, NOW)
    with store.transaction() as transaction:
        assert transaction.watermark(COMPACTION, "") == 1


def request_erasure(store: Store, session: str) -> None:
    """Store the request to erase a session."""
    with store.transaction() as transaction:
        transaction.append("erasures", [encode(erasure("local", session, "root", None, NOW))])
