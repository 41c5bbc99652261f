"""Anchors over a real engine: a round is judged again by every tier, and distinguishes judge from agent."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Coroutine, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from support.builders import exchange
from support.clocks import NOW
from support.engines import engine_over, rows

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.anchors import IncidentChange
from audit.cost import Usage
from audit.exchanges.questions import Question
from audit.policy import Anchors, Policy, ProjectSettings
from driftline_trial.simulator.answers import simulated_answer
from schemas.codec.single_object import encode
from schemas.errors import InputError
from schemas.records import Anchor
from streams.engine.engine import Engine
from streams.judges.protocol import CallBudget, Verdict
from streams.upkeep.anchors import (
    AnchorRounds,
    anchors_of,
    candidates,
    cause_of,
    changes,
    choose,
    find_exchanges,
    run_round,
    withdraw,
)

T = TypeVar("T")
COUNT = 12


class Clock:
    """A clock that advances only when the test moves it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> Any:
        """Return the current time."""
        return self.now


class FixedJudge:
    """A deterministic judge that the test can make harsher."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.tokens = 100
        self.asked = 0

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Return the simulated judge's answer with scaled scores."""
        if not await budget.reserve():
            return Verdict(outcome="cost_cap")
        self.asked += 1
        answer = simulated_answer(
            question.schema, {material.name: json.loads(material.literal) for material in question.materials}
        )
        for dimension in answer.get("dimensions", {}).values():
            dimension["score"] = max(dimension["score"] * self.factor, 1.0 if question.purpose == "tier3" else 0.0)
        usage = Usage(self.tokens, 10)
        budget.spend(usage, question.model)
        return Verdict(outcome="answered", answer=json.dumps(answer), attempts=1, usage=usage)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a database in memory."""
    with Store(None) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    """Return the clock."""
    return Clock()


@pytest.fixture
def judge() -> FixedJudge:
    """Return the judge."""
    return FixedJudge()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a generous time limit."""
    return asyncio.run(asyncio.wait_for(work, 120))


async def filled(engine: Engine, count: int = COUNT) -> None:
    """Ingest and judge exchanges of several sessions; two of them need Tier 2.5."""
    for number in range(count):
        answer = f"The backup of host {number} is healthy." + " I guess, sorry." * (number % 4)
        thinking = "I would rather say it is fine." if number < 2 else None
        await engine.ingest_exchange(exchange(f"s{number}", 1, answer, turn_number=9 + number, agent_thinking=thinking))
    await engine.wait_until_drained()


async def chosen(engine: Engine, count: int = COUNT) -> list[Anchor]:
    """Choose anchors among the judged exchanges."""
    with contextlib.closing(engine.store.cursor()) as cursor:
        candidate_rows = candidates(cursor, "ops", count)
    return await choose(engine, "ops", candidate_rows, "ann")


def fell(first: datetime) -> IncidentChange:
    """Return an incident with a fall by a fifth of the scale on one day."""
    return IncidentChange(direction="down", size=0.2, earliest=first.date(), latest=first.date())


def policy_of(**settings: Any) -> Policy:
    """Return a policy that samples everything, with settings for the project."""
    values: dict[str, Any] = {"sampling": {"alwaysScoreFirst": 100}} | settings
    return Policy(projects={"ops": ProjectSettings.model_validate(values)})


def test_a_round_is_judged_again_by_every_tier(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """A round has its own ids, so that no recorded answer is reused, and does not appear in the project."""

    async def work() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await filled(engine)
            anchors = await chosen(engine)
            call_count = judge.asked
            begun = await run_round(engine, "ops")
            await engine.wait_until_drained()
            assert len(anchors) == COUNT
            assert begun.exchanges == COUNT
            assert judge.asked - call_count == 2 * COUNT + 2

    run(work())
    scored = rows(
        store, "scores WHERE connection = 'anchors'", "project, disposition, sampling_reason, tier2_state, tier3_state"
    )
    assert scored == [("anchors.ops", "scored", "sampling_disabled", "scored", "scored")] * COUNT
    assert rows(store, "scores WHERE project = 'ops'", "count(*)") == [(COUNT,)]
    assert rows(store, "session_closings WHERE connection = 'anchors'", "count(*)") == [(1,)]


def test_a_harsher_judge_is_distinguished_from_a_worse_agent(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """The same texts get other scores, so the judge changed and not the agent."""

    async def work() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await filled(engine)
            await chosen(engine)
            for day in range(9):
                judge.factor = 0.7 if day >= 6 else 1.0
                await run_round(engine, "ops")
                await engine.wait_until_drained()
                if day == 5:
                    assert cause_of(store, "ops", "tier2", fell(clock.now - timedelta(days=2))).cause == "agent"
                clock.now += timedelta(days=1)

    run(work())
    changed_at = NOW + timedelta(days=6)
    with contextlib.closing(store.cursor()) as cursor:
        change_rows = changes(cursor, "ops")
    assert change_rows["tier2"].changed is True
    assert change_rows["tier2"].direction == "down"
    assert change_rows["tier2"].since == changed_at
    asked = fell(changed_at - timedelta(days=1))
    assert cause_of(store, "ops", "tier2", asked).cause == "judge"
    assert cause_of(store, "ops", "tier2", dataclasses.replace(asked, direction="up")).cause == "agent"
    assert change_rows["tier2_5"].changed is False
    assert change_rows["tier2_5"].anchors == 2
    reasons = {"tier2_5": "few_anchors", "tier1": "rules", None: "no_size"}
    assert reasons == {tier: cause_of(store, "ops", tier, asked).reason for tier in reasons}
    assert cause_of(store, "ops", "tier2", None).reason == "no_size"
    assert cause_of(store, "web", "tier2", asked).reason == "no_anchors"


def test_tiers_are_compared_on_their_own_scales(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """On Tier 3's scale from 1 to 5, a fall of half a point is an eighth."""

    async def work() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await filled(engine)
            await chosen(engine)
            for day in range(9):
                judge.factor = 0.7 if day >= 5 else 1.0
                await run_round(engine, "ops")
                await engine.wait_until_drained()
                clock.now += timedelta(days=1)

    run(work())
    moved = dataclasses.replace(fell(NOW + timedelta(days=4)), size=1.2)
    cause = cause_of(store, "ops", "tier3", moved)
    assert cause.cause == "judge"
    assert cause.judge is not None
    assert -2 < cause.judge < -0.9


def test_a_round_costs_at_most_the_cap_of_a_session(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """A round is one session; anchors that the cap leaves out are not compared."""

    async def work() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await filled(engine)
            await chosen(engine)
        judge.tokens = 3000
        async with engine_over(store, policy_of(costCapPerSession=0.02), judge, clock) as engine:
            await run_round(engine, "ops")
            await engine.wait_until_drained()

    run(work())
    states = dict(rows(store, "scores WHERE connection = 'anchors' GROUP BY ALL", "disposition, count(*)"))
    assert states["skipped_cost_cap"] > 0
    (spent,) = rows(store, "scores WHERE connection = 'anchors'", "sum(cost_usd)")
    assert spent[0] <= 0.02


def test_two_rounds_within_a_minute_are_one(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """A button may be pressed twice, or a periodic task restarted after a kill."""

    async def work() -> list[int]:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await filled(engine)
            await chosen(engine, 3)
            begun = []
            for _ in range(2):
                begun.append((await run_round(engine, "ops")).exchanges)
                clock.now += timedelta(seconds=1)
            await engine.wait_until_drained()
            return begun

    assert run(work()) == [3, 0]
    assert rows(store, "exchanges WHERE connection = 'anchors'", "count(*)") == [(3,)]


def test_an_anchor_can_be_withdrawn_and_restored(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """Each change records its author, and unknown anchors are reported as unknown."""

    async def work() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await filled(engine, 3)
            first, *other_anchors = await chosen(engine, 3)
            assert len(other_anchors) == len({one.anchor_id for one in other_anchors}) == 2
            gone = await withdraw(engine, "ops", first.anchor_id, "bob")
            assert gone is not None
            assert gone.active is False
            assert gone.revision == 1
            assert gone.chosen_by == "bob"
            assert gone == await withdraw(engine, "ops", first.anchor_id, "cid")
            assert await withdraw(engine, "web", first.anchor_id, "bob") is None
            assert (await run_round(engine, "ops")).exchanges == 2
            (back,) = await choose(engine, "ops", [(first.connection, first.exchange_id)], "dan")
            assert back.active is True
            assert back.revision == 2
            assert back.chosen_by == "dan"
            with contextlib.closing(store.cursor()) as cursor:
                assert len(anchors_of(cursor, "ops")) == 3
                assert candidates(cursor, "ops", 9) == []

    run(work())


def test_rounds_start_when_due_and_only_with_a_judge(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """This holds after a restart, because the time of the last round is in the tables."""

    async def count(engine: Engine) -> int:
        await AnchorRounds(engine).run()
        await engine.wait_until_drained()
        return len(query_rows(store.cursor(), "anchor_scores", {"judged_as": "anchors.ops", "from": None}))

    async def work() -> list[int]:
        counts = []
        policy = policy_of(anchors={"intervalHours": 12})
        async with engine_over(store, policy, judge, clock) as engine:
            await filled(engine, 4)
            counts.append(await count(engine))
            await chosen(engine, 4)
            counts += [await count(engine), await count(engine)]
            clock.now += timedelta(hours=11)
            counts.append(await count(engine))
        clock.now += timedelta(hours=1)
        async with engine_over(store, policy, None, clock) as engine:
            counts.append(await count(engine))
        async with engine_over(store, policy_of(anchors={"enabled": False}), judge, clock) as engine:
            counts.append(await count(engine))
        async with engine_over(store, policy, judge, clock) as engine:
            counts.append(await count(engine))
        return counts

    assert run(work()) == [0, 4, 4, 4, 4, 4, 8]


def test_a_project_whose_round_cannot_start_delays_no_other(
    store: Store, clock: Clock, judge: FixedJudge, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable anchor from an earlier version, in the first project by name, must not stop the others."""
    broken = Anchor(
        anchor_id="broken", revision=0, project="aaa", connection="north", exchange_id="e1", exchange=b"?", active=True,
        chosen_by="ann", occurred_at=NOW, ingested_at=NOW,
    )  # fmt: skip
    with store.transaction() as transaction:
        transaction.append("anchors", [encode(broken)])

    async def work() -> int:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await filled(engine, 4)
            await chosen(engine, 4)
            await AnchorRounds(engine).run()
            await engine.wait_until_drained()
        return len(query_rows(store.cursor(), "anchor_scores", {"judged_as": "anchors.ops", "from": None}))

    assert run(work()) == 4
    assert "anchors of aaa could not be judged" in caplog.text


def test_exchanges_are_identified_by_connection_and_id(store: Store, clock: Clock, judge: FixedJudge) -> None:
    """An id on two connections is ambiguous, and an unknown id is an error."""

    async def work() -> None:
        async with engine_over(store, policy_of(), judge, clock) as engine:
            await engine.ingest_exchange(exchange("s", 1))
            await engine.ingest_exchange(exchange("s", 1, connection="north"))
        with contextlib.closing(store.cursor()) as cursor:
            assert find_exchanges(cursor, "ops", ["s:1", "s:1"], "north") == [("north", "s:1")]
            with pytest.raises(InputError, match="connections local, north have one"):
                find_exchanges(cursor, "ops", ["s:1"], None)
            with pytest.raises(InputError, match="no exchange with this id"):
                find_exchanges(cursor, "web", ["s:1"], None)

    run(work())


def test_no_anchor_is_judged_until_one_is_chosen() -> None:
    """Rounds cost money."""
    assert Anchors() == Policy().for_project("ops").settings.anchors
