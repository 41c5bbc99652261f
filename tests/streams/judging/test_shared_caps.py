"""No cap of a project's or the installation's day or month is exceeded, by any number of sessions and processes, however they end."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as build
from support.clocks import NOW, TickingClock
from support.engines import HangingJudge, MoodyJudge, engine_over, rows, runner_over

from analytics.store.store import Store
from audit.anchors import anchor_project
from audit.cost import Usage, nano_of
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from audit.judges import ApiName
from audit.policy import CostCaps, Policy, ProjectSettings
from audit.spending import NO_LIMITS, SHARED_CAPS, Reserved, Settled, Spending
from driftline_trial.simulator import running
from driftline_trial.simulator.answers import simulated_answer
from schemas.errors import StoreError
from schemas.records import Exchange
from streams.judges.live import open_live_judge
from streams.judges.protocol import CallBudget, ModelTraits, Verdict
from streams.judging.shared_caps import SpendingFiles, spending_folder

T = TypeVar("T")
CAP = 0.05
POLICIES = {
    "project_day_cap": {"defaults": ProjectSettings(cost_caps=CostCaps(day=CAP))},
    "project_month_cap": {"defaults": ProjectSettings(cost_caps=CostCaps(month=CAP))},
    "installation_day_cap": {"cost_caps": CostCaps(day=CAP)},
    "installation_month_cap": {"cost_caps": CostCaps(month=CAP)},
}


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return a database in memory, or one in a file."""
    with Store(None if request.param == "memory" else tmp_path / "store.duckdb") as opened:
        yield opened


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a generous time limit."""
    return asyncio.run(asyncio.wait_for(work, 120))


def policy_with(cap: str) -> Policy:
    """Return a policy that judges everything under one shared cap of `CAP` USD, without a cap of the session."""
    fields = dict(POLICIES[cap])
    settings = fields.pop("defaults", ProjectSettings())
    update = {"cost_cap_per_session": None, "sampling": settings.sampling.model_copy(update={"enabled": False})}  # type: ignore[attr-defined]
    return Policy(defaults=settings.model_copy(update=update), **fields)  # type: ignore[arg-type, attr-defined]


def answer(question: Question) -> str:
    """Return the simulated judge's answer without a server."""
    texts = {material.name: material.literal for material in question.materials}
    return canonical_json(simulated_answer(question.schema, texts))


def exchanges(count: int, project: str = "ops", prefix: str = "s") -> list[Exchange]:
    """Return an exchange in each of many sessions."""
    return [build.exchange(f"{prefix}{number}", 1, f"Night {number} is healthy.", project=project) for number in range(count)]


def spent(store: Store) -> int:
    """Return the nano-USD of all judgements."""
    return sum(nano_of(float(str(cost))) for (cost,) in rows(store, "judgements WHERE cost_usd IS NOT NULL", "cost_usd"))


async def judged(store: Store, policy: Policy, judge: Any, tasks: list[Exchange], start: datetime = NOW) -> None:
    """Judge exchanges of many sessions concurrently."""
    async with engine_over(store, policy, judge, TickingClock(start)) as engine:
        await engine.publish("exchanges", tasks)
        await engine.wait_until_drained()


AMOUNTS = st.integers(0, 40)
STEPS = st.lists(st.tuples(st.sampled_from(["reserve", "reserve", "settle", "lose"]), AMOUNTS, st.integers(0, 3)), max_size=60)


@given(steps=STEPS, limits=st.tuples(*(st.none() | st.integers(0, 120) for _ in SHARED_CAPS)))
def test_whatever_is_reserved_and_settled_no_sum_exceeds_its_cap(steps: list[Any], limits: Any) -> None:
    """Calls may cost anything up to their reservation, at any time, or never report their cost."""
    spending = Spending()
    ids = itertools.count()
    open_calls: list[Reserved] = []
    worst: Counter[tuple[str, str]] = Counter()
    """By account, what was really spent if every lost call cost its reservation."""
    days = [datetime(2026, 11, 30, 23, 59, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)]

    def accounts(entry: Reserved) -> list[tuple[str, str]]:
        day = entry.at.date().isoformat()
        return [(entry.project, day), (entry.project, day[:7]), ("*", day), ("*", day[:7])]

    for action, amount, choice in steps:
        if action == "reserve":
            entry = Reserved(str(next(ids)), "ab"[choice % 2], days[choice // 2], amount, limits)
            if spending.add(entry) is None:
                open_calls.append(entry)
        elif open_calls:
            entry = open_calls.pop(choice % len(open_calls))
            cost = entry.amount if action == "lose" else min(amount, entry.amount)
            if action == "settle":
                spending.add(Settled((entry.reservation_id,), cost))
            worst.update(dict.fromkeys(accounts(entry), cost))
        total = worst + Counter()
        for entry in open_calls:
            total.update(dict.fromkeys(accounts(entry), entry.amount))
        for (project, period), amount_used in total.items():
            position = 2 * (project == "*") + (len(period) == 7)
            assert limits[position] is None or amount_used <= limits[position]


def test_a_question_across_midnight_counts_on_both_days() -> None:
    """The cost of a question is one number, and no day may be understated."""
    spending = Spending()
    late, early = datetime(2026, 11, 29, 23, 59, tzinfo=UTC), datetime(2026, 11, 30, 0, 1, tzinfo=UTC)
    for number, at in enumerate((late, early)):
        assert spending.add(Reserved(str(number), "p", at, 100)) is None
    spending.add(Settled(("0", "1"), 30))
    assert (spending.used_on("p", late), spending.used_on("p", early)) == (30, 30)
    month = (None, 100, None, None)
    assert spending.refusing_cap(Reserved("2", "p", early, 70, month)) is None
    assert spending.refusing_cap(Reserved("2", "p", early, 71, month)) == "project_month_cap"


def test_repeated_and_unknown_entries_change_nothing() -> None:
    """A producer may repeat an entry, and a log may begin after the reservation."""
    spending = Spending()
    entry = Reserved("a", "p", NOW, 10)
    for repeated in (entry, entry, Settled(("a",), 4), Settled(("a",), 4), Settled(("never",), 1_000)):
        spending.add(repeated)
    assert spending.used_on("p", NOW) == 4
    assert spending.used_on(anchor_project("p"), NOW) == 4


@pytest.mark.parametrize("cap", SHARED_CAPS)
@pytest.mark.parametrize("seed", range(2))
def test_no_shared_cap_is_exceeded_with_64_sessions_at_once(store: Store, cap: str, seed: int) -> None:
    """64 calls at once use the cap, and not more; the reason names the cap, and a rebuild gives the same bytes."""
    policy = policy_with(cap)
    run(judged(store, policy, MoodyJudge(seed, answer), exchanges(64)))
    assert 0.5 * nano_of(CAP) < spent(store) <= nano_of(CAP)
    reasons = {str(reason) for (reason,) in rows(store, "scores", "tier2_reason")}
    assert cap in reasons
    capped = rows(store, f"scores WHERE tier2_reason = '{cap}'", "DISTINCT tier2_state, disposition")
    assert ("skipped_cost_cap", "skipped_cost_cap") in capped
    before = rows(store, "scores", "* EXCLUDE (_offset)")
    runner_over(store, policy).rebuild()
    assert rows(store, "scores", "* EXCLUDE (_offset)") == before


@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
def test_the_cap_holds_over_every_api(tmp_path: Path, api: ApiName) -> None:
    """Judges of any maker that answer, fail and stay silent about their usage share one cap, over their official clients."""
    moods = random.Random(5).choices(["answer", "answer", "slow:0.05", "garbage", "no_usage", "refusal", "reset"], k=400)
    with running(",".join(moods)) as simulator, Store(tmp_path / "store.duckdb") as store:
        judge = open_live_judge(
            "key", simulator.base_url + ("" if api == "messages" else "/v1"), lambda _model: ModelTraits(), api=api
        )
        run(judged(store, policy_with("project_day_cap"), judge, exchanges(64)))
        [(calls,)] = store.cursor().execute("SELECT sum(attempts) FROM judgements").fetchall()
        assert calls == simulator.requests
        assert 0 < spent(store) <= nano_of(CAP)
        assert "project_day_cap" in {reason for (reason,) in rows(store, "scores", "tier2_reason")}


@pytest.mark.parametrize("cap", SHARED_CAPS)
def test_interrupted_calls_count_in_full_under_every_shared_cap(tmp_path: Path, cap: str) -> None:
    """A process that ends during a call leaves an unknown cost, which every later process counts."""
    policy = policy_with(cap)
    hanging = 0
    for life in range(3):
        with Store(tmp_path / "store.duckdb") as store:
            judge: Any = HangingJudge() if life < 2 else MoodyJudge(life, answer)

            async def work(store: Store = store, judge: Any = judge, life: int = life) -> None:
                async with engine_over(store, policy, judge, TickingClock(NOW + timedelta(minutes=life))) as engine:
                    await engine.publish("exchanges", exchanges(1 if life < 2 else 40, prefix=f"life{life}"))
                    if isinstance(judge, HangingJudge):
                        await judge.asked.wait()
                        await engine.stop(0)
                    else:
                        await engine.wait_until_drained()

            run(work())
            hanging += len(rows(store, "judgements WHERE outcome = 'interrupted'"))
            assert spent(store) <= nano_of(CAP)
    assert hanging > 0


class CheapJudge:
    """Answers at a fraction of the worst case, and lets others run during its call."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Reserve, call and answer."""
        if not await budget.reserve():
            return Verdict(outcome="cost_cap")
        await asyncio.sleep(0)
        budget.spend(Usage(100, 10), question.model)
        return Verdict(outcome="answered", answer=answer(question), attempts=1, usage=Usage(100, 10))

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def test_the_worst_cases_of_running_calls_refuse_no_call_that_fits(store: Store) -> None:
    """A cap with room for a few worst cases must not leave out what 32 cheap calls leave room for."""
    run(judged(store, policy_with("project_day_cap"), CheapJudge(), exchanges(32)))
    assert rows(store, "scores", "DISTINCT tier2_state") == [("scored",)]


def test_caps_of_projects_are_separate_and_a_new_day_begins_at_zero(store: Store) -> None:
    """One project's spending must not stop another, nor yesterday's today."""
    policy = policy_with("project_day_cap")

    def scored(prefix: str) -> int:
        return len(rows(store, f"scores WHERE tier2_state = 'scored' AND starts_with(session_id, '{prefix}')"))

    for prefix, project, start in (
        ("a", "ops", NOW),
        ("b", "ops", NOW + timedelta(hours=1)),
        ("c", "dev", NOW + timedelta(hours=2)),
        ("d", "ops", NOW + timedelta(days=1)),
    ):
        run(judged(store, policy, MoodyJudge(3, answer), exchanges(40, project, prefix), start))
    assert scored("b") <= 2
    assert min(scored("a"), scored("c"), scored("d")) > 2


def test_a_new_cap_counts_the_calls_of_the_month_before_it(store: Store) -> None:
    """Whoever sets a cap in the middle of a month means the month."""
    free = Policy(defaults=policy_with("project_month_cap").defaults.model_copy(update={"cost_caps": CostCaps()}))
    run(judged(store, free, MoodyJudge(1, answer), exchanges(64)))
    before = spent(store)
    assert before > nano_of(CAP)
    run(
        judged(
            store,
            policy_with("project_month_cap"),
            MoodyJudge(1, answer),
            exchanges(8, prefix="later"),
            NOW + timedelta(days=2),
        )
    )
    assert spent(store) == before


def test_a_new_cap_counts_a_project_and_its_anchors_together(tmp_path: Path) -> None:
    """Both use the project's cap, so what they spent before it is summed, once."""
    rows = [{"project": project, "day": NOW.date(), "nano_usd": 5} for project in ("p", anchor_project("p"))]
    for _ in range(2):
        files = SpendingFiles(tmp_path / "spending")
        files.add_earlier(rows, NOW)
        assert files.spending(NOW).used_on("p", NOW) == 10


def test_a_model_without_a_price_is_not_asked_under_a_shared_cap(store: Store) -> None:
    """What a call may cost is unknown, so no cap could hold."""
    policy = policy_with("installation_month_cap")
    unpriced = policy.model_copy(update={"defaults": policy.defaults.model_copy(update={"judge_model": "house-model"})})
    run(judged(store, unpriced, MoodyJudge(1, answer), exchanges(2)))
    assert rows(store, "scores", "DISTINCT tier2_reason") == [("unknown_price",)]
    assert rows(store, "reservations") == []


def test_a_log_of_spending_with_a_foreign_line_is_refused_by_name(tmp_path: Path) -> None:
    """Guessing would pass the cap."""
    folder = tmp_path / "spending"
    folder.mkdir()
    (folder / f"{NOW:%Y-%m}").write_text("hello\n")
    with pytest.raises(StoreError, match=f"{NOW:%Y-%m}: a line is no entry"):
        SpendingFiles(folder).spending(NOW)


def test_old_months_are_removed_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    """A killed process leaves at most one incomplete line, and nobody needs last year's spending."""
    folder = tmp_path / "spending"
    folder.mkdir()
    (folder / "2026-01").touch()
    entry = Reserved("a", "p", NOW, 7)
    (folder / f"{NOW:%Y-%m}").write_bytes(msgspec.json.encode(entry) + b"\n" + msgspec.json.encode(entry)[:20])
    files = SpendingFiles(folder)
    assert run(files.reserve(Reserved("b", "p", NOW, 5))) is None
    assert sorted(path.name for path in folder.iterdir()) == [f"{NOW:%Y-%m}"]
    assert SpendingFiles(folder).spending(NOW).used_on("p", NOW) == 12


def spend_until_killed(folder: Path, number: int) -> None:
    """Reserve and settle calls, and report each to standard output's file, until the process is killed."""
    chance = random.Random(number)

    async def work() -> None:
        files = SpendingFiles(folder / "spending")
        report = os.open(folder / f"spent-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for call in itertools.count():
            amount = chance.randrange(1, 20)
            entry = Reserved(f"{number}-{os.getpid()}-{call}", "p", NOW, amount, (20_000, None, None, None))
            if await files.reserve(entry) is None:
                os.write(report, f"{amount}\n".encode())  # the call: from here on it may cost this much
                if chance.random() < 0.5:
                    await files.settle(Settled((entry.reservation_id,), amount))

    asyncio.run(work())


def test_processes_that_are_killed_share_a_cap(tmp_path: Path) -> None:
    """Three processes append to one log, each is killed at any moment and replaced: what they spent never exceeds the cap."""
    chance = random.Random(7)
    spawn = multiprocessing.get_context("fork")
    processes = {number: spawn.Process(target=spend_until_killed, args=(tmp_path, number)) for number in range(3)}
    for process in processes.values():
        process.start()

    def total() -> int:
        return sum(int(line) for path in tmp_path.glob("spent-*") for line in path.read_text().splitlines())

    kills = 0
    cap = 20_000
    while total() < 0.9 * cap:
        aim = total() + chance.randrange(1, 1_500)
        while total() < min(aim, 0.9 * cap):
            pass
        number = chance.randrange(3)
        os.kill(processes[number].pid or 0, signal.SIGKILL)
        processes[number].join()
        kills += 1
        processes[number] = spawn.Process(target=spend_until_killed, args=(tmp_path, number))
        processes[number].start()
    for process in processes.values():
        process.kill()
        process.join()
    assert kills >= 3
    assert 0.9 * cap <= total() <= cap


def test_the_log_is_beside_the_database_and_only_with_a_cap(tmp_path: Path) -> None:
    """An installation without shared caps gets no other file."""
    for cap, expected in ((None, False), ("project_day_cap", True)):
        path = tmp_path / f"{cap}.duckdb"
        with Store(path) as store:
            policy = Policy() if cap is None else policy_with(cap)
            run(judged(store, policy, MoodyJudge(1, answer), exchanges(2)))
        assert spending_folder(path).exists() is expected
    assert NO_LIMITS == (None,) * 4
