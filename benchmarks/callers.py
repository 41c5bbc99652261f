"""Callers of a server, each kind in a process of its own, for as long as they are told.

    python -m benchmarks.callers CREW

takes a `Crew` as JSON and prints each call as a line of JSON once the time is over; `called` has several call side by side. Kinds:

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
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from benchmarks.load import INGEST, PATIENCE, TURNS, Line, body

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
"""A question whether an answer is of one moment: each score has its exchange, and each session all turns up to some one."""
Asked = Sequence[tuple[str, str, Mapping[str, Any] | None]]
"""The name of each request, its path, and its body where it is posted; the path has a placeholder for the project."""
QUESTIONS: Asked = (
    ("POST query", "/api/audit/query", {"sql": WHOLE, "parameters": {"connection": "bench"}}),
    ("GET summary", "/api/audit/{project}/summary", None),
    ("GET scores", "/api/audit/{project}/scores?limit=50", None),
    ("POST query", "/api/audit/query", {"sql": "SELECT day, tier2 FROM days WHERE project = 'ops' ORDER BY day"}),
    ("GET trends", "/api/audit/{project}/trends?window=30d", None),
)
CHECKS: Asked = (
    ("POST check", "/api/audit/{project}/check", {}),
    ("POST recompute", "/api/audit/{project}/baseline/recompute", {}),
    ("GET incidents", "/api/audit/{project}/incidents", None),
)


@dataclass(frozen=True)
class Call:
    """One call and what came of it."""

    what: str
    subject: str
    """The subject of the call: the exchange's id where one was posted, the path otherwise."""
    status: int
    sent_at: float
    """Seconds since 1970."""
    seconds: float
    answer: Any
    """The JSON of the answer."""


@dataclass(frozen=True)
class Crew:
    """Callers of one kind, what they call with, and for how long."""

    kind: str
    token: str
    callers: int
    project: str = "ops"
    url: str = ""
    seconds: float = 0.0
    salt: str = ""
    """Makes the ids of exchanges new."""


def called(url: str, crews: Sequence[Crew], *, seconds: float, salt: str) -> list[Call]:
    """Return the calls that some crews make at the same time, by when they were sent.

    CalledProcessError when a crew breaks off.
    """
    given = [json.dumps(asdict(replace(crew, url=url, seconds=seconds, salt=salt))) for crew in crews]
    commands = [[sys.executable, "-m", "benchmarks.callers", crew] for crew in given]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    calls = []
    for child, crew in zip(running, crews, strict=True):
        out, _ = child.communicate()
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, crew.kind)
        calls += [Call(**json.loads(line)) for line in out.splitlines()]
    return sorted(calls, key=lambda call: call.sent_at)


def exchanges(crew: Crew, number: int) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield the posts of a client: exchanges of one session after the other."""
    for place in itertools.count():
        session, turn = f"{crew.salt}-{number}-{place // TURNS}", place % TURNS + 1
        yield "POST ingest", f"{session}:{turn}", INGEST, body(session, turn)


def questions(asked: Asked, crew: Crew, number: int) -> Iterator[tuple[str, str, str, bytes | None]]:
    """Yield the requests of another caller, one after the other; each caller begins elsewhere."""
    for what, place, content in itertools.islice(itertools.cycle(asked), number, None):
        path = place.format(project=crew.project)
        yield what, path, path, None if content is None else json.dumps(content).encode()


KINDS: Mapping[str, Callable[[Crew, int], Iterator[tuple[str, str, str, bytes | None]]]] = {
    "ingest": exchanges,
    "query": partial(questions, QUESTIONS),
    "check": partial(questions, CHECKS),
}


async def calls_of(crew: Crew, number: int) -> AsyncIterator[Call]:
    """Yield the calls of one caller until the time is over."""
    ends_at = time.monotonic() + crew.seconds
    async with asyncio.timeout(crew.seconds + PATIENCE), Line(crew.url, crew.token) as line:
        for what, subject, path, content in KINDS[crew.kind](crew, number):
            status = BUSY
            while status == BUSY:
                if time.monotonic() >= ends_at:
                    return
                sent_at = time.time()
                status, answer, seconds = await line.call(path, content)
                yield Call(what, subject, status, sent_at, seconds, json.loads(answer))
                if status == BUSY:
                    await asyncio.sleep(PAUSE)


async def run(crew: Crew) -> list[Call]:
    """Return the calls of all callers of a crew, made side by side."""

    async def listed(number: int) -> list[Call]:
        return [call async for call in calls_of(crew, number)]

    return [call for one in await asyncio.gather(*map(listed, range(crew.callers))) for call in one]


if __name__ == "__main__":
    for call in asyncio.run(run(Crew(**json.loads(sys.argv[1])))):
        print(json.dumps(asdict(call)))
