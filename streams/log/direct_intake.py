"""Direct intake: exchanges that are certainly new are decided on in memory, for the write-ahead log.

1. An exchange is certainly new when neither the tables nor the log can have its identity, and it comes once in its group. For all others
   the tables are asked, which takes a transaction.
2. Intake works on states in memory. They are read from the tables when a session comes, and read again when anything else has changed
   the database meanwhile; those of exchanges that have not landed are in the log's entries.
3. What is answered is what lands: the log has the decision, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import duckdb
import polars as pl

from analytics.deletion.erased import ERASURES
from analytics.identity.identity_index import KnownIdentities
from analytics.store.stage_states import stored_states
from analytics.store.store import Store
from audit.policy.policy import Policy
from schemas.records import Exchange, Record, Score, ScoringTask
from schemas.registry import schema_of
from streams.engine.stage_runs import StageOutcome
from streams.log.admission import encode_all
from streams.log.landing import INTAKE
from streams.log.write_ahead import WriteAheadLog
from streams.stage_batches import RecordBatch, session_key
from streams.steps.intake import IntakeStep
from streams.upkeep.erased_now import ErasedNow

if TYPE_CHECKING:
    from streams.judging.recorded_judgements import Subject

KNOWN_SESSIONS = 100_000
"""Sessions whose state is kept in memory; that of others is read again when they come back."""
log = logging.getLogger(__name__)
Decisions = dict["Subject", ScoringTask | Score]


class DirectIntake:
    """See the module. Belongs to the thread that commits."""

    def __init__(self, store: Store, ahead: WriteAheadLog, policy: Policy, seen: KnownIdentities) -> None:
        self._store = store
        self._ahead = ahead
        self._seen = seen
        self._step = IntakeStep(policy)
        self._erased = ErasedNow(store)
        self._states: dict[str, bytes | None] = {}
        """By session key; None: the session has no state."""
        self._unlanded: set[Subject] = set()
        self._commits = -1

    def decide(self, exchanges: Sequence[Exchange]) -> StageOutcome | None:
        """Return what intake makes of exchanges that go to the end of the log; None where the tables have to be asked first."""
        if not self._are_new(exchanges):
            return None
        keys = list(map(session_key, exchanges))
        states = self._states_of(keys)
        position = self.position
        rows = [(position + place, key, one) for place, (key, one) in enumerate(zip(keys, exchanges, strict=True))]
        try:
            outcome = self._step(RecordBatch(rows), states)
            return StageOutcome(encode_all(outcome.records), outcome.states, records=outcome.records)
        except Exception:
            log.exception("intake failed on exchanges; they are taken by way of the tables, session by session")
            return None

    @property
    def position(self) -> int:
        """The position of the next exchange on its topic."""
        return self._store.end_of(INTAKE.source) + self._ahead.waiting[INTAKE.source]

    def note(self, exchanges: Sequence[Exchange], outcome: StageOutcome) -> None:
        """Note what has become durable in the log."""
        self._states |= outcome.states
        self._unlanded.update(map(_identity, exchanges))

    def landed(self, before: int) -> None:
        """Note that everything landed in a transaction that began when the database had seen so many commits."""
        self._unlanded.clear()
        # Where somebody else has committed since, the states are read again.
        self._commits = before + 1 if self._commits == before else -1
        if len(self._states) > KNOWN_SESSIONS:
            self._states.clear()

    def forget_states(self) -> None:
        """Read all states again: the tables have others now. Nothing may wait to land."""
        self._states.clear()

    @cached_property
    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor of the thread that commits."""
        return self._store.cursor()

    def _are_new(self, exchanges: Sequence[Exchange]) -> bool:
        identities = set(map(_identity, exchanges))
        if len(identities) < len(exchanges) or not self._unlanded.isdisjoint(identities):
            return False
        if self._store.end_of(ERASURES) and any(self._erased.has(one.connection, one.session_id) for one in exchanges):
            return False
        self._seen.read(self.cursor, INTAKE.source, self._store.end_of(INTAKE.source))
        frame = pl.DataFrame(
            {"connection": [one.connection for one in exchanges], "exchange_id": [one.exchange_id for one in exchanges]}
        )
        return self._seen.doubtful(schema_of("Exchange"), INTAKE.source, frame).is_empty()

    def _states_of(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        commits = self._store.commits
        if commits != self._commits:
            self._states = dict(self._ahead.states[INTAKE.name])
            self._commits = commits
        missing = list(dict.fromkeys(key for key in keys if key not in self._states))
        if missing:
            self._states |= dict.fromkeys(missing) | stored_states(self.cursor, INTAKE.name, missing)
        return {key: state for key in keys if (state := self._states[key]) is not None}


def decisions_of(records: Sequence[tuple[str, Record]]) -> Decisions:
    """Return what intake decided on exchanges that came now: what is made of those that came earlier is no news of them."""
    return {
        (record.connection, record.exchange_id): record
        for _, record in records
        if isinstance(record, ScoringTask | Score) and not record.revision
    }


def _identity(exchange: Exchange) -> Subject:
    return exchange.connection, exchange.exchange_id
