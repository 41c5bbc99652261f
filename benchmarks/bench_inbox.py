"""The inbox over 20 000 incidents of 1 000 projects: processor time of its list, filters and changes.

Each incident has three revisions with about 10 KB of evidence, and 400 incidents are open or acknowledged. The processor time covers all threads of
this process, so other load on the machine does not matter. `--incidents N` sets the number of incidents.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from analytics.store.store import Store
from audit.policy import Policy
from benchmarks.measure import print_table
from schemas.records import Incident
from service.read.incidents import LIVE_STATES, InboxFilter, choices, inbox, open_incidents
from streams.log.sink import StorePublisher
from streams.watch.watching import Change, Person, Watch, apply_change

INCIDENTS, PROJECTS, REVISIONS, TIMES, CHANGED = 20_000, 1_000, 3, 5, 50
AT = datetime(2026, 10, 1, tzinfo=UTC)
STATES = {"open": 1, "acknowledged": 1, "resolved": 70, "dismissed": 28}
"""Incidents in each state, per hundred."""
AT_ONCE = 2_000
"""Records per transaction."""


def _evidence(chance: random.Random) -> str:
    exchanges = [
        {
            "agent": f"agent-{chance.randrange(50)}",
            "scoreId": f"{chance.getrandbits(128):032x}",
            "reason": f"{chance.getrandbits(1200):x}",
        }
        for _ in range(10)
    ]
    queries = [
        {"name": f"query_{number}", "sql": "SELECT mean FROM days WHERE project = $project " * 20} for number in range(6)
    ]
    return json.dumps({"exchanges": exchanges, "queries": queries})


def build_incidents(count: int) -> Iterator[Incident]:
    """Yield every revision of the incidents."""
    chance = random.Random(7)
    for number in range(count):
        (status,) = chance.choices(list(STATES), list(STATES.values()))
        detected_at = AT - timedelta(minutes=chance.randrange(500_000))
        evidence = _evidence(chance)
        for revision in range(REVISIONS):
            is_last = revision == REVISIONS - 1
            yield Incident(
                incident_id=f"{number:08x}",
                revision=revision,
                project=f"project-{number % PROJECTS}",
                type="drift",
                status=status if is_last else "open",
                severity=chance.choice(["critical", "warning"]),
                title="Tier 2 fell from 0.90 to 0.61 on 28 October",
                description="Since 28 October the mean of Tier 2 is 0.61, 0.90 before.",
                metadata=evidence,
                detected_at=detected_at,
                confidence=chance.choice(["confirmed", "suspected"]),
                acknowledged_by="ann" if is_last and status == "acknowledged" else None,
            )


def _fill(store: Store, count: int) -> None:
    batch: list[Incident] = []
    for incident in build_incidents(count):
        batch.append(incident)
        if len(batch) == AT_ONCE:
            asyncio.run(StorePublisher(store, Policy(), lambda: AT).publish("incidents", batch))
            batch = []
    if batch:
        asyncio.run(StorePublisher(store, Policy(), lambda: AT).publish("incidents", batch))


def _milliseconds(call: Callable[[], object]) -> float:
    """Return the smallest processor time of several calls, in milliseconds."""
    durations = []
    for _ in range(TIMES):
        start = time.process_time()
        call()
        durations.append(1000 * (time.process_time() - start))
    return min(durations)


def _questions(cursor: duckdb.DuckDBPyConnection) -> dict[str, Callable[[], object]]:
    live = InboxFilter(statuses=LIVE_STATES)
    first_rows = inbox(cursor, InboxFilter(sort="newest"), None, 5000)
    far = first_rows.listed[-1].place if first_rows.listed else None
    return {
        "first page, worst first": lambda: inbox(cursor, live, None, 51),
        "all states, newest first": lambda: inbox(cursor, InboxFilter(sort="newest"), None, 51),
        "all states, by project": lambda: inbox(cursor, InboxFilter(sort="project"), None, 51),
        "all states, 5 000 further down": lambda: inbox(cursor, InboxFilter(sort="newest"), far, 51),
        "one project": lambda: inbox(cursor, InboxFilter(project="project-7", statuses=LIVE_STATES), None, 51),
        "a text": lambda: inbox(cursor, InboxFilter(text="fell from"), None, 51),
        "an agent, live": lambda: inbox(cursor, InboxFilter(agent="agent-7", statuses=LIVE_STATES), None, 51),
        "an agent, all states": lambda: inbox(cursor, InboxFilter(agent="agent-7"), None, 51),
        "choices of the filters": lambda: choices(cursor, None),
        "open ones, for the navigation": lambda: open_incidents(cursor, None),
    }


async def _change(store: Store, count: int) -> None:
    watch = Watch(StorePublisher(store, Policy(), lambda: AT))
    for number in range(count):
        await apply_change(
            watch,
            (f"project-{number % PROJECTS}", f"{number:08x}"),
            Change(comment="looked", assigns=True, assignee="bob"),
            Person("ann"),
        )


def main(options: list[str] | None = None) -> None:
    """Fill a database and print the processor time of each query and of a change."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--incidents", type=int, default=INCIDENTS)
    count = parser.parse_args(options or []).incidents
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "inbox.duckdb") as store:
        _fill(store, count)
        cursor = store.cursor()
        rows = [[name, f"{_milliseconds(call):.1f}"] for name, call in _questions(cursor).items()]
        start = time.process_time()
        asyncio.run(_change(store, min(CHANGED, count)))
        rows.append(
            [
                "one incident of a bulk assigned, with a comment",
                f"{1000 * (time.process_time() - start) / min(CHANGED, count):.1f}",
            ]
        )
        size = (Path(folder) / "inbox.duckdb").stat().st_size / 1e6
    print(f"{count:,} incidents, {REVISIONS} revisions each, {size:,.0f} MB\n")
    print_table(["question", "ms of processor"], rows)


if __name__ == "__main__":
    main()
