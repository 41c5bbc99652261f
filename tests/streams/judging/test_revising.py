"""An exchange whose source has new content stays one exchange: scored again, judged again only where it changed, paid for once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from support import builders as build
from support.clocks import NOW, TickingClock
from support.engines import engine_over, live_judge, policy_of, rows, runner_over

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.cost import nano_of
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from schemas.codec.single_object import encode
from schemas.records import Exchange
from streams.judging.rejudging import MAX_DECISION_AGE, revise
from streams.log.admission import EncodedRecords, encode_validated

T = TypeVar("T")
LATER = NOW + timedelta(minutes=10)
SKIPS = policy_of(sampling={"alwaysScoreFirst": 0, "alwaysScoreLast": 0, "routineInterval": 10_000})
"""Samples nothing but what the rules find."""


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a database in memory."""
    with Store(None) as opened:
        yield opened


@pytest.fixture
def simulator() -> Iterator[RunningJudge]:
    """Return a simulated judge."""
    with running() as judge:
        yield judge


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a generous time limit."""
    return asyncio.run(asyncio.wait_for(work, 60))


async def tell(
    store: Store, judge: RunningJudge | None, *turns: Exchange, policy: Policy | None = None, end: bool = False
) -> int:
    """Deliver turns as their source has them now; returns the number of revisions."""
    policy = policy or Policy()
    async with engine_over(store, policy, judge and live_judge(judge.base_url), now=TickingClock(LATER)) as engine:
        await engine.flush()
        revisions = revise(store, policy, turns, engine.now())
        assert not revisions.waiting
        await engine.publish("exchanges", revisions.records)
        if end:
            await engine.publish("exchanges", [build.closing("s", 1)])
        await engine.wait_until_drained()
        await engine.flush()
        return revisions.revised


def turn(number: int, response: str, **fields: object) -> Exchange:
    """Return a session's turn as a source delivers it."""
    return build.exchange("s", number, response, content_digest=f"digest of {response}", **fields)


def current(store: Store, table: str, columns: str) -> list[tuple[object, ...]]:
    """Return rows as readers see them."""
    return store.cursor().execute(f"SELECT {columns} FROM {table} ORDER BY ALL").fetchall()


def calls(store: Store) -> int:
    """Return the number of paid judge calls."""
    return len(rows(store, "judgements", "judgement_id"))


def test_a_continued_turn_is_one_exchange_that_is_judged_again(store: Store, simulator: RunningJudge) -> None:
    """The cost of the first revision is part of the score's cost."""
    run(tell(store, simulator, turn(1, "I ask first."), turn(2, "Fine.")))
    before = calls(store)
    assert run(tell(store, simulator, turn(1, "It is refunded.", output_tokens=9), turn(2, "Fine."))) == 1
    assert current(store, "exchanges", "exchange_id, agent_response, output_tokens, revision") == [
        ("s:1", "It is refunded.", 9, 1),
        ("s:2", "Fine.", None, 0),
    ]
    assert current(store, "scores", "exchange_id, revision, turn_number, sampling_reason, disposition") == [
        ("s:1", 1, 1, "first_turns", "scored"),
        ("s:2", 0, 2, "first_turns", "scored"),
    ]
    assert calls(store) > before
    costs = [
        sum(nano_of(float(str(cost))) for (cost,) in current(store, table, "cost_usd")) for table in ("scores", "judgements")
    ]
    assert len(set(costs)) == 1


def test_a_revision_is_judged_again_only_if_the_judged_text_changed(store: Store, simulator: RunningJudge) -> None:
    """Tokens and tags are not judged, so earlier answers remain valid."""
    run(tell(store, simulator, turn(1, "Done.")))
    before = calls(store)
    assert run(tell(store, simulator, turn(1, "Done.", input_tokens=80))) == 1
    assert calls(store) == before
    assert current(store, "scores JOIN exchanges USING (exchange_id)", "scores.revision, disposition, input_tokens") == [
        (1, "scored", 80)
    ]
    assert run(tell(store, simulator, turn(1, "Done.", input_tokens=80))) == 0


def test_an_unsampled_turn_stays_unsampled_and_tier_1_checks_it_again(store: Store) -> None:
    """Tier 1 checks the newest revision of every exchange."""
    run(tell(store, None, turn(1, "It is done."), policy=SKIPS))
    assert run(tell(store, None, turn(1, "I ask, and it is done."), policy=SKIPS)) == 1
    columns = "revision, disposition, turn_number, sampling_probability, evidence_digest"
    assert current(store, "scores", columns) == [(1, "sampling_skip", 1, None, "digest of I ask, and it is done.")]


def test_the_end_of_a_session_judges_the_last_revision(store: Store, simulator: RunningJudge) -> None:
    """The session's state has the last revision."""
    policy = policy_of(sampling={"alwaysScoreFirst": 0, "alwaysScoreLast": 1, "routineInterval": 10_000})
    run(tell(store, simulator, turn(1, "I ask."), policy=policy))
    run(tell(store, simulator, turn(1, "Done."), policy=policy, end=True))
    columns = "sampling_reason, disposition, evidence_digest"
    assert current(store, "scores", columns) == [("last_turns", "scored", "digest of Done.")]


def test_a_revision_stays_within_the_cap(store: Store, simulator: RunningJudge) -> None:
    """The cost of the first revision counts for the session's cap."""
    policy = policy_of(cost_cap_per_session=0.02)
    for number in range(8):
        run(tell(store, simulator, turn(1, f"It is {number}."), policy=policy))
    spent = sum(nano_of(float(str(cost))) for (cost,) in current(store, "judgements", "cost_usd"))
    assert 0 < spent <= nano_of(0.02)
    assert current(store, "scores", "disposition, revision") == [("skipped_cost_cap", 7)]


def test_time_and_session_stay_those_of_the_first_revision(store: Store) -> None:
    """Sums by day and by session must count an exchange once."""
    run(tell(store, None, turn(1, "I ask.")))
    moved = msgspec.structs.replace(turn(1, "Done."), occurred_at=build.START - timedelta(days=2), session_id="t")
    run(tell(store, None, moved))
    refresh_daily(store)
    assert [(at.replace(tzinfo=build.START.tzinfo),) for (at,) in current(store, "exchanges", "occurred_at")] == [
        (build.START + timedelta(minutes=1),)
    ]
    assert current(store, "scores", "session_id") == [("s",)]
    for table in ("log.daily_exchanges", "log.daily_scores", "log.session_scores"):
        assert current(store, table, "exchanges") == [(1,)]


def test_a_withdrawn_turn_disappears_with_its_score(store: Store, simulator: RunningJudge) -> None:
    """The exchange turned out to be part of another one; its judging costs remain."""
    run(tell(store, simulator, turn(1, "One."), turn(2, "Two.")))
    paid = calls(store)
    run(tell(store, simulator, msgspec.structs.replace(turn(2, "Two."), withdrawn=True)))
    runner_over(store).run()
    refresh_daily(store)
    assert current(store, "exchanges", "exchange_id") == [("s:1",)]
    assert current(store, "scores", "exchange_id") == [("s:1",)]
    for table in ("log.daily_exchanges", "log.daily_scores", "log.session_scores"):
        assert current(store, table, "exchanges") == [(1,)]
    assert paid == calls(store)
    assert current(store, "log.session_costs", "sum(judgements)::BIGINT") == [(paid,)]


@pytest.mark.parametrize("judged", [True, False])
def test_a_rebuild_makes_the_same_scores(store: Store, simulator: RunningJudge, *, judged: bool) -> None:
    """A rebuild gives every revision, byte by byte, without withdrawn ones."""
    judge = simulator if judged else None
    run(tell(store, judge, turn(1, "I ask."), turn(2, "Two."), turn(3, "Three.")))
    run(tell(store, judge, turn(1, "Done."), msgspec.structs.replace(turn(2, "Two."), withdrawn=True), end=True))
    run(tell(store, judge, turn(1, "All done.")))
    runner_over(store).run()
    before = rows(store, "scores", "* EXCLUDE (_offset)")
    runner_over(store).rebuild()
    assert rows(store, "scores", "* EXCLUDE (_offset)") == before


def test_a_redelivered_revision_is_known(store: Store) -> None:
    """A delivery after the revision has the same content as the revision."""
    run(tell(store, None, turn(1, "I ask.")))
    run(tell(store, None, turn(1, "Done.")))
    counts = [runner_published(store, one) for one in (turn(1, "Done."), turn(1, "I ask."), turn(1, "Something else."))]
    assert counts == [(1, 0), (1, 0), (0, 1)]


def runner_published(store: Store, exchange: Exchange) -> tuple[int, int]:
    """Deliver an exchange; return the numbers of known and conflicting records."""
    accepted = EncodedRecords()
    accepted.add("exchanges", encode_validated(exchange))
    outcome = runner_over(store).publish(accepted)["exchanges"]
    return outcome.known, len(outcome.conflicts)


def test_a_source_may_disallow_revisions(store: Store) -> None:
    """A new version of a reader must not change history."""
    run(tell(store, None, turn(1, "Done.")))
    changed = turn(1, "Done, it seems.")
    revisions = revise(store, Policy(), [changed], LATER, may_revise=lambda stored: "open" in stored.tags)
    assert revisions.records == [changed]
    assert revisions.revised == 0


def test_a_revision_waits_for_the_decision_on_its_exchange(store: Store) -> None:
    """A revision needs the decided turn, unless the project is not audited and there is no decision."""
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(turn(1, "I ask."))])
    changed = turn(1, "Done.")
    assert revise(store, Policy(), [changed], changed.ingested_at).waiting == [changed]
    for policy, now in ((policy_of(enabled=False), changed.ingested_at), (Policy(), changed.ingested_at + MAX_DECISION_AGE)):
        revisions = revise(store, policy, [changed], now)
        assert revisions.records == [msgspec.structs.replace(changed, revision=1)]
