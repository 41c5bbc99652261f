"""The pages of the dashboard over ten million scores, beside the demo: what the first answer takes and weighs.

`driftline serve` as in production, over loopback; one browser that keeps its connection and takes gzip. Each page is fetched a dozen
times, whole each time; beside it the same page over the demo, and what /healthz takes. The processor's time is the server's, all
threads, in the median. What else the machine does makes a page slower, but takes no more of the processor: a page is held to the lesser
of the two medians. `--scores N` (a million without it) says how large; `--hot-days N` leaves the records of the last N of ninety days, and
only the sums of the others; `--dir DIR` keeps the files there and takes them up again;
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
from benchmarks.bench_sql import DAYS
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
"""Limits of a page: milliseconds and kilobytes sent."""
QUIET_SECONDS, QUIET_SHARE, PATIENCE = 15.0, 0.02, 900.0
"""A server is quiet once it has used less than this share of a core for so many seconds."""
ROWS = {
    "score": "SELECT score_id, exchange_at, session_id FROM log.scores WHERE project = $project AND tier3_state = 'scored' ORDER BY exchange_at DESC LIMIT 1",
    "incident": "SELECT incident_id FROM main.incidents WHERE project = $project ORDER BY detected_at DESC LIMIT 1",
    "run": "SELECT max(number), arg_max(session_id, number) FROM log.run_numbers JOIN main.diagnoses USING (connection, session_id) WHERE log.run_numbers.project = $project AND event_count < 1000",
    "huge run": "SELECT arg_max(number, event_count), arg_max(session_id, event_count) FROM log.run_numbers JOIN main.diagnoses USING (connection, session_id) WHERE log.run_numbers.project = $project",
    "evaluation": "SELECT max(evaluation_id) FROM log.evaluations WHERE project = $project",
}
"""Queries for the records whose pages are fetched."""
_OF_ALL_THREADS = 2
TIMES_SHOWN: Mapping[str, Mapping[str, str]] = {
    "": {},
    ", 24 hours": {"window": "24h"},
    ", 90 days": {"window": "90d"},
    ", 30 days and those before": {"window": "30d", "compare": "before"},
}
"""The time windows with which pages are fetched."""


@dataclass(frozen=True)
class PageCost:
    """The cost of a page that was fetched several times."""

    milliseconds: list[float]
    """Milliseconds of each fetch, in order."""
    processor: float
    """Median processor time of the server per fetch, in milliseconds."""
    raw: int
    """Bytes of the page."""
    sent: int
    """Bytes sent, compressed."""

    @property
    def median(self) -> float:
        """Return the median time of a fetch, in milliseconds."""
        return statistics.median(self.milliseconds)


def addresses(path: Path, projects: Mapping[str, str]) -> dict[str, str]:
    """Return the pages by what they are called; `of` says whose: the project with runs, with evaluations, with exchanges."""
    with connect(path) as cursor:
        rows_by_kind = {name: cursor.execute(text, {"project": projects[name]}).fetchall()[0] for name, text in ROWS.items()}
    return {"/healthz": "/healthz"} | _of_all(projects) | _of_project(projects) | _of_records(projects, rows_by_kind)


def _of_all(projects: Mapping[str, str]) -> dict[str, str]:
    """Return the pages that belong to no project."""
    links = Links()
    return {
        "fleet": links.fleet,
        "fleet, a later page": link_page(10 * PROJECTS_PER_PAGE, parse_list_request(FLEET, QueryParams(), links.fleet)),
        "fleet, a name": links.fleet_of(q="project-1"),
        "fleet by name, as a table": links.fleet_of(sort="name", view="table"),
        "inbox": links.inbox(),
        "inbox, all states": links.inbox(status="any"),
        "inbox, a project": links.inbox(project=projects["incident"], status="any"),
        "inbox, a text": links.inbox(text="fell", status="any"),
        "inbox, an agent": links.inbox(agent="agent-0", status="any"),
        "exchanges of all projects": links.fleet_exchanges(),
        "exchanges of all projects, words": links.fleet_exchanges(text="backup 17"),
        "sessions of all projects": links.fleet_sessions(),
        "an agent": links.agent("agent-1"),
        "telemetry": links.telemetry,
        "SQL": links.sql,
        "connect": links.connect(),
        "administration": links.admin,
        "administration, access": links.people,
        "administration, policy": links.policy(projects["score"]),
        "administration, deletion": links.deletion(),
        "administration, audit log": links.audit_log(),
    }


def _of_project(projects: Mapping[str, str]) -> dict[str, str]:
    """Return the pages of a project, with each time window where a page has one."""
    talks, runs = projects["score"], projects["run"]
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
        "incidents": links.incidents(projects["incident"]),
        "runs": links.runs(runs),
        "runs, 90 days": Links({"window": "90d"}).runs(runs),
        "agent health": links.agents(runs),
        "evaluations": links.evaluations(projects["evaluation"]),
        "review queue": links.review(talks),
        "agreement": links.agreement(talks),
        "agreement, all time": f"{links.agreement(talks)}?days=0",
    }


def _of_records(projects: Mapping[str, str], rows_by_kind: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the pages of single records."""
    links = Links()
    talks, runs = projects["score"], projects["run"]
    score, at, session = rows_by_kind["score"]
    return {
        "incident": links.incident(projects["incident"], rows_by_kind["incident"][0]),
        "exchange": links.exchange(talks, score, at.replace(tzinfo=UTC)),
        "exchange, its time unknown": links.exchange(talks, score),
        "session": links.session(talks, session),
        "session of a run": links.session(runs, rows_by_kind["run"][1]),
        "session of the longest run": links.session(runs, rows_by_kind["huge run"][1]),
        "run": links.run(runs, f"run_{rows_by_kind['run'][0]:03}"),
        "longest run": links.run(runs, f"run_{rows_by_kind['huge run'][0]:03}"),
        "evaluation": links.evaluation(projects["evaluation"], rows_by_kind["evaluation"][0]),
    }


class Browser:
    """A signed-in client with one persistent connection."""

    def __init__(self, url: str, token: str) -> None:
        self._line = http.client.HTTPConnection(urlsplit(url).netloc)
        answer, _ = self._ask("POST", "/api/audit/sign-in", {"Authorization": f"Bearer {token}"})
        self._head = {"Cookie": (answer.getheader("Set-Cookie") or "").partition(";")[0], "Accept-Encoding": "gzip"}

    def fetch(self, path: str) -> tuple[float, int, int]:
        """Return the seconds of a fetch, the page's bytes and the bytes sent."""
        start = time.perf_counter()
        answer, body = self._ask("GET", path, self._head)
        seconds = time.perf_counter() - start
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{path}: {answer.status} {body[:500]!r}")
        is_packed = answer.getheader("Content-Encoding") == "gzip"
        return seconds, len(gzip.decompress(body) if is_packed else body), len(body)

    def close(self) -> None:
        """Close the connection."""
        self._line.close()

    def _ask(self, method: str, path: str, head: Mapping[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        self._line.request(method, path, headers=dict(head))
        answer = self._line.getresponse()
        return answer, answer.read()


def measure_pages(database: Path, projects: Mapping[str, str], only: str) -> dict[str, PageCost]:
    """Return the pages of a server over the database whose names have a word."""
    pages = {name: page for name, page in addresses(database, projects).items() if name == "/healthz" or only in name}
    with AccessStore(access_file(database), utc_now) as access:
        name = f"bench-{time.time_ns()}"
        token = access.add(Holder("operator", name, None))
    arguments = ["serve", "--db", str(database), "--policy", str(policy_beside(database)), "--port", "0", "--judge", "none"]
    with serving(arguments, {}, database.with_suffix(".log")) as url:
        server = _child()
        _wait_until_quiet(server)
        browser = Browser(url, token)
        costs = {name: _measure_page(browser, server, path) for name, path in pages.items()}
        browser.close()
    return costs


def _measure_page(browser: Browser, server: int, path: str) -> PageCost:
    times: list[tuple[float, float]] = []
    for _ in range(TIMES):
        processor_before = _processor(server)
        seconds, raw, sent = browser.fetch(path)
        times.append((1000 * seconds, 1000 * (_processor(server) - processor_before)))
    return PageCost([wall for wall, _ in times], statistics.median(used for _, used in times), raw, sent)


def _child() -> int:
    """Return the process id of the server that was started."""
    tasks = Path("/proc/self/task").glob("*/children")
    (process,) = (int(number) for task in tasks for number in task.read_text().split())
    return process


def _processor(process: int) -> float:
    """Return the processor seconds of a process, including its ended threads."""
    # clock_getcpuclockid(3) computes the clock of another process like this; /proc files of threads may vanish while being read.
    return time.clock_gettime(~process << 3 | _OF_ALL_THREADS)


def _wait_until_quiet(server: int) -> None:
    """Wait until the server has finished its work at startup."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        processor_before = _processor(server)
        time.sleep(QUIET_SECONDS)
        if _processor(server) - processor_before < QUIET_SHARE * QUIET_SECONDS:
            return
    print("The server did not become quiet, so the figures include its other work.\n")


def rows(large: Mapping[str, PageCost], demo: Mapping[str, PageCost]) -> Iterator[list[str]]:
    """Yield a row per page."""
    base = large["/healthz"].median
    for name, page in large.items():
        small = demo.get(name, page)
        is_kept = min(page.median, page.processor) < MOST_MS and page.sent < 1000 * MOST_KB
        yield [
            name,
            _times(page),
            f"{page.processor:.0f}",
            _times(small),
            f"{small.processor:.0f}",
            f"{page.median / small.median:.1f}",
            f"{page.median / base:.0f}",
            f"{page.raw / 1000:.0f} / {page.sent / 1000:.0f}",
            f"{small.raw / 1000:.0f} / {small.sent / 1000:.0f}",
            "yes" if is_kept else "no",
        ]


def _times(page: PageCost) -> str:
    return " / ".join(f"{milliseconds:.0f}" for milliseconds in (min(page.milliseconds), page.median, max(page.milliseconds)))


HEADER = (
    "page", "fastest / median / worst, ms", "processor, ms", "demo, ms", "processor, ms", "times the demo", "times /healthz",
    "kB / sent", "demo, kB / sent", "within",
)  # fmt: skip


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pages")
    parser.add_argument("--scores", type=int, default=SCORES)
    parser.add_argument("--hot-days", type=int, default=DAYS)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = options.dir or Path(name)
        seed, path = folder / "seed" / "demo.duckdb", folder / f"large{options.scores}-{options.hot_days}.duckdb"
        if not seed.exists():
            make_seed(seed.parent)
        if not path.exists():
            make_large(path, seed, options.scores, options.hot_days)
        of_demo = dict.fromkeys(ROWS, "demo") | {
            "score": "support",
            "incident": _project_with_incidents(seed),
            "evaluation": _project_with_evaluations(seed),
        }
        demo = {} if options.only else measure_pages(seed, of_demo, "")
        large = measure_pages(path, dict.fromkeys(ROWS, "project-0"), options.only)
        size = path.stat().st_size / 1e6
    load = os.getloadavg()[0]
    print(f"{options.scores:,} scores, {size:,.0f} MB; load {load:.1f}.\n")
    print_table(HEADER, list(rows(large, demo)))


def _project_with_incidents(path: Path) -> str:
    return _query_value(path, "SELECT max(project) FROM log.incidents")


def _project_with_evaluations(path: Path) -> str:
    return _query_value(path, "SELECT max(project) FROM log.evaluations")


def _query_value(path: Path, statement: str) -> str:
    with duckdb.connect(str(path), read_only=True) as connection:
        return str(connection.execute(statement).fetchall()[0][0])


if __name__ == "__main__":
    main(sys.argv[1:])
