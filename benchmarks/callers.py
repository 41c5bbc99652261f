"""Callers of a server: each kind runs in its own process for a given time.

    python -m benchmarks.callers CREW

takes a `Crew` as JSON and prints each call as a line of JSON at the end; `called` runs several crews concurrently. Kinds:

- `ingest`: clients that post exchanges of ten-turn sessions one after another, and repeat an exchange that was refused as busy.
- `query`: analysts who run their own SQL and read the lists and figures of a project.
- `check`: a user who repeatedly checks the project and recomputes its baseline.
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
"""Seconds after which a caller repeats a call that was refused as busy."""
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
"""Checks that a snapshot is consistent: each score has its exchange, and no session lacks an earlier turn."""
RequestList = Sequence[tuple[str, str, Mapping[str, Any] | None]]
"""The name of each request, its path, and its body where it is posted; the path has a placeholder for the project."""
QUESTIONS: RequestList = (
    ("POST query", "/api/audit/query", {"sql": WHOLE, "parameters": {"connection": "bench"}}),
    ("GET summary", "/api/audit/{project}/summary", None),
    ("GET scores", "/api/audit/{project}/scores?limit=50", None),
    ("POST query", "/api/audit/query", {"sql": "SELECT day, tier2 FROM days WHERE project = 'ops' ORDER BY day"}),
    ("GET trends", "/api/audit/{project}/trends?window=30d", None),
)
CHECKS: RequestList = (
    ("POST check", "/api/audit/{project}/check", {}),
    ("POST recompute", "/api/audit/{project}/baseline/recompute", {}),
    ("GET incidents", "/api/audit/{project}/incidents", None),
)


@dataclass(frozen=True)
class Call:
    """A call with its answer."""

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
    """Callers of one kind, with their token and duration."""

    kind: str
    token: str
    callers: int
    project: str = "ops"
    url: str = ""
    seconds: float = 0.0
    salt: str = ""
    """Makes the ids of exchanges new."""


def called(url: str, crews: Sequence[Crew], *, seconds: float, salt: str) -> list[Call]:
    """Run several crews concurrently and return their calls in the order of sending.

    CalledProcessError if a crew fails.
    """
    crew_arguments = [json.dumps(asdict(replace(crew, url=url, seconds=seconds, salt=salt))) for crew in crews]
    commands = [[sys.executable, "-m", "benchmarks.callers", crew] for crew in crew_arguments]
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
    for number_of_exchange in itertools.count():
        session, turn = f"{crew.salt}-{number}-{number_of_exchange // TURNS}", number_of_exchange % TURNS + 1
        yield "POST ingest", f"{session}:{turn}", INGEST, body(session, turn)


def questions(requests: RequestList, crew: Crew, number: int) -> Iterator[tuple[str, str, str, bytes | None]]:
    """Yield the requests of a caller in turn; each caller starts with another one."""
    for name, path_template, content in itertools.islice(itertools.cycle(requests), number, None):
        path = path_template.format(project=crew.project)
        yield name, path, path, None if content is None else json.dumps(content).encode()


KINDS: Mapping[str, Callable[[Crew, int], Iterator[tuple[str, str, str, bytes | None]]]] = {
    "ingest": exchanges,
    "query": partial(questions, QUESTIONS),
    "check": partial(questions, CHECKS),
}


async def calls_of(crew: Crew, number: int) -> AsyncIterator[Call]:
    """Yield the calls of one caller until the time is over."""
    ends_at = time.monotonic() + crew.seconds
    async with asyncio.timeout(crew.seconds + PATIENCE), Line(crew.url, crew.token) as line:
        for name, subject, path, content in KINDS[crew.kind](crew, number):
            status = BUSY
            while status == BUSY:
                if time.monotonic() >= ends_at:
                    return
                sent_at = time.time()
                status, answer, seconds = await line.call(path, content)
                yield Call(name, subject, status, sent_at, seconds, json.loads(answer))
                if status == BUSY:
                    await asyncio.sleep(PAUSE)


async def run(crew: Crew) -> list[Call]:
    """Return the calls of all callers of a crew, which run concurrently."""

    async def collect_calls(number: int) -> list[Call]:
        return [call async for call in calls_of(crew, number)]

    return [call for calls in await asyncio.gather(*map(collect_calls, range(crew.callers))) for call in calls]


if __name__ == "__main__":
    for call in asyncio.run(run(Crew(**json.loads(sys.argv[1])))):
        print(json.dumps(asdict(call)))
