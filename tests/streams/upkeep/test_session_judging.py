"""Whole sessions judged without a written case, over a real engine: which, once, at what cost, and on what evidence."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import builders as build
from support.clocks import ManualClock
from support.engines import HangingJudge, engine_over, rows, runner_over
from support.invariants import encoded

from analytics.store.store import Store
from audit.cost import Usage
from audit.evaluation.cases import WHOLE_SESSION
from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.whole_sessions import MAX_AGE, is_drawn
from audit.exchanges.questions import Question
from audit.policy import Policy, ProjectSettings, SessionJudging
from driftline_trial.simulator.answers import simulated_answer
from schemas.records import Record
from streams.engine.engine import Engine
from streams.judges.protocol import CallBudget, Judge, Verdict
from streams.stage_progress import lagging
from streams.upkeep.session_judging import SETTLE
from streams.upkeep.session_judging import SessionJudging as Task

ENDED = build.START + timedelta(hours=1)
DURATION = timedelta(minutes=10)


class SessionJudge:
    """A judge that gives each session a fixed score, and keeps what it was shown; it answers questions about exchanges, too."""

    def __init__(self, score: float = 7.0) -> None:
        self.score = score
        self.shown: list[dict[str, Any]] = []

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Answer within the budget."""
        if not await budget.reserve():
            return Verdict(outcome="cost_cap")
        usage = Usage(20_000, 500)
        budget.spend(usage, question.model)
        return Verdict(outcome="answered", answer=self._answer(question), attempts=1, usage=usage)

    def _answer(self, question: Question) -> str:
        (material, *_) = question.materials
        if question.purpose != "evaluation":
            texts = {item.name: json.loads(item.literal) for item in question.materials}
            return json.dumps(
                simulated_answer(question.schema, {name: text for name, text in texts.items() if isinstance(text, str)})
            )
        self.shown.append(json.loads(material.literal))
        assessment = {"evidence": ["The backup was checked as asked"], "score": self.score}
        return json.dumps({"dimensions": dict.fromkeys(DIMENSIONS, assessment), "overall": assessment})

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def policy_of(sample: float = 1.0, **settings: Any) -> Policy:
    """Return a policy that judges a share of the sessions as a whole."""
    return Policy(defaults=ProjectSettings(session_judging=SessionJudging(sample=sample, **settings)))


def clock_at(moment: datetime) -> ManualClock:
    """Return a clock that shows a moment."""
    clock = ManualClock()
    clock.now = moment
    return clock


def conversation(session: str, *, turns: Sequence[int] = (1, 2), last: int = 9) -> tuple[list[Record], list[Record]]:
    """Return the exchanges and the events of a session, whose last event ends it."""
    exchanges: list[Record] = [
        build.exchange(session, number, f"Answer {number}.", user_message=f"Request {number} of {session}.") for number in turns
    ]
    events: list[Record] = [
        build.event(session, last - 2, event="tool_call", tool="check_backup", args={"host": "a"}, tool_call_id=f"c{last}"),
        build.event(session, last - 1, event="tool_output", tool="check_backup", output="healthy", tool_call_id=f"c{last}"),
        msgspec.structs.replace(build.event(session, last, event="session_end"), occurred_at=ENDED + timedelta(seconds=last)),
    ]
    return exchanges, events


async def ended(engine: Engine, *sessions: str, **options: Any) -> None:
    """Deliver conversations, and wait until they are diagnosed and everything about them is judged."""
    for session in sessions:
        exchanges, events = conversation(session, **options)
        await engine.publish("exchanges", exchanges)
        await engine.publish("agent-events", events)
    await diagnosed(engine)


async def diagnosed(engine: Engine) -> None:
    """Wait until every accepted record is judged, and every ended session diagnosed."""
    await engine.wait_until_drained()
    changed = asyncio.Event()
    engine.has_more = changed.set
    while True:
        changed.clear()
        await engine.flush()
        if "diagnosis" not in {progress.stage for progress in lagging(engine.store)}:
            await engine.flush()
            return
        await changed.wait()


async def judged(engine: Engine) -> None:
    """Run the task once, and wait for its evaluations."""
    await Task(engine).run()
    await engine.wait_until_drained()
    await engine.flush()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine with a generous time limit."""
    asyncio.run(asyncio.wait_for(work, 120))


def requests_in(store: Store) -> list[tuple[object, ...]]:
    """Return session and number of the end of each request."""
    return rows(store, "evaluation_requests", "session_id, attempt")


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock some minutes after the sessions' end."""
    return clock_at(ENDED + DURATION)


def test_each_end_of_a_session_is_judged_once(store: Store, clock: ManualClock) -> None:
    """The task runs every minute, and a session may continue: its next end is the next revision of the same evaluation."""
    judge = SessionJudge()

    async def judge_twice() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await ended(engine, "s1", "s2")
            await judged(engine)
            await judged(engine)
            judge.score = 3.0
            await ended(engine, "s1", turns=(3,), last=30)
            await judged(engine)
            await judged(engine)

    run(judge_twice())
    assert requests_in(store) == [("s1", 0), ("s1", 1), ("s2", 0)]
    evaluations = rows(store, "evaluations", "session_id, revision, final_score, sampling_probability, case_id")
    assert evaluations == [
        ("s1", 0, 7.0, 1.0, WHOLE_SESSION),
        ("s1", 1, 3.0, 1.0, WHOLE_SESSION),
        ("s2", 0, 7.0, 1.0, WHOLE_SESSION),
    ]
    assert len(rows(store, "evaluations", "DISTINCT evaluation_id")) == len(["s1", "s2"])


def test_a_session_without_events_is_judged_at_its_close(store: Store, clock: ManualClock) -> None:
    """Many sources deliver exchanges only; an idle or ended session of them is a run all the same."""

    async def close() -> None:
        async with engine_over(store, policy_of(), SessionJudge(), clock) as engine:
            await engine.publish("exchanges", conversation("s1")[0])
            await engine.wait_until_drained()
            assert await engine.finalize("local", "s1")
            await diagnosed(engine)
            clock.now += DURATION
            await judged(engine)

    run(close())
    assert rows(store, "evaluations", "session_id, final_score") == [("s1", 7.0)]


def test_the_judge_is_shown_what_the_user_asked_as_texts_of_the_run(store: Store, clock: ManualClock) -> None:
    """Without a case the goal is the user's words; they are data, so they are marked like every text of the run."""
    judge = SessionJudge()

    async def judge_one() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await ended(engine, "s1")
            await judged(engine)

    run(judge_one())
    (view,) = judge.shown
    asked = [list(message.items()) for message in view["subject_response"]["user_messages"]]
    assert [text for ((_, text),) in asked] == ["Request 1 of s1.", "Request 2 of s1."]
    assert all(name.startswith("untrusted-") for ((name, _),) in asked)
    assert list(view["evaluation_target"]["dimensions"]) == list(DIMENSIONS)
    assert view["evaluation_target"]["hard_expectations"] == []
    assert view["execution_evidence"]["checks"]["failed"] == 0
    assert view["subject_response"]["tool_activity"]["calls"] == 1


@pytest.mark.parametrize("sample", [0.02, 0.1, 0.5])
def test_the_share_that_is_drawn_is_the_sample_and_the_weighted_mean_is_unbiased(sample: float) -> None:
    """Weights are 1 / sample, so the share must be that of the policy whatever sessions contain. Bound: five standard errors."""
    scores = {f"local/session {number}": number % 10 for number in range(20_000)}
    drawn = {session: score for session, score in scores.items() if is_drawn(session, sample)}
    error = math.sqrt(len(scores) * sample * (1 - sample))
    assert abs(len(drawn) - sample * len(scores)) < 5 * error
    total = sum(score / sample for score in drawn.values())
    deviation = math.sqrt(sum(score**2 for score in scores.values()) * (1 - sample) / sample)
    assert abs(total - sum(scores.values())) < 5 * deviation


def test_a_larger_sample_has_the_sessions_of_a_smaller_one() -> None:
    """Raising the sample must not drop sessions that would have been judged; 0 judges none and 1 judges all."""
    sessions = [f"local/session {number}" for number in range(2_000)]
    drawn = [{session for session in sessions if is_drawn(session, sample)} for sample in (0, 0.1, 0.3, 1)]
    assert not drawn[0]
    assert drawn[1] < drawn[2] < drawn[3]
    assert drawn[3] == set(sessions)


def test_only_drawn_sessions_of_projects_that_ask_for_it_are_judged(store: Store, clock: ManualClock) -> None:
    """Judging costs money, so it is off by default, and a project's sample holds for its sessions alone."""
    sample = 0.3
    sessions = [f"s{number}" for number in range(40)]
    policy = Policy(projects={"ops": ProjectSettings(session_judging=SessionJudging(sample=sample))})

    async def judge_all() -> None:
        async with engine_over(store, policy, SessionJudge(), clock) as engine:
            await ended(engine, *sessions)
            for topic, records in zip(("exchanges", "agent-events"), conversation("other"), strict=True):
                other = [msgspec.structs.replace(record, project="shop") for record in records]  # type: ignore[type-var]
                await engine.publish(topic, other)
            await diagnosed(engine)
            await judged(engine)

    run(judge_all())
    drawn = sorted(session for session in sessions if is_drawn(f"local/{session}", sample))
    assert 0 < len(drawn) < len(sessions)
    assert rows(store, "evaluations", "session_id, sampling_probability") == [(session, sample) for session in drawn]


@pytest.mark.parametrize(
    "moment",
    [ENDED + SETTLE / 2, ENDED + MAX_AGE + DURATION],
    ids=["before the last records have arrived", "a day later, as after an import"],
)
def test_neither_a_fresh_end_nor_history_is_judged(store: Store, moment: datetime) -> None:
    """Records that arrive late would be missed, and an import of years must not be paid for."""

    async def judge_one() -> None:
        async with engine_over(store, policy_of(), SessionJudge(), clock_at(moment)) as engine:
            await ended(engine, "s1")
            await judged(engine)

    run(judge_one())
    assert not requests_in(store)


@pytest.mark.parametrize(("policy", "judge"), [(policy_of(), None), (policy_of(0.0), SessionJudge())], ids=["no judge", "off"])
def test_nothing_is_requested_without_a_judge_or_a_sample(
    store: Store, clock: ManualClock, policy: Policy, judge: Judge | None
) -> None:
    """A request without a judge would fail, and count as made."""

    async def judge_one() -> None:
        async with engine_over(store, policy, judge, clock) as engine:
            await ended(engine, "s1")
            await judged(engine)

    run(judge_one())
    assert not requests_in(store)


def test_all_ends_of_a_session_share_a_cap_of_their_own(store: Store, clock: ManualClock) -> None:
    """An answer costs 0.0225 USD, and about 0.037 are reserved before: the second end exceeds the cap, the exchanges have theirs."""
    policy = policy_of(cost_cap=0.05)

    async def judge_twice() -> None:
        async with engine_over(store, policy, SessionJudge(), clock) as engine:
            await ended(engine, "s1")
            await judged(engine)
            await ended(engine, "s1", turns=(3,), last=30)
            await judged(engine)

    run(judge_twice())
    iterations = rows(store, "evaluations", "revision, status, iterations[1].outcome", "revision")
    assert iterations == [(0, "completed", "answered"), (1, "failed", "cost_cap")]
    ((spent,),) = rows(store, "judgements", "sum(cost_usd) FILTER (purpose = 'evaluation')")
    assert isinstance(spent, float)
    assert spent <= 0.05
    assert rows(store, "scores", "DISTINCT tier2_state") == [("scored",)]


def test_a_kill_during_the_call_or_before_the_request_repeats_neither(tmp_path: Path, clock: ManualClock) -> None:
    """The requests are recorded, and the next process finds them: it asks the interrupted question again, for the same evaluation."""
    path = tmp_path / "driftline.duckdb"
    silent = HangingJudge()
    # No call about an exchange fits, so only the session waits for the judge.
    policy = Policy(defaults=ProjectSettings(cost_cap_per_session=0.0, session_judging=SessionJudging(sample=1.0)))

    async def interrupt(store: Store) -> None:
        async with engine_over(store, policy, silent, clock) as engine:
            await engine.publish("agent-events", conversation("s1")[1])
            await engine.publish("exchanges", conversation("s1")[0])
            await diagnosed(engine)
            await Task(engine).run()
            await silent.asked.wait()
            await engine.stop(grace=0)

    async def resume(store: Store) -> None:
        async with engine_over(store, policy, SessionJudge(), clock) as engine:
            await engine.wait_until_drained()
            await judged(engine)

    with Store(path) as store:
        run(interrupt(store))
    with Store(path) as store:
        run(resume(store))
        assert requests_in(store) == [("s1", 0)]
        assert rows(store, "evaluations", "revision, status, final_score") == [(0, "completed", 7.0)]
        assert rows(store, "judgements", "outcome", "outcome") == [("answered",), ("interrupted",)]


def test_a_replay_of_the_recorded_topics_gives_the_same_bytes(store: Store, clock: ManualClock) -> None:
    """The requests are recorded decisions, so a replay needs neither the clock nor the tables that they were made from."""

    async def judge_all() -> None:
        async with engine_over(store, policy_of(), SessionJudge(), clock) as engine:
            await ended(engine, "s1", "s2", "s3")
            await judged(engine)

    run(judge_all())
    before = encoded(store, "evaluations")
    runner_over(store, policy_of()).rebuild()
    assert encoded(store, "evaluations") == before
    assert len(before) == len(["s1", "s2", "s3"])
