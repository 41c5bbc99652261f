"""The pages of the dashboard over ten million scores, beside the demo: what the first answer takes and weighs.

`driftline serve` as in production, over loopback; one browser that keeps its connection and takes gzip. Each page is fetched a dozen
times, whole each time; beside it the same page over the demo, and what /healthz takes. The processor's time is the server's, all
threads, in the median. What else the machine does makes a page slower, but takes no more of the processor: a page is held to the lesser
of the two medians. `--scores N` (a million without it) says how large; `--dir DIR` keeps the files there and takes them up again;
`--only WORD` fetches the pages whose names have the word, of the large database alone.
"""

import argparse
import gzip
import http.client
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
from starlette.datastructures import QueryParams

from analytics.store.connection import connect
from benchmarks.measure import print_table
from benchmarks.page_database import make_large, make_seed, policy_beside
from service.pages.listing import parse_list_request
from service.pages.projects.fleet import FLEET, PROJECTS_PER_PAGE, link_page
from service.server.supervisor import serving
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now
from service.text.links import Links

SCORES = 1_000_000
TIMES = 12
MOST_MS, MOST_KB = 200, 300
"""The most that a page may take, and that it may weigh."""
QUIET_SECONDS, QUIET_SHARE, PATIENCE = 15.0, 0.02, 900.0
"""A server is quiet once it has used less than this share of a core for so many seconds."""
ROWS = {
    "score": "SELECT score_id, exchange_at, session_id FROM log.scores WHERE project = $project AND tier3_state = 'scored' ORDER BY exchange_at DESC LIMIT 1",
    "incident": "SELECT incident_id FROM main.incidents WHERE project = $project ORDER BY detected_at DESC LIMIT 1",
    "run": "SELECT max(number), arg_max(session_id, number) FROM log.run_numbers JOIN main.diagnoses USING (connection, session_id) WHERE log.run_numbers.project = $project AND event_count < 1000",
    "huge run": "SELECT arg_max(number, event_count), arg_max(session_id, event_count) FROM log.run_numbers JOIN main.diagnoses USING (connection, session_id) WHERE log.run_numbers.project = $project",
    "evaluation": "SELECT max(evaluation_id) FROM log.evaluations WHERE project = $project",
}
"""Whose page is fetched."""
_OF_ALL_THREADS = 2
TIMES_SHOWN: Mapping[str, Mapping[str, str]] = {
    "": {},
    ", 24 hours": {"window": "24h"},
    ", 90 days": {"window": "90d"},
    ", 30 days and those before": {"window": "30d", "compare": "before"},
}
"""The times that pages are asked for."""


@dataclass(frozen=True)
class Got:
    """A page, fetched some times."""

    milliseconds: list[float]
    """Of each time, the first one first."""
    processor: float
    """Milliseconds of the server's processor that a time took, in the median."""
    raw: int
    """Bytes of the page."""
    sent: int
    """Bytes that came over the line."""

    @property
    def median(self) -> float:
        """Milliseconds."""
        return statistics.median(self.milliseconds)


def addresses(path: Path, of: Mapping[str, str]) -> dict[str, str]:
    """Return the pages by what they are called; `of` says whose: the project with runs, with evaluations, with exchanges."""
    with connect(path) as cursor:
        found = {name: cursor.execute(text, {"project": of[name]}).fetchall()[0] for name, text in ROWS.items()}
    return {"/healthz": "/healthz"} | _of_all(of) | _of_project(of) | _of_records(of, found)


def _of_all(of: Mapping[str, str]) -> dict[str, str]:
    """Return the pages that are of no project."""
    links = Links()
    return {
        "fleet": links.fleet,
        "fleet, a later page": link_page(10 * PROJECTS_PER_PAGE, parse_list_request(FLEET, QueryParams(), links.fleet)),
        "fleet, a name": links.fleet_of(q="project-1"),
        "fleet by name, as a table": links.fleet_of(sort="name", view="table"),
        "inbox": links.inbox(),
        "inbox, all states": links.inbox(status="any"),
        "inbox, a project": links.inbox(project=of["incident"], status="any"),
        "inbox, a text": links.inbox(text="fell", status="any"),
        "inbox, an agent": links.inbox(agent="agent-0", status="any"),
        "telemetry": links.telemetry,
        "SQL": links.sql,
        "connect": links.connect(),
        "administration": links.admin,
        "administration, access": links.people,
        "administration, policy": links.policy(of["score"]),
        "administration, deletion": links.deletion(),
        "administration, audit log": links.audit_log(),
    }


def _of_project(of: Mapping[str, str]) -> dict[str, str]:
    """Return the pages of a project, those that follow the time in each of its lengths."""
    talks, runs = of["score"], of["run"]
    timed = {
        "project": Links.project,
        "project, its details": Links.details,
        "most expensive sessions": Links.costs,
        "anomalies": Links.anomalies,
        "exchanges": Links.exchanges,
        "sessions": Links.sessions,
    }
    pages = {f"{name}{words}": page(Links(time), talks) for name, page in timed.items() for words, time in TIMES_SHOWN.items()}
    links = Links()
    return pages | {
        "exchanges by Tier 2": links.exchanges(talks, sort="tier2"),
        "exchanges of an agent": links.exchanges(talks, agent="agent-1"),
        "sessions by cost": links.sessions(talks, sort="cost"),
        "wrap-up": links.wrap_quality(talks),
        "incidents": links.incidents(of["incident"]),
        "runs": links.runs(runs),
        "runs, 90 days": Links({"window": "90d"}).runs(runs),
        "agent health": links.agents(runs),
        "evaluations": links.evaluations(of["evaluation"]),
        "review queue": links.review(talks),
        "agreement": links.agreement(talks),
        "agreement, all time": f"{links.agreement(talks)}?days=0",
    }


def _of_records(of: Mapping[str, str], found: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the pages of single things."""
    links = Links()
    talks, runs = of["score"], of["run"]
    score, at, session = found["score"]
    return {
        "incident": links.incident(of["incident"], found["incident"][0]),
        "exchange": links.exchange(talks, score, at.replace(tzinfo=UTC)),
        "exchange, its time unknown": links.exchange(talks, score),
        "session": links.session(talks, session),
        "session of a run": links.session(runs, found["run"][1]),
        "session of the longest run": links.session(runs, found["huge run"][1]),
        "run": links.run(runs, f"run_{found['run'][0]:03}"),
        "longest run": links.run(runs, f"run_{found['huge run'][0]:03}"),
        "evaluation": links.evaluation(of["evaluation"], found["evaluation"][0]),
    }


class Browser:
    """Signed in, with one connection that is kept."""

    def __init__(self, url: str, token: str) -> None:
        self._line = http.client.HTTPConnection(urlsplit(url).netloc)
        answer, _ = self._ask("POST", "/api/audit/sign-in", {"Authorization": f"Bearer {token}"})
        self._head = {"Cookie": (answer.getheader("Set-Cookie") or "").partition(";")[0], "Accept-Encoding": "gzip"}

    def fetch(self, path: str) -> tuple[float, int, int]:
        """Seconds that a page took, its bytes and those that were sent."""
        start = time.perf_counter()
        answer, body = self._ask("GET", path, self._head)
        seconds = time.perf_counter() - start
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{path}: {answer.status} {body[:500]!r}")
        is_packed = answer.getheader("Content-Encoding") == "gzip"
        return seconds, len(gzip.decompress(body) if is_packed else body), len(body)

    def close(self) -> None:
        """Leave."""
        self._line.close()

    def _ask(self, method: str, path: str, head: Mapping[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        self._line.request(method, path, headers=dict(head))
        answer = self._line.getresponse()
        return answer, answer.read()


def fetched(database: Path, of: Mapping[str, str], only: str) -> dict[str, Got]:
    """Return the pages of a server over the database whose names have a word."""
    pages = {name: page for name, page in addresses(database, of).items() if name == "/healthz" or only in name}
    with AccessStore(access_file(database), utc_now) as access:
        name = f"bench-{time.time_ns()}"
        token = access.add(Holder("operator", name, None))
    arguments = ["serve", "--db", str(database), "--policy", str(policy_beside(database)), "--port", "0", "--judge", "none"]
    with serving(arguments, {}, database.with_suffix(".log")) as url:
        server = _child()
        _wait_until_quiet(server)
        browser = Browser(url, token)
        got = {name: _fetched(browser, server, path) for name, path in pages.items()}
        browser.close()
    return got


def _fetched(browser: Browser, server: int, path: str) -> Got:
    times: list[tuple[float, float]] = []
    for _ in range(TIMES):
        before = _processor(server)
        seconds, raw, sent = browser.fetch(path)
        times.append((1000 * seconds, 1000 * (_processor(server) - before)))
    return Got([wall for wall, _ in times], statistics.median(used for _, used in times), raw, sent)


def _child() -> int:
    """Return the process id of the server that was started."""
    tasks = Path("/proc/self/task").glob("*/children")
    (found,) = (int(number) for task in tasks for number in task.read_text().split())
    return found


def _processor(process: int) -> float:
    """Seconds that the threads of a process have used of the processor, those that have ended, too."""
    # The clock of another process, as clock_getcpuclockid(3) makes its number: files of threads vanish while they are read.
    return time.clock_gettime(~process << 3 | _OF_ALL_THREADS)


def _wait_until_quiet(server: int) -> None:
    """Wait until what a server does at its start is done."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        before = _processor(server)
        time.sleep(QUIET_SECONDS)
        if _processor(server) - before < QUIET_SHARE * QUIET_SECONDS:
            return
    print("The server did not become quiet; what it does meanwhile is in the figures.\n")


def rows(large: Mapping[str, Got], demo: Mapping[str, Got]) -> Iterator[list[str]]:
    """Return a row a page."""
    base = large["/healthz"].median
    for name, got in large.items():
        small = demo.get(name, got)
        is_kept = min(got.median, got.processor) < MOST_MS and got.sent < 1000 * MOST_KB
        yield [
            name,
            _times(got),
            f"{got.processor:.0f}",
            _times(small),
            f"{small.processor:.0f}",
            f"{got.median / small.median:.1f}",
            f"{got.median / base:.0f}",
            f"{got.raw / 1000:.0f} / {got.sent / 1000:.0f}",
            f"{small.raw / 1000:.0f} / {small.sent / 1000:.0f}",
            "yes" if is_kept else "no",
        ]


def _times(got: Got) -> str:
    return " / ".join(f"{one:.0f}" for one in (min(got.milliseconds), got.median, max(got.milliseconds)))


HEADER = (
    "page", "fastest / median / worst, ms", "processor, ms", "demo, ms", "processor, ms", "times the demo", "times /healthz",
    "kB / sent", "demo, kB / sent", "within",
)  # fmt: skip


def main(options: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pages")
    parser.add_argument("--scores", type=int, default=SCORES)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--only", default="")
    asked = parser.parse_args(options)
    with tempfile.TemporaryDirectory() as name:
        folder = asked.dir or Path(name)
        seed, path = folder / "seed" / "demo.duckdb", folder / f"large{asked.scores}.duckdb"
        if not seed.exists():
            make_seed(seed.parent)
        if not path.exists():
            make_large(path, seed, asked.scores)
        of_demo = dict.fromkeys(ROWS, "demo") | {
            "score": "support",
            "incident": _with_incidents(seed),
            "evaluation": _evaluated(seed),
        }
        demo = {} if asked.only else fetched(seed, of_demo, "")
        large = fetched(path, dict.fromkeys(ROWS, "project-0"), asked.only)
        size = path.stat().st_size / 1e6
    load = os.getloadavg()[0]
    print(f"{asked.scores:,} scores, {size:,.0f} MB; load {load:.1f}.\n")
    print_table(HEADER, list(rows(large, demo)))


def _with_incidents(path: Path) -> str:
    return _one(path, "SELECT max(project) FROM log.incidents")


def _evaluated(path: Path) -> str:
    return _one(path, "SELECT max(project) FROM log.evaluations")


def _one(path: Path, statement: str) -> str:
    with duckdb.connect(str(path), read_only=True) as connection:
        return str(connection.execute(statement).fetchall()[0][0])


if __name__ == "__main__":
    main(sys.argv[1:])
