"""kill -9 of a server under load, again and again: what was accepted is there once, and what was paid for is accounted for."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from support.clients import CUT_OFF, DUPLICATE, TAKEN, Load, until, waiting
from support.effort import SOAK, times
from support.invariants import check, rows, scores_of
from support.servers import Child, Home, Nursery, nursery
from support.servers import until as wait_until

from analytics.store.store import Store
from audit.cost import nano_of
from driftline_trial.simulator import RunningJudge, running

ROUNDS = times(10, soak=50)
MOMENTS = ("ingest", "judging", "ingest", "judging", "start")
CAPS = {"poor": 0.06, "rich": 0.6}
"""USD a session may cost, by project: some sessions come to their cap, and some do not."""
PROJECTS = {"north": "poor", "south": "rich"}
POLICY = "version: 1\nprojects:\n" + "".join(f"  {name}:\n    costCapPerSession: {cap}\n" for name, cap in CAPS.items())
SHARED_CAPS = {"poor": 0.25, "rich": 4.0}
"""USD that all sessions of a project may cost in the month of the test: only one of the caps is reached."""
SHARED_POLICY = "version: 1\nprojects:\n" + "".join(
    f"  {name}: {{costCapPerSession: null, costCaps: {{month: {cap}}}}}\n" for name, cap in SHARED_CAPS.items()
)
JUDGE = """
judges:
  stand-in: {{api: {api}, baseUrl: {base}/v1, keyEnv: STAND_IN_KEY, price: {{input: 1.0, output: 5.0}}}}
defaults: {{judgeModel: stand-in/claude-haiku-4-5}}
"""
"""The judge of a policy, over another API than that of the environment."""
MOODS = (
    *["answer"] * 12,
    *["slow:0.15"] * 4,
    *["thinking_first", "garbage", "out_of_range", "refusal", "cut_off", "no_usage", "reset", "truncated_json", "html"],
)
"""What the judge does, drawn for each request. None is free of charge, so that each call needs a reservation of its own."""


class Killer:
    """Starts servers, lets clients at them, and kills each at a moment drawn by lot."""

    def __init__(self, children: Nursery, judge: RunningJudge, load: Load) -> None:
        self.children, self.judge, self.load, self.chance = children, judge, load, load.chance
        self.landed: Counter[str] = Counter()
        """How many kills came before the server listened, between two answers to clients, between two calls to the judge."""
        self.startup = min(self._startup() for _ in range(3))

    def _startup(self) -> float:
        """Seconds that a start takes."""
        started = time.monotonic()
        server = self.children.serve(self.load.home)
        server.serving()
        server.kill()
        return time.monotonic() - started

    async def round(self, moment: str) -> None:
        """One server's life."""
        server = self.children.serve(self.load.home)
        if moment == "start":
            await asyncio.sleep(self.chance.uniform(0.0, 0.8) * self.startup)
            self.landed["start" if not server.listens else "idle"] += 1
        else:
            await self._under_load(server, moment)
        assert server.kill() == -signal.SIGKILL

    async def _under_load(self, server: Child, moment: str) -> None:
        self.load.fill(8)
        loading = asyncio.create_task(self.load.run(server.serving()))
        count = {"ingest": lambda: self.load.seen[TAKEN], "judging": lambda: self.judge.requests}[moment]
        target = count() + self.chance.randrange(1, 25)
        await until(lambda: count() >= target or loading.done())
        await asyncio.sleep(self.chance.uniform(0.0, 0.03))
        self.landed[moment if not loading.done() else "idle"] += 1
        server.kill()
        await loading


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shares", "api"),
    [(False, "messages"), (True, "messages"), (False, "chat"), (False, "responses")],
    ids=["session caps", "shared caps", "session caps over chat", "session caps over responses"],
)
def test_kills_lose_and_duplicate_nothing(tmp_path: Path, api: str, *, shares: bool) -> None:
    """After a power failure, every record with a 201 is there once, with one score and its cost, and no cap is exceeded.

    Ten kills; fifty in a soak run.
    """
    chance = random.Random(20261101)
    with running(",".join(chance.choices(MOODS, k=6000))) as judge, nursery() as children:
        policy = SHARED_POLICY if shares else POLICY
        if api != "messages":
            policy += JUDGE.format(api=api, base=judge.base_url)
        home = Home(
            tmp_path, policy, ANTHROPIC_BASE_URL=judge.base_url, STAND_IN_KEY="sk-stand-in", DRIFTLINE_JUDGE_DEADLINE="10"
        )
        load = Load(home, PROJECTS, chance)
        killer = Killer(children, judge, load)

        async def kill_and_finish() -> None:
            for number in range(ROUNDS):
                await killer.round(MOMENTS[number % len(MOMENTS)])
            server = children.serve(home)
            url = server.serving()
            await load.run(url)
            wait_until(lambda: not waiting(url, home.operator()), "everything to be scored")
            server.send(signal.SIGTERM)
            assert server.wait() == 0

        asyncio.run(kill_and_finish())
        check(home.database, load.accepted, SHARED_CAPS if shares else CAPS, judge.requests)
        if shares:
            check_shared_caps(home.database)
        before = scores_of(home.database)
        assert children.run(home, "rebuild")[0] == 0
        assert scores_of(home.database) == before
    check_that_it_was_hard(home.database, killer.landed, load.seen)


def check_shared_caps(database: Path) -> None:
    """Check that no project exceeds its cap, and that one of them reached it."""
    with Store(database) as store:
        spent: Counter[str] = Counter()
        for project, cost in rows(store, "SELECT project, cost_usd FROM judgements"):
            spent[project] += nano_of(cost)
        assert all(cost <= nano_of(SHARED_CAPS[project]) for project, cost in spent.items())
        assert rows(store, "SELECT DISTINCT project FROM judgements WHERE outcome = 'project_month_cap'") == [("poor",)]


def check_that_it_was_hard(database: Path, landed: Counter[str], seen: Counter[str]) -> None:
    """The faults really happened: a run in which nothing was cut off would prove nothing. Rare coincidences take many rounds."""
    assert min(landed["ingest"], landed["judging"]) >= ROUNDS / 10
    assert seen[CUT_OFF] > ROUNDS / 2
    with Store(database) as store:
        outcomes = Counter(dict(rows(store, "SELECT outcome, count(*) FROM judgements GROUP BY ALL")))
        assert outcomes["answered"] > 0
        assert outcomes["interrupted"] >= ROUNDS / 10
        assert rows(store, "SELECT 1 FROM log.scores WHERE revision > 0 LIMIT 1"), "last turns were judged"
        if SOAK:
            assert landed["start"] >= ROUNDS / 25
            assert seen[DUPLICATE] > 0, "durable, and the answer was lost"
            assert {"answered", "refused", "cut_off", "provider_error", "invalid"} <= outcomes.keys()
            dispositions = rows(store, "SELECT DISTINCT disposition FROM scores ORDER BY ALL")
            assert dispositions == [("sampling_skip",), ("scored",), ("skipped_cost_cap",), ("unscored",)]
