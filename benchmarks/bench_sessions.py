"""Memory of an engine by the number of open sessions, and of the scoring worker with its window full.

Each session has one exchange of about 700 bytes. Every size runs in a process of its own.
"""

import asyncio
import ctypes
import gc
import itertools
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from analytics.store.store import Store
from audit.exchanges.questions import Question
from audit.policy import Policy
from audit.redaction import Redactor
from benchmarks.load import ANSWER, THINKING
from benchmarks.measure import print_table
from schemas.records import Exchange
from streams.engine.engine import Engine
from streams.judges.protocol import CallBudget, Verdict

WINDOW = 2_000
"""Tasks that the worker has under way at most."""
SIZES = (0, WINDOW, 10_000, 50_000)
AT_ONCE = 1_000
NOW = datetime(2026, 10, 1, 9, tzinfo=UTC)


class SilentJudge:
    """A judge that never answers, so that everything stays under way."""

    def __init__(self) -> None:
        self._asked = asyncio.Semaphore(0)

    async def asked_of(self, count: int) -> None:
        """Return when so many questions were asked."""
        for _ in range(count):
            await self._asked.acquire()

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Wait for ever; what the call may cost is set aside."""
        await budget.reserve()
        self._asked.release()
        await asyncio.Event().wait()
        return Verdict(outcome="timeout", answer=question.task)

    async def aclose(self) -> None:
        """Nothing to give back."""


def exchange(number: int) -> Exchange:
    """Return the first exchange of a session."""
    return Exchange(
        exchange_id=f"session-{number:08}:1",
        connection="bench",
        project="bench",
        session_id=f"session-{number:08}",
        occurred_at=NOW + timedelta(milliseconds=number),
        ingested_at=NOW + timedelta(milliseconds=number),
        user_message="Please restart worker 3 and tell me what was lost.",
        agent_response=ANSWER,
        agent_thinking=THINKING,
        content_digest=f"{number:016}",
    )


async def memory(database: Path, sessions: int, judge: SilentJudge | None) -> tuple[int, int]:
    """Resident bytes of this process with so many open sessions, and how many of them DuckDB says it holds."""
    policy = Policy()
    with Store(database) as store:
        engine = Engine(store, policy, Redactor(policy.redaction), lambda: NOW + timedelta(hours=1), judge=judge)
        await engine.start()
        for start in range(0, sessions, AT_ONCE):
            await engine.publish("exchanges", [exchange(number) for number in range(start, min(start + AT_ONCE, sessions))])
        if judge is None:
            await engine.wait_until_drained()
        else:
            await judge.asked_of(sessions)
        store.checkpoint()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        ((cached,),) = store.cursor().execute("SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()").fetchall()
        resident = resident_bytes()
        await engine.stop(grace=0)
    return resident, cached


def resident_bytes() -> int:
    """Resident memory of this process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def child(sessions: int, judge: str) -> tuple[int, int]:
    """Return the same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_sessions", "--child", str(sessions), judge]
    resident, cached = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return resident, cached


def main() -> None:
    """Print resident memory, and what a session adds to it beyond the row before, DuckDB's part left out.

    What is being judged is compared with as many open sessions.
    """
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        with tempfile.TemporaryDirectory() as name:
            judge = SilentJudge() if sys.argv[3] == "silent" else None
            print(json.dumps(asyncio.run(memory(Path(name) / "bench.duckdb", int(sys.argv[2]), judge))))
        return
    rows = []
    own: dict[int, int] = {}
    for before, sessions in itertools.pairwise([0, *SIZES]):
        resident, cached = child(sessions, "none")
        own[sessions] = resident - cached
        each = (own[sessions] - own[before]) / ((sessions - before) or 1)
        rows.append([f"{sessions:,} open", f"{resident / 1e6:,.0f}", f"{cached / 1e6:,.0f}", f"{each:,.0f}"])
    resident, cached = child(WINDOW, "silent")
    each = (resident - cached - own[WINDOW]) / WINDOW
    rows.append([f"{WINDOW:,} being judged", f"{resident / 1e6:,.0f}", f"{cached / 1e6:,.0f}", f"{each:,.0f}"])
    print_table(["sessions", "resident MB", "of it DuckDB MB", "bytes a session more"], rows)


if __name__ == "__main__":
    main()
