"""Delivery of sessions to a server over HTTP, as a gateway would: sessions concurrently, each one's exchanges in order."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
from tenacity import AsyncRetrying, retry_if_exception_type, retry_if_result, stop_after_attempt, wait_exponential

from driftline_trial.demo.conversations import PROJECTS, Release, Session, releases_until
from driftline_trial.demo.judge_change import STRICTNESS, JudgeSchedule, judge_anchors
from driftline_trial.demo.script import present_of
from schemas.errors import DriftlineError
from service.server.supervisor import serving
from service.setup.access import AccessStore, Holder, access_file
from service.setup.settings import Settings
from service.setup.workspace import Clock, utc_now
from service.text.links import API, EVENTS, INGEST

AT_ONCE = 48
"""Sessions delivered concurrently: records that arrive together are committed together."""
PATIENCE = 600.0
"""Seconds after which a delivery is given up."""
_CALL_SECONDS = 60.0
_ATTEMPTS = 5
_POLL_SECONDS = 0.1
_LATER = frozenset({408, 429, 503})
"""Statuses after which the same call may be made again."""
_QUEUE = re.compile(r'^driftline_queue_size\{queue="(?:commits|tasks)"\} ([0-9.e+]+)$', re.MULTILINE)
OPERATOR = "demo"
"""The operator who reads every project."""
Progress = Callable[[str], None]
"""Called with the progress, in words."""


class DeliveryError(DriftlineError):
    """A delivery that the server refused."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens for the server."""

    connections: Mapping[str, str]
    """Token of each connection by its name."""
    operator: str


def issue_tokens(path: Path, sessions: Sequence[Session], now: Clock) -> Tokens:
    """Add the connections of the sessions and an operator of every project to the file of tokens."""
    holders = {
        session.connection: Holder("connection", session.connection, session.project, session.agent) for session in sessions
    }
    with AccessStore(path, now) as access:
        connections = {name: access.add(holder) for name, holder in holders.items()}
        return Tokens(connections, access.add(Holder("operator", OPERATOR, None)))


def judge_over_http(sessions: Sequence[Session], last_day: date, settings: Settings, folder: Path, tell: Progress) -> None:
    """Deliver the sessions to a server with a simulated judge, then the sessions of the stricter judge's days with that judge.

    The server's clock starts at the end of their last day. Both judges judge the anchors of their days. Servers and judges write their
    logs to the folder. Raises the errors of `take_in`, and ChildError if a judge fails.
    """
    tokens = issue_tokens(access_file(settings.database), sessions, utc_now)
    schedule, present, releases = JudgeSchedule(last_day), present_of(last_day), releases_until(last_day)
    judged = {
        strictly: [session for session in sessions if schedule.is_judged_strictly(session) == strictly]
        for strictly in (False, True)
    }
    for strictly, (name, script) in {False: ("", "answer"), True: ("stricter-", f"strict:{STRICTNESS}")}.items():
        with serving(["simulate-judge", "--port", "0", "--script", script], {}, folder / f"{name}judge.log") as judge:
            log = folder / f"{name}server.log"
            take_in(judged[strictly], settings, judge, log, tell, tokens=tokens, releases=releases, present=present)
            tell("judging anchors again")
            judge_anchors(settings, judge, schedule, sessions, strictly=strictly)


def take_in(
    sessions: Sequence[Session],
    settings: Settings,
    judge: str,
    log: Path,
    tell: Progress,
    *,
    present: datetime,
    tokens: Tokens | None = None,
    releases: Sequence[Release] = (),
) -> None:
    """Deliver the sessions to a server that uses the judge at the address; the server has ended on return.

    Its clock starts at the demo's present, so that it checks for drift only when everything is delivered. It uses the database and policy
    of the settings, and the given or new tokens. ChildError if the server fails, DeliveryError if it refuses a delivery.
    """
    tokens = tokens or issue_tokens(access_file(settings.database), sessions, utc_now)
    options = ["--port", "0", "--judge", "live", "--as-of", present.isoformat(), "--db", str(settings.database)]
    options += ["--policy", str(settings.policy)] if settings.policy else []
    environment = {
        "ANTHROPIC_API_KEY": "simulated",
        "ANTHROPIC_BASE_URL": judge,
        "DRIFTLINE_JUDGE_CONCURRENCY": str(AT_ONCE),
        "NO_PROXY": "127.0.0.1",
    }
    if settings.redaction_key is not None:
        environment["DRIFTLINE_REDACTION_KEY"] = settings.redaction_key.reveal()
    with serving(["serve", *options], environment, log) as url:
        try:
            asyncio.run(deliver(url, sessions, tokens, tell, releases))
        except DeliveryError as error:
            error.hint = f"The server's log is {log}."
            raise


async def deliver(
    url: str, sessions: Sequence[Session], tokens: Tokens, tell: Progress, releases: Sequence[Release] = ()
) -> None:
    """Deliver the sessions, end each, record the releases of their agents, and return when every exchange has its score.

    DeliveryError if the server refuses a delivery, cannot be reached, or takes longer than `PATIENCE`.
    """
    waiting = deque(sessions)
    try:
        async with (
            asyncio.timeout(PATIENCE),
            httpx2.AsyncClient(base_url=url, timeout=_CALL_SECONDS, trust_env=False) as client,
        ):
            server = _Server(client, tokens)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(sessions))):
                    group.create_task(_deliver_some(server, waiting, len(sessions), tell))
            agents = {session.agent for session in sessions}
            for release in releases:
                if release.agent in agents:
                    await server.record(PROJECTS[release.agent], release)
            while queue_size := await server.queued():
                tell(f"every session is delivered; {queue_size} exchanges wait for the judge")
                await asyncio.sleep(_POLL_SECONDS)
            for project in sorted({session.project for session in sessions}):
                await server.require_nothing_pending(project)
    except TimeoutError:
        raise DeliveryError(f"the server has not scored everything within {PATIENCE:g} s") from None
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _deliver_some(server: _Server, waiting: deque[Session], number: int, tell: Progress) -> None:
    """Deliver sessions one after another until none is waiting."""
    while waiting:
        session = waiting.popleft()
        for payload in session.payloads:
            await server.post(session.connection, INGEST, payload)
        if session.events:
            batch = {"session_id": session.session_id, "agent": session.agent, "first_seq": 0, "events": list(session.events)}
            await server.post(session.connection, EVENTS, batch)
        await server.post(session.connection, f"{API}/sessions/{quote(session.session_id)}/finalize", {})
        tell(f"{number - len(waiting)} of {number} sessions on their way over HTTP")


class _Server:
    """The server's endpoints; calls that it cannot accept at the moment are repeated."""

    def __init__(self, client: httpx2.AsyncClient, tokens: Tokens) -> None:
        self._client = client
        self._tokens = tokens

    async def post(self, connection: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a body as a connection."""
        await self._call("POST", path, self._tokens.connections[connection], body)

    async def record(self, project: str, release: Release) -> None:
        """Record a deployment, as a deployment pipeline would."""
        await self._call("POST", f"{API}/{project}/deployments", self._tokens.operator, release.body())

    async def queued(self) -> int:
        """Return the number of exchanges without a score plus the number of pending commits."""
        answer = await self._call("GET", "/metrics", self._tokens.operator, None)
        return sum(int(float(size)) for size in _QUEUE.findall(answer.text))

    async def require_nothing_pending(self, project: str) -> None:
        """Raise a DeliveryError if the project has an exchange without a score."""
        answer = await self._call("GET", f"{API}/{project}/summary", self._tokens.operator, None)
        pending = answer.json()["exchanges"]["pending"]
        if pending:
            raise DeliveryError(f"{pending} exchanges of {project} have no score")

    async def _call(self, method: str, path: str, token: str, body: Mapping[str, Any] | None) -> httpx2.Response:
        """Make a call. Repeated records count once, so a call with an unknown outcome is repeated."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(httpx2.TransportError) | retry_if_result(lambda answer: answer.status_code in _LATER),
            wait=wait_exponential(multiplier=0.4),
            stop=stop_after_attempt(_ATTEMPTS),
            retry_error_callback=lambda tried: tried.outcome and tried.outcome.result(),
        )
        try:
            answer: httpx2.Response = await retrying(
                self._client.request, method, path, headers={"Authorization": f"Bearer {token}"}, json=body
            )
        except httpx2.TransportError as error:
            raise DeliveryError(f"{method} {path}: {type(error).__name__}") from error
        if not answer.is_success:
            raise DeliveryError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer
