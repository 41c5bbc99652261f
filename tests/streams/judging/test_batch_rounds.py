"""Exchanges that wait for a batch: half the price, the same judgements, nothing lost and nothing paid for twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support import builders as build
from support.clocks import TickingClock
from support.engines import live_judge, policy_of, rows, runner_over
from support.servers import ROOT, until

from analytics.store.store import Store
from audit.cost import nano_of
from audit.policy import Policy
from audit.redaction import Redactor
from driftline_trial.simulator import RunningJudge, running
from schemas.records import Exchange
from streams.engine.engine import Engine
from streams.evaluations import ask_in_batches
from streams.judges.batch_judge import BatchJudge, BatchLimits, open_batch_calls
from streams.judges.batch_plans import BatchJournal
from streams.judges.protocol import ModelTraits
from streams.judging import batch_rounds
from streams.judging.batch_rounds import ROUNDS
from streams.judging.call_budget import batch_journal_path

LIMITS = BatchLimits(first_poll=0.02, max_poll=0.05, grace=5.0)
WAITING = policy_of(judge_within_hours=24)
DETERMINED = "fingerprint, answer, outcome, purpose"


@pytest.fixture(scope="module")
def served() -> Iterator[RunningJudge]:
    """Return the simulated judge that all tests share."""
    with running() as judge:
        yield judge


@pytest.fixture
def simulator(served: RunningJudge) -> RunningJudge:
    """Return the simulated judge in its initial state."""
    served.reset("answer")
    return served


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return the path of a new database."""
    return tmp_path / "driftline.duckdb"


def batch_judge(simulator: RunningJudge, journal: BatchJournal) -> BatchJudge:
    """Return a judge over the batch API of the simulated judge."""
    calls = open_batch_calls("key", simulator.base_url)
    return BatchJudge(lambda _: calls, lambda _: ModelTraits(), journal, LIMITS)


@asynccontextmanager
async def engine_with_batches(
    database: Path, simulator: RunningJudge, policy: Policy = WAITING, clock: TickingClock | None = None
) -> AsyncIterator[Engine]:
    """Yield a started engine whose exchanges may wait for batches of the simulated judge, and stop it at the end."""
    with Store(database) as store, patch.object(batch_rounds, "TICK_SECONDS", 0.02):
        engine = Engine(
            store,
            policy,
            Redactor(policy.redaction),
            clock or TickingClock(),
            judge=live_judge(simulator.base_url),
            judge_name="live",
            batch_judge=batch_judge(simulator, BatchJournal(batch_journal_path(database))),
        )
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


def conversation(turns: int = 8, session: str = "s") -> list[Exchange]:
    """Return the exchanges of a session; only the second and the fourth have thinking."""
    return [
        build.exchange(session, turn, agent_thinking="The log says so." if turn in (2, 4) else None)
        for turn in range(1, turns + 1)
    ]


async def judge_first(engine: Engine) -> None:
    """Have another session of the project judged, because the first exchange of a project does not wait."""
    await engine.publish("exchanges", [build.exchange("before", 1)])
    await engine.wait_until_drained()


async def publish(engine: Engine, exchanges: Sequence[Exchange]) -> None:
    """Publish exchanges and wait until all that need not wait for a batch are judged."""
    await engine.publish("exchanges", exchanges)
    await engine.wait_until_drained()


def start_round(engine: Engine) -> None:
    """Let the time pass after which waiting exchanges are asked about."""
    assert isinstance(engine.now, TickingClock)
    engine.now.advance(timedelta(hours=24) / ROUNDS)


async def ask_waiting(engine: Engine) -> None:
    """Have the waiting exchanges asked about and scored."""
    start_round(engine)
    await asyncio.to_thread(until, lambda: not len(engine.batches or ()), "the batches to be read")
    await engine.wait_until_drained()


def run(work: Any) -> Any:
    """Run a coroutine with a generous time limit."""
    return asyncio.run(asyncio.wait_for(work, 120))


def newest_scores(store: Store) -> list[tuple[object, ...]]:
    """Return what the newest scores say, without what depends on how they were judged."""
    columns = "* EXCLUDE (score_id, revision, scored_at, judgement_ids, cost_usd, policy_digest, _offset)"
    query = f"SELECT {columns} FROM log.scores QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC) = 1 ORDER BY ALL"
    return store.cursor().execute(query).fetchall()


@pytest.mark.parametrize("combine", [False, True], ids=["separate", "combined"])
def test_batches_give_the_same_judgements_as_live_calls_at_half_the_price(
    database: Path, simulator: RunningJudge, *, combine: bool
) -> None:
    """A lower bill must not measure anything else. Until the batch has been answered, the score says that it waits."""

    async def judge(path: Path, policy: Policy) -> tuple[list[Any], list[Any], int, set[Any]]:
        async with engine_with_batches(path, simulator, policy) as engine:
            await judge_first(engine)
            await publish(engine, conversation())
            waiting = {row[0] for row in rows(engine.store, "scores", "tier2_reason")}
            await ask_waiting(engine)
            await engine.flush()
            query = f"SELECT {DETERMINED} FROM judgements WHERE outcome = 'answered' ORDER BY ALL"
            answers = engine.store.cursor().execute(query).fetchall()
            cost = sum(nano_of(row[0]) for row in rows(engine.store, "judgements", "cost_usd"))  # type: ignore[arg-type]
            return answers, newest_scores(engine.store), cost, waiting

    live = policy_of(combine_tiers=combine)
    live_answers, live_scores, live_cost, live_reasons = run(judge(database.with_name("live.duckdb"), live))
    requests = simulator.requests
    simulator.reset("answer")
    answers, scores, cost, reasons = run(judge(database, policy_of(judge_within_hours=24, combine_tiers=combine)))
    assert answers == live_answers
    assert scores == live_scores
    assert simulator.requests == requests
    assert "awaiting_batch" in reasons
    assert "awaiting_batch" not in live_reasons
    assert cost <= 0.6 * live_cost


@pytest.mark.parametrize("combine", [False, True], ids=["separate", "combined"])
def test_a_replay_of_scores_that_waited_gives_the_same_bytes(database: Path, simulator: RunningJudge, *, combine: bool) -> None:
    """A replay sees a batch's answers from the start; the scores from before the batch must not use them."""
    policy = policy_of(judge_within_hours=24, combine_tiers=combine)

    async def judge() -> None:
        async with engine_with_batches(database, simulator, policy) as engine:
            await judge_first(engine)
            await publish(engine, conversation())
            await engine.finalize("hooks", "s")  # its last turns are judged again while they wait
            await engine.wait_until_drained()
            await ask_waiting(engine)

    run(judge())
    with Store(database) as store:
        before = rows(store, "scores", "* EXCLUDE (_offset)")
        runner_over(store, policy).rebuild()
        assert rows(store, "scores", "* EXCLUDE (_offset)") == before


def test_urgent_turns_do_not_wait(database: Path, simulator: RunningJudge) -> None:
    """A flagged turn, and the first of a project, are judged at once: somebody may have to act."""

    async def judge() -> set[str]:
        async with engine_with_batches(database, simulator) as engine:
            await judge_first(engine)
            await publish(
                engine, [*conversation(3), build.exchange("s", 4, agent_response="No, that is not correct, I disagree.")]
            )
            await engine.flush()
            return {
                str(row[0])
                for row in engine.store.cursor()
                .execute("SELECT session_id || turn_number FROM log.scores WHERE tier2_state = 'scored'")
                .fetchall()
            }

    assert run(judge()) == {"before1", "s4"}


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_batch_survives_the_end_of_its_process(database: Path, simulator: RunningJudge, evaluates: bool) -> None:
    """The next process reads the answers of the batch; nothing is asked or paid for twice, even if an evaluation ran before it."""
    simulator.reset("answer", batch_seconds=1.0)

    async def ask() -> int:
        async with engine_with_batches(database, simulator) as engine:
            await judge_first(engine)
            await publish(engine, conversation())
            start_round(engine)
            await asyncio.to_thread(until, lambda: simulator.batch_calls >= 2, "the batch to be polled")
        return simulator.requests

    requests = run(ask())

    async def evaluate() -> None:
        with Store(database) as store:
            journal = BatchJournal(database.with_name("evaluations.jsonl"))
            judge = batch_judge(simulator, journal)
            await ask_in_batches(store, WAITING, [], judge, journal, now=TickingClock(), note=lambda _: None)
            await judge.aclose()

    if evaluates:
        run(evaluate())

    async def resume() -> list[tuple[object, ...]]:
        async with engine_with_batches(database, simulator) as engine:
            await ask_waiting(engine)
            await engine.flush()
            query = "SELECT fingerprint FROM judgements WHERE outcome = 'answered' GROUP BY ALL HAVING count(*) > 1"
            assert engine.store.cursor().execute(query).fetchall() == []
            query = "SELECT outcome, count(*) FROM judgements WHERE outcome NOT IN ('answered', 'awaiting_batch') GROUP BY ALL"
            return engine.store.cursor().execute(query).fetchall()

    assert run(resume()) == []
    with Store(database) as store:
        outcomes = [row[0] for row in rows(store, "judgements", "outcome")]
    assert outcomes.count("answered") == simulator.requests > requests
    assert BatchJournal(batch_journal_path(database)).fingerprints() == set()


CHILD = """
    import asyncio, sys
    from pathlib import Path
    from types import SimpleNamespace
    sys.path.insert(0, str(Path(sys.argv[3]) / "tests"))
    from streams_batches import ask_waiting, conversation, engine_with_batches, judge_first, publish

    async def run():
        async with engine_with_batches(Path(sys.argv[2]), SimpleNamespace(base_url=sys.argv[1])) as engine:
            await judge_first(engine)
            await publish(engine, conversation())
            await ask_waiting(engine)

    asyncio.run(run())
"""


@pytest.mark.slow
def test_a_batch_survives_kill_9_between_its_creation_and_its_results(database: Path, simulator: RunningJudge) -> None:
    """A batch may take a day, and machines crash: its answers are paid for, and the exchanges still wait."""
    simulator.reset("answer", batch_seconds=3.0)
    script = textwrap.dedent(CHILD).replace("streams_batches", "streams.judging.test_batch_rounds".rpartition(".")[2])
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", folder)))}
    command = [sys.executable, "-c", script, simulator.base_url, str(database), str(ROOT)]
    child = subprocess.Popen(command, env=environment)
    until(lambda: simulator.batch_calls >= 2, "the batch to be polled", 120)
    child.send_signal(signal.SIGKILL)
    child.wait(60)

    async def resume() -> list[tuple[object, ...]]:
        async with engine_with_batches(database, simulator) as engine:
            await ask_waiting(engine)
            await engine.flush()
            return rows(engine.store, "judgements", "outcome")

    outcomes = [row[0] for row in run(resume())]
    assert outcomes.count("answered") == simulator.requests
    assert set(outcomes) == {"answered", "awaiting_batch"}


def test_what_a_batch_does_not_answer_in_time_is_asked_live(database: Path, simulator: RunningJudge) -> None:
    """The policy promises a time, and a batch may take longer."""
    simulator.reset("answer", batch_seconds=3600.0)
    clock = TickingClock()

    async def judge() -> tuple[set[object], int]:
        async with engine_with_batches(database, simulator, clock=clock) as engine:
            await judge_first(engine)
            await publish(engine, conversation(3))
            clock.advance(timedelta(hours=23) - timedelta(seconds=2))
            await ask_waiting(engine)
            await engine.flush()
            states = {row[1] for row in rows(engine.store, "scores", "revision, tier2_state") if row[0] == 101}
            return states, len(engine.batches or ())

    states, waiting = run(judge())
    assert states == {"scored"}
    assert waiting == 0


def test_no_session_exceeds_its_cap_while_it_waits(database: Path, simulator: RunningJudge) -> None:
    """The largest possible cost of a batch is kept from the moment an exchange waits, so live calls cannot use it."""
    cap = 0.03
    policy = policy_of(judge_within_hours=24, cost_cap_per_session=cap)

    async def judge() -> int:
        async with engine_with_batches(database, simulator, policy) as engine:
            await judge_first(engine)
            await publish(engine, conversation(12))
            await ask_waiting(engine)
            await engine.flush()
            costs = rows(engine.store, "judgements", "session_id, cost_usd")
            return sum(nano_of(row[1]) for row in costs if row[0] == "s")  # type: ignore[arg-type]

    assert 0 < run(judge()) <= nano_of(cap)
