"""The batch judge over the simulated batch API: one verdict per question in all cases, and nothing paid for twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as build
from support.servers import ROOT, until

from audit.cost import price_of
from audit.exchanges.prompts import tier2_question
from audit.exchanges.questions import Invalid, Question
from audit.fingerprints import canonical_json
from audit.judges import ApiName
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from driftline_trial.simulator.scripts import KINDS
from schemas.errors import StoreError
from streams.judges.batch_judge import (
    CANCELLED,
    BatchJournal,
    BatchJudge,
    BatchLimits,
    BatchQuestion,
    JudgeUnavailableError,
    open_batch_calls,
)
from streams.judges.batch_plans import BatchPlan, custom_id
from streams.judges.live import open_live_judge
from streams.judges.message_batches import read_results
from streams.judges.protocol import ModelTraits, Verdict
from streams.judges.rate_limits import MAX_UNREADABLE, Clock

KEY = "sk-ant-api03-a-key-that-must-not-be-shown"
BudgetFactory = Callable[..., Any]


class Killed(BaseException):
    """Raised where the process ends."""


class Outcome(NamedTuple):
    """The outcome of a question, and its charge: the usage, nothing, or the whole reservation."""

    outcome: str
    charged: str = "usage"
    script: str | None = None


OUTCOMES = {
    "answer": Outcome("answered"),
    "strict": Outcome("answered"),
    "obedient": Outcome("answered"),
    "slow": Outcome("answered", script="slow:0.05"),
    "thinking_first": Outcome("answered"),
    "rate_limited": Outcome("provider_error", "nothing"),
    "overloaded": Outcome("provider_error", "nothing"),
    "error500": Outcome("provider_error", "nothing"),
    "bad_request": Outcome("provider_error", "nothing"),
    "unauthorized": Outcome("provider_error", "nothing"),
    "no_structured": Outcome("answered"),
    "drip": Outcome("answered"),
    "hang": Outcome("timeout", "nothing"),
    "reset": Outcome("provider_error", "all"),
    "huge": Outcome("provider_error", "all", "huge:0.2"),
    "html": Outcome("provider_error", "all"),
    "truncated_json": Outcome("provider_error", "all"),
    "wrong_shape": Outcome("provider_error", "all"),
    "no_text": Outcome("invalid"),
    "no_usage": Outcome("answered", "all"),
    "zero_usage": Outcome("answered", "all"),
    "lying_usage": Outcome("answered", "all"),
    "refusal": Outcome("refused"),
    "cut_off": Outcome("cut_off"),
    "garbage": Outcome("invalid"),
    "out_of_range": Outcome("invalid"),
    "ignores_structured": Outcome("answered"),
}
"""What each kind of the simulated judge's script makes of a question in a batch."""


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


def _traits(model: str) -> ModelTraits:
    price = price_of(model, {})
    assert price is not None
    return ModelTraits(cache_minimum=price.cache_minimum, switch_off_thinking=price.switch_off_thinking)


def _question(number: int) -> Question:
    return tier2_question(build.exchange("s", number), Policy().for_project("ops"))


class Recording(httpx2.AsyncHTTPTransport):
    """A transport that records the bodies of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[Any] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Forward the request."""
        if request.method == "POST" and request.url.path.endswith(("/messages", "/batches")):
            self.bodies.append(json.loads(await request.aread()))
        return await super().handle_async_request(request)


class Desk:
    """Asks questions through successive batch judges with the same journal and the same kind of call budgets."""

    def __init__(self, simulator: RunningJudge, folder: Path, clock: Any, budget_for: BudgetFactory) -> None:
        self.simulator = simulator
        self.journal = folder / "batches.jsonl"
        self.clock = clock
        self.budget_for = budget_for
        self.budgets: dict[int, Any] = {}
        self.transport: httpx2.AsyncHTTPTransport | None = None
        self.kept = BatchJournal
        self.api: ApiName = "messages"

    @property
    def url(self) -> str:
        """The address of the API."""
        return self.simulator.base_url if self.api == "messages" else f"{self.simulator.base_url}/v1"

    def judge(self, **limits: Any) -> Any:
        """Return a judge as a new process opens it."""
        clock = Clock(
            now=self.clock.now, sleep=self.clock.sleep, jitter=lambda: 1.0, wall=lambda: time.time() + sum(self.clock.slept)
        )
        options: dict[str, Any] = {
            "clock": clock,
            "call_seconds": 0.5,
            "results_seconds": 0.5,
            "max_body": 100_000,
        }
        return BatchJudge(
            lambda _: open_batch_calls(KEY, self.url, api=self.api, transport=self.transport, **options),
            _traits,
            self.kept(self.journal),
            BatchLimits(**limits),
            clock,
        )

    def asked(self, numbers: Sequence[int], calls: int | None = None) -> list[BatchQuestion]:
        """Return the questions, each with a new call budget and its number as tag."""
        questions = []
        for number in numbers:
            self.budgets[number] = self.budget_for(_question(number), calls, batched=True)
            questions.append(BatchQuestion(_question(number), self.budgets[number], number))
        return questions

    def ask(
        self, numbers: Sequence[int], *, calls: int | None = None, stop: int | None = None, **limits: Any
    ) -> dict[int, Verdict]:
        """Return the verdicts by number; only `stop` of them if the process ends early."""

        async def run() -> dict[int, Verdict]:
            judge = self.judge(**limits)
            verdicts: dict[int, Verdict] = {}
            try:
                async with aclosing(judge.ask_all(self.asked(numbers, calls))) as answers:
                    async for question, verdict in answers:
                        assert question.tag not in verdicts
                        verdicts[question.tag] = verdict
                        if stop is not None and len(verdicts) >= stop:
                            break
            finally:
                await judge.aclose()
            return verdicts

        return asyncio.run(run())

    def charged(self) -> int:
        """Return the nano-USD charged to all call budgets."""
        return sum(sum(budget.settled) for budget in self.budgets.values())


@pytest.fixture
def desk(
    request: pytest.FixtureRequest, simulator: RunningJudge, tmp_path: Path, clock: Any, budget_for: BudgetFactory
) -> Desk:
    """Return a `Desk`."""
    desk = Desk(simulator, tmp_path, clock, budget_for)
    desk.api = getattr(request, "param", "messages")
    return desk


EVERY_API = pytest.mark.parametrize("desk", ["messages", "chat", "responses"], indirect=True)
"""Runs a test over each API that has batches."""


# What is asked and answered


@EVERY_API
def test_each_question_gets_one_verdict_and_costs_half(desk: Desk) -> None:
    """The ordinary case over several batches: all fields of a judgement, at the batch's price."""
    verdicts = desk.ask(range(50), max_requests=20, max_open=2)
    assert verdicts.keys() == set(range(50))
    assert desk.simulator.requests == 50
    for number, verdict in verdicts.items():
        assert verdict.outcome == "answered"
        assert verdict.error is None
        assert verdict.attempts == 1
        assert verdict.simulated is True
        assert not isinstance(_question(number).read(verdict.answer or ""), Invalid)
        price, usage = price_of(_question(number).model, {}), verdict.usage
        assert price is not None
        assert usage is not None
        full = price.cost(usage)
        assert full is not None
        assert abs(full / 2 - sum(desk.budgets[number].settled)) < 2
        assert _halved(desk.budget_for(_question(number)).amount) == _halved(2 * desk.budgets[number].amount)
    assert asyncio.run(BatchJournal(desk.journal).unfinished()) == ()


def _halved(nano: int) -> int:
    return round(nano / 10)


def test_a_batched_request_is_the_request_of_the_live_judge(desk: Desk) -> None:
    """Batch and live requests must be the same, or they would measure different judges. Only the boundary differs."""
    desk.transport = batched = Recording()
    desk.ask([1])
    live = Recording()

    async def ask() -> None:
        judge = open_live_judge(KEY, desk.simulator.base_url, _traits, transport=live)
        await judge.ask(_question(1), desk.budget_for(_question(1)))
        await judge.aclose()

    asyncio.run(ask())
    (request,) = batched.bodies[0]["requests"]
    boundary = re.compile(r"[0-9a-f]{16}(?=>)")
    assert boundary.sub("b", canonical_json(live.bodies[0])) == boundary.sub("b", canonical_json(request["params"]))
    assert request["custom_id"].startswith(_question(1).fingerprint[:40])


@pytest.mark.parametrize("desk", ["messages", "chat"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_each_result_of_a_batch_affects_only_its_own_question(kind: str, desk: Desk) -> None:
    """Each fault of the simulated judge, between two valid requests, affects only its own question."""
    expected = OUTCOMES[kind]
    desk.simulator.reset(f"answer,{expected.script or kind},answer")
    verdicts = desk.ask(range(3))
    assert [verdicts[number].outcome for number in range(3)] == ["answered", expected.outcome, "answered"], verdicts[1].error
    assert (verdicts[1].error is None) == (expected.outcome == "answered")
    budget = desk.budgets[1]
    assert {"nothing": [], "all": [budget.amount]}.get(expected.charged, budget.settled) == budget.settled
    if expected.charged == "usage":
        assert 0 < budget.settled[0] < budget.amount


def test_a_model_without_structured_output_gets_the_schema_in_the_prompt(desk: Desk) -> None:
    """The rejection is free; without a second batch, all questions of an older model would be unscored."""
    desk.simulator.reset("no_structured")
    desk.transport = recording = Recording()
    verdicts = desk.ask(range(3))
    assert Counter(verdict.outcome for verdict in verdicts.values()) == {"answered": 3}
    assert ["output_config" in body["requests"][0]["params"] for body in recording.bodies] == [True, False]
    assert all(1 == budget.reserved == len(budget.settled) for budget in desk.budgets.values())


def test_batches_are_split_by_size(desk: Desk) -> None:
    """The API refuses a batch of more than 256 MB as a whole."""
    desk.transport = recording = Recording()
    desk.ask(range(10), max_bytes=15_000)
    sizes = [len(json.dumps(body)) for body in recording.bodies]
    assert len(sizes) > 1
    assert all(size < 20_000 for size in sizes)
    assert sum(len(body["requests"]) for body in recording.bodies) == 10


@EVERY_API
def test_a_question_over_the_cap_is_in_no_batch(desk: Desk) -> None:
    """A question that the cap forbids is not asked and reported; the others are asked."""

    async def run() -> dict[object, str]:
        judge = desk.judge()
        questions = [*desk.asked([1, 2], calls=0), *desk.asked([3])]
        outcomes = {one.tag: verdict.outcome async for one, verdict in judge.ask_all(questions)}
        await judge.aclose()
        return outcomes

    assert asyncio.run(run()) == {1: "cost_cap", 2: "cost_cap", 3: "answered"}
    assert desk.simulator.requests == 1


@EVERY_API
def test_the_questions_to_each_model_are_in_batches_of_their_own(desk: Desk) -> None:
    """OpenAI fails a batch with two models as a whole, and each judge has its own API and key."""

    async def run() -> set[str]:
        judge = desk.judge()
        questions = [
            BatchQuestion(msgspec.structs.replace(item.question, model=model), item.budget, item.tag)
            for item, model in zip(
                desk.asked(range(6)), itertools.cycle(["claude-haiku-4-5", "claude-haiku-5-5"]), strict=False
            )
        ]
        outcomes = {verdict.outcome async for _, verdict in judge.ask_all(questions)}
        await judge.aclose()
        return outcomes

    assert asyncio.run(run()) == {"answered"}


@pytest.mark.parametrize("desk", ["chat", "responses"], indirect=True)
def test_no_text_stays_at_openai_after_a_batch(desk: Desk) -> None:
    """Its files would be kept for weeks: requests, answers and errors have the audited texts or quote them."""
    desk.simulator.reset("answer,bad_request,answer")
    assert Counter(verdict.outcome for verdict in desk.ask(range(3)).values()) == {"answered": 2, "provider_error": 1}
    assert desk.simulator.openai_batches.files == {}


@pytest.mark.parametrize("desk", ["chat", "responses"], indirect=True)
def test_a_batch_that_openai_fails_as_a_whole_costs_nothing(desk: Desk) -> None:
    """An organization may queue a limited number of tokens; beyond it, nothing is asked."""
    desk.simulator.openai_batches.max_queue = 3
    verdicts = desk.ask(range(8), max_requests=4)
    assert {(verdict.outcome, (verdict.error or "")[:20]) for verdict in verdicts.values()} == {
        ("provider_error", "token_limit_exceeded")
    }
    assert desk.charged() == 0
    assert asyncio.run(BatchJournal(desk.journal).unfinished()) == ()


def test_a_duplicate_question_is_rejected(desk: Desk) -> None:
    """One result cannot settle two call budgets."""
    with pytest.raises(ValueError, match="same fingerprint"):
        desk.ask([1, 1])


# Faults of the API


@pytest.mark.parametrize(
    "fault", ["rate_limited:300", "overloaded*3", "error500", "html", "truncated_json", "drip", "hang", "reset"]
)
@EVERY_API
@pytest.mark.parametrize("before", ["", "answer,", "answer,answer,"])
def test_a_failed_api_call_loses_neither_a_verdict_nor_money(before: str, fault: str, desk: Desk) -> None:
    """This covers creating, polling and reading: after a call with an unknown outcome, the batch is searched for."""
    desk.simulator.reset("answer", batch_script=f"{before}{fault},answer")
    verdicts = desk.ask(range(5))
    assert Counter(verdict.outcome for verdict in verdicts.values()) == {"answered": 5}
    assert desk.simulator.requests == 5, "a question was asked twice"
    assert desk.simulator.batch_calls > 3, "the fault did not happen"


@EVERY_API
@pytest.mark.parametrize("script", ["unauthorized", "answer,unauthorized", "overloaded"])
def test_a_rejected_key_is_an_error_and_loses_nothing(script: str, desk: Desk) -> None:
    """A wrong key must not make thousands of exchanges unscored; the same command continues later."""
    desk.simulator.reset("answer", batch_script=script)
    with pytest.raises(JudgeUnavailableError) as raised:
        desk.ask(range(5))
    assert KEY not in str(raised.value)
    desk.simulator.script_batches("answer")
    assert Counter(verdict.outcome for verdict in desk.ask(range(5)).values()) == {"answered": 5}
    assert desk.simulator.requests == 5


@pytest.mark.parametrize("script", ["garbage", "html", "no_text"])
def test_no_further_batch_is_created_after_unreadable_answers(script: str, desk: Desk) -> None:
    """A further batch of unreadable answers would be paid for; asked questions get verdicts, and the next run asks the rest."""
    desk.simulator.reset(script)
    question_count = 2 * MAX_UNREADABLE
    verdicts: dict[int, Verdict] = {}

    async def run() -> None:
        judge = desk.judge(max_requests=MAX_UNREADABLE, max_open=2)
        try:
            async for question, verdict in judge.ask_all(desk.asked(range(100))):
                verdicts[question.tag] = verdict
        finally:
            await judge.aclose()

    with pytest.raises(JudgeUnavailableError, match="cannot be read"):
        asyncio.run(run())
    assert question_count == desk.simulator.requests == len(verdicts)
    assert not [number for number, budget in desk.budgets.items() if number not in verdicts and budget.reserved]
    desk.simulator.reset("answer")
    remaining_verdicts = desk.ask(range(question_count, 100))
    assert Counter(verdict.outcome for verdict in remaining_verdicts.values()) == {"answered": 100 - question_count}


@EVERY_API
def test_a_rejected_batch_is_an_outcome(desk: Desk) -> None:
    """The requests are invalid, so repeating the command would always fail."""
    desk.simulator.reset("answer", batch_script="bad_request")
    verdicts = desk.ask(range(2))
    assert {(verdict.outcome, verdict.attempts) for verdict in verdicts.values()} == {("provider_error", 1)}
    assert "refused by the script" in (verdicts[0].error or "")
    assert desk.charged() == 0


def test_missing_results_of_a_truncated_download_are_charged_in_full(desk: Desk) -> None:
    """They were paid for, and the received part counts."""
    desk.simulator.reset("answer", batch_script="answer,answer,truncated_json")
    outcomes = Counter(verdict.outcome for verdict in desk.ask(range(10)).values())
    assert outcomes["answered"] + outcomes["provider_error"] == 10
    assert 3 < outcomes["answered"] < 7
    assert outcomes["provider_error"] == sum(budget.settled == [budget.amount] for budget in desk.budgets.values())


@EVERY_API
def test_a_batch_that_does_not_end_is_cancelled_and_times_out(desk: Desk) -> None:
    """The API promises results within a day, and a replay must end."""
    desk.simulator.reset("answer", batch_seconds=3600.0)
    verdicts = desk.ask(range(3), deadline=600.0)
    assert {verdict.outcome for verdict in verdicts.values()} == {"timeout"}
    assert desk.charged() == 0


@EVERY_API
def test_a_lost_batch_is_charged_in_full(desk: Desk) -> None:
    """The API keeps results for a limited time; questions of a lost batch were paid for."""
    desk.ask(range(3), stop=1)
    desk.simulator.reset("answer")
    verdicts = desk.ask(range(3))
    assert {verdict.outcome for verdict in verdicts.values()} == {"provider_error"}
    assert all(budget.settled == [budget.amount] for budget in desk.budgets.values())


# Cancelling


@EVERY_API
def test_a_cancelled_batch_costs_nothing_and_can_be_asked_again(desk: Desk) -> None:
    """After a cancellation, answered questions are paid for, and the others can be asked by another run."""
    desk.simulator.reset("answer", batch_seconds=3600.0)

    async def run() -> list[Verdict]:
        judge = desk.judge(max_requests=4, max_open=2)
        verdicts, asking = [], judge.ask_all(desk.asked(range(20)))

        async def collect() -> None:
            verdicts.extend([verdict async for _, verdict in asking])

        collecting = asyncio.create_task(collect())
        await asyncio.to_thread(until, lambda: desk.simulator.batch_calls >= 5, "batches to be under way")
        judge.cancel()
        await collecting
        await judge.aclose()
        return verdicts

    verdicts = asyncio.run(run())
    assert Counter((verdict.outcome, verdict.error) for verdict in verdicts) == {("provider_error", CANCELLED): 20}
    assert desk.charged() == 0
    desk.simulator.reset("answer")
    assert Counter(verdict.outcome for verdict in desk.ask(range(20)).values()) == {"answered": 20}


@EVERY_API
def test_a_batch_cancelled_by_another_process_is_asked_again(desk: Desk) -> None:
    """After an earlier cancellation, the new process wants answers, and nothing was paid for."""
    desk.simulator.reset("hang*2,answer")
    assert len(desk.ask(range(4), stop=1)) == 1
    verdicts = desk.ask(range(4))
    assert Counter(verdict.outcome for verdict in verdicts.values()) == {"answered": 4}
    assert desk.simulator.requests == 6


# The end of the process


class _DiesBeforeMaking(BatchJournal):
    async def record_planned(self, plan: BatchPlan) -> None:
        """Record the plan, then end the process."""
        await super().record_planned(plan)
        raise Killed


class _DiesBeforeRecording(BatchJournal):
    async def record_created(self, plan_id: str, batch_id: str) -> None:
        """End the process after the batch was created."""
        raise Killed(plan_id, batch_id)


class _DiesAfterRecording(BatchJournal):
    async def record_created(self, plan_id: str, batch_id: str) -> None:
        """Recorded."""
        await super().record_created(plan_id, batch_id)
        raise Killed


@pytest.mark.parametrize("journal", [_DiesBeforeMaking, _DiesBeforeRecording, _DiesAfterRecording])
@EVERY_API
@pytest.mark.parametrize("slow", [0.0, 0.3])
def test_a_question_is_asked_once_wherever_the_process_ends(journal: type[BatchJournal], slow: float, desk: Desk) -> None:
    """The process may end between the plan, the batch and its record: the next process finds an existing batch."""
    desk.simulator.reset("answer", batch_seconds=slow)
    desk.kept = journal
    with pytest.raises(Killed):
        desk.ask(range(6), max_requests=3)
    desk.kept = BatchJournal
    verdicts = desk.ask(range(6), max_requests=3)
    assert Counter(verdict.outcome for verdict in verdicts.values()) == {"answered": 6}
    assert desk.simulator.requests == 6
    assert asyncio.run(BatchJournal(desk.journal).unfinished()) == ()


@EVERY_API
def test_questions_with_a_judgement_are_not_asked_again_after_a_restart(desk: Desk) -> None:
    """The next process asks only questions without a judgement, which the same batch answers."""
    first = desk.ask(range(6), stop=2)
    remaining = [number for number in range(6) if number not in first]
    assert set(remaining) == desk.ask(remaining).keys()
    assert desk.simulator.requests == 6


def test_another_runs_batch_of_the_same_size_is_not_adopted(desk: Desk) -> None:
    """Batches of two runs with the same key are told apart by the plan's id in each custom id."""
    other = Desk(desk.simulator, desk.journal.parent / "other", desk.clock, desk.budget_for)
    other.journal.parent.mkdir()
    desk.kept = _DiesBeforeMaking
    with pytest.raises(Killed):
        desk.ask(range(3))
    other.ask(range(3))
    desk.kept = BatchJournal
    assert Counter(verdict.outcome for verdict in desk.ask(range(3)).values()) == {"answered": 3}
    assert desk.simulator.requests == 6


CHILD = """
    import asyncio, sys
    from pathlib import Path
    from support import builders as build
    from audit.policy import Policy
    from audit.exchanges.prompts import tier2_question
    from streams.judges.batch_judge import BatchJudge, BatchQuestion, BatchLimits, BatchJournal, open_batch_calls
    from streams.judges.protocol import ModelTraits

    class Budget:
        async def reserve(self, prompt=None, *, answer_tokens=None): return True
        def spend(self, usage, model): pass

    async def run():
        policy = Policy().for_project("ops")
        asked = [BatchQuestion(tier2_question(build.exchange("s", number), policy), Budget(), number) for number in range(8)]
        limits = BatchLimits(max_requests=4, first_poll=0.02, max_poll=0.02)
        calls = open_batch_calls("key", sys.argv[1], api=sys.argv[3])
        judge = BatchJudge(lambda model: calls, lambda model: ModelTraits(), BatchJournal(Path(sys.argv[2])), limits)
        async for one, verdict in judge.ask_all(asked):
            print(one.tag, verdict.outcome, flush=True)
            if len(sys.argv) > 4:
                await asyncio.sleep(60)

    asyncio.run(run())
"""


@pytest.mark.parametrize(
    ("batch_script", "requests", "calls"),
    [
        pytest.param("hang,answer", 4, 1, id="while the first is made"),
        pytest.param("answer,hang,answer", 8, 2, id="while the second is made", marks=pytest.mark.slow),
        pytest.param("answer*3,hang,answer", 8, 4, id="while it is looked at", marks=pytest.mark.slow),
        pytest.param("answer", 8, 5, id="in the results", marks=pytest.mark.slow),
    ],
)
def test_a_killed_process_pays_for_nothing_twice(
    batch_script: str, requests: int, calls: int, desk: Desk, tmp_path: Path
) -> None:
    """This uses a real kill -9 during a call, and a new process."""
    desk.simulator.reset("answer", batch_script=batch_script)
    command = [sys.executable, "-c", textwrap.dedent(CHILD), desk.url, str(desk.journal), desk.api]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    with (tmp_path / "printed").open("wb") as printed:
        child = subprocess.Popen([*command, "slowly"], env=environment, stdout=printed)
        until(
            lambda: desk.simulator.batch_calls >= calls and desk.simulator.requests >= requests,
            "the call to kill at",
            120,
        )
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    assert desk.simulator.requests <= 8
    verdicts = desk.ask(range(8), max_requests=4)
    assert Counter(verdict.outcome for verdict in verdicts.values()) == {"answered": 8}
    assert desk.simulator.requests == 8, "a question was asked twice"


# The journal and the results, by themselves


def test_a_torn_last_journal_line_is_ignored_and_other_damage_is_an_error(tmp_path: Path) -> None:
    """A kill may truncate the last line, before anything relies on it. Ignoring other damage would silently pay twice."""
    path = tmp_path / "journal"
    plan = BatchPlan(plan_id="0" * 16, fingerprints=("a", "b"), planned_at=datetime(2026, 11, 1, tzinfo=UTC))
    asyncio.run(BatchJournal(path).record_planned(plan))
    sound = path.read_bytes()
    path.write_bytes(sound + b'{"plan_id":"000000000')
    torn = BatchJournal(path)
    assert asyncio.run(torn.unfinished()) == (plan,)
    asyncio.run(torn.record_created(plan.plan_id, "msgbatch_1"))
    assert [one.batch_id for one in asyncio.run(BatchJournal(path).unfinished())] == ["msgbatch_1"]
    path.write_bytes(b"{}x\n" + sound)
    with pytest.raises(StoreError, match=":1: invalid line"):
        BatchJournal(path)


@given(fingerprint=st.binary(min_size=32, max_size=32), plan=st.binary(min_size=8, max_size=8))
def test_custom_ids_are_accepted_by_the_api(fingerprint: bytes, plan: bytes) -> None:
    """Otherwise the API rejects the whole batch."""
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", custom_id(fingerprint.hex(), plan.hex()))


SOUND = b'{"custom_id":"a","result":{"type":"expired"}}'
LINES = st.sampled_from([SOUND, b"", b"x", b"\xff", b"y" * 70, b'{"custom_id":"b"}'])


@given(lines=st.lists(LINES), cuts=st.lists(st.integers(0, 500)), ended=st.booleans())
def test_results_do_not_depend_on_how_the_bytes_are_split(lines: list[bytes], cuts: list[int], ended: bool) -> None:
    """Lines may arrive in pieces; an unreadable or too long line affects no other."""
    body = b"\n".join(lines) + (b"\n" if ended else b"")
    places = sorted({0, *(cut for cut in cuts if cut < len(body)), len(body)})

    async def read() -> list[str]:
        async def chunks() -> Any:
            for start, end in itertools.pairwise(places):
                yield body[start:end]

        return [result.custom_id async for result in read_results(chunks(), 60)]

    assert ["a"] * lines.count(SOUND) == asyncio.run(read())
