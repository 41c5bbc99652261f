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
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analytics.deletion.erased import ERASURES
from analytics.identity.identity_index import Identity, KnownIdentities, identities_of
from analytics.store.stage_states import KnownSessions, states_of_stages
from analytics.store.store import Store
from audit.policy.policy import Policy
from schemas.lazy.duckdb import duckdb
from schemas.records import Exchange, Record, Score, ScoringTask
from streams.judging.judged_stages import SCORING, JudgingStep
from streams.judging.judged_state import STATE
from streams.judging.recorded_judgements import nothing_recorded
from streams.log.admission import Accepted, Outside, encode_all
from streams.log.write_ahead import INTAKE, WriteAheadLog
from streams.stage_batches import RecordBatch, StepOutcome, named_session, session_key
from streams.steps.intake import IntakeStep
from streams.upkeep.erased_now import ErasedNow

if TYPE_CHECKING:
    from streams.judging.recorded_judgements import Subject

STAGES = (INTAKE.name, SCORING.name)
"""The stages whose states are kept in memory."""
KNOWN_SESSIONS = 100_000
"""Sessions whose state is kept in memory; that of others is read again when they come back."""
log = logging.getLogger(__name__)
Decisions = dict["Subject", ScoringTask | Score]


class NewRecords:
    """See the module. Belongs to one thread at a time; `seen` follows the tables."""

    def __init__(self, store: Store, seen: KnownIdentities) -> None:
        self._store = store
        self._seen = seen
        self._erased = ErasedNow(store)
        self._unlanded: dict[tuple[str, str], dict[Identity, int]] = defaultdict(dict)
        """The entry of what is in the log alone by identity, by topic and type."""

    def are_at_hand(self, outside: Outside) -> bool:
        """Tell whether `are_new` needs to read no table."""
        return self._erased.is_read and all(self._seen.has_read(topic, self._store.end_of(topic)) for topic in outside)

    def are_new(self, cursor: duckdb.DuckDBPyConnection, outside: Outside) -> bool:
        """Tell whether all of the records are certainly new; `cursor` reads the identities that others have written to the tables."""
        return all(
            self._are_new(cursor, topic, name, of_type)
            for topic, records in outside.items()
            for name, of_type in _by_type(records).items()
        )

    def note(self, outside: Outside, number: int) -> None:
        """Note what has become durable in the log, in the entry of this number."""
        for topic, records in outside.items():
            for name, of_type in _by_type(records).items():
                self._unlanded[topic, name].update(dict.fromkeys(identities_of(name, of_type), number))

    def landed(self, end: int) -> None:
        """Note that the entries before this number have landed: the tables tell of them."""
        for kind, entries in self._unlanded.items():
            self._unlanded[kind] = {identity: number for identity, number in entries.items() if number >= end}

    def _are_new(self, cursor: duckdb.DuckDBPyConnection, topic: str, name: str, records: Sequence[Record]) -> bool:
        identities = identities_of(name, records)
        if len(set(identities)) < len(identities) or not self._unlanded[topic, name].keys().isdisjoint(identities):
            return False
        if self._store.end_of(ERASURES) and any(map(self._may_be_erased, records)):
            return False
        self._seen.read(cursor, topic, self._store.end_of(topic))
        return self._seen.are_new(name, topic, identities)

    def _may_be_erased(self, record: Record) -> bool:
        """Whether the record's session is erased; what belongs to no session, the tables tell."""
        connection, session = getattr(record, "connection", None), getattr(record, "session_id", None)
        return connection is None or session is None or self._erased.has(connection, session)


def _by_type(records: Iterable[Record]) -> Mapping[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[type(record).__name__].append(record)
    return found


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
    """See the module. Belongs to one thread at a time. `scores`: no judge is asked, so scoring is done here, too."""

    def __init__(self, store: Store, ahead: WriteAheadLog, policy: Policy, seen: KnownIdentities, *, scores: bool) -> None:
        self._store = store
        self._ahead = ahead
        self._new = NewRecords(store, seen)
        self._intake = IntakeStep(policy)
        self._scoring = JudgingStep(SCORING, policy, nothing_recorded) if scores else None
        self._states: dict[str, dict[str, bytes | None]] = {stage: {} for stage in STAGES}
        """By stage and session key; None: the session has no state."""
        self._sessions = KnownSessions(STAGES)
        self._changes = self._rebuilds = -1

    def is_at_hand(self, outside: Outside) -> bool:
        """Tell whether `decide` needs to read no table."""
        if self.changes != self._changes or not self._new.are_at_hand(outside):
            return False
        keys = dict.fromkeys(map(_session_of, outside.get(INTAKE.source, ())))
        missing = [key for key in keys if any(key not in known for known in self._states.values())]
        return len(self._sessions.unknown(missing)) == len(missing)

    @property
    def changes(self) -> int:
        """How often anybody has changed the states of the stages in the tables."""
        return self._store.state_changes(STAGES)

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

    def note(self, outside: Outside, states: Mapping[str, Mapping[str, bytes]], number: int = 0) -> None:
        """Note what has become durable: states, and records in the log's entry of this number."""
        for stage in STAGES:
            changed, known = states.get(stage, {}), self._states[stage]
            self._sessions.add([key for key in changed if known.get(key) is None])
            known |= changed
        self._new.note(outside, number)

    def landed(self, end: int, before: int, changes: int) -> None:
        """Note that the entries before the number `end` have landed, and how often states had changed before, and in that transaction."""
        self._new.landed(end)
        # Where somebody else has changed them since, the states are read again.
        self._changes = before + changes if self._changes == before else -1
        if len(self._states[INTAKE.name]) > KNOWN_SESSIONS:
            self._forget_states()

    def reread(self) -> None:
        """Read states again: the tables have others than were decided on."""
        self._changes = -1

    @cached_property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor to read the tables with."""
        return self._store.cursor()

    def _decided(self, records: Sequence[Record], encoded: Sequence[bytes], scored: int) -> Decided:
        decided, tasks = Decided(self.end_of(INTAKE.source)), self.end_of(SCORING.source)
        if not records:
            return decided
        keys = list(map(_session_of, records))
        rows = _placed(decided.position, keys, records)
        outcome = self._intake(RecordBatch(rows, encoded), self._states_of(INTAKE.name, keys))
        decided.add(INTAKE.name, outcome, decided.position + len(records))
        decided.decisions = decisions_of(outcome.records)
        sampled = [record for _, record in outcome.records if isinstance(record, ScoringTask)]
        if self._scoring is None or scored != tasks or any(map(SCORING.may_be_known, sampled)):
            decided.spent = _spent(self._states_of(SCORING.name, list(map(session_key, sampled))))
        elif sampled:
            exchanges = {message: one for message, one in zip(encoded, records, strict=True) if isinstance(one, Exchange)}
            batch = RecordBatch(_placed(tasks, list(map(session_key, sampled)), sampled), decoded=exchanges)
            self._score(self._scoring, batch, tasks + len(sampled), decided)
        return decided

    def _score(self, scoring: JudgingStep, tasks: RecordBatch, end: int, decided: Decided) -> None:
        """Score tasks that end at a position; where one of them cannot be, they wait for what sets it aside."""
        states = self._states_of(SCORING.name, [key for _, key, _ in tasks.rows])
        outcome = scoring(tasks, states)
        if not outcome.failed:
            decided.add(SCORING.name, outcome, end)
            decided.scores = {(one.connection, one.exchange_id): one for _, one in outcome.records if isinstance(one, Score)}
        decided.spent = _spent(states)

    def _states_of(self, stage: str, keys: Sequence[str]) -> Mapping[str, bytes]:
        if self.changes != self._changes:
            self._refresh()
        known = self._states[stage]
        missing = list(dict.fromkeys(key for key in keys if key not in known))
        if missing:
            new = self._sessions.unknown(missing)
            stored = (
                states_of_stages(self.cursor, STAGES, list(set(missing).difference(new))) if len(new) < len(missing) else {}
            )
            # What is read for one stage is asked for by the other next: a look through the table is what it costs.
            for name, states in self._states.items():
                for key in missing:
                    states.setdefault(key, stored.get(name, {}).get(key))
        return {key: state for key in keys if (state := known[key]) is not None}

    def _refresh(self) -> None:
        """Read anew which sessions have a state; of the states themselves only those that have not landed are known."""
        rebuilds, self._changes = self._store.state_changes(()), self.changes
        if rebuilds != self._rebuilds:
            self._sessions, self._rebuilds = KnownSessions(STAGES), rebuilds
        self._sessions.read(self.cursor)
        self._forget_states()

    def _forget_states(self) -> None:
        """Forget the states that the tables have."""
        self._states = {stage: dict(self._ahead.states.get(stage, {})) for stage in STAGES}


def decisions_of(records: Sequence[tuple[str, Record]]) -> Decisions:
    """Return what intake decided on exchanges that came now: what is made of those that came earlier is no news of them."""
    return {
        (record.connection, record.exchange_id): record
        for _, record in records
        if isinstance(record, ScoringTask | Score) and not record.revision
    }


def _placed(position: int, keys: Sequence[str], records: Sequence[Record]) -> list[tuple[int, str, Record]]:
    """The rows of a batch that begins at a position."""
    return [(position + place, key, one) for place, (key, one) in enumerate(zip(keys, records, strict=True))]


def _spent(states: Mapping[str, bytes]) -> dict[str, int]:
    return {key: STATE.decode(state).spent for key, state in states.items()}


def _session_of(record: Any) -> str:
    return named_session(record.connection, record.session_id)
