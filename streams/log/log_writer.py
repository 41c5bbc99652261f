"""The one writer of an embedded log: what callers submit, and what intake decides on it, is committed together."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import msgspec

from analytics.deletion.erased import ERASURES
from analytics.identity.identity_index import KnownIdentities
from analytics.store.stage_states import stored_states
from analytics.store.store import Appended, Store, Transaction
from audit.policy.policy import Policy
from schemas.codec.arrow import INDEX
from schemas.errors import StoreError, first_line
from schemas.records import Record, Score, ScoringTask
from schemas.registry import topics
from streams.engine.embedded import EmbeddedRunner
from streams.judging.judged_stages import SCORING, JudgedStage
from streams.judging.judged_state import STATE
from streams.judging.recorded_judgements import Subject
from streams.log.admission import Accepted
from streams.log.direct_intake import Decided, DirectIntake, Outside, decisions_of
from streams.log.write_ahead import INTAKE, Entry, WriteAheadLog, decide, keep, land, recover
from streams.stage_batches import session_key
from streams.stage_progress import stage_progress
from streams.topology import Stage, stage_named

DIAGNOSIS = stage_named("diagnosis")
TROUBLE = (StoreError, duckdb.OperationalError, duckdb.FatalException)
"""What keeps the log from taking records whatever they hold, such as a full disk."""
LAND_SECONDS = 0.5
"""How long a record may be in the write-ahead log alone, where nobody asks for it."""
LAND_RECORDS = 5_000
MOST_UNLANDED = 50_000
"""Records that may be in the write-ahead log alone; beyond that the tables have to take some first."""
AGAIN_SECONDS = 1.0
"""Seconds after which work that can wait, such as a landing, is tried again when it has failed."""
log = logging.getLogger(__name__)
READ_BACK = frozenset({ERASURES, "anchors", "baselines", "incidents"})
"""Topics whose records go to the tables at once: whoever writes one reads them there for the next one."""
WRITTEN, KNOWN, CONFLICT = "written", "known", "conflict"


@dataclass(frozen=True)
class Submission:
    """Records to be committed: from outside, of which known ones are left out, or made by a stage. Empty: what was taken in lands."""

    outside: Accepted = field(default_factory=Accepted)
    made: Accepted = field(default_factory=Accepted)
    stage: JudgedStage[Any] | None = None
    """Whose states and watermark move."""
    states: Mapping[str, bytes] = field(default_factory=dict)
    """States of the stage that changed."""
    watermark: int = 0
    """Where the stage reads next."""
    records: Outside = field(default_factory=dict)
    """The records in `outside` before they were encoded; what comes without them goes to the tables."""


@dataclass(frozen=True)
class Committed:
    """What became of a submission."""

    fates: Mapping[str, Sequence[str]]
    """For each topic and each of its records from outside: written, known (the log has it) or conflict (with other content)."""
    decisions: Mapping[Subject, ScoringTask | Score]
    """What intake decided on exchanges of the whole group: judged (a task) or left out (a score)."""
    spent: Mapping[str, int]
    """Nano-USD that the sessions of the tasks have spent, by session key, where they have spent anything."""
    scores: Mapping[Subject, Score] = field(default_factory=dict)
    """The scores of tasks that were scored in the same step, which no judge is asked about."""


class LogWriter:
    """Commits submissions; its `commit` and `rest` are for `streams.log.group_commit.GroupCommit`.

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
        self._due = math.inf
        self.failing = ""
        """Why what was taken in does not land, in words; nothing where it does."""
        self.on_moved: Callable[[], object] = lambda: None
        """Called in the committing thread when the tables show more records."""
        self.on_fatal: Callable[[BaseException], object] = lambda _: None
        """Called in the committing thread when the database has given up and has to be opened again."""

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
        self._positions = {stage.name: stage_progress(self._store, stage).position for stage in self._computed}

    def commit(self, group: Sequence[Submission]) -> list[Committed]:
        """Commit all of the group, or nothing when an exception leaves."""
        self._land_if_due()
        return self._log_ahead(group) or self._commit_to_tables(group)

    def rest(self) -> float | None:
        """Land what is due and let computed stages take up their next batches; return after how many seconds there is more to do."""
        self._land_if_due()
        if self._attempt(self._advance_all):
            self.on_moved()
            return 0.0
        return None if self._due == math.inf else max(0.0, self._due - self._clock())

    def _advance_all(self) -> bool:
        """Let each computed stage take up its next batch; return whether there was any."""
        have_read = [self._advance(stage) for stage in self._computed]
        if self.failing and self.is_landed:
            self._due, self.failing = math.inf, ""
        return any(have_read)

    def _advance(self, stage: Stage) -> bool:
        """Let a stage take up its next batch; return whether there was one."""
        if self._positions[stage.name] >= self._store.end_of(stage.source):
            return False
        has_read = bool(self._runner.advance(stage))
        self._positions[stage.name] = stage_progress(self._store, stage).position
        return has_read

    def close(self) -> None:
        """Land what has not, and let go of the write-ahead log; called in the committing thread, as all that lands."""
        if self._ahead is None:
            return
        try:
            if not self._ahead.is_empty:
                self._commit_to_tables([])
        except TROUBLE as error:
            log.warning("the write-ahead log stays for the next start: %s", error)
        self._ahead.close()

    def _log_ahead(self, group: Sequence[Submission]) -> list[Committed] | None:
        """Make the group durable in the write-ahead log; None where it has to go to the tables."""
        if self._direct is None or self._ahead is None or not all(map(_is_direct, group)):
            return None
        if self._ahead.waiting.total() >= MOST_UNLANDED:
            return None
        outside: dict[str, list[Record]] = defaultdict(list)
        for one in group:
            for topic, records in one.records.items():
                outside[topic] += records
        encoded = [message for one in group for message in one.outside.messages.get(INTAKE.source, ())]
        decided = self._direct.decide(outside, encoded, self._positions.get(SCORING.name, 0))
        if decided is None:
            return None
        self._ahead.append(self._entry(group, decided))
        self._direct.note(outside, decided)
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
        outside = _merged(one.outside for one in group).messages
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

    def _land_if_due(self) -> None:
        if (
            self._ahead is None
            or self._ahead.is_empty
            or (self._clock() < self._due and self._ahead.waiting.total() < LAND_RECORDS)
        ):
            return
        self._attempt(lambda: self._commit_to_tables([]))

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """Do work that can wait. Where the tables do not take it, it is tried again a little later, and health says why."""
        try:
            return work()
        except TROUBLE as error:
            self.failing, self._due = first_line(error), self._clock() + AGAIN_SECONDS
            log.warning("what was taken in does not land, trying again: %s", self.failing)
            if isinstance(error, duckdb.FatalException):
                self.on_fatal(error)
        return None

    def _commit_to_tables(self, group: Sequence[Submission]) -> list[Committed]:
        try:
            return self._commit(group)
        except BaseException:
            self._seen.rewind({topic: self._store.end_of(topic) for topic in topics()})
            raise

    def _commit(self, group: Sequence[Submission]) -> list[Committed]:
        with self._store.transaction() as transaction:
            commits = self._store.commits
            landed = {} if self._ahead is None else land(transaction, self._ahead, self._runner, self._seen)
            positions = {stage.name: transaction.watermark(stage.name, stage.source) for stage in self._computed}
            keep(transaction, [_of_stages(group)], self._seen)
            outside = _merged(one.outside for one in group)
            appended = {
                topic: transaction.append(topic, messages, skip_known=True, seen=self._seen)
                for topic, messages in outside.messages.items()
            }
            intake = appended.get(INTAKE.source)
            decisions = {} if intake is None else decisions_of(decide(transaction, self._runner, intake))
            spent = _spent(transaction, decisions.values())
        for part in (landed, appended):
            for topic, done in part.items():
                self._seen.add(topic, done.frames)
        self._positions = positions
        self._note_landed(commits, decided=intake is not None)
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

    def _note_landed(self, commits: int, *, decided: bool) -> None:
        """Note what a transaction did that began at so many commits; `decided`: intake changed states in the tables."""
        self._due, self.failing = math.inf, ""
        if self._direct is None or self._ahead is None:
            return
        had = self._ahead.waiting.total()
        self._ahead.forget()
        self._direct.landed(commits)
        if decided:
            self._direct.forget_states()
        if had:
            self.on_moved()


def _of_stages(group: Sequence[Submission]) -> Entry:
    """Return what judged stages have submitted, together."""
    states: dict[str, dict[str, bytes]] = {}
    marks: dict[str, int] = {}
    for one in group:
        if one.stage is not None:
            states.setdefault(one.stage.name, {}).update(one.states)
            marks[one.stage.name] = max(marks.get(one.stage.name, 0), one.watermark)
    return Entry(made=_merged(one.made for one in group).messages, states=states, marks=marks)


def _spent(transaction: Transaction, decisions: Iterable[ScoringTask | Score]) -> dict[str, int]:
    """Return what the sessions of tasks have spent; nothing waits to land."""
    keys = {session_key(one) for one in decisions if isinstance(one, ScoringTask)}
    states = transaction.states(SCORING.name, list(keys)) if keys else {}
    return {key: STATE.decode(state).spent for key, state in states.items()}


def _is_direct(submission: Submission) -> bool:
    """Whether it may go into the write-ahead log: records from outside that no one reads back at once, or what a judged stage made."""
    if submission.records:
        return submission.records.keys().isdisjoint(READ_BACK)
    return bool(submission.made.records or submission.stage is not None)


def _merged(parts: Iterable[Accepted]) -> Accepted:
    whole = Accepted()
    for part in parts:
        whole.extend(part)
    return whole


def _fates(appended: Appended, count: int) -> list[str]:
    fates = [KNOWN] * count
    for frame in appended.frames.values():
        for place in frame[INDEX].to_list():
            fates[place] = WRITTEN
    for place in appended.conflicts:
        fates[place] = CONFLICT
    return fates
