"""The judge of one project gets stricter on a known day, without a word; anchors of the project are judged before and since.

1. Two simulated judges take turns. The second takes `STRICTNESS` off every score (`driftline simulate-judge --script strict:…`) and
   has the name of the first, as when a provider changes the model behind a name. Only this project's later sessions go to it.
2. Rounds of anchors are judged by whichever judge scores the project on their day. Their time is that day, so five weeks pass in a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time

import msgspec

from schemas.records import Exchange
from service.demo.conversations import Session
from service.judge_setup import open_judge
from service.settings import Settings
from service.workspace import Workspace, open_workspace
from streams.engine.engine import Engine
from streams.upkeep.anchors import candidates, choose, run_round

PROJECT = "engineering"
"""The project whose judge gets stricter."""
SINCE = date(2026, 10, 21)
"""The day since which it is stricter."""
STRICTNESS = 0.07
"""The part of the scale by which every score is lower since then."""
CHOSEN_AT = datetime(2026, 10, 8, 6, tzinfo=UTC)
"""The time at which the anchors are chosen, among the exchanges before it."""
CHOSEN_BY = "Priya"
ANCHORS = 20
ROUNDS = tuple(datetime.combine(date(2026, 10, day), time(6), UTC) for day in (9, 12, 15, 18, 23, 26, 29, 31))
"""Times of the rounds, four before the change and four since."""


def strictness_of(exchange: Exchange) -> float:
    """Return how strict the judge of an exchange is."""
    return STRICTNESS if exchange.project == PROJECT and exchange.occurred_at.date() >= SINCE else 0.0


def is_judged_strictly(session: Session) -> bool:
    """Tell whether the session is scored by the stricter judge."""
    return session.project == PROJECT and session.ended_at.date() >= SINCE


def judge_anchors(settings: Settings, judge: str, sessions: Sequence[Session], *, strictly: bool) -> None:
    """Have the judge at the address judge the rounds of its days; the first rounds choose the anchors among the sessions."""
    clock = _Clock()
    with open_workspace(settings, now=clock) as workspace:
        asyncio.run(_judge(workspace, clock, judge, None if strictly else _early(sessions), strictly=strictly))


class _Clock:
    """The time of the demo."""

    def __init__(self) -> None:
        self.now = CHOSEN_AT

    def __call__(self) -> datetime:
        return self.now


def _early(sessions: Sequence[Session]) -> Callable[[str], bool]:
    """Return whether an exchange, by its id, lies before the anchors were chosen."""
    early = [one for one in sessions if one.project == PROJECT and one.ended_at < CHOSEN_AT]
    return frozenset(payload["exchange"]["id"] for one in early for payload in one.payloads).__contains__


async def _judge(
    workspace: Workspace, clock: _Clock, judge: str, is_early: Callable[[str], bool] | None, *, strictly: bool
) -> None:
    environment = {"ANTHROPIC_API_KEY": "simulated", "ANTHROPIC_BASE_URL": judge}
    opened = await open_judge(msgspec.structs.replace(workspace.settings, judge="live"), workspace.policy, environment)
    store, policy, redactor = workspace.store, workspace.policy, workspace.redactor
    engine = Engine(store, policy, redactor, clock, judge=opened.judge, judge_name=opened.name)
    await engine.start()
    try:
        if is_early is not None:
            with contextlib.closing(store.cursor()) as cursor:
                found = [one for one in candidates(cursor, PROJECT, 500) if is_early(one[1])]
            # Spread over the range of the scores, in whose order they come.
            chosen = [found[len(found) * place // ANCHORS] for place in range(min(ANCHORS, len(found)))]
            await choose(engine, PROJECT, chosen, CHOSEN_BY)
        for at in ROUNDS:
            if (at.date() >= SINCE) == strictly:
                clock.now = at
                await run_round(engine, PROJECT)
                await engine.drained()
    finally:
        await engine.stop()
