"""Direct intake: records that are certainly new are taken in, and decided on in memory, for the write-ahead log.

1. A record is certainly new when neither the tables nor the log can have its identity, it comes once in its group, and its session is
   not erased. What may be known goes to the tables: they decide about duplicates and conflicts.
2. Stages work on states in memory. They are read from the tables when a session comes, and read again when anything else has changed
   the database meanwhile; those of records that have not landed are in the log's entries.
3. What is answered is what lands: the log has the decision, too.
4. Without a judge, scoring follows intake at once, unless earlier tasks wait. Nothing can have been recorded of an exchange that is new.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl

from analytics.deletion.erased import ERASURES
from analytics.identity.identity_index import KnownIdentities, identity_of
from analytics.store.stage_states import states_of_stages, stored_states
from analytics.store.store import Store
from audit.policy.policy import Policy
from schemas.codec.arrow import empty_frame
from schemas.records import Record, Score, ScoringTask
from schemas.registry import schema_of
from streams.judging.judged_stages import SCORING
from streams.judging.judged_state import STATE
from streams.judging.recorded_judgements import nothing_recorded
from streams.log.admission import Accepted, encode_all
from streams.log.write_ahead import INTAKE, WriteAheadLog
from streams.stage_batches import RecordBatch, StepOutcome, named_session, session_key
from streams.steps.intake import IntakeStep
from streams.steps.judging import JudgingStep
from streams.upkeep.erased_now import ErasedNow

if TYPE_CHECKING:
    from streams.judging.recorded_judgements import Subject

KNOWN_SESSIONS = 100_000
"""Sessions whose state is kept in memory; that of others is read again when they come back."""
log = logging.getLogger(__name__)
Decisions = dict["Subject", ScoringTask | Score]
Outside = Mapping[str, Sequence[Record]]
"""Records from outside by topic."""


class NewRecords:
    """See the module. Belongs to the thread that commits; `seen` follows the tables."""

    def __init__(self, store: Store, seen: KnownIdentities) -> None:
        self._store = store
        self._seen = seen
        self._erased = ErasedNow(store)
        self._unlanded: set[tuple[str, str, Any]] = set()
        """Topic, type and identity of what is in the log alone."""

    def are_new(self, cursor: duckdb.DuckDBPyConnection, outside: Outside) -> bool:
        """Tell whether all of the records are certainly new; `cursor` reads the identities that others have written to the tables."""
        return all(
            self._are_new(cursor, topic, name, of_type)
            for topic, records in outside.items()
            for name, of_type in _by_type(records).items()
        )

    def note(self, outside: Outside) -> None:
        """Note what has become durable in the log."""
        for topic, records in outside.items():
            for name, of_type in _by_type(records).items():
                self._unlanded.update((topic, name, one) for one in _identities(name, of_type))

    def landed(self) -> None:
        """Note that everything has landed: the tables tell of it."""
        self._unlanded.clear()

    def _are_new(self, cursor: duckdb.DuckDBPyConnection, topic: str, name: str, records: Sequence[Record]) -> bool:
        identities = _identities(name, records)
        if len(set(identities)) < len(identities) or any((topic, name, one) in self._unlanded for one in identities):
            return False
        if self._store.end_of(ERASURES) and any(map(self._may_be_erased, records)):
            return False
        self._seen.read(cursor, topic, self._store.end_of(topic))
        return self._seen.is_new(schema_of(name), topic, _frame(name, identities))

    def _may_be_erased(self, record: Record) -> bool:
        """Whether the record's session is erased; what belongs to no session, the tables tell."""
        connection, session = getattr(record, "connection", None), getattr(record, "session_id", None)
        return connection is None or session is None or self._erased.has(connection, session)


def _by_type(records: Iterable[Record]) -> Mapping[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[type(record).__name__].append(record)
    return found


@cache
def _columns(name: str) -> tuple[str, ...]:
    return tuple(identity_of(schema_of(name)))


@cache
def _types(name: str) -> dict[str, pl.DataType]:
    types = empty_frame(name).schema
    return {column: types[column] for column in _columns(name)}


def _identities(name: str, records: Sequence[Record]) -> list[Any]:
    """The identity of each record: a value where its type has one column, else a tuple."""
    return list(map(attrgetter(*_columns(name)), records))


def _frame(name: str, identities: Sequence[Any]) -> pl.DataFrame:
    types = _types(name)
    columns = [identities] if len(types) == 1 else list(zip(*identities, strict=True))
    return pl.DataFrame(dict(zip(types, columns, strict=True)), schema=types)


@dataclass
class Decided:
    """The outcome of stages on records from outside: encoded records, and the states and positions of each stage."""

    position: int = 0
    """Position of the first record on the topic of exchanges."""
    made: Accepted = field(default_factory=Accepted)
    decisions: Decisions = field(default_factory=dict)
    states: dict[str, dict[str, bytes]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    """Nano-USD that the sessions of the tasks have spent, by session key, where they have spent anything."""
    scores: dict[Subject, Score] = field(default_factory=dict)
    """The scores of tasks that were scored, too."""

    def add(self, stage: str, outcome: StepOutcome, mark: int) -> None:
        """Add the outcome of a stage, which reads on at `mark`."""
        self.made.extend(encode_all(outcome.records))
        self.states[stage] = outcome.states
        self.marks[stage] = mark


class DirectIntake:
    """See the module. Belongs to the thread that commits. `scores`: no judge is asked, so scoring is done here, too."""

    def __init__(self, store: Store, ahead: WriteAheadLog, policy: Policy, seen: KnownIdentities, *, scores: bool) -> None:
        self._store = store
        self._ahead = ahead
        self._new = NewRecords(store, seen)
        self._intake = IntakeStep(policy)
        self._scoring = JudgingStep(SCORING, policy, nothing_recorded) if scores else None
        self._states: dict[str, dict[str, bytes | None]] = defaultdict(dict)
        """By stage and session key; None: the session has no state."""
        self._commits = -1

    def decide(self, outside: Outside, encoded: Sequence[bytes], scored: int) -> Decided | None:
        """Return what comes of records that go to the end of the log; None where the tables have to be asked first.

        `encoded` are those that intake reads, in their encoding; `scored` is the position of the task that scoring reads next.
        """
        if not self._new.are_new(self.cursor, outside):
            return None
        try:
            return self._decided(outside.get(INTAKE.source, ()), encoded, scored)
        except Exception:
            log.exception("a stage failed on records; they are taken by way of the tables, session by session")
            return None

    def end_of(self, topic: str) -> int:
        """The position of the next record on a topic."""
        return self._store.end_of(topic) + self._ahead.waiting[topic]

    def note(self, outside: Outside, decided: Decided) -> None:
        """Note what has become durable in the log."""
        for stage, states in decided.states.items():
            self._states[stage] |= states
        self._new.note(outside)

    def landed(self, before: int) -> None:
        """Note that everything landed in a transaction that began when the database had seen so many commits."""
        self._new.landed()
        # Where somebody else has committed since, the states are read again.
        self._commits = before + 1 if self._commits == before else -1
        for states in self._states.values():
            if len(states) > KNOWN_SESSIONS:
                states.clear()

    def forget_states(self) -> None:
        """Read all states again: the tables have others now. Nothing may wait to land."""
        self._states.clear()

    def spent(self, tasks: Sequence[ScoringTask]) -> dict[str, int]:
        """Nano-USD that the sessions of tasks have spent, by session key, where they have spent anything."""
        keys = list(dict.fromkeys(map(session_key, tasks)))
        states = stored_states(self.cursor, SCORING.name, keys) if keys else {}
        unlanded = self._ahead.states[SCORING.name]
        states |= {key: unlanded[key] for key in keys if key in unlanded}
        return _spent(states)

    @cached_property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor of the thread that commits."""
        return self._store.cursor()

    def _decided(self, records: Sequence[Record], encoded: Sequence[bytes], scored: int) -> Decided:
        decided, tasks = Decided(self.end_of(INTAKE.source)), self.end_of(SCORING.source)
        if not records:
            return decided
        keys = list(map(_session_of, records))
        rows = _placed(decided.position, keys, records, encoded)
        outcome = self._intake(rows, self._states_of(INTAKE.name, keys))
        decided.add(INTAKE.name, outcome, decided.position + len(records))
        decided.decisions = decisions_of(outcome.records)
        sampled = [record for _, record in outcome.records if isinstance(record, ScoringTask)]
        if self._scoring is None or scored != tasks or any(map(SCORING.may_be_known, sampled)):
            decided.spent = self.spent(sampled)
        elif sampled:
            self._score(self._scoring, sampled, tasks, decided)
        return decided

    def _score(self, scoring: JudgingStep, sampled: Sequence[ScoringTask], position: int, decided: Decided) -> None:
        """Score tasks that stand at a position; where one of them cannot be, they wait for what sets it aside."""
        keys = list(map(session_key, sampled))
        states = self._states_of(SCORING.name, keys)
        outcome = scoring(_placed(position, keys, sampled), states)
        if not outcome.failed:
            decided.add(SCORING.name, outcome, position + len(sampled))
            decided.scores = {(one.connection, one.exchange_id): one for _, one in outcome.records if isinstance(one, Score)}
        decided.spent = _spent(states)

    def _states_of(self, stage: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        commits = self._store.commits
        if commits != self._commits:
            self._states = defaultdict(dict, {name: dict(states) for name, states in self._ahead.states.items()})
            self._commits = commits
        known = self._states[stage]
        missing = list(dict.fromkeys(key for key in keys if key not in known))
        if missing:
            # What is read for one stage is asked for by the other next: a look through the table is what it costs.
            stages = [INTAKE.name, *([SCORING.name] if self._scoring else [])]
            for name, stored in states_of_stages(self.cursor, stages, missing).items():
                for key in missing:
                    self._states[name].setdefault(key, stored.get(key))
        return {key: state for key in keys if (state := known[key]) is not None}


def decisions_of(records: Sequence[tuple[str, Record]]) -> Decisions:
    """Return what intake decided on exchanges that came now: what is made of those that came earlier is no news of them."""
    return {
        (record.connection, record.exchange_id): record
        for _, record in records
        if isinstance(record, ScoringTask | Score) and not record.revision
    }


def _placed(position: int, keys: Sequence[str], records: Sequence[Record], encoded: Sequence[bytes] = ()) -> RecordBatch:
    """The records as a batch that begins at a position; `encoded` are their encodings, if they are there already."""
    rows = [(position + place, key, one) for place, (key, one) in enumerate(zip(keys, records, strict=True))]
    return RecordBatch(rows, encoded)


def _spent(states: Mapping[str, bytes]) -> dict[str, int]:
    return {key: STATE.decode(state).spent for key, state in states.items()}


def _session_of(record: Any) -> str:
    return named_session(record.connection, record.session_id)
