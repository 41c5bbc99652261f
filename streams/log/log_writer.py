"""The one writer of an embedded log: what callers submit, and what intake decides on it, is committed together."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from analytics.deletion.erased import ERASURES
from analytics.identity.identity_index import KnownIdentities
from analytics.store.positions import AHEAD
from analytics.store.stage_states import stored_states
from analytics.store.store import Appended, Store, Transaction
from audit.policy.policy import Policy
from schemas.codec.arrow import INDEX
from schemas.errors import StoreError, first_line
from schemas.lazy.duckdb import duckdb
from schemas.records import Score, ScoringTask
from schemas.registry import topics
from streams.engine.embedded import EmbeddedRunner
from streams.engine.stage_runs import StageOutcome
from streams.judging.judged_stages import SCORING, JudgedStage
from streams.judging.judged_state import STATE
from streams.log.admission import CONFLICT, KNOWN, NOTHING, WRITTEN, Committed, Outside, Submission, merged, outside_of
from streams.log.direct_intake import STAGES, Decided, DirectIntake, decisions_of
from streams.log.groups import are_few, is_direct
from streams.log.write_ahead import INTAKE, Entry, Unlanded, WriteAheadLog, decide, keep, land, recover
from streams.stage_batches import session_key
from streams.stage_progress import stage_progress
from streams.topology import Stage, stage_named

DIAGNOSIS = stage_named("diagnosis")
LAND_SECONDS = 0.5
"""How long a record may be in the write-ahead log alone, where nobody asks for it."""
LAND_RECORDS = 5_000
MOST_UNLANDED = 50_000
"""Records that may be in the write-ahead log alone; beyond that the tables have to take some first."""
AGAIN_SECONDS = 1.0
"""Seconds after which work that can wait, such as a landing, is tried again when it has failed."""
log = logging.getLogger(__name__)


@cache
def trouble() -> tuple[type[Exception], ...]:
    """Return the errors that keep the log from taking records whatever they hold, such as a full disk."""
    return StoreError, duckdb.OperationalError, duckdb.FatalException


class _Landing(NamedTuple):
    """A landing that has begun."""

    unlanded: Unlanded
    stands: bool
    """Whether intake need not decide again."""
    changes: int
    """How often states had changed before."""


class LogWriter:
    """Commits submissions; its `commit`, `land_if_due` and `rest` are for the thread of a `streams.log.group_commit.GroupCommit`.

    `commit_at_hand` is for the event loop: it needs no thread, and does nothing where it would have to wait. One of both decides and
    appends at a time, the one whose turn it is. A landing takes a turn at its beginning and at its end.

    Records from outside that are certainly new, and what judged stages made, go into the write-ahead log and land in the tables later: when
    LAND_SECONDS have passed or LAND_RECORDS wait, and with whatever else is committed. A database in memory has no such log.

    `unjudged` are the judged stages that no judge is asked for: they are computed here when nothing waits, as diagnosis is.
    """

    def __init__(
        self,
        store: Store,
        runner: EmbeddedRunner,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        *,
        unjudged: Sequence[JudgedStage[Any]] = (),
    ) -> None:
        self._store = store
        self._runner = runner
        self._clock = clock
        self._seen = KnownIdentities()
        self._computed = [DIAGNOSIS, *(stage_named(stage.name) for stage in unjudged)]
        self._positions = dict.fromkeys((stage.name for stage in self._computed), 0)
        """The position that each computed stage reads next."""
        self._ahead = None if store.path is None else WriteAheadLog(store.path)
        self._direct = (
            None if self._ahead is None else DirectIntake(store, self._ahead, policy, self._seen, scores=SCORING in unjudged)
        )
        self._turn = threading.Lock()
        self._due = math.inf
        self.failing = ""
        """Why what was taken in does not land, in words; nothing where it does."""
        self.on_moved: Callable[[], object] = lambda: None
        """Called in the committing thread when the tables show more records."""
        self.on_fatal: Callable[[BaseException], object] = lambda _: None
        """Called in the committing thread when the database has given up and has to be opened again."""
        self.on_unlanded: Callable[[], object] = lambda: None
        """Called in the event loop when the committing thread has something to land."""

    @property
    def is_landed(self) -> bool:
        """Whether the tables have everything that was committed."""
        return self._ahead is None or self._ahead.is_empty

    def unlanded_on(self, topic: str) -> int:
        """Return how many records of a topic the stages that read it do not see yet."""
        return 0 if self._ahead is None else self._ahead.waiting[topic]

    def pending(self, stage: JudgedStage[Any]) -> int:
        """Return how many tasks wait for a stage that is computed here."""
        return max(0, self._store.end_of(stage.source) + self.unlanded_on(stage.source) - self._positions[stage.name])

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the newest states of sessions of which no stage works on any meanwhile; for any thread."""
        # First what may be landing, then the tables.
        unlanded = {} if self._ahead is None else self._ahead.states.get(stage, {})
        newest = {key: state for key in keys if (state := unlanded.get(key)) is not None}
        with contextlib.closing(self._store.cursor()) as cursor:
            return stored_states(cursor, stage, keys) | newest

    def recover(self) -> None:
        """Land what the last process left in its write-ahead log: before anything else is read from the tables."""
        if self._ahead is not None and (left := recover(self._store, self._ahead, self._runner)):
            log.warning("%d records were not in the tables when the last process ended: they are now", left)

    def catch_up(self) -> None:
        """Let intake and diagnosis take up what was committed but not read when the last process ended.

        Where that was an import or a rebuild, the judged stages, too: no one has said that they may be paid for.
        """
        if self._runner.finish():
            log.warning("an import or a rebuild was cut short: it is finished first, without asking a judge")
        for stage in (INTAKE, DIAGNOSIS):
            while self._runner.advance(stage):
                pass
        self._positions = self._stored_positions()

    def commit_at_hand(self, group: Sequence[Submission]) -> list[Committed] | None:
        """Commit all of the group to the write-ahead log; None where that takes a thread, because it may take long."""
        if not are_few(group) or not self._turn.acquire(blocking=False):
            return None
        try:
            outside = outside_of(group)
            at_hand = self._direct is not None and self._direct.is_at_hand(outside)
            is_first = self._due == math.inf
            committed = self._log_ahead(group, outside) if at_hand else None
        finally:
            self._turn.release()
        if committed is not None and (is_first or (self._ahead is not None and self._ahead.waiting.total() >= LAND_RECORDS)):
            self.on_unlanded()
        return committed

    def commit(self, group: Sequence[Submission]) -> list[Committed]:
        """Commit all of the group, or nothing when an exception leaves."""
        if not all(one.is_filled for one in group):
            self._land()
        filled = [one for one in group if one.is_filled]
        if not filled:
            return [NOTHING for _ in group]
        with self._turn:
            committed = iter(self._log_ahead(filled, outside_of(filled)) or self._commit_to_tables(filled))
        return [next(committed) if one.is_filled else NOTHING for one in group]

    def rest(self) -> float | None:
        """Land what is due and let computed stages take up their next batches; return after how many seconds there is more to do."""
        self.land_if_due()
        if self._attempt(self._advance_all):
            self.on_moved()
            return 0.0
        return None if self._due == math.inf else max(0.0, self._due - self._clock())

    def _advance_all(self) -> bool:
        """Let each computed stage take up its next batch; return whether there was any."""
        have_read = [self._advance(stage) for stage in self._computed]
        with self._turn:
            if self.failing and self.is_landed:
                self._due, self.failing = math.inf, ""
        return any(have_read)

    def _advance(self, stage: Stage) -> bool:
        """Let a stage take up its next batch; return whether there was one."""
        if self._positions[stage.name] >= self._store.end_of(stage.source):
            return False
        # Nothing of diagnosis is read by intake.
        with contextlib.nullcontext() if stage is DIAGNOSIS else self._turn:
            has_read = bool(self._runner.advance(stage))
            self._positions[stage.name] = stage_progress(self._store, stage).position
        return has_read

    def close(self) -> None:
        """Land what has not, and let go of the write-ahead log; called in the committing thread, as all that lands."""
        if self._ahead is None:
            return
        try:
            self._land()
        except trouble() as error:
            log.warning("the write-ahead log stays for the next start: %s", error)
        self._ahead.close()

    def _log_ahead(self, group: Sequence[Submission], outside: Outside) -> list[Committed] | None:
        """Make the group durable in the write-ahead log; None where it has to go to the tables. It is the caller's turn."""
        if self._direct is None or self._ahead is None or not all(map(is_direct, group)):
            return None
        if self._ahead.waiting.total() >= MOST_UNLANDED:
            return None
        encoded = [message for one in group for message in one.outside.messages.get(INTAKE.source, ())]
        decided = self._direct.decide(outside, encoded, self._positions.get(SCORING.name, 0))
        if decided is None:
            return None
        entry = self._entry(group, decided)
        number = self._ahead.append(entry)
        self._direct.note(outside, entry.states | entry.decided_states, number)
        self._positions |= {stage: mark for stage, mark in decided.marks.items() if stage in self._positions}
        if self._due == math.inf:
            self._due = self._clock() + LAND_SECONDS
        return [
            Committed(
                {topic: [WRITTEN] * len(records) for topic, records in one.records.items()},
                decided.decisions,
                decided.spent,
                decided.scores,
            )
            for one in group
        ]

    def _entry(self, group: Sequence[Submission], decided: Decided) -> Entry:
        """Return the entry of a group that goes into the log, with what stages made of its records."""
        outside = merged(one.outside for one in group).messages
        return msgspec.structs.replace(
            _of_stages(group),
            position=decided.position,
            erasures=self._store.end_of(ERASURES),
            exchanges=outside.pop(INTAKE.source, []),
            decided=decided.made.messages,
            decided_states=decided.states,
            decided_marks=decided.marks,
            others=outside,
        )

    def land_if_due(self) -> None:
        """Land what has waited long enough, or is much. Who waits for a commit is answered first: a landing takes a hundred of them."""
        if (
            self._ahead is None
            or self._ahead.is_empty
            or (self._clock() < self._due and self._ahead.waiting.total() < LAND_RECORDS)
        ):
            return
        self._attempt(self._land)

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """Do work that can wait. Where the tables do not take it, it is tried again a little later, and health says why."""
        try:
            return work()
        except trouble() as error:
            self.failing, self._due = first_line(error), self._clock() + AGAIN_SECONDS
            log.warning("what was taken in does not land, trying again: %s", self.failing)
            if isinstance(error, duckdb.FatalException):
                self.on_fatal(error)
        return None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Let identities that were read in vain be read again."""
        try:
            yield
        except BaseException:
            self._seen.rewind({topic: self._store.end_of(topic) for topic in topics()})
            raise

    def _land(self) -> None:
        """Land what is in the write-ahead log. Where intake need not decide again, callers go on meanwhile."""
        if self._ahead is None or self._ahead.is_empty:
            return
        with self._changing(), contextlib.ExitStack() as turn:

            def committed() -> None:
                for topic, done in landed.items():
                    self._seen.add(topic, done.frames)
                if landing.stands:
                    turn.enter_context(self._turn)

            with self._store.transaction(committed) as transaction:
                number = transaction.watermark(AHEAD, "")
                turn.enter_context(self._turn)
                landing = self._landing(transaction, number)
                if landing.stands:
                    turn.close()
                landed = land(transaction, landing.unlanded, self._runner, self._seen, are_own=True)
            self._note_landed(transaction, landing)

    def _commit_to_tables(self, group: Sequence[Submission]) -> list[Committed]:
        """Land what is in the write-ahead log, and commit the group with it. It is the caller's turn."""
        with self._changing(), self._store.transaction() as transaction:
            landing = self._landing(transaction, transaction.watermark(AHEAD, ""))
            landed = land(transaction, landing.unlanded, self._runner, self._seen, are_own=True)
            of_stages = _of_stages(group)
            keep(transaction, [of_stages], self._seen, are_own=True)
            outside = merged(one.outside for one in group)
            appended = {
                topic: transaction.append(topic, messages, skip_known=True, seen=self._seen, are_own=True)
                for topic, messages in outside.messages.items()
            }
            intake = appended.get(INTAKE.source)
            outcome = StageOutcome() if intake is None else decide(transaction, self._runner, intake)
            decisions = decisions_of(outcome.records)
            spent = _spent(transaction, decisions.values())
        for topic, done in (*landed.items(), *appended.items()):
            self._seen.add(topic, done.frames)
        self._note_landed(transaction, landing)
        if self._direct is not None:
            self._direct.note({}, of_stages.states | ({INTAKE.name: outcome.states} if outcome.states else {}))
        fates = {topic: iter(_fates(appended[topic], len(messages))) for topic, messages in outside.messages.items()}
        return [
            Committed(
                {
                    topic: list(itertools.islice(fates[topic], len(messages)))
                    for topic, messages in one.outside.messages.items()
                },
                decisions,
                spent,
            )
            for one in group
        ]

    def _landing(self, transaction: Transaction, landed: int) -> _Landing:
        """Return what there is to land, where the tables have the entries before the number `landed`. It is the caller's turn."""
        if self._ahead is None or self._direct is None:
            return _Landing(Unlanded((), 0), stands=True, changes=0)
        unlanded = self._ahead.unlanded(landed)
        return _Landing(unlanded, stands=unlanded.stands(transaction), changes=self._direct.changes)

    def _note_landed(self, transaction: Transaction, landing: _Landing) -> None:
        """Note what was committed. It is the caller's turn."""
        self.failing = ""
        if self._direct is None or self._ahead is None:
            return
        had, end = not self._ahead.is_empty, landing.unlanded.next
        self._ahead.forget(end)
        self._due = math.inf if self._ahead.is_empty else self._clock() + LAND_SECONDS
        self._direct.landed(end, landing.changes, len(transaction.changed_stages.intersection(STAGES)))
        if not landing.stands:
            self._direct.reread()
            self._positions = self._stored_positions()
        if had:
            self.on_moved()

    def _stored_positions(self) -> dict[str, int]:
        return {stage.name: stage_progress(self._store, stage).position for stage in self._computed}


def _of_stages(group: Sequence[Submission]) -> Entry:
    """Return what judged stages have submitted, together."""
    states: dict[str, dict[str, bytes]] = {}
    marks: dict[str, int] = {}
    for one in group:
        if one.stage is not None:
            states.setdefault(one.stage.name, {}).update(one.states)
            marks[one.stage.name] = max(marks.get(one.stage.name, 0), one.watermark)
    return Entry(made=merged(one.made for one in group).messages, states=states, marks=marks)


def _spent(transaction: Transaction, decisions: Iterable[ScoringTask | Score]) -> dict[str, int]:
    """Return what the sessions of tasks have spent; nothing waits to land."""
    keys = {session_key(one) for one in decisions if isinstance(one, ScoringTask)}
    states = transaction.states(SCORING.name, list(keys)) if keys else {}
    return {key: STATE.decode(state).spent for key, state in states.items()}


def _fates(appended: Appended, count: int) -> list[str]:
    fates = [KNOWN] * count
    for frame in appended.frames.values():
        for place in frame[INDEX].to_list():
            fates[place] = WRITTEN
    for place in appended.conflicts:
        fates[place] = CONFLICT
    return fates
