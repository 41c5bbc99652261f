"""The pages of the dashboard over ten million scores, beside the demo: what the first answer takes and weighs.

`driftline serve` as in production, over loopback; one browser that keeps its connection and takes gzip. Each page is fetched a dozen
times, whole each time; beside it the same page over the demo, and what /healthz takes. The processor's time is the server's, all
threads. What else the machine does only makes a page slower, so the fastest of the dozen is what it is held to. `--scores N` (a
million without it) says how large; `--dir DIR` keeps the files there and takes them up again.
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
from urllib.parse import urlsplit

import duckdb

from analytics.store.connection import connect
from benchmarks.measure import print_table
from benchmarks.page_database import make_large, make_seed
from service.access.access import AccessStore, Holder, access_file
from service.pages.links import Links
from service.supervisor.child_processes import serving
from service.workspace import utc_now

SCORES = 1_000_000
TIMES = 12
MOST_MS, MOST_KB = 200, 300
"""The most that a page may take, and that it may weigh."""
QUIET_SECONDS, QUIET_SHARE, PATIENCE = 15.0, 0.02, 900.0
"""A server is quiet once it has used less than this share of a core for so many seconds."""
TICK = os.sysconf("SC_CLK_TCK")
ROWS = {
    "score": "SELECT score_id, exchange_at FROM log.scores WHERE project = $project AND tier3_state = 'scored' ORDER BY exchange_at DESC LIMIT 1",
    "incident": "SELECT incident_id FROM main.incidents WHERE project = $project ORDER BY detected_at DESC LIMIT 1",
    "run": "SELECT max(number) FROM log.run_numbers JOIN main.diagnoses USING (connection, session_id) WHERE log.run_numbers.project = $project AND event_count < 1000",
    "huge run": "SELECT arg_max(number, event_count) FROM log.run_numbers JOIN main.diagnoses USING (connection, session_id) WHERE log.run_numbers.project = $project",
    "evaluation": "SELECT max(evaluation_id) FROM log.evaluations WHERE project = $project",
}
"""Whose page is fetched."""


@dataclass(frozen=True)
class Got:
    """A page, fetched some times."""

    milliseconds: list[float]
    """Of each time, the first one first."""
    processor: float
    """Milliseconds of the server's processor each time took, on average."""
    raw: int
    """Bytes of the page."""
    sent: int
    """Bytes that came over the line."""

    @property
    def median(self) -> float:
        """Milliseconds."""
        return statistics.median(self.milliseconds)


def addresses(path: Path, of: Mapping[str, str]) -> dict[str, str]:
    """The pages by what they are called; `of` says whose: the project with runs, with evaluations, with exchanges."""
    links = Links()
    with connect(path) as cursor:
        found = {name: cursor.execute(text, {"project": of[name]}).fetchall()[0] for name, text in ROWS.items()}
    score, at = found["score"]
    talks, runs, evaluations = of["score"], of["run"], of["evaluation"]
    return {
        "/healthz": "/healthz",
        "fleet": links.fleet,
        "fleet, its rest": links.fleet_of(whole="true"),
        "project": links.project(talks),
        "project, 90 days": f"{links.project(talks)}?window=90d",
        "project, its details": links.details(talks),
        "most expensive sessions": links.costs(talks),
        "anomalies": links.anomalies(talks),
        "wrap-up": links.wrap_quality(talks),
        "incidents": links.incidents(of["incident"]),
        "incident": links.incident(of["incident"], found["incident"][0]),
        "exchange": links.exchange(talks, score, at.replace(tzinfo=UTC)),
        "exchange, its time unknown": links.exchange(talks, score),
        "runs": links.runs(runs),
        "run": links.run(runs, f"run_{found['run'][0]:03}"),
        "longest run": links.run(runs, f"run_{found['huge run'][0]:03}"),
        "agent health": links.agents(runs),
        "evaluations": links.evaluations(evaluations),
        "evaluation": links.evaluation(evaluations, found["evaluation"][0]),
        "review queue": links.review(talks),
        "agreement": links.agreement(talks),
        "agreement, all time": f"{links.agreement(talks)}?days=0",
        "telemetry": links.telemetry,
        "SQL": links.sql,
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


def fetched(database: Path, of: Mapping[str, str]) -> dict[str, Got]:
    """Every page of a server over the database."""
    pages = addresses(database, of)
    with AccessStore(access_file(database), utc_now) as access:
        name = f"bench-{time.time_ns()}"
        token = access.add(Holder("operator", name, None))
    policy = database.with_suffix(".yaml")
    policy.write_text("version: 1\ndefaults: {retentionDays: null, bidirectionalScoring: true}\n", encoding="utf-8")
    arguments = ["serve", "--db", str(database), "--policy", str(policy), "--port", "0", "--judge", "none"]
    with serving(arguments, {}, database.with_suffix(".log")) as url:
        server = _child()
        _wait_until_quiet(server)
        browser = Browser(url, token)
        got = {name: _fetched(browser, server, path) for name, path in pages.items()}
        browser.close()
    return got


def _fetched(browser: Browser, server: int, path: str) -> Got:
    before = _processor(server)
    answers = [browser.fetch(path) for _ in range(TIMES)]
    used = 1000 * (_processor(server) - before) / TIMES
    _, raw, sent = answers[-1]
    return Got([1000 * seconds for seconds, _, _ in answers], used, raw, sent)


def _child() -> int:
    """The process id of the server that was started."""
    tasks = Path("/proc/self/task").glob("*/children")
    (found,) = (int(number) for task in tasks for number in task.read_text().split())
    return found


def _processor(process: int) -> float:
    """Seconds that a process has used of the processor."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


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
    """A row a page."""
    base = large["/healthz"].median
    for name, got in large.items():
        small = demo[name]
        is_kept = min(got.milliseconds) < MOST_MS and got.sent < 1000 * MOST_KB
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
        demo, large = fetched(seed, of_demo), fetched(path, dict.fromkeys(ROWS, "project-0"))
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
