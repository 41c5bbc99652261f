"""The calls, tokens and money that judging 10 000 exchanges takes, and the speed of the worker and of a replay.

The exchanges are synthetic dialogues. The judge is simulated: it rates by simple rules, its tokens are estimated from the texts, and
the prices are those of the real models.
"""

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path

import msgspec

from analytics.store.store import Store
from audit.exchanges.questions import Question
from audit.policy import Policy, ProjectSettings
from audit.redaction import Redactor
from benchmarks.measure import best_seconds, print_table
from driftline_trial.demo.conversations import PROJECTS, dialogues
from driftline_trial.demo.costs import VARIANTS, Estimate
from driftline_trial.demo.script import SCRIPT_END
from schemas.records import Exchange, SessionClosed
from service.http.routes.ingest import exchange_of
from service.server.supervisor import serving
from service.setup.access import Holder
from service.web.models import IngestBody
from streams.engine.engine import Engine
from streams.judges.http_client import ClientOptions
from streams.judges.live import LiveJudge, open_live_judge
from streams.judges.messages_api import message_parameters, open_client
from streams.judges.model_api import build_request
from streams.judges.protocol import CallBudget, ModelTraits, Verdict
from streams.judging.judged_stages import SCORING, JudgingStep, judgement_reader
from streams.stage_batches import StageBatch

RECORDS = int(os.environ.get("DRIFTLINE_BENCH_RECORDS", "10000"))
CASES = (("claude-haiku-4-5", 1), ("claude-haiku-5-5", 1), ("claude-haiku-5-5", 7))
"""Model, and days of a session."""
JUDGED = 300
"""Exchanges that the worker has judged in a run."""
LATENCIES = (0.0, 0.05)
CONCURRENCIES = (16, 64)
NOW = datetime(2026, 11, 28, tzinfo=UTC)


def exchanges(number: int, days: int = 1) -> list[Exchange | SessionClosed]:
    """So many records of one seed after the other: exchanges and the ends of their sessions, in order.

    A session is what an agent said on so many days; on one day that is 6 to 14 exchanges.
    """
    return list(islice((record for seed in count(7) for record in _seeded(seed, days)), number))


def _seeded(seed: int, days: int) -> Iterator[Exchange | SessionClosed]:
    redactor = Redactor(Policy().redaction)
    sessions = dialogues(SCRIPT_END, seed=seed)
    for agent, project in PROJECTS.items():
        own = [session for session in sessions if session.agent == agent]
        holder = Holder("connection", agent, project, agent)
        for place in range(0, len(own), days):
            parts = own[place : place + days]
            session_id, ended_at = parts[0].session_id, parts[-1].ended_at
            for payload in (payload for part in parts for payload in part.payloads):
                body = IngestBody.model_validate(payload | {"session_id": session_id})
                yield msgspec.structs.replace(exchange_of(body, holder, redactor, NOW), turn_number=None)
            yield SessionClosed(
                connection=agent,
                project=project,
                session_id=session_id,
                closed_at=ended_at,
                ingested_at=NOW,
                reason="explicit",
            )


def bill_rows(model: str, days: int) -> list[list[str]]:
    """Return the bills of judging under a model, with each saving on and off."""
    estimate = Estimate(exchanges(RECORDS, days), ProjectSettings(judge_model=model))
    rows = []
    for variant, savings in VARIANTS.items():
        total = estimate.bill(savings)
        millions = [f"{tokens / 1e6:.2f}" for tokens in (total.input_tokens, total.cached_tokens, total.output_tokens)]
        rows.append([f"{model}, {variant}", f"{sum(total.calls.values()):,}", *millions, f"{total.usd:.3f}"])
    return rows


def print_bills() -> None:
    """Print the bills of judging with each saving on and off."""
    with ProcessPoolExecutor() as pool:
        bills = {case: pool.submit(bill_rows, *case) for case in CASES}
        for days in dict.fromkeys(days for _, days in CASES):
            records = exchanges(RECORDS, days)
            exchange_count = sum(isinstance(record, Exchange) for record in records)
            print(
                f"{exchange_count:,} exchanges in {len(records) - exchange_count:,} sessions; simulated judge, estimated tokens.\n"
            )
            rows = [row for case in CASES if case[1] == days for row in bills[case].result()]
            print_table(["savings", "calls", "input M", "of it cached M", "output M", "USD"], rows)
            print()


class RecordingJudge:
    """A judge that records the questions and passes them on."""

    def __init__(self, judge: LiveJudge) -> None:
        self.asked: list[Question] = []
        self._judge = judge

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Ask the judge."""
        self.asked.append(question)
        return await self._judge.ask(question, budget)

    async def aclose(self) -> None:
        """Close the judge."""
        await self._judge.aclose()


async def score_with_engine(
    database: Path, records: Sequence[Exchange | SessionClosed], url: str, concurrency: int
) -> tuple[float, list[Question]]:
    """Return the seconds from ingestion to the last score, and the judge's questions."""
    policy = Policy()
    judge = RecordingJudge(open_live_judge(None, url, lambda _: ModelTraits(), concurrency=concurrency))
    with Store(database) as store:
        engine = Engine(store, policy, Redactor(policy.redaction), lambda: datetime.now(UTC), judge=judge)
        await engine.start()
        start = time.perf_counter()
        await engine.publish("exchanges", records)
        await engine.wait_until_drained()
        seconds = time.perf_counter() - start
        await engine.stop()
    return seconds, judge.asked


async def time_bare_client(questions: Sequence[Question], url: str, concurrency: int) -> float:
    """Return the seconds of the bare client for the same calls with the same concurrency."""
    slots = asyncio.Semaphore(concurrency)
    client = open_client(None, url, ClientOptions(60, concurrency))

    async def ask(question: Question) -> None:
        async with slots:
            await client.messages.create(**message_parameters(build_request(question, ModelTraits(), secrets.token_hex(8))))

    start = time.perf_counter()
    async with client:
        await asyncio.gather(*map(ask, questions))
        return time.perf_counter() - start


def print_rates(folder: Path, records: Sequence[Exchange | SessionClosed]) -> None:
    """Print the speed of the worker beside that of the bare client."""
    rows = []
    for latency in LATENCIES:
        with simulated(latency, folder) as url:
            for concurrency in CONCURRENCIES:
                database = folder / f"{latency}-{concurrency}.duckdb"
                seconds, questions = asyncio.run(score_with_engine(database, records, url, concurrency))
                bare = asyncio.run(time_bare_client(questions, url, concurrency))
                exchange_count = sum(isinstance(record, Exchange) for record in records)
                rates = [f"{exchange_count / seconds:.0f}", f"{len(questions) / seconds:.0f}", f"{len(questions) / bare:.0f}"]
                rows.append([f"{latency * 1000:.0f} ms, {concurrency} at once", *rates, f"{seconds / bare:.1f}"])
    print_table(["judge", "exchanges/s", "calls/s", "bare client, calls/s", "times bare"], rows)


@contextlib.contextmanager
def simulated(latency: float, folder: Path) -> Iterator[str]:
    """Run a simulated judge in another process; yield its address."""
    with serving(["simulate-judge", "--port", "0", "--latency", str(latency)], {}, folder / "judge.log") as url:
        yield url


def print_replay(database: Path) -> None:
    """Print the rate of a replay from recorded judgements."""
    with Store(database) as store:
        frames = store.read(SCORING.source, 0, store.end_of(SCORING.source))
        batch = StageBatch.of(SCORING.source, frames)
        step = JudgingStep(SCORING, Policy(), judgement_reader(store))
        tasks = len(step(batch, {}).records)
        seconds = best_seconds({"replay": lambda: step(batch, {})}, 5)["replay"]
    print(f"A replay from recorded judgements scores {tasks / seconds:,.0f} exchanges/s ({tasks} in {seconds:.2f} s).")


def main() -> None:
    """Print the bills with each saving on and off, the rates of worker and bare client, and the rate of a replay."""
    print_bills()
    records = exchanges(JUDGED)
    print(f"{len(records)} records of whole sessions through the engine; every reservation, judgement and score is durable.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print_rates(folder, records)
        print()
        print_replay(folder / f"{LATENCIES[-1]}-{CONCURRENCIES[-1]}.duckdb")


if __name__ == "__main__":
    main()
