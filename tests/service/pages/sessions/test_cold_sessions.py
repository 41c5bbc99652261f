"""A session whose details are in the lake only reads as it did before."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from support.api_server import NOW, Call, Tokens
from support.builders import closing, event, exchange, judgement
from support.clocks import TickingClock
from support.engines import rows
from support.lakes import put_all

from analytics.lake import Lake
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.errors import InputError, LakeError
from schemas.registry import topics
from streams.engine.embedded import EmbeddedRunner
from streams.kafka.sink import SinkWriter
from streams.lake import recall as recalls
from streams.lake.recall import Recall
from streams.log.admission import EncodedRecords
from streams.log.log import SINK
from streams.upkeep.deletion import HotDays, erase, erasure, purge

Look = Callable[..., str]
OLD = NOW - timedelta(days=20)
POLICY = Policy()
VARIES = re.compile(r'content="[0-9a-f]{64}"|<a rel="(next|prev)"[^\n]*?Next session →</a>|"next":(null|\{[^}]*\})')
"""The digest of a page, and the next session, which is in the lake too."""
SUMS = ("daily_scores", "hourly_scores", "session_scores", "session_costs", "daily_exchanges", "daily_failures")
API = "/api/audit/ops"


@pytest.fixture(autouse=True)
def history(store: Store, tmp_path: Path) -> HotDays:
    """Store two finished sessions of three weeks ago, also in a lake; return the days that stay."""
    accepted = EncodedRecords()
    for name in ("old", "other"):
        for number in (1, 2):
            at = OLD + timedelta(minutes=number)
            turn = exchange(
                name, number, "" if number == 2 else f"Done by {name}.", occurred_at=at, ingested_at=at, agent="scout"
            )
            accepted.add("exchanges", encode(turn))
            call = event(
                name, number, event="tool_call", event_id=f"e{number}", tool="search", args={"words": f"{name} {number}"}
            )
            accepted.add("agent-events", encode(_shifted(call, at)))
        for topic in ("exchanges", "agent-events"):
            end = closing(name, 3)
            accepted.add(
                topic,
                encode(msgspec.structs.replace(end, closed_at=OLD + timedelta(hours=1), ingested_at=OLD + timedelta(hours=1))),
            )
        accepted.add("judgements", encode(_shifted(judgement(name, 1), OLD + timedelta(days=5))))
    runner = EmbeddedRunner(store, POLICY, Redactor(POLICY.redaction), TickingClock(NOW))
    runner.publish(accepted)
    runner.run()
    refresh_daily(store)
    put_all(tmp_path / "lake", store)
    with store.transaction() as transaction:
        transaction.set_watermarks(SINK, {(topic, 0): store.end_of(topic) for topic in topics()})
    return HotDays(3, Lake(str(tmp_path / "lake")))


def _shifted(record: Any, at: datetime) -> Any:
    return msgspec.structs.replace(
        record, **{name: at for name in ("occurred_at", "ingested_at", "judged_at") if hasattr(record, name)}
    )


@pytest.fixture
def recall(app: FastAPI, store: Store, tmp_path: Path) -> Recall:
    """Return the recall of the application."""
    writer = SinkWriter(store, Redactor(POLICY.redaction), lambda: NOW)
    app.state.context.recall = Recall(store, Lake(str(tmp_path / "lake")), writer)
    return app.state.context.recall


def cool(store: Store, history: HotDays) -> None:
    """Leave the sessions to the lake."""
    purge(store, POLICY, NOW, hot=history)
    assert rows(store, "exchanges", "1") == []


def score_of(store: Store) -> str:
    """Return the id of the score of the first exchange."""
    return str(store.cursor().execute("SELECT score_id FROM log.scores WHERE exchange_id = 'old:1'").fetchone()[0])  # type: ignore[index]


def sums(store: Store) -> dict[str, Any]:
    """Return the kept sums."""
    return {table: rows(store, table) for table in SUMS}


@pytest.mark.parametrize(
    "kind", ["session", "run", "exchange", "session over the API", "exchange over the API", "score over the API"]
)
@pytest.mark.usefixtures("recall")
def test_a_cold_session_reads_as_before(
    kind: str, *, store: Store, history: HotDays, look: Look, call: Call, tokens: Tokens
) -> None:
    """Whoever asks for it gets the texts, scores, events and judgements, by whichever id; and only this session comes back."""
    score_id = score_of(store)
    address = {
        "session": "/projects/ops/sessions/old",
        "run": "/projects/ops/runs/run_001",
        "exchange": f"/projects/ops/exchanges/{score_id}",
        "session over the API": f"{API}/sessions/old",
        "exchange over the API": f"{API}/exchanges/old:1",
        "score over the API": f"{API}/scores/{score_id}",
    }[kind]

    def read() -> str:
        if address.startswith("/api"):
            answer = call("GET", address, tokens.root)
            assert answer.status_code == 200, answer.text
            return VARIES.sub("", answer.text)
        return VARIES.sub("", look(address))

    before = read()
    cool(store, history)
    counted = sums(store)
    assert read() == before
    assert {session for (session,) in rows(store, "exchanges", "session_id")} == {"old"}
    assert sums(store) == counted
    cool(store, history)
    assert read() == before


def test_without_recall_details_are_missing(store: Store, history: HotDays, call: Call, tokens: Tokens) -> None:
    """The other tests would pass if cooling left everything where it is."""
    cool(store, history)
    assert call("GET", f"{API}/exchanges/old:1", tokens.root).status_code == 404


@pytest.mark.usefixtures("recall")
def test_an_erased_session_is_not_recalled(store: Store, history: HotDays, call: Call, tokens: Tokens) -> None:
    """A lake whose upkeep has not run yet still has the rows."""
    cool(store, history)
    with store.transaction() as transaction:
        transaction.append("erasures", [encode(erasure("local", "old", "root", None, NOW))])
    erase(store, NOW)
    assert call("GET", f"{API}/sessions/old", tokens.root).status_code == 404
    assert call("GET", f"{API}/exchanges/old:1", tokens.root).status_code == 404
    assert rows(store, "exchanges", "1") == []


@pytest.mark.usefixtures("recall")
def test_a_slow_lake_is_waited_for_a_moment(
    store: Store, history: HotDays, call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks is told that it is being fetched, and the fetch goes on."""
    cool(store, history)
    read, gate = Lake.read, threading.Event()

    def read_later(self: Lake, name: str, condition: str) -> Any:
        gate.wait()
        return read(self, name, condition)

    monkeypatch.setattr(Lake, "read", read_later)
    monkeypatch.setattr(recalls, "WAIT_SECONDS", 0.0)
    answer = call("GET", f"{API}/sessions/old", tokens.root)
    assert answer.status_code == 503
    assert "being fetched from the lake" in answer.text
    assert answer.headers["retry-after"]
    monkeypatch.setattr(recalls, "WAIT_SECONDS", 60.0)
    gate.set()
    assert "Done by old." in call("GET", f"{API}/sessions/old", tokens.root).text


@pytest.mark.usefixtures("recall")
def test_an_unreadable_lake_is_no_missing_session(
    store: Store, history: HotDays, call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of 404 would say that there never was one."""
    cool(store, history)

    def fail(*_: object) -> None:
        raise LakeError("the disk is gone")

    monkeypatch.setattr(Lake, "read", fail)
    answer = call("GET", f"{API}/exchanges/old:1", tokens.root)
    assert answer.status_code == 503
    assert "disk" not in answer.text


@pytest.mark.usefixtures("recall")
def test_what_the_lake_does_not_have_is_looked_up_once(
    store: Store, history: HotDays, call: Call, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong id must not read the whole lake at every request."""
    cool(store, history)
    read, lookups = Lake.read, list[str]()

    def count(self: Lake, name: str, condition: str) -> Any:
        lookups.append(name)
        return read(self, name, condition)

    monkeypatch.setattr(Lake, "read", count)
    for _ in range(2):
        assert call("GET", f"{API}/exchanges/nothing", tokens.root).status_code == 404
    assert lookups == ["Exchange"]


def test_whole_days_come_back_for_an_export(
    store: Store, history: HotDays, recall: Recall, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All details of the days must be there once, in the database that exports and replays read, and sums must not change."""
    before = {table: rows(store, table) for table in ("exchanges", "scores", "agent_events", "session_closings")}
    cool(store, history)
    counted = sums(store)
    monkeypatch.setattr(recalls, "BATCH_ROWS", 3)
    restored = loop.run(recall.days("ops", OLD.date() - timedelta(days=1), OLD.date()))
    assert restored >= sum(map(len, before.values()))
    assert {table: rows(store, table) for table in before} == before
    assert loop.run(recall.days("ops", OLD.date(), NOW.date())) == len(rows(store, "judgements", "1"))
    assert loop.run(recall.days("ops", OLD.date(), NOW.date())) == 0
    assert sums(store) == counted


def test_days_with_too_many_exchanges_are_refused(
    store: Store, history: HotDays, recall: Recall, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fill the disk that the hot days are meant for."""
    cool(store, history)
    monkeypatch.setattr(recalls, "MAX_EXCHANGES", 3)
    with pytest.raises(InputError, match="4 exchanges"):
        loop.run(recall.days("ops", OLD.date(), NOW.date()))
    assert rows(store, "exchanges", "1") == []
