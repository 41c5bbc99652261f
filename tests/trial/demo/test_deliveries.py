"""Delivering sessions: each in order, everything scored on return, and an error that says what the server did not take."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from driftline_trial.demo import deliveries
from driftline_trial.demo.conversations import PROJECTS, Session, dialogues, releases_until
from driftline_trial.demo.deliveries import OPERATOR, DeliveryError, Tokens, deliver, issue_tokens, take_in
from driftline_trial.demo.fleet import SECRETS
from driftline_trial.demo.script import SCRIPT_END, policy_file, present_of
from driftline_trial.simulator import running
from schemas.errors import DriftlineError
from service.setup.access import AccessStore
from service.setup.settings import load_settings
from service.setup.workspace import utc_now

TOKENS = Tokens({name: f"token-of-{name}" for name in PROJECTS}, "token-of-operator")
DONE = 'driftline_queue_size{queue="commits"} 0.0\ndriftline_queue_size{queue="tasks"} 0.0\n'
Answer = Callable[[httpx2.Request], httpx2.Response]


class Imitation:
    """A server that remembers what it was sent, and answers with what a test wants before it answers as it should."""

    def __init__(self, *first: httpx2.Response | httpx2.TransportError, pending: int = 0) -> None:
        self.first = list(first)
        self.pending = pending
        self.queued = iter(['driftline_queue_size{queue="tasks"} 2.0\n', DONE])
        self.turns: dict[str, list[object]] = defaultdict(list)
        self.deployed: list[tuple[str, str, str]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """Answer."""
        if self.first:
            came = self.first.pop(0)
            if isinstance(came, Exception):
                raise came
            return came
        if request.method == "POST":
            return self.take(request)
        if request.url.path == "/metrics":
            return httpx2.Response(200, text=next(self.queued, DONE))
        assert request.headers["Authorization"] == "Bearer token-of-operator"
        return httpx2.Response(200, json={"exchanges": {"pending": self.pending}})

    def take(self, request: httpx2.Request) -> httpx2.Response:
        """Note the turn, the events or the end of the session."""
        body = json.loads(request.content)
        session = body.get("session_id") or request.url.path.split("/")[-2]
        match body:
            case {"exchange": exchange}:
                self.turns[session].append(exchange["turn_number"])
            case {"version": version}:
                self.deployed.append((request.url.path, request.headers["Authorization"], version))
            case {"events": events}:
                self.turns[session].append(f"{len(events)} events")
            case _:
                self.turns[session].append("end")
        return httpx2.Response(201, json={})


@pytest.fixture
def imitating(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], None]]:
    """Puts a function in the place of the network; nobody waits between attempts."""
    real, sleep = httpx2.AsyncClient, asyncio.sleep

    async def at_once(_seconds: float) -> None:
        await sleep(0)

    def install(answer: Answer) -> None:
        monkeypatch.setattr(
            deliveries.httpx2, "AsyncClient", lambda **options: real(transport=httpx2.MockTransport(answer), **options)
        )
        monkeypatch.setattr(deliveries.asyncio, "sleep", at_once)

    return install


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    """A few sessions of each agent."""
    return dialogues(SCRIPT_END)[:60]


def told_of(session: Session) -> list[object]:
    """What the server is to be told of a session, in order: its turns, its events, its end."""
    events = [f"{len(session.events)} events"] if session.events else []
    return [*range(1, len(session.payloads) + 1), *events, "end"]


def run(sessions: list[Session]) -> list[str]:
    """Deliver the sessions; answers what was told."""
    told: list[str] = []
    asyncio.run(deliver("http://server", sessions, TOKENS, told.append))
    return told


def test_each_session_comes_in_order_with_its_end_last(imitating: Callable[[Answer], None], sessions: list[Session]) -> None:
    """The end of a session says which turns were its last, so it comes after them and after the session's events."""
    server = Imitation()
    imitating(server)
    told = run(sessions)
    assert server.turns == {one.session_id: told_of(one) for one in sessions}
    assert any(one.events for one in sessions)
    assert "60 of 60 sessions on their way over HTTP" in told
    assert "2 exchanges wait for the judge" in told[-1]


def test_the_releases_of_the_delivered_agents_are_recorded_by_the_operator(
    imitating: Callable[[Answer], None], sessions: list[Session]
) -> None:
    """A connection may not record a deployment; an agent without exchanges has no project to record one in."""
    server = Imitation()
    imitating(server)
    releases = releases_until(SCRIPT_END)
    some = [one for one in sessions if one.agent != "travel-desk"]
    asyncio.run(deliver("http://server", some, TOKENS, lambda _: None, releases))
    path = "/api/audit/{}/deployments"
    of = [one for one in releases if one.agent != "travel-desk"]
    assert len(of) == len(releases) - 1
    assert server.deployed == [(path.format(PROJECTS[one.agent]), "Bearer token-of-operator", one.version) for one in of]


@pytest.mark.parametrize(
    "trouble",
    [
        [httpx2.Response(503, json={"code": "busy"})],
        [httpx2.ReadError("gone"), httpx2.ConnectError("not yet")],
        [httpx2.Response(408), httpx2.Response(429)],
    ],
)
def test_what_the_server_cannot_take_now_is_sent_again(
    imitating: Callable[[Answer], None], sessions: list[Session], trouble: list[httpx2.Response]
) -> None:
    """It counts what came twice once; nothing else does."""
    server = Imitation(*trouble)
    imitating(server)
    run(sessions[:1])
    assert told_of(sessions[0]) == server.turns[sessions[0].session_id]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Imitation(*[httpx2.Response(401, json={"error": "no"})] * 99), r"POST /api/audit/ingest: 401 .*no"),
        (Imitation(*[httpx2.Response(503, text="busy")] * 999), r"POST /api/audit/ingest: 503 busy"),
        (Imitation(*[httpx2.ConnectError("none")] * 999), r"POST /api/audit/ingest: ConnectError"),
        (Imitation(pending=3), r"3 exchanges of \w+ have no score"),
    ],
)
def test_what_is_not_taken_is_one_error_that_says_what(
    imitating: Callable[[Answer], None], sessions: list[Session], answer: Answer, words: str
) -> None:
    """Of sixty sessions that fail alike one is enough to read."""
    imitating(answer)
    with pytest.raises(DeliveryError, match=words) as raised:
        run(sessions)
    assert isinstance(raised.value, DriftlineError)


def test_a_server_that_never_ends_its_work_is_given_up(
    imitating: Callable[[Answer], None], sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demonstration that hangs for ever is none."""
    server = Imitation()
    server.queued = iter(lambda: 'driftline_queue_size{queue="tasks"} 1e+03\n', None)
    imitating(server)
    monkeypatch.setattr(deliveries, "PATIENCE", 0.2)
    with pytest.raises(DeliveryError, match="not scored everything within"):
        run(sessions[:1])


def test_tokens_are_issued_for_every_connection_and_an_operator(sessions: list[Session], tmp_path: Path) -> None:
    """A connection's token decides project and agent."""
    tokens = issue_tokens(tmp_path / "fleet.access", sessions, utc_now)
    with AccessStore(tmp_path / "fleet.access", utc_now) as access:
        found = {name: access.find(token.encode()) for name, token in tokens.connections.items()}
        operator = access.find(tokens.operator.encode())
    assert {name: holder.project for name, holder in found.items() if holder} == PROJECTS
    assert all(holder is not None and holder.agent == name for name, holder in found.items())
    assert operator is not None
    assert operator.name == OPERATOR
    assert operator.project is None


def test_a_secret_that_a_user_gives_away_reaches_neither_the_judge_nor_the_disk(tmp_path: Path) -> None:
    """The judge is somebody else's machine."""
    leaking = [one for one in dialogues(SCRIPT_END) if any(secret in str(one.payloads) for secret in SECRETS)]
    assert len(leaking) >= 2
    policy = tmp_path / "policy.yaml"
    policy.write_bytes(policy_file())
    settings = load_settings(database=tmp_path / "fleet.duckdb", policy=policy)
    with running() as judge:
        take_in(leaking, settings, judge.base_url, tmp_path / "server.log", lambda _: None, present=present_of(SCRIPT_END))
        received = b"".join(judge.received)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"[SECRET:" in received
    for secret in SECRETS:
        assert secret.encode() not in received
        assert secret.encode() not in kept
