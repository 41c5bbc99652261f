"""Replays: planned, estimated, run part by part in processes and merged.

Each has a label and its own file beside the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from analytics.store.connection import IN_USE
from audit.policy import Policy
from schemas.errors import InputError, SettingsError, StoreError
from service.read.known_projects import unknown_project
from service.setup.judge_setup import NAME_A_JUDGE, NONE, OpenedJudge, open_judge, traits_of, who_judges
from service.setup.kafka import connection_of, framing_of
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import open_workspace, require_database, stages_behind, utc_now
from streams.judges.protocol import credentials
from streams.replay.history import (
    PARQUET,
    TABLES,
    Contents,
    History,
    Tables,
    origin_of_parquet,
    origin_of_tables,
    parts_of_tables,
)
from streams.replay.part import Heard, PartWork, in_processes
from streams.replay.part import Tell as PartTell
from streams.replay.plan import (
    Asking,
    Origin,
    Outcome,
    Part,
    Plan,
    ReplayFiles,
    Scope,
    default_label,
    folder_of,
    merge,
    outcome_in,
)
from streams.replay.rescoring import Estimate


class Aim(Enum):
    """The task for a part."""

    ESTIMATE = auto()
    REPLAY = auto()


@dataclass(frozen=True)
class ReplayJob:
    """Works on parts of a plan. It can be pickled; the worker opens policy, judge and history."""

    settings: Settings
    plan: Plan
    aim: Aim
    workers: int

    def __call__(self, number: int, tell: PartTell) -> Estimate | None:
        """Work on a part, given by its number; return its estimate if that is the aim."""
        files = ReplayFiles(self.settings.database, self.plan.label)
        if self.aim is Aim.REPLAY and files.digests(number).exists():
            return None
        return asyncio.run(self._work(number, files, tell))

    async def _work(self, number: int, files: ReplayFiles, tell: PartTell) -> Estimate | None:
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
        """Return the judges under their names in `PartWork`; empty if nothing has to be paid."""
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


TOPICS = "topics"
Tell = Callable[[Heard], None]
_HELD = (
    "A server or an import has the file: stop it, or replay a copy that `driftline backup` has made, the topics (--from topics), or "
    "Parquet that `driftline export` has written."
)


@dataclass(frozen=True)
class OffsetRange:
    """A range of offsets, as text and parsed."""

    first: str = ""
    last: str = ""


@dataclass(frozen=True)
class ReplayRequest:
    """The requested replay."""

    source: str
    scope: Scope
    asking: Asking
    label: str | None
    workers: int
    offsets: OffsetRange = OffsetRange()


@dataclass(frozen=True)
class Replay:
    """A replay that is ready to run, in progress, or complete; a complete one has an outcome."""

    settings: Settings
    plan: Plan
    files: ReplayFiles
    workers: int
    is_begun: bool = False
    outcome: Outcome | None = None
    note: str = ""
    """A note about the source, for the user."""

    @property
    def positions(self) -> int:
        """The number of positions to read in all parts."""
        return sum(part.positions for part in self.plan.parts)

    def estimate(self, tell: Tell) -> Estimate:
        """Estimate without asking a judge."""
        whole = Estimate()
        with _lock_label(self.files):
            for estimate in self._work(Aim.ESTIMATE, tell):
                whole.add(estimate)
        if not self.is_begun and self.plan.origin.kind != TOPICS:
            shutil.rmtree(self.files.parts)
        return whole

    def run(self, tell: Tell) -> Outcome:
        """Run the replay to its end.

        Raises InputError if another process runs it. Finished work is kept if the run is interrupted.
        """
        with _lock_label(self.files):
            self.files.write_plan(self.plan)
            self._work(Aim.REPLAY, tell)
            outcome = merge(self.files, self.plan, utc_now())
        if not outcome.exchanges:
            self.files.result.unlink()
            raise _nothing(self.plan.scope, None)
        return outcome

    def who_judges(self) -> OpenedJudge:
        """Describe the judge that would be used. Raises SettingsError if one is needed and none is configured."""
        judge = who_judges(self.settings, policy_of(self.settings))
        if judge.name == NONE:
            raise SettingsError(f"--judge {self.plan.asking}: there is no judge", hint=NAME_A_JUDGE)
        return judge

    def _work(self, aim: Aim, tell: Tell) -> list[Estimate]:
        job = ReplayJob(self.settings, self.plan, aim, min(self.workers, len(self.plan.parts)))
        return in_processes(job, [part.number for part in self.plan.parts], self.workers, tell)


def replay_of(settings: Settings, wanted: ReplayRequest) -> Replay:
    """Return the requested replay: complete, begun, or new.

    Raises SettingsError or PolicyError for invalid options, including a label that belongs to a replay with other options;
    Raises InputError if there is nothing to replay; StoreError if the source cannot be opened.
    """
    policy = policy_of(settings)
    origin = _origin(settings, wanted)
    options = Plan(
        label="",
        origin=origin,
        scope=wanted.scope,
        policy_digest=policy.digest,
        asking=wanted.asking,
        range=f"{wanted.offsets.first}..{wanted.offsets.last}".strip("."),
    )
    label = default_label(options) if wanted.label is None else wanted.label
    options = msgspec.structs.replace(options, label=label)
    files = ReplayFiles(settings.database, options.label)
    if files.result.exists():
        shutil.rmtree(files.parts, ignore_errors=True)
        outcome = outcome_in(files.result)
        _check_same(options, outcome.plan)
        return Replay(settings, outcome.plan, files, wanted.workers, is_begun=True, outcome=outcome)
    begun = files.plan()
    if begun is not None:
        _check_same(options, begun)
        return Replay(settings, begun, files, wanted.workers, is_begun=True)
    parts, note = _parts(settings, wanted, origin)
    plan = msgspec.structs.replace(options, parts=parts, started_at=utc_now())
    return Replay(settings, plan, files, wanted.workers, note=note)


def replays_in(database: Path) -> Iterator[Outcome | Plan]:
    """Return the replays of a database by label: the outcomes of complete ones and the plans of begun ones."""
    folder = folder_of(database)
    labels = {path.stem for path in [*folder.glob("*.duckdb"), *folder.glob("*.parts")]}
    for label in sorted(labels):
        files = ReplayFiles(database, label)
        record = outcome_in(files.result) if files.result.exists() else files.plan()
        if record is not None:
            yield record


def _origin(settings: Settings, wanted: ReplayRequest) -> Origin:
    if wanted.source != TOPICS and wanted.offsets != OffsetRange():
        raise SettingsError("--from-offset and --to-offset need --from topics", hint="Use --since and --until.")
    if wanted.source == TABLES:
        require_database(settings.database)
        return origin_of_tables(settings.database)
    if wanted.source == TOPICS:
        from streams.replay.topics import origin_of_topics  # noqa: PLC0415 - Kafka's client is loaded where there is Kafka

        return origin_of_topics(connection_of(settings))
    return origin_of_parquet(Path(wanted.source))


def _parts(settings: Settings, wanted: ReplayRequest, origin: Origin) -> tuple[tuple[Part, ...], str]:
    """Return the parts of a new replay, and notes on the source."""
    if origin.kind == TOPICS:
        from streams.replay.topics import bounds_of, parts_of_topics  # noqa: PLC0415 - as above

        first, last = (
            bounds_of(option, text)
            for option, text in (("--from-offset", wanted.offsets.first), ("--to-offset", wanted.offsets.last))
        )
        return asyncio.run(parts_of_topics(connection_of(settings), first, last)), ""
    note = _made_ready(settings) if origin.kind == TABLES else ""
    with _explain_in_use(), Tables(origin) as tables:
        contents = tables.contents(wanted.scope)
        if not contents.exchanges:
            raise _nothing(wanted.scope, contents)
        return parts_of_tables(tables, wanted.workers), note


def _made_ready(settings: Settings) -> str:
    """Migrate a database and flush its logs into the file, so that several processes can read it; return a note, if any."""
    with _explain_in_use(), open_workspace(settings, alone=_HELD) as workspace:
        behind = stages_behind(workspace.store)
        workspace.store.checkpoint()
    return f"the live scores are not complete: {behind}" if behind else ""


def _check_same(options: Plan, stored: Plan) -> None:
    """Raise SettingsError if the label belongs to a replay with other options."""
    others = options.differs_from(stored)
    if others:
        raise SettingsError(
            f"--label: {options.label} is a replay with another {', '.join(others)}",
            hint="Choose another --label, or remove the other replay.",
        )


def _nothing(scope: Scope, contents: Contents | None) -> InputError:
    """Return the error that explains why there is nothing to replay."""
    if contents is not None and contents.projects and scope.project is not None and scope.project not in contents.projects:
        return unknown_project(scope.project, contents.projects)
    if contents is None or contents.first is None:
        return InputError("there are no exchanges to replay", hint="Check --project, --since, --until and the source.")
    return InputError(
        "--since, --until: there are no exchanges in that time",
        hint=f"The exchanges are between {contents.first} and {contents.last}, UTC.",
    )


@contextlib.contextmanager
def _explain_in_use() -> Iterator[None]:
    """Replace the advice of an error about a database in use by advice for replays."""
    try:
        yield
    except StoreError as error:
        if error.hint != IN_USE:
            raise
        raise StoreError(str(error), hint=_HELD) from error


@contextlib.contextmanager
def _lock_label(files: ReplayFiles) -> Iterator[None]:
    """Lock the label while the context is open. Raises InputError if another process has it."""
    files.parts.mkdir(parents=True, exist_ok=True)
    with files.lock.open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is running the replay {files.result.stem}", hint="Wait for it, or choose another --label."
            ) from None
        yield


def default_workers() -> int:
    """Return one process per core."""
    return os.cpu_count() or 1
