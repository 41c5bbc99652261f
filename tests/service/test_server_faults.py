"""Faults around a real server: asked to stop, without room on its disk, frozen, without a judge, over a damaged file."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from support import builders as build
from support.clients import CUT_OFF, INGEST, REFUSED, TAKEN, Load, bearer, exchange_body, until, waiting
from support.invariants import check, check_nothing_lost_or_doubled, rows
from support.servers import Child, Home, Nursery, nursery
from support.servers import until as wait_until

from analytics.store.store import Store
from driftline_trial.simulator import RunningJudge, running
from schemas.codec.single_object import encode

pytestmark = pytest.mark.slow
CAPS = {"ops": 1.0}
PROJECTS = {"north": "ops", "south": "ops"}
HEALTHY = "The backup of this night is healthy."
SOON = 120.0
"""Seconds within which a server that is asked to stop has stopped, however busy the machine; its judge would take ten minutes."""


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """What starts servers."""
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """A simulated judge that takes its time."""
    with running(latency=0.05) as judge:
        yield judge


@pytest.fixture
def home(tmp_path: Path, simulator: RunningJudge) -> Home:
    """An empty folder for a server with a judge."""
    simulator.reset("answer")
    return Home(tmp_path, ANTHROPIC_BASE_URL=simulator.base_url, DRIFTLINE_JUDGE_DEADLINE="10")


@pytest.fixture
def load(home: Home) -> Load:
    """Clients that tell eight sessions."""
    fleet = Load(home, PROJECTS, random.Random(20261102))
    fleet.fill(8)
    return fleet


def disturbed(load: Load, url: str, moment: Callable[[], object], disturb: Callable[[], None]) -> None:
    """Tell the sessions, and disturb that at a moment."""

    async def work() -> None:
        loading = asyncio.create_task(load.run(url))
        await until(lambda: moment() or loading.done())
        assert not loading.done()
        disturb()
        await loading

    asyncio.run(work())


def told(load: Load, url: str) -> None:
    """Tell what is left of the sessions, and wait for the scores."""
    asyncio.run(load.run(url))
    assert all(session.ended for session in load.sessions)
    wait_until(lambda: not waiting(url, load.home.operator()), "everything to be scored")


def stopped(server: Child) -> None:
    """Ask a server to stop; it does so in time, and says that all is well."""
    server.send(signal.SIGTERM)
    assert server.wait(SOON) == 0


def put(url: str, token: str, turn: int, said: str = HEALTHY) -> int:
    """Send one exchange; the status that is answered."""
    return httpx2.post(f"{url}{INGEST}", json=exchange_body("s", turn, said), headers=bearer(token), timeout=60).status_code


def outcomes(home: Home) -> set[str]:
    """What judge calls came to."""
    with Store(home.database) as store:
        return {outcome for (outcome,) in rows(store, "SELECT DISTINCT outcome FROM judgements")}


def reservations(home: Home) -> tuple[int, int]:
    """How often money was set aside, and how often that was settled."""
    with Store(home.database) as store:
        return rows(store, "SELECT (SELECT count(*) FROM reservations), (SELECT sum(len(reservation_ids)) FROM judgements)")[0]


def test_a_stop_under_load_loses_nothing_and_cancels_no_call(
    children: Nursery, home: Home, load: Load, simulator: RunningJudge
) -> None:
    """Servers are deployed daily, which must cost neither an exchange nor a paid call."""
    load.fill(48)
    server = children.serve(home)
    disturbed(load, server.serving(), lambda: simulator.requests >= 5, lambda: server.send(signal.SIGTERM))
    assert server.wait(SOON) == 0
    assert load.seen[CUT_OFF] + load.seen[REFUSED] > 0
    made, settled = reservations(home)
    assert made == settled > 0
    restarted = children.serve(home)
    told(load, restarted.serving())
    stopped(restarted)
    check(home.database, load.accepted, CAPS, simulator.requests)
    assert outcomes(home) == {"answered"}


@pytest.mark.parametrize(("grace", "signals"), [("0.5", 1), ("600", 2)])
def test_a_hanging_judge_does_not_keep_a_server_from_stopping(
    children: Nursery, home: Home, simulator: RunningJudge, grace: str, signals: int
) -> None:
    """The server waits for its grace period, or until it is asked again."""
    simulator.reset("hang")
    server = children.serve(home, environment={"DRIFTLINE_STOP_GRACE": grace, "DRIFTLINE_JUDGE_DEADLINE": "3600"})
    url, token = server.serving(), home.connection("north")
    assert put(url, token, 1) == 201
    wait_until(lambda: simulator.requests > 0, "the judge to be asked")
    started = time.monotonic()
    for _ in range(signals):
        server.send(signal.SIGTERM)
        wait_until(lambda: "Shutting down" in server.logged, "the server to stop taking calls")
    assert server.wait(SOON) == 0
    assert time.monotonic() - started < SOON
    simulator.reset("answer")
    restarted = children.serve(home)
    wait_until(lambda: not waiting(restarted.serving(), home.operator()), "what was begun to be scored")
    stopped(restarted)
    check(home.database, {("north", "s:1")}, CAPS)
    assert outcomes(home) == {"interrupted", "answered"}


def test_a_full_disk_is_reported_and_survived(children: Nursery, home: Home, load: Load, simulator: RunningJudge) -> None:
    """No sender gets 201 for a record that is not durable, and paid calls are recorded once there is room."""
    Store(home.database).close()
    server = children.serve(home, file_size=60_000)
    url = server.serving()
    asyncio.run(load.run(url))
    # A session that comes to its end while others are refused has met no refusal; one that was taken may fail to end.
    assert sum(not one.ended for one in load.sessions) >= load.seen[REFUSED] > 0
    # The limit is one for each file: the write-ahead log may have room where the database has none.
    if put(url, home.connection("north"), 1) == 201:
        load.accepted.add(("north", "s:1"))
    wait_until(lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code == 503, "the server to say that it cannot write")
    why = httpx2.get(f"{url}/readyz", timeout=60).json()["error"]
    assert why.startswith(("the log did not accept a record", "accepted records cannot be written to the tables"))
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    told(load, url)
    assert httpx2.get(f"{url}/readyz", timeout=60).status_code == 200
    stopped(server)
    check(home.database, load.accepted, CAPS, simulator.requests)
    assert outcomes(home) == {"answered"}


def test_a_fatal_database_error_ends_the_server_and_the_next_one_continues(children: Nursery, home: Home) -> None:
    """The database must be reopened, and a server that only reports the error would never be restarted."""
    chance = random.Random(1)
    with Store(home.database) as store, store.transaction() as transaction:
        large = [build.judgement("old", number, answer=chance.randbytes(250_000).hex()) for number in range(72)]
        transaction.append("judgements", [encode(record) for record in large])
    size = home.database.stat().st_size
    assert size > 17_000_000, "the write-ahead log is folded in before it comes to the limit"
    server = children.serve(home, "--judge", "none", file_size=size + 100_000)
    url, token, accepted = server.serving(), home.connection("north"), set()
    texts = [chance.randbytes(200_000).hex() for _ in range(60)]
    for turn, text in enumerate(texts):
        try:
            status = put(url, token, turn, text)
            # Who reads has it land, so that the database meets the limit when it folds in its log, and not before.
            httpx2.get(f"{url}/api/audit/ops/scores", headers=bearer(home.operator()), timeout=60)
        except httpx2.TransportError:  # what it does between two calls can meet the limit, too
            break
        if status != 201:  # the write-ahead log met the limit, and goes on in another file
            continue
        accepted.add(("north", f"s:{turn}"))
    assert server.wait() == 2
    assert 5 < len(accepted) < len(texts)
    assert "the database has given up" in server.logged
    assert "Free disk space" in server.logged
    restarted = children.serve(home, "--judge", "none")
    # It may have been durable, though the server could not say so.
    assert put(restarted.serving(), token, turn, text) in {200, 201}
    stopped(restarted)
    with Store(home.database) as store:
        check_nothing_lost_or_doubled(store, accepted | {("north", f"s:{turn}")})


def test_a_frozen_server_continues_where_it_was(children: Nursery, home: Home, load: Load, simulator: RunningJudge) -> None:
    """A machine that is moved or swaps pauses; no sender is disconnected, and nothing is repeated."""
    server = children.serve(home)
    url = server.serving()

    def freeze() -> None:
        server.send(signal.SIGSTOP)
        with pytest.raises(httpx2.TimeoutException):
            httpx2.get(f"{url}/healthz", timeout=0.5)
        server.send(signal.SIGCONT)

    disturbed(load, url, lambda: simulator.requests >= 5, freeze)
    told(load, url)
    stopped(server)
    assert set(load.seen) == {TAKEN}
    check(home.database, load.accepted, CAPS, simulator.requests)
    assert outcomes(home) == {"answered"}


def test_exchanges_from_a_judge_outage_can_be_judged_later(children: Nursery, home: Home) -> None:
    """Refused connections cost nothing, and the exchanges give the reason until they have a score."""
    token = home.connection("north")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # nothing listens there, and nobody else is given the port
        port = reserved.getsockname()[1]
        home.environment |= {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "DRIFTLINE_JUDGE_DEADLINE": "4"}
        server = children.serve(home)
        url = server.serving()
        assert [put(url, token, turn) for turn in (1, 2, 3)] == [201, 201, 201]
        wait_until(lambda: not waiting(url, home.operator()), "the judge to be given up")
        stopped(server)
    assert f"note: the judge at http://127.0.0.1:{port} does not answer" in server.printed
    # On a busy machine the deadline may pass before the connection is refused.
    assert outcomes(home) <= {"provider_error", "timeout"}
    with Store(home.database) as store:
        unscored_rows = rows(
            store,
            "SELECT DISTINCT disposition, tier2_state, tier2_reason IN ('provider_error', 'timeout'), cost_usd FROM scores",
        )
        assert unscored_rows == [("unscored", "unscored", True, 0.0)]
    with running(port=port):
        code, _ = children.run(home, "rejudge", "--yes", environment={"DRIFTLINE_JUDGE_DEADLINE": "60"})
    assert code == 0
    check(home.database, {("north", f"s:{turn}") for turn in (1, 2, 3)}, CAPS)
    with Store(home.database) as store:
        assert rows(store, "SELECT DISTINCT disposition, revision FROM scores") == [("scored", 1)]


@pytest.mark.parametrize("which", [bytearray.index, bytearray.rindex])
def test_a_damaged_write_ahead_log_is_refused_and_left_unchanged(
    children: Nursery, home: Home, which: Callable[[bytearray, bytes], int]
) -> None:
    """A part of the accepted records must not pass for all, and a repair needs the bytes."""
    Store(home.database).close()
    server = children.serve(home, "--judge", "none")
    assert put(server.serving(), home.connection("north"), 1) == 201
    log_path = home.database.with_name("fleet.duckdb.wal")
    wait_until(lambda: log_path.exists() and HEALTHY.encode() in log_path.read_bytes(), "the exchange to land")
    server.kill()
    damaged = bytearray(log_path.read_bytes())
    damaged[which(damaged, HEALTHY.encode())] ^= 0xFF
    log_path.write_bytes(damaged)
    restarted = children.serve(home, "--judge", "none")
    assert restarted.wait() == 2
    assert "The write-ahead log is damaged" in restarted.logged
    assert bytes(damaged) == log_path.read_bytes()


def test_a_server_names_projects_that_will_not_be_judged(children: Nursery, home: Home) -> None:
    """Under a cap, a model without a price is never asked, which users should learn at the start."""
    home.policy.write_text("version: 1\nprojects: {shop: {judgeModel: house-model}}\n")
    server = children.serve(home)
    server.serving()
    wait_until(lambda: "(unknown_price): shop (house-model)" in server.printed, "the note")
    stopped(server)
    assert "no known price" in server.printed
    assert "does not answer" not in server.printed


def test_a_second_server_on_a_database_is_refused(children: Nursery, home: Home) -> None:
    """Two writers would ruin the file."""
    first = children.serve(home)
    url = first.serving()
    second = children.serve(home)
    assert second.wait() == 2
    assert "Another server is using the database" in second.logged
    code, output = children.run(home, "doctor", "--json")
    [database] = [finding for finding in json.loads(output) if finding["subject"] == "database"]
    assert code == 0
    assert database["state"] == "ok"
    assert put(url, home.connection("north"), 1) == 201
    stopped(first)


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--host", "0.0.0.0"], {}, "Pass --expose"),  # noqa: S104 - what is refused
        (["--port", "{taken}"], {}, "Pass another with --port"),
        (["--judge", "live"], {"ANTHROPIC_BASE_URL": ""}, "Set ANTHROPIC_API_KEY"),
        ([], {"DRIFTLINE_JUDGE": "live", "ANTHROPIC_BASE_URL": ""}, "Set ANTHROPIC_API_KEY"),
        (["--judge", "live"], {"ANTHROPIC_BASE_URL": "ftp://judge"}, "Set ANTHROPIC_BASE_URL"),
        ([], {"DRIFTLINE_POLICY": "/nowhere.yaml"}, "/nowhere.yaml"),
    ],
)
def test_an_invalid_configuration_is_refused_before_anything_is_opened(
    children: Nursery, home: Home, arguments: list[str], environment: dict[str, str], words: str
) -> None:
    """One line says what to do, and no files are created."""
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        said = [argument.format(taken=occupied.getsockname()[1]) for argument in arguments]
        server = children.serve(home, *said, environment=environment)
        assert server.wait() == 2
    assert server.logged.startswith("error: ")
    assert words in server.logged
    assert list(home.database.parent.glob("fleet.*")) == []
