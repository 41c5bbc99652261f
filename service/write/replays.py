"""Replays: planning them, estimating them, and running their parts in processes.

Each replay has a label and its own file beside the database.
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
from pathlib import Path
from typing import Any

import msgspec

from analytics.store.connection import IN_USE_HINT
from audit.policy import Policy
from audit.spending import has_shared_caps
from schemas.errors import InputError, SettingsError, StoreError
from service.read.known_projects import unknown_project
from service.setup.judge_setup import JUDGE_HINT, NONE, OpenedJudge, describe_judge, open_batches, open_judge, refuse_batches
from service.setup.kafka import connection_of, framing_of
from service.setup.settings import Settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import describe_lag, open_workspace, require_database, utc_now
from streams.judges.batch_plans import BatchJournal
from streams.judging.shared_caps import SharedCaps, SpendingFiles, spending_folder
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
from streams.replay.part import PartProgress, PartWork, in_processes
from streams.replay.part import Tell as PartTell
from streams.replay.plan import (
    JudgeMode,
    Origin,
    Outcome,
    Part,
    ReplayFiles,
    ReplayPlan,
    Scope,
    default_label,
    folder_of,
    merge,
    outcome_in,
)
from streams.replay.rescoring import Estimate


class Task(Enum):
    """What to do with a part."""

    ESTIMATE = auto()
    REPLAY = auto()


@dataclass(frozen=True)
class PartJob:
    """Estimates or replays parts of a plan. It can be pickled; the worker opens policy, judge and history."""

    settings: Settings
    plan: ReplayPlan
    task: Task
    workers: int

    def __call__(self, number: int, tell: PartTell) -> Estimate | None:
        """Do the task for a part, given by its number. Return the estimate if that is the task."""
        files = ReplayFiles(self.settings.database, self.plan.label)
        if self.task is Task.REPLAY and files.digests(number).exists():
            return None
        return asyncio.run(self._work(number, files, tell))

    async def _work(self, number: int, files: ReplayFiles, tell: PartTell) -> Estimate | None:
        policy = policy_of(self.settings)
        if policy.digest != self.plan.policy_digest:
            raise SettingsError(
                "--policy: the policy has changed since the replay began", hint="Begin another replay with --label."
            )
        part = next(part for part in self.plan.parts if part.number == number)
        async with self._open_history(part, files) as history, self._open_judges(policy, files, number) as judges:
            redactor = redactor_of(self.settings, policy)
            async with self._open_caps(policy) as shared_caps:
                work = PartWork(self.plan, number, files, policy, redactor, utc_now, shared_caps=shared_caps, **judges)
                if self.task is Task.ESTIMATE:
                    return await work.estimate(history, tell)
                await work.replay(history, tell)
        return None

    @contextlib.asynccontextmanager
    async def _open_caps(self, policy: Policy) -> AsyncIterator[SharedCaps | None]:
        """Return the caps that a replay shares with the live audit; None if it makes no calls."""
        if self.task is Task.ESTIMATE or not self.plan.asking.pays:
            yield None
        elif not self.settings.kafka:
            yield SharedCaps(policy, SpendingFiles(spending_folder(self.settings.database)))
        else:
            from streams.kafka.producing import RecordProducer  # noqa: PLC0415 - Kafka's client is loaded only if it is used
            from streams.kafka.spending_topic import SpendingTopic  # noqa: PLC0415 - the same

            connection = connection_of(self.settings)
            producer = RecordProducer(connection)
            await producer.start()
            try:
                async with SpendingTopic(connection, producer, utc_now, reads=has_shared_caps(policy)) as spending:
                    yield SharedCaps(policy, spending)
            finally:
                await producer.stop()

    @contextlib.asynccontextmanager
    async def _open_history(self, part: Part, files: ReplayFiles) -> AsyncIterator[History]:
        if self.plan.origin.kind in {TABLES, PARQUET}:
            history = History(Tables(self.plan.origin), part, self.plan.scope)
        else:
            from streams.replay.topics import open_topics  # noqa: PLC0415 - Kafka's client is loaded only if it is used

            framing = framing_of(self.settings)
            reframe = None if framing is None else framing.reframe_when_available
            history = await open_topics(connection_of(self.settings), part, self.plan.scope, files, reframe)
        with contextlib.closing(history):
            yield history

    @contextlib.asynccontextmanager
    async def _open_judges(self, policy: Policy, files: ReplayFiles, number: int) -> AsyncIterator[dict[str, Any]]:
        """Return the judges by their parameter of `PartWork`; empty if no judge is called."""
        judges: dict[str, Any] = {}
        if self.task is Task.REPLAY and self.plan.asking is JudgeMode.LIVE:
            concurrency = max(1, self.settings.judge_concurrency // self.workers)
            opened = await open_judge(msgspec.structs.replace(self.settings, judge_concurrency=concurrency), policy, os.environ)
            judges["judge"] = opened.judge
        elif self.task is Task.REPLAY and self.plan.asking is JudgeMode.BATCH:
            judges["batch_judge"] = open_batches(policy, os.environ, BatchJournal(files.journal(number)))
        try:
            yield judges
        finally:
            for judge in judges.values():
                if judge is not None:
                    await judge.aclose()


TOPICS = "topics"
Tell = Callable[[PartProgress], None]
_IN_USE_HINT = (
    "A server or an import is using the file. Stop it, or replay from another source: a copy made by `driftline backup`, "
    "the topics (--from topics), or Parquet files written by `driftline export`."
)


@dataclass(frozen=True)
class OffsetRange:
    """The texts of the options --from-offset and --to-offset."""

    first: str = ""
    last: str = ""


@dataclass(frozen=True)
class ReplayRequest:
    """The options of a replay."""

    source: str
    scope: Scope
    asking: JudgeMode
    label: str | None
    workers: int
    offsets: OffsetRange = OffsetRange()


@dataclass(frozen=True)
class Replay:
    """A new, begun or complete replay. A complete one has an outcome."""

    settings: Settings
    plan: ReplayPlan
    files: ReplayFiles
    workers: int
    is_begun: bool = False
    outcome: Outcome | None = None
    note: str = ""
    """A note about the source, for the user."""

    @property
    def positions(self) -> int:
        """The number of positions to read, in all parts."""
        return sum(part.positions for part in self.plan.parts)

    def estimate(self, tell: Tell) -> Estimate:
        """Estimate the replay, without calling a judge."""
        total = Estimate()
        with _lock_label(self.files):
            for estimate in self._run_parts(Task.ESTIMATE, tell):
                total.add(estimate)
        if not self.is_begun and self.plan.origin.kind != TOPICS:
            shutil.rmtree(self.files.parts)
        return total

    def run(self, tell: Tell) -> Outcome:
        """Run the replay to its end.

        Raises InputError if another process runs it. An interrupted run keeps its finished parts.
        """
        with _lock_label(self.files):
            self.files.write_plan(self.plan)
            self._run_parts(Task.REPLAY, tell)
            outcome = merge(self.files, self.plan, utc_now())
        if not outcome.exchanges:
            self.files.result.unlink()
            raise _empty_scope_error(self.plan.scope, None)
        return outcome

    def describe_judge(self) -> OpenedJudge:
        """Describe the judge that the replay would call. Raises SettingsError if none is configured, or if it has no batches to ask in."""
        policy = policy_of(self.settings)
        if self.plan.asking is JudgeMode.BATCH:
            refuse_batches(policy.used_judges)
        judge = describe_judge(self.settings, policy)
        if judge.name == NONE:
            raise SettingsError(f"--judge {self.plan.asking}: there is no judge", hint=JUDGE_HINT)
        return judge

    def _run_parts(self, task: Task, tell: Tell) -> list[Estimate]:
        job = PartJob(self.settings, self.plan, task, min(self.workers, len(self.plan.parts)))
        return in_processes(job, [part.number for part in self.plan.parts], self.workers, tell)


def prepare_replay(settings: Settings, request: ReplayRequest) -> Replay:
    """Return the requested replay: complete, begun, or new.

    Raises SettingsError or PolicyError for invalid options, including a label that belongs to a replay with other options.
    Raises InputError if there is nothing to replay, and StoreError if the source cannot be opened.
    """
    policy = policy_of(settings)
    origin = _find_origin(settings, request)
    options = ReplayPlan(
        label="",
        origin=origin,
        scope=request.scope,
        policy_digest=policy.digest,
        asking=request.asking,
        range=f"{request.offsets.first}..{request.offsets.last}".strip("."),
    )
    label = default_label(options) if request.label is None else request.label
    options = msgspec.structs.replace(options, label=label)
    files = ReplayFiles(settings.database, options.label)
    if files.result.exists():
        shutil.rmtree(files.parts, ignore_errors=True)
        outcome = outcome_in(files.result)
        _check_same_options(options, outcome.plan)
        return Replay(settings, outcome.plan, files, request.workers, is_begun=True, outcome=outcome)
    begun_plan = files.plan()
    if begun_plan is not None:
        _check_same_options(options, begun_plan)
        return Replay(settings, begun_plan, files, request.workers, is_begun=True)
    parts, note = _plan_parts(settings, request, origin)
    plan = msgspec.structs.replace(options, parts=parts, started_at=utc_now())
    return Replay(settings, plan, files, request.workers, note=note)


def list_replays(database: Path) -> Iterator[Outcome | ReplayPlan]:
    """Yield the replays of a database in the order of their labels: outcomes of complete replays, plans of begun ones."""
    folder = folder_of(database)
    labels = {path.stem for path in [*folder.glob("*.duckdb"), *folder.glob("*.parts")]}
    for label in sorted(labels):
        files = ReplayFiles(database, label)
        record = outcome_in(files.result) if files.result.exists() else files.plan()
        if record is not None:
            yield record


def _find_origin(settings: Settings, request: ReplayRequest) -> Origin:
    if request.source != TOPICS and request.offsets != OffsetRange():
        raise SettingsError("--from-offset and --to-offset need --from topics", hint="Use --since and --until.")
    if request.source == TABLES:
        require_database(settings.database)
        return origin_of_tables(settings.database)
    if request.source == TOPICS:
        from streams.replay.topics import origin_of_topics  # noqa: PLC0415 - Kafka's client is loaded only if it is used

        return origin_of_topics(connection_of(settings))
    return origin_of_parquet(Path(request.source))


def _plan_parts(settings: Settings, request: ReplayRequest, origin: Origin) -> tuple[tuple[Part, ...], str]:
    """Return the parts of a new replay, and a note about the source."""
    if origin.kind == TOPICS:
        from streams.replay.topics import bounds_of, parts_of_topics  # noqa: PLC0415 - as above

        first = bounds_of("--from-offset", request.offsets.first)
        last = bounds_of("--to-offset", request.offsets.last)
        return asyncio.run(parts_of_topics(connection_of(settings), first, last)), ""
    note = _prepare_database(settings) if origin.kind == TABLES else ""
    with _explain_in_use(), Tables(origin) as tables:
        contents = tables.contents(request.scope)
        if not contents.exchanges:
            raise _empty_scope_error(request.scope, contents)
        return parts_of_tables(tables, request.workers), note


def _prepare_database(settings: Settings) -> str:
    """Migrate a database and flush its logs into the file, so that several processes can read it.

    Return a note if its live scores are not complete.
    """
    with _explain_in_use(), open_workspace(settings, exclusive_hint=_IN_USE_HINT) as workspace:
        behind = describe_lag(workspace.store)
        workspace.store.checkpoint()
    return f"the live scores are not complete: {behind}" if behind else ""


def _check_same_options(options: ReplayPlan, stored: ReplayPlan) -> None:
    """Raise SettingsError if the label belongs to a replay with other options."""
    differences = options.differs_from(stored)
    if differences:
        raise SettingsError(
            f"--label: {options.label} is a replay with another {', '.join(differences)}",
            hint="Choose another --label, or remove the other replay.",
        )


def _empty_scope_error(scope: Scope, contents: Contents | None) -> InputError:
    """Return the error that explains why there is nothing to replay."""
    if contents is not None and contents.projects and scope.project is not None and scope.project not in contents.projects:
        return unknown_project(scope.project, contents.projects)
    if contents is None or contents.first is None:
        return InputError("there are no exchanges to replay", hint="Check --project, --since, --until and the source.")
    return InputError(
        "--since, --until: there are no exchanges in this period",
        hint=f"The exchanges are between {contents.first} and {contents.last} UTC.",
    )


@contextlib.contextmanager
def _explain_in_use() -> Iterator[None]:
    """Replace the hint of an error about a database in use by a hint for replays."""
    try:
        yield
    except StoreError as error:
        if error.hint != IN_USE_HINT:
            raise
        raise StoreError(str(error), hint=_IN_USE_HINT) from error


@contextlib.contextmanager
def _lock_label(files: ReplayFiles) -> Iterator[None]:
    """Lock the label while the context is open. Raises InputError if another process has locked it."""
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
    """Return the default number of processes: one per core."""
    return os.cpu_count() or 1
