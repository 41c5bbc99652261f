"""The judge of one project silently gets stricter on a known day; anchors of the project are judged before and since.

1. Two simulated judges take turns. The second takes `STRICTNESS` off every score (`driftline simulate-judge --script strict:…`) and
   has the name of the first, as when a provider changes the model behind a name. Only this project's later sessions go to it.
2. Rounds of anchors are judged by whichever judge scores the project on their day. Their time is that day, so five weeks pass in a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import msgspec

from driftline_trial.demo.conversations import Session
from driftline_trial.demo.script import moment_before
from schemas.records import Exchange
from service.setup.judge_setup import open_judge
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace
from streams.engine.engine import Engine
from streams.upkeep.anchors import candidates, choose, run_round

PROJECT = "engineering"
"""The project whose judge gets stricter."""
STRICTNESS = 0.07
"""The part of the scale by which every score is lower since then."""
CHOSEN_BY = "Priya"
ANCHORS = 20
_CHOSEN = 24
_STRICT = 11
_ROUNDS = (23, 20, 17, 14, 9, 6, 3, 1)
"""Days before the last day on which the anchors are chosen, the judge becomes stricter, and the anchors are judged."""


@dataclass(frozen=True, slots=True)
class JudgeSchedule:
    """The times of the judge's change and of the rounds of anchors, in a demo that ends on the day."""

    last_day: date

    @property
    def since(self) -> date:
        """Return the day since which it is stricter."""
        return moment_before(self.last_day, _STRICT).date()

    @property
    def chosen_at(self) -> datetime:
        """Return the time at which the anchors are chosen, among the exchanges before it."""
        return moment_before(self.last_day, _CHOSEN, 6)

    @property
    def rounds(self) -> tuple[datetime, ...]:
        """Return the times of the rounds, four before the change and four since."""
        return tuple(moment_before(self.last_day, days, 6) for days in _ROUNDS)

    def strictness_of(self, exchange: Exchange) -> float:
        """Return the strictness of an exchange's judge."""
        return STRICTNESS if exchange.project == PROJECT and exchange.occurred_at.date() >= self.since else 0.0

    def is_judged_strictly(self, session: Session) -> bool:
        """Tell whether the session is scored by the stricter judge."""
        return session.project == PROJECT and session.ended_at.date() >= self.since


def judge_anchors(
    settings: Settings, judge: str, schedule: JudgeSchedule, sessions: Sequence[Session], *, strictly: bool
) -> None:
    """Have the judge at the address judge the rounds of its days; the first rounds choose the anchors among the sessions."""
    clock = _Clock(schedule.chosen_at)
    is_early = None if strictly else _early(sessions, schedule.chosen_at)
    rounds = [at for at in schedule.rounds if (at.date() >= schedule.since) == strictly]
    with open_workspace(settings, now=clock) as workspace:
        asyncio.run(_judge(workspace, clock, judge, is_early, rounds))


class _Clock:
    """The time of the demo."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def _early(sessions: Sequence[Session], chosen_at: datetime) -> Callable[[str], bool]:
    """Return whether an exchange, by its id, lies before the anchors were chosen."""
    early = [session for session in sessions if session.project == PROJECT and session.ended_at < chosen_at]
    return frozenset(payload["exchange"]["id"] for session in early for payload in session.payloads).__contains__


async def _judge(
    workspace: Workspace, clock: _Clock, judge: str, is_early: Callable[[str], bool] | None, rounds: Sequence[datetime]
) -> None:
    environment = {"ANTHROPIC_API_KEY": "simulated", "ANTHROPIC_BASE_URL": judge}
    opened = await open_judge(msgspec.structs.replace(workspace.settings, judge="live"), workspace.policy, environment)
    store, policy, redactor = workspace.store, workspace.policy, workspace.redactor
    engine = Engine(store, policy, redactor, clock, judge=opened.judge, judge_name=opened.name)
    await engine.start()
    try:
        if is_early is not None:
            with contextlib.closing(store.cursor()) as cursor:
                early = [candidate for candidate in candidates(cursor, PROJECT, 500) if is_early(candidate[1])]
            # Spread over the range of the scores, in whose order they come.
            chosen = [early[len(early) * index // ANCHORS] for index in range(min(ANCHORS, len(early)))]
            await choose(engine, PROJECT, chosen, CHOSEN_BY)
        for at in rounds:
            clock.now = at
            await run_round(engine, PROJECT)
            await engine.wait_until_drained()
    finally:
        await engine.stop()
