"""One call for Tiers 2 and 3 through the engine: over every API, reserved and paid once, in no sum twice, and replayed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from support import builders as build
from support.engines import engine_over, policy_of, rows, runner_over

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.cost import nano_of
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from schemas.records import Exchange
from service.read.agreement import TIERS
from streams.judges.live import open_live_judge
from streams.judges.protocol import ModelTraits

BOTH = "tiers_2_and_3"
COMBINED = policy_of(combine_tiers=True)
COLUMNS = "* EXCLUDE (rule_version, policy_digest, judgement_ids, cost_usd, scored_at, _offset)"


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


def conversation() -> list[Exchange]:
    """Return the exchanges of a session: five early turns, then routine ones; some with thinking."""
    return [
        build.exchange("s", turn, f"Turn {turn} is done.", agent_thinking="The log says so." if turn % 2 else None)
        for turn in range(1, 13)
    ]


def judge_live(store: Store, simulator: RunningJudge, policy: Policy, api: str = "messages") -> None:
    """Have the conversation judged over an API of the simulated judge."""

    async def judge() -> None:
        address = simulator.base_url if api == "messages" else f"{simulator.base_url}/v1"
        live = open_live_judge("key", address, lambda _: ModelTraits(), api=api)  # type: ignore[arg-type]
        async with engine_over(store, policy, live) as engine:
            await engine.publish("exchanges", conversation())
            await engine.wait_until_drained()
            await engine.flush()

    asyncio.run(asyncio.wait_for(judge(), 120))


def count_purposes(store: Store) -> Counter[str]:
    """Return the number of judgements by purpose."""
    return Counter(str(purpose) for (purpose,) in rows(store, "judgements", "purpose"))


@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
def test_every_api_answers_two_tiers_in_one_call(simulator: RunningJudge, api: str) -> None:
    """The scores are those of separate calls; each early turn needs one call less, and no money is counted twice."""
    with Store(None) as separate, Store(None) as combined:
        judge_live(separate, simulator, policy_of(), api)
        requests = simulator.requests
        simulator.reset("answer")
        judge_live(combined, simulator, COMBINED, api)
        assert rows(combined, "scores", COLUMNS) == rows(separate, "scores", COLUMNS)
        before, after = count_purposes(separate), count_purposes(combined)
        assert after[BOTH] == before["tier3"] == 5
        assert "tier3" not in after
        assert before["tier2"] - after["tier2"] == 5
        assert simulator.requests == requests - 5

        judgements = rows(combined, "judgements", "cost_usd, reservation_ids")
        assert all(len(reservations) == 1 for _, reservations in judgements)
        paid = sum(nano_of(cost) for cost, _ in judgements)
        assert paid == sum(nano_of(cost or 0) for (cost,) in rows(combined, "scores", "cost_usd"))
        (total,) = query_rows(combined.cursor(), "judge_costs", {"by": "", "project": None, "from": None, "to": None})
        assert nano_of(total["cost_usd"]) == paid
        assert paid < sum(nano_of(cost) for (cost,) in rows(separate, "judgements", "cost_usd"))


def test_a_replay_of_combined_calls_gives_the_same_bytes(simulator: RunningJudge) -> None:
    """The recorded answer about two tiers is found for both of them."""
    with Store(None) as store:
        judge_live(store, simulator, COMBINED)
        before = rows(store, "scores", "* EXCLUDE (_offset)")
        requests = simulator.requests
        runner_over(store, COMBINED).rebuild()
        assert rows(store, "scores", "* EXCLUDE (_offset)") == before
        assert simulator.requests == requests


@pytest.mark.parametrize("cap", [0.0, 0.004, 0.012, 0.03])
def test_a_combined_call_is_reserved_as_one_and_keeps_the_cap(simulator: RunningJudge, cap: float) -> None:
    """The cap covers the larger call like any other; what does not fit leaves both tiers out, and says so."""
    policy = policy_of(combine_tiers=True, cost_cap_per_session=cap)
    with Store(None) as store:
        judge_live(store, simulator, policy)
        assert sum(nano_of(cost or 0) for (cost,) in rows(store, "judgements", "cost_usd")) <= nano_of(cap)
        left_out = [row for row in rows(store, "scores", "tier2_state, tier3_state") if row[0] == "skipped_cost_cap"]
        assert left_out
        assert {tier3 for _, tier3 in left_out} == {"skipped_cost_cap"}
        reserved = rows(store, "reservations", "purpose")
        assert (BOTH,) in reserved or cap < 0.01
        before = rows(store, "scores", "* EXCLUDE (_offset)")
        runner_over(store, policy).rebuild()
        assert rows(store, "scores", "* EXCLUDE (_offset)") == before


def test_the_judge_of_a_combined_call_is_that_of_both_tiers(simulator: RunningJudge) -> None:
    """The agreement of judges is measured tier by tier, by the judge that answered about it."""
    with Store(None) as store:
        judge_live(store, simulator, COMBINED)
        names = ("scores", "judgements", "from", "to", "times")
        params = {**dict.fromkeys(names), "project": conversation()[0].project}
        verdicts = query_rows(store.cursor(), "verdicts", params)
        assert {verdict["yardstick"].rpartition("+")[2] for verdict in verdicts} == {"combined"}
        for verdict in verdicts:
            for tier in TIERS:
                assert (verdict[f"{tier}_judge"] is None) == (verdict[f"{tier}_score"] is None)
