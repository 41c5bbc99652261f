"""Everybody at once on one server: how long an exchange takes to be durable while analysts ask and the project is checked.

`driftline serve` over a file, without a judge; clients, analysts and who checks are processes of their own on the same machine. Kinds
of callers take turns and come together. DRIFTLINE_BENCH_SCORES says how many scores there are already, a million without it, and
DRIFTLINE_BENCH_SECONDS how long each turn is.
"""

import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from analytics.store.store import Store
from benchmarks.bench_sql import DAYS, fill
from benchmarks.callers import BUSY, Call, Crew, called
from benchmarks.measure import print_table
from service.server.supervisor import serving
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now
from streams.engine.engine import INTAKE

SCORES = int(os.environ.get("DRIFTLINE_BENCH_SCORES", "1000000"))
SECONDS = float(os.environ.get("DRIFTLINE_BENCH_SECONDS", "40"))
PROJECTS = 20
SHARES = (0.5, 0.99)
PROJECT = "project-0"
CLIENTS, ANALYSTS = 16, 2
TURNS: Mapping[str, Sequence[str]] = {
    "clients alone": ("ingest",),
    "analysts alone": ("query",),
    "checks alone": ("check",),
    "clients, analysts": ("ingest", "query"),
    "clients, checks": ("ingest", "check"),
    "all": ("ingest", "query", "check"),
}
"""The callers of each turn."""


def prepare(database: Path) -> dict[str, Crew]:
    """Return a file with scores of the last ninety days, and the callers."""
    fill(database, PROJECTS, SCORES, (utc_now() - timedelta(days=DAYS)).replace(tzinfo=None))
    with Store(database) as store:
        with store.transaction() as transaction:
            transaction.set_watermark(INTAKE.name, INTAKE.source, store.end_of(INTAKE.source))
        store.checkpoint()
    with AccessStore(access_file(database), utc_now) as access:
        connection = access.add(Holder("connection", "bench", PROJECT))
        operator = access.add(Holder("operator", "root", None))
    return {
        "ingest": Crew("ingest", connection, CLIENTS, PROJECT),
        "query": Crew("query", operator, ANALYSTS, PROJECT),
        "check": Crew("check", operator, 1, PROJECT),
    }


def quantile(calls: Sequence[Call], share: float) -> float:
    """Milliseconds that this share of the calls took at most."""
    seconds = sorted(call.seconds for call in calls)
    return 1000 * seconds[min(len(seconds) - 1, int(share * len(seconds)))]


def ingest_rows(turns: Mapping[str, Sequence[Call]]) -> list[list[str]]:
    """Return a row for each turn with clients: their rate and latencies, with the ratios to the clients alone."""
    posts = {turn: [call for call in calls if call.what == "POST ingest"] for turn, calls in turns.items()}
    posts = {turn: calls for turn, calls in posts.items() if calls}
    base = next(iter(posts.values()))
    rows = []
    for turn, calls in posts.items():
        p50, p99 = (quantile(calls, share) for share in SHARES)
        ratios = (f"{p / quantile(base, share):.1f}" for p, share in zip((p50, p99), SHARES, strict=True))
        rows.append([turn, f"{len(calls) / SECONDS:.0f}", f"{p50:.0f}", f"{p99:.0f}", *ratios])
    return rows


def other_rows(turns: Mapping[str, Sequence[Call]]) -> list[list[str]]:
    """Return a row for each other call: p50 and p99 alone, beside clients, and with all, with the ratio of p50 to alone."""
    calls_by_kind: dict[str, list[list[Call]]] = defaultdict(list)
    for calls in turns.values():
        by_kind: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            by_kind[call.what].append(call)
        for kind in by_kind.keys() - {"POST ingest"}:
            calls_by_kind[kind].append(by_kind[kind])
    return [
        [kind, *("{:.0f} / {:.0f}".format(*(quantile(calls, share) for share in SHARES)) for calls in of_turns),
         f"{quantile(of_turns[-1], 0.5) / quantile(of_turns[0], 0.5):.1f}"]
        for kind, of_turns in sorted(calls_by_kind.items())
    ]  # fmt: skip


def main() -> None:
    """Print rates and latencies of every kind of call, alone and beside the others."""
    turns: dict[str, list[Call]] = {}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        database = Path(name) / "fleet.duckdb"
        crews = prepare(database)
        with serving(["serve", "--db", str(database), "--port", "0", "--judge", "none"], {}, Path(name) / "serve.log") as url:
            called(url, list(crews.values()), seconds=5, salt="warm")
            for number, (turn, kinds) in enumerate(TURNS.items()):
                calls = called(url, [crews[kind] for kind in kinds], seconds=SECONDS, salt=f"turn-{number}")
                faults = [call for call in calls if call.status >= 400 and call.status != BUSY]
                if faults:
                    raise RuntimeError(f"{turn}: {faults[0]}")
                turns[turn] = [call for call in calls if call.status != BUSY]
    print(
        f"{SCORES:,} scores of {PROJECTS} projects; {CLIENTS} clients, {ANALYSTS} analysts, one that checks; load {load:.0f} before.\n"
    )
    print_table(["who calls", "exchanges/s", "p50 ms", "p99 ms", "times alone, p50", "p99"], ingest_rows(turns))
    print()
    print_table(["p50 / p99 ms", "alone", "beside clients", "with all", "times alone, p50"], other_rows(turns))


if __name__ == "__main__":
    main()
