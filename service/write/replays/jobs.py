"""The work on one part of a replay, wired: the input of a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import msgspec

from audit.policy.policy import Policy
from schemas.errors import SettingsError
from service.setup.judge_setup import open_judge, traits_of
from service.setup.kafka import connection_of, framing_of
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import utc_now
from streams.judges.protocol import credentials
from streams.replay.asking import Estimate
from streams.replay.history import PARQUET, TABLES, History, Tables
from streams.replay.part import PartWork
from streams.replay.part_processes import Tell
from streams.replay.plan import Asking, Part, Plan, ReplayFiles


class Aim(Enum):
    """The task for a part."""

    ESTIMATE = auto()
    REPLAY = auto()


@dataclass(frozen=True)
class ReplayJob:
    """Works on parts of a plan. It can be pickled; policy, judge and history are opened by the worker."""

    settings: Settings
    plan: Plan
    aim: Aim
    workers: int

    def __call__(self, number: int, tell: Tell) -> Estimate | None:
        """Work on the part of a number; return its estimate if that is the aim."""
        files = ReplayFiles(self.settings.database, self.plan.label)
        if self.aim is Aim.REPLAY and files.digests(number).exists():
            return None
        return asyncio.run(self._work(number, files, tell))

    async def _work(self, number: int, files: ReplayFiles, tell: Tell) -> Estimate | None:
        policy = policy_of(self.settings)
        if policy.digest != self.plan.policy_digest:
            raise SettingsError(
                "--policy: the policy has changed since the replay began", hint="Begin another replay with --label."
            )
        part = next(one for one in self.plan.parts if one.number == number)
        async with self._history(part, files) as history, self._judges(policy, files, number) as judges:
            redactor = redactor_of(self.settings, policy)
            work = PartWork(self.plan, number, files, policy, redactor, utc_now, **judges)
            if self.aim is Aim.ESTIMATE:
                return await work.estimate(history, tell)
            await work.replay(history, tell)
        return None

    @contextlib.asynccontextmanager
    async def _history(self, part: Part, files: ReplayFiles) -> AsyncIterator[History]:
        if self.plan.origin.kind in {TABLES, PARQUET}:
            history = History(Tables(self.plan.origin), part, self.plan.scope)
        else:
            from streams.replay.topics import open_topics  # noqa: PLC0415 - Kafka's client is loaded where there is Kafka

            framing = framing_of(self.settings)
            reframe = None if framing is None else framing.insist
            history = await open_topics(connection_of(self.settings), part, self.plan.scope, files, reframe)
        with contextlib.closing(history):
            yield history

    @contextlib.asynccontextmanager
    async def _judges(self, policy: Policy, files: ReplayFiles, number: int) -> AsyncIterator[dict[str, Any]]:
        """Return the judges, named as in `PartWork`: none, if nothing is paid."""
        judges: dict[str, Any] = {}
        if self.aim is Aim.REPLAY and self.plan.asking is Asking.LIVE:
            share = max(1, self.settings.judge_concurrency // self.workers)
            opened = await open_judge(msgspec.structs.replace(self.settings, judge_concurrency=share), policy, os.environ)
            judges["judge"] = opened.judge
        elif self.aim is Aim.REPLAY and self.plan.asking is Asking.BATCH:
            # Late, because the client of the API takes a second to load.
            from streams.judges.batch_judge import BatchJournal, open_batch_judge  # noqa: PLC0415

            journal = BatchJournal(files.journal(number))
            judges["batch_judge"] = open_batch_judge(*credentials(os.environ), partial(traits_of, policy), journal)
        try:
            yield judges
        finally:
            for judge in judges.values():
                if judge is not None:
                    await judge.aclose()
