"""Callers of a server, each kind in a process of its own, for as long as they are told.

    python -m benchmarks.callers KIND URL TOKEN CALLERS SECONDS SALT

prints each call as a line of JSON once the time is over; `called` starts such processes side by side. Kinds:

- `ingest`: clients that post exchanges of ten-turn sessions, one after the other; one that is refused for now is sent again.
- `query`: analysts who ask SQL of their own and read the lists and figures of a project, one thing after the other.
- `check`: somebody who has the project checked and its baseline computed, again and again.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.load import INGEST, TURNS, Line, body

PROJECT = "/api/audit/ops"
"""What the callers' exchanges are filed under."""
BUSY = 503
PAUSE = 0.05
"""Seconds after which a caller that was refused for now calls again."""
WHOLE = """
SELECT
    (SELECT count(*) FROM turns WHERE "connection" = $connection) AS scores,
    (SELECT count(DISTINCT score_id) FROM turns WHERE "connection" = $connection) AS ids,
    (SELECT count(*) FROM exchanges WHERE "connection" = $connection) AS exchanges,
    (SELECT count(*) FROM turns ANTI JOIN exchanges USING ("connection", exchange_id) WHERE "connection" = $connection) AS orphans,
    (SELECT count(*) FROM (
        SELECT session_id FROM exchanges WHERE "connection" = $connection GROUP BY session_id HAVING count(*) <> max(turn_number)
    )) AS torn
"""
"""Whether what is seen is of one moment: each score with its exchange, of each session all turns up to some one."""
ASKED: Sequence[tuple[str, str, Mapping[str, Any] | None]] = (
    ("POST query", "/api/audit/query", {"sql": WHOLE, "parameters": {"connection": "bench"}}),
    ("GET summary", f"{PROJECT}/summary", None),
    ("GET scores", f"{PROJECT}/scores?limit=50", None),
    ("POST query", "/api/audit/query", {"sql": "SELECT day, tier2, exchanges FROM days WHERE project = 'ops' ORDER BY day"}),
    ("GET trends", f"{PROJECT}/trends?window=30d", None),
)
CHECKED: Sequence[tuple[str, str, Mapping[str, Any] | None]] = (
    ("POST check", f"{PROJECT}/check", {}),
    ("POST recompute", f"{PROJECT}/baseline/recompute", {}),
    ("GET incidents", f"{PROJECT}/incidents", None),
)


@dataclass(frozen=True)
class Call:
    """One call and what came of it."""

    what: str
    subject: str
    """What was asked for: the exchange's id where one was posted, the path otherwise."""
    status: int
    sent_at: float
    """Seconds since 1970."""
    seconds: float
    answer: Any
    """The JSON of the answer."""


@dataclass(frozen=True)
class Crew:
    """Callers of one kind."""

    kind: str
    token: str
    callers: int


def called(url: str, crews: Sequence[Crew], *, seconds: float, salt: str) -> list[Call]:
    """The calls of some crews that call at the same time, by when they were sent; `salt` makes ids of exchanges new.

    CalledProcessError when a crew breaks off.
    """
    commands = [
        [sys.executable, "-m", "benchmarks.callers", crew.kind, url, crew.token, str(crew.callers), str(seconds), salt]
        for crew in crews
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    calls = []
    for child, command in zip(running, commands, strict=True):
        out, _ = child.communicate()
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command[:4])
        calls += [Call(**json.loads(line)) for line in out.splitlines()]
    return sorted(calls, key=lambda call: call.sent_at)


def exchanges(number: int, salt: str) -> Iterator[tuple[str, str, bytes]]:
    """What a client posts: id, path and body of the exchanges of one session after the other."""
    for place in itertools.count():
        session, turn = f"{salt}-{number}-{place // TURNS}", place % TURNS + 1
        yield f"{session}:{turn}", INGEST, body(session, turn)


def questions(asked: Sequence[tuple[str, str, Mapping[str, Any] | None]]) -> Iterator[tuple[str, str, bytes | None]]:
    """What somebody else asks: what it is called, path and body of one thing after the other."""
    for what, path, content in itertools.cycle(asked):
        yield what, path, None if content is None else json.dumps(content).encode()


KINDS: Mapping[str, Callable[[int, str], Iterator[tuple[str, str, bytes | None]]]] = {
    "ingest": exchanges,
    "query": lambda number, _: questions(ASKED[number % 2 :] + ASKED[: number % 2]),
    "check": lambda _number, _salt: questions(CHECKED),
}


async def calls_of(kind: str, url: str, token: str, number: int, ends_at: float, salt: str) -> list[Call]:
    """What one caller calls until the time is over."""
    return [call async for call in _calling(kind, url, token, number, ends_at, salt)]


async def _calling(kind: str, url: str, token: str, number: int, ends_at: float, salt: str) -> AsyncIterator[Call]:
    async with Line(url, token) as line:
        for name, path, content in KINDS[kind](number, salt):
            status = BUSY
            while status == BUSY:
                if time.monotonic() >= ends_at:
                    return
                sent_at = time.time()
                status, answer, seconds = await line.call(path, content)
                what, subject = ("POST ingest", name) if kind == "ingest" else (name, path)
                yield Call(what, subject, status, sent_at, seconds, json.loads(answer))
                if status == BUSY:
                    await asyncio.sleep(PAUSE)


async def crew(kind: str, url: str, token: str, callers: int, seconds: float, salt: str) -> list[Call]:
    """What all callers of a crew call, side by side."""
    ends_at = time.monotonic() + seconds
    each = await asyncio.gather(*(calls_of(kind, url, token, number, ends_at, salt) for number in range(callers)))
    return [call for one in each for call in one]


if __name__ == "__main__":
    kind, url, token, callers, seconds, salt = sys.argv[1:]
    for call in asyncio.run(crew(kind, url, token, int(callers), float(seconds), salt)):
        print(json.dumps(asdict(call)))
