"""Everybody at once, each a process of its own: clients deliver, analysts ask, and the project is checked all the while."""

from __future__ import annotations

import signal
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest
from support.clients import bearer, waiting
from support.effort import times
from support.invariants import rows
from support.servers import Home, nursery, until
from support.watch_histories import fallen, history, put

from analytics.store.store import Store
from benchmarks.callers import BUSY, Call, Crew, called
from service.setup.workspace import utc_now

SECONDS = times(3, soak=60)
"""How long all call at once; while no second copy has been made, or one has hardly called, they do so again, and for longer."""
ROUNDS = 20
CLIENTS, ANALYSTS = 6, 2
KINDS = {
    "POST ingest",
    "POST query",
    "GET summary",
    "GET scores",
    "GET trends",
    "POST check",
    "POST recompute",
    "GET incidents",
}
"""What is called."""
REFUSALS = {"busy", "log_unavailable", "no_snapshot"}
"""What a 503 may be for."""
CONNECTION = "bench"
OFTEN = """
    import functools, service.read.queries.pool, service.server.server_lifecycle
    from service.read.queries.protocol import QueryLimits

    service.read.queries.pool.REST = 0
    service.server.server_lifecycle.ApiSettings = functools.partial(service.server.server_lifecycle.ApiSettings, queries=QueryLimits(fresh_for=0.2))
"""
"""Has a server copy its database for analysts all the time, instead of once a minute."""


@contextmanager
def server(home: Home) -> Iterator[str]:
    """A server without a judge, its address; it has ended properly when the context has."""
    with nursery() as children:
        child = children.serve(home, "--judge", "none", before=textwrap.dedent(OFTEN))
        yield child.serving()
        child.send(signal.SIGTERM)
        assert child.wait() == 0


@pytest.mark.slow
def test_nothing_is_lost_under_concurrent_load(tmp_path: Path) -> None:
    """Ingest, snapshots, statements, daily sums and checks share one file and one machine.

    None may cost another an exchange, a second score or a moment that never was.
    """
    home = Home(tmp_path)
    connection, operator = home.connection(CONNECTION), home.operator()
    past = history(fallen(6), 40, end=utc_now())
    with Store(home.database) as store:
        put(store, "scores", past)
    with server(home) as url:
        crews = [Crew("ingest", connection, CLIENTS), Crew("query", operator, ANALYSTS), Crew("check", operator, 1)]
        calls: list[Call] = []
        for number in range(ROUNDS):
            calls += called(url, crews, seconds=SECONDS * (number + 1), salt=f"round-{number}")
            if is_enough(calls):
                break
        until(lambda: waiting(url, operator) == 0, "everything to be scored")
        summary = httpx2.get(f"{url}/api/audit/ops/summary", headers=bearer(operator), trust_env=False, timeout=60).json()
    accepted = check_answers(calls)
    check_table(home.database, accepted)
    assert summary["exchanges"]["total"] == len(accepted)
    assert summary["exchanges"]["pending"] == 0
    assert summary["scores"]["total"] == len(accepted) + len(past)
    check_snapshots(calls)
    check_reads(calls)
    check_incidents(home.database)


def is_enough(calls: Sequence[Call]) -> bool:
    """Whether there were two copies, and everybody called while exchanges came in."""
    copies = {call.answer["asOf"] for call in snapshots_of(calls)}
    return len(copies) > 1 and len(accepted_of(calls)) >= 10 * CLIENTS and all(len(meanwhile(calls, one)) >= 2 for one in KINDS)


def accepted_of(calls: Sequence[Call]) -> list[Call]:
    """The exchanges that were taken."""
    return [call for call in calls if call.what == "POST ingest" and call.status != BUSY]


def meanwhile(calls: Sequence[Call], what: str) -> list[Call]:
    """The calls of a sort between the first and the last exchange that was taken."""
    first, *_, last = accepted_of(calls)
    return [call for call in calls if call.what == what and first.sent_at < call.sent_at < last.sent_at]


def check_answers(calls: Sequence[Call]) -> set[str]:
    """Everybody was answered, at the same time, and nobody with a fault; the ids of the exchanges that were accepted."""
    assert [call for call in calls if call.status not in {200, 201, BUSY}] == []
    assert {call.answer["code"] for call in calls if call.status == BUSY} - REFUSALS == set()
    call_counts = Counter(call.what for call in calls if call.status != BUSY)
    assert call_counts.keys() == KINDS
    for kind in KINDS:
        assert len(meanwhile(calls, kind)) >= 2, f"{kind} was not asked meanwhile"
    accepted = accepted_of(calls)
    ids = {call.subject for call in accepted}
    assert len(ids) == len(accepted) >= 10 * CLIENTS
    return ids


def check_table(database: Path, accepted: set[str]) -> None:
    """Each accepted exchange is there once, in the order of its session, with one current score and no revision twice."""
    with Store(database) as store:
        stored_exchanges = Counter(
            one for (one,) in rows(store, f"SELECT exchange_id FROM log.exchanges WHERE connection = '{CONNECTION}'")
        )
        assert dict.fromkeys(accepted, 1) == dict(stored_exchanges)
        current = Counter(one for (one,) in rows(store, f"SELECT exchange_id FROM scores WHERE connection = '{CONNECTION}'"))
        assert dict.fromkeys(accepted, 1) == dict(current)
        twice = "SELECT 1 FROM log.scores GROUP BY connection, exchange_id, revision HAVING count(*) > 1"
        assert rows(store, twice) == []
        turns = rows(
            store,
            "SELECT list(turn_number ORDER BY _offset) FROM log.scores WHERE revision = 0 AND connection = 'bench' GROUP BY session_id",
        )
        assert [seen for (seen,) in turns if sorted(seen) != list(range(1, len(seen) + 1))] == []


def check_snapshots(calls: Sequence[Call]) -> None:
    """An analyst's answer is of the one moment it says: all that was answered before it is in it, and of no session a hole."""
    snapshots = snapshots_of(calls)
    assert len({call.answer["asOf"] for call in snapshots}) > 1, "no second copy was made"
    posts = accepted_of(calls)
    for call in snapshots:
        (row,) = call.answer["rows"]
        at = datetime.fromisoformat(call.answer["asOf"]).timestamp()
        before = sum(one.sent_at + one.seconds < at for one in posts)
        after = sum(one.sent_at < call.sent_at + call.seconds for one in posts)
        assert row["orphans"] == 0
        assert row["torn"] == 0
        assert row["ids"] == row["scores"] <= row["exchanges"]
        assert before <= row["exchanges"] <= after + CLIENTS


def snapshots_of(calls: Sequence[Call]) -> list[Call]:
    """The answers that say what an analyst sees of the exchanges that are coming in."""
    return [
        call
        for call in calls
        if call.what == "POST query" and call.status == 200 and call.answer["columns"][-1]["name"] == "torn"
    ]


def check_reads(calls: Sequence[Call]) -> None:
    """Figures add up at every moment and never go back; a page of scores has each one once, the newest first."""
    summaries = [call.answer for call in calls if call.what == "GET summary" and call.status == 200]
    for summary in summaries:
        assert summary["exchanges"]["pending"] >= 0
        parts = ("scored", "skippedSampling", "skippedCostCap", "unscored")
        assert summary["scores"]["total"] == sum(summary["exchanges"][part] for part in parts)
    pages = [call.answer["scores"] for call in calls if call.what == "GET scores" and call.status == 200]
    for page in pages:
        assert len(page) == len({one["id"] for one in page})
        moments = [one["exchangeTimestamp"] for one in page]
        assert moments == sorted(moments, reverse=True)
    totals = [call.answer["exchanges"]["total"] for call in sequence_of(calls, "GET summary")]
    assert all(one <= next_one for one, next_one in pairwise(totals))


def sequence_of(calls: Sequence[Call], what: str) -> list[Call]:
    """Calls of a sort of which each began when the one before had been answered."""
    failures: list[Call] = []
    for call in calls:
        if (
            call.what == what
            and call.status == 200
            and (not failures or failures[-1].sent_at + failures[-1].seconds <= call.sent_at)
        ):
            failures.append(call)
    return failures


def check_incidents(database: Path) -> None:
    """However often it is checked, and by whom, what changed is one incident, and late exchanges are none."""
    with Store(database) as store:
        incidents = rows(store, "SELECT type, tier, direction, status, count(*) FROM incidents GROUP BY ALL")
        assert incidents == [("drift", "tier2", "down", "open", 1)]
        query = "SELECT 1 FROM log.incidents GROUP BY incident_id, revision HAVING count(*) > 1"
        assert rows(store, query) == []
