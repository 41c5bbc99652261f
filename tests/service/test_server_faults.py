"""Faults of a real server: stops under load, full disks, frozen processes, judge outages and damaged files."""

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
MAX_STOP_SECONDS = 120.0
"""Time limit of a stop, even on a busy machine. The judge of these tests would take ten minutes to answer."""


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Yield a starter of servers."""
    with nursery() as children:
        yield children


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """Yield a simulated judge that answers after 50 ms."""
    with running(latency=0.05) as judge:
        yield judge


@pytest.fixture
def home(tmp_path: Path, simulator: RunningJudge) -> Home:
    """Return an empty folder for a server with a judge."""
    simulator.reset("answer")
    return Home(tmp_path, ANTHROPIC_BASE_URL=simulator.base_url, DRIFTLINE_JUDGE_DEADLINE="10")


@pytest.fixture
def load(home: Home) -> Load:
    """Return clients that send eight sessions."""
    fleet = Load(home, PROJECTS, random.Random(20261102))
    fleet.fill(8)
    return fleet


def disturb_load(load: Load, url: str, is_time: Callable[[], object], disturb: Callable[[], None]) -> None:
    """Send the sessions, and call `disturb` as soon as `is_time` returns true."""

    async def work() -> None:
        loading = asyncio.create_task(load.run(url))
        await until(lambda: is_time() or loading.done())
        assert not loading.done()
        disturb()
        await loading

    asyncio.run(work())


def complete_sessions(load: Load, url: str) -> None:
    """Send the rest of the sessions, and wait for the scores."""
    asyncio.run(load.run(url))
    assert all(session.ended for session in load.sessions)
    wait_until(lambda: not waiting(url, load.home.operator()), "everything to be scored")


def stop_server(server: Child) -> None:
    """Stop a server; fail unless it exits in time and without an error."""
    server.send(signal.SIGTERM)
    assert server.wait(MAX_STOP_SECONDS) == 0


def send_exchange(url: str, token: str, turn: int, response: str = HEALTHY) -> int:
    """Send one exchange, and return the status code."""
    body = exchange_body("s", turn, response)
    return httpx2.post(f"{url}{INGEST}", json=body, headers=bearer(token), timeout=60).status_code


def outcomes(home: Home) -> set[str]:
    """Return the outcomes of all judge calls."""
    with Store(home.database) as store:
        return {outcome for (outcome,) in rows(store, "SELECT DISTINCT outcome FROM judgements")}


def reservations(home: Home) -> tuple[int, int]:
    """Return the numbers of budget reservations and of settled ones."""
    with Store(home.database) as store:
        return rows(store, "SELECT (SELECT count(*) FROM reservations), (SELECT sum(len(reservation_ids)) FROM judgements)")[0]


def test_a_stop_under_load_loses_nothing_and_cancels_no_call(
    children: Nursery, home: Home, load: Load, simulator: RunningJudge
) -> None:
    """Servers are deployed daily, which must cost neither an exchange nor a paid call."""
    load.fill(48)
    server = children.serve(home)
    disturb_load(load, server.serving(), lambda: simulator.requests >= 5, lambda: server.send(signal.SIGTERM))
    assert server.wait(MAX_STOP_SECONDS) == 0
    assert load.seen[CUT_OFF] + load.seen[REFUSED] > 0
    reserved, settled = reservations(home)
    assert settled == reserved > 0
    restarted = children.serve(home)
    complete_sessions(load, restarted.serving())
    stop_server(restarted)
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
    assert send_exchange(url, token, 1) == 201
    wait_until(lambda: simulator.requests > 0, "the judge to be asked")
    started = time.monotonic()
    for _ in range(signals):
        server.send(signal.SIGTERM)
        wait_until(lambda: "Shutting down" in server.logged, "the server to stop taking calls")
    assert server.wait(MAX_STOP_SECONDS) == 0
    assert time.monotonic() - started < MAX_STOP_SECONDS
    simulator.reset("answer")
    restarted = children.serve(home)
    wait_until(lambda: not waiting(restarted.serving(), home.operator()), "what was begun to be scored")
    stop_server(restarted)
    check(home.database, {("north", "s:1")}, CAPS)
    assert outcomes(home) == {"interrupted", "answered"}


def test_a_full_disk_is_reported_and_survived(children: Nursery, home: Home, load: Load, simulator: RunningJudge) -> None:
    """No sender gets 201 for a record that is not durable, and paid calls are recorded once there is room."""
    Store(home.database).close()
    server = children.serve(home, file_size=60_000)
    url = server.serving()
    asyncio.run(load.run(url))
    # Each refusal interrupts a session. An accepted exchange may also leave its session open.
    assert sum(not session.ended for session in load.sessions) >= load.seen[REFUSED] > 0
    # The size limit is per file, so the write-ahead log may have room when the database has none.
    if send_exchange(url, home.connection("north"), 1) == 201:
        load.accepted.add(("north", "s:1"))
    wait_until(lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code == 503, "the server to say that it cannot write")
    error = httpx2.get(f"{url}/readyz", timeout=60).json()["error"]
    assert error.startswith(("the log did not accept a record", "accepted records cannot be written to the tables"))
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    complete_sessions(load, url)
    assert httpx2.get(f"{url}/readyz", timeout=60).status_code == 200
    stop_server(server)
    check(home.database, load.accepted, CAPS, simulator.requests)
    assert outcomes(home) == {"answered"}


def test_a_fatal_database_error_ends_the_server_and_the_next_one_continues(children: Nursery, home: Home) -> None:
    """The database must be reopened, and a server that only reports the error would never be restarted."""
    rng = random.Random(1)
    with Store(home.database) as store, store.transaction() as transaction:
        large = [build.judgement("old", number, answer=rng.randbytes(250_000).hex()) for number in range(72)]
        transaction.append("judgements", [encode(record) for record in large])
    size = home.database.stat().st_size
    assert size > 17_000_000, "the database must checkpoint before the write-ahead log reaches the limit"
    server = children.serve(home, "--judge", "none", file_size=size + 100_000)
    url = server.serving()
    token = home.connection("north")
    accepted: set[tuple[str, str]] = set()
    texts = [rng.randbytes(200_000).hex() for _ in range(60)]
    for turn, text in enumerate(texts):
        try:
            status = send_exchange(url, token, turn, text)
            # A read flushes the records, so the database reaches the limit at a checkpoint and not before.
            httpx2.get(f"{url}/api/audit/ops/scores", headers=bearer(home.operator()), timeout=60)
        except httpx2.TransportError:  # a checkpoint between two requests may also reach the limit
            break
        if status != 201:  # the write-ahead log reached the limit and continues in another file
            continue
        accepted.add(("north", f"s:{turn}"))
    assert server.wait() == 2
    assert 5 < len(accepted) < len(texts)
    assert "the database failed and must be reopened" in server.logged
    assert "Free disk space" in server.logged
    restarted = children.serve(home, "--judge", "none")
    # The last record may be durable although the server failed before it answered.
    assert send_exchange(restarted.serving(), token, turn, text) in {200, 201}
    stop_server(restarted)
    with Store(home.database) as store:
        check_nothing_lost_or_doubled(store, accepted | {("north", f"s:{turn}")})


def test_a_frozen_server_continues_without_loss(children: Nursery, home: Home, load: Load, simulator: RunningJudge) -> None:
    """A machine may pause while it is migrated or swaps. No sender is disconnected, and nothing is repeated."""
    server = children.serve(home)
    url = server.serving()

    def freeze() -> None:
        server.send(signal.SIGSTOP)
        with pytest.raises(httpx2.TimeoutException):
            httpx2.get(f"{url}/healthz", timeout=0.5)
        server.send(signal.SIGCONT)

    disturb_load(load, url, lambda: simulator.requests >= 5, freeze)
    complete_sessions(load, url)
    stop_server(server)
    assert set(load.seen) == {TAKEN}
    check(home.database, load.accepted, CAPS, simulator.requests)
    assert outcomes(home) == {"answered"}


def test_exchanges_from_a_judge_outage_can_be_judged_later(children: Nursery, home: Home) -> None:
    """Refused connections cost nothing, and the exchanges give the reason until they have a score."""
    token = home.connection("north")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # keeps the port free of other processes, without listening
        port = reserved.getsockname()[1]
        home.environment |= {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "DRIFTLINE_JUDGE_DEADLINE": "4"}
        server = children.serve(home)
        url = server.serving()
        assert [send_exchange(url, token, turn) for turn in (1, 2, 3)] == [201, 201, 201]
        wait_until(lambda: not waiting(url, home.operator()), "the judge to be given up")
        stop_server(server)
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


@pytest.mark.parametrize("find_text", [bytearray.index, bytearray.rindex])
def test_a_damaged_write_ahead_log_is_refused_and_left_unchanged(
    children: Nursery, home: Home, find_text: Callable[[bytearray, bytes], int]
) -> None:
    """The server must not continue with only some of the accepted records, and a repair needs the original bytes."""
    Store(home.database).close()
    server = children.serve(home, "--judge", "none")
    assert send_exchange(server.serving(), home.connection("north"), 1) == 201
    log_path = home.database.with_name("fleet.duckdb.wal")
    wait_until(lambda: log_path.exists() and HEALTHY.encode() in log_path.read_bytes(), "the exchange to be written")
    server.kill()
    damaged = bytearray(log_path.read_bytes())
    damaged[find_text(damaged, HEALTHY.encode())] ^= 0xFF
    log_path.write_bytes(damaged)
    restarted = children.serve(home, "--judge", "none")
    assert restarted.wait() == 2
    assert "The write-ahead log is damaged" in restarted.logged
    assert log_path.read_bytes() == bytes(damaged)


def test_a_server_names_projects_that_will_not_be_judged(children: Nursery, home: Home) -> None:
    """Under a cap, a model without a price is never asked, which users should learn at the start."""
    home.policy.write_text("version: 1\nprojects: {shop: {judgeModel: house-model}}\n")
    server = children.serve(home)
    server.serving()
    wait_until(lambda: "(unknown_price): shop (house-model)" in server.printed, "the note")
    stop_server(server)
    assert "no known price" in server.printed
    assert "does not answer" not in server.printed


def test_a_second_server_on_a_database_is_refused(children: Nursery, home: Home) -> None:
    """Two writers would corrupt the file."""
    first = children.serve(home)
    url = first.serving()
    second = children.serve(home)
    assert second.wait() == 2
    assert "Another server is using the database" in second.logged
    code, output = children.run(home, "doctor", "--json")
    [database_finding] = [finding for finding in json.loads(output) if finding["subject"] == "database"]
    assert code == 0
    assert database_finding["state"] == "ok"
    assert send_exchange(url, home.connection("north"), 1) == 201
    stop_server(first)


@pytest.mark.parametrize(
    ("arguments", "environment", "advice"),
    [
        (["--host", "0.0.0.0"], {}, "Pass --expose"),  # noqa: S104 - refused
        (["--port", "{taken}"], {}, "Pass another port with --port"),
        (["--judge", "live"], {"ANTHROPIC_BASE_URL": ""}, "Set ANTHROPIC_API_KEY"),
        ([], {"DRIFTLINE_JUDGE": "live", "ANTHROPIC_BASE_URL": ""}, "Set ANTHROPIC_API_KEY"),
        (["--judge", "live"], {"ANTHROPIC_BASE_URL": "ftp://judge"}, "Set ANTHROPIC_BASE_URL"),
        ([], {"DRIFTLINE_POLICY": "/nowhere.yaml"}, "/nowhere.yaml"),
    ],
)
def test_an_invalid_configuration_is_refused_before_anything_is_opened(
    children: Nursery, home: Home, arguments: list[str], environment: dict[str, str], advice: str
) -> None:
    """One line says what to do, and no files are created."""
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        server = children.serve(home, *(argument.format(taken=port) for argument in arguments), environment=environment)
        assert server.wait() == 2
    assert server.logged.startswith("error: ")
    assert advice in server.logged
    assert list(home.database.parent.glob("fleet.*")) == []
