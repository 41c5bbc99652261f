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


def test_a_stop_under_load_loses_nothing_and_cuts_no_call_off(
    children: Nursery, home: Home, load: Load, simulator: RunningJudge
) -> None:
    """Deployments stop servers every day; that must cost neither an exchange nor a paid call."""
    load.fill(48)
    server = children.serve(home)
    disturbed(load, server.serving(), lambda: simulator.requests >= 5, lambda: server.send(signal.SIGTERM))
    assert server.wait(SOON) == 0
    assert load.seen[CUT_OFF] + load.seen[REFUSED] > 0
    made, settled = reservations(home)
    assert made == settled > 0
    again = children.serve(home)
    told(load, again.serving())
    stopped(again)
    check(home.database, load.accepted, CAPS, simulator.requests)
    assert outcomes(home) == {"answered"}


@pytest.mark.parametrize(("grace", "signals"), [("0.5", 1), ("600", 2)])
def test_a_judge_that_hangs_does_not_keep_a_server_from_stopping(
    children: Nursery, home: Home, simulator: RunningJudge, grace: str, signals: int
) -> None:
    """It waits for the grace that it was given, and no longer than until it is asked again."""
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
    again = children.serve(home)
    wait_until(lambda: not waiting(again.serving(), home.operator()), "what was begun to be scored")
    stopped(again)
    check(home.database, {("north", "s:1")}, CAPS)
    assert outcomes(home) == {"interrupted", "answered"}


def test_a_full_disk_is_said_and_goes_by(children: Nursery, home: Home, load: Load, simulator: RunningJudge) -> None:
    """Nobody is told 201 for what is not durable; what was paid for meanwhile is recorded once there is room."""
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


def test_a_database_that_gives_up_ends_the_server_and_the_next_one_goes_on(children: Nursery, home: Home) -> None:
    """It cannot be used before it is opened again; a server that only says so for ever would be restarted by nobody."""
    chance = random.Random(1)
    with Store(home.database) as store, store.transaction() as transaction:
        large = [build.judgement("old", number, answer=chance.randbytes(250_000).hex()) for number in range(72)]
        transaction.append("judgements", [encode(record) for record in large])
    size = home.database.stat().st_size
    assert size > 17_000_000, "the write-ahead log is folded in before it comes to the limit"
    server = children.serve(home, "--judge", "none", file_size=size + 100_000)
    url, token, accepted = server.serving(), home.connection("north"), set()
    said = [chance.randbytes(200_000).hex() for _ in range(60)]
    for turn, words in enumerate(said):
        try:
            status = put(url, token, turn, words)
            # Who reads has it land, so that the database meets the limit when it folds in its log, and not before.
            httpx2.get(f"{url}/api/audit/ops/scores", headers=bearer(home.operator()), timeout=60)
        except httpx2.TransportError:  # what it does between two calls can meet the limit, too
            break
        if status != 201:  # the write-ahead log met the limit, and goes on in another file
            continue
        accepted.add(("north", f"s:{turn}"))
    assert server.wait() == 2
    assert 5 < len(accepted) < len(said)
    assert "the database has given up" in server.logged
    assert "Free disk space" in server.logged
    again = children.serve(home, "--judge", "none")
    # It may have been durable, though the server could not say so.
    assert put(again.serving(), token, turn, words) in {200, 201}
    stopped(again)
    with Store(home.database) as store:
        check_nothing_lost_or_doubled(store, accepted | {("north", f"s:{turn}")})


def test_a_server_that_freezes_goes_on_where_it_was(children: Nursery, home: Home, load: Load, simulator: RunningJudge) -> None:
    """A machine that is moved or swaps stands still for a while: nobody is cut off, nothing is done twice."""
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


def test_what_came_while_the_judge_was_down_can_be_judged_later(children: Nursery, home: Home) -> None:
    """Refused connections cost nothing and lose nothing: the exchanges say why they have no score, until they have one."""
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
        found = rows(
            store,
            "SELECT DISTINCT disposition, tier2_state, tier2_reason IN ('provider_error', 'timeout'), cost_usd FROM scores",
        )
        assert found == [("unscored", "unscored", True, 0.0)]
    with running(port=port):
        code, _ = children.run(home, "rejudge", "--yes", environment={"DRIFTLINE_JUDGE_DEADLINE": "60"})
    assert code == 0
    check(home.database, {("north", f"s:{turn}") for turn in (1, 2, 3)}, CAPS)
    with Store(home.database) as store:
        assert rows(store, "SELECT DISTINCT disposition, revision FROM scores") == [("scored", 1)]


@pytest.mark.parametrize("which", [bytearray.index, bytearray.rindex])
def test_a_damaged_write_ahead_log_is_refused_and_left_as_it_is(
    children: Nursery, home: Home, which: Callable[[bytearray, bytes], int]
) -> None:
    """Half of what was accepted must not be taken for the whole of it, and whoever mends it needs the bytes."""
    Store(home.database).close()
    server = children.serve(home, "--judge", "none")
    assert put(server.serving(), home.connection("north"), 1) == 201
    written = home.database.with_name("fleet.duckdb.wal")
    wait_until(lambda: written.exists() and HEALTHY.encode() in written.read_bytes(), "the exchange to land")
    server.kill()
    damaged = bytearray(written.read_bytes())
    damaged[which(damaged, HEALTHY.encode())] ^= 0xFF
    written.write_bytes(damaged)
    again = children.serve(home, "--judge", "none")
    assert again.wait() == 2
    assert "The write-ahead log is damaged" in again.logged
    assert bytes(damaged) == written.read_bytes()


def test_a_server_says_whose_judge_it_will_not_ask(children: Nursery, home: Home) -> None:
    """Under a cap a model without a price is asked nothing: better said at the start than found in the scores."""
    home.policy.write_text("version: 1\nprojects: {shop: {judgeModel: house-model}}\n")
    server = children.serve(home)
    server.serving()
    wait_until(lambda: "(unknown_price): shop (house-model)" in server.printed, "the note")
    stopped(server)
    assert "no known price" in server.printed
    assert "does not answer" not in server.printed


def test_a_second_server_on_a_database_says_so(children: Nursery, home: Home) -> None:
    """Two writers would ruin it."""
    first = children.serve(home)
    url = first.serving()
    second = children.serve(home)
    assert second.wait() == 2
    assert "Another server is using the database" in second.logged
    code, said = children.run(home, "doctor", "--json")
    [database] = [finding for finding in json.loads(said) if finding["subject"] == "database"]
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
def test_what_cannot_be_served_is_refused_before_anything_is_opened(
    children: Nursery, home: Home, arguments: list[str], environment: dict[str, str], words: str
) -> None:
    """One line that says what to do, and no files that somebody has to wonder about."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = [argument.format(taken=taken.getsockname()[1]) for argument in arguments]
        server = children.serve(home, *said, environment=environment)
        assert server.wait() == 2
    assert server.logged.startswith("error: ")
    assert words in server.logged
    assert list(home.database.parent.glob("fleet.*")) == []
