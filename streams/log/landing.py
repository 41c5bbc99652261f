"""Landing: entries of a write-ahead log become rows, with the states of intake and the number of the next entry, in one transaction."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from analytics.deletion.erased import ERASURES, erased_in
from analytics.identity.identity_index import KnownIdentities
from analytics.store.inserting import PARTITION
from analytics.store.positions import AHEAD, watermarks_of
from analytics.store.store import Appended, Store, Transaction
from schemas.codec.arrow import INDEX
from schemas.records import Record
from streams.engine.embedded import EmbeddedRunner
from streams.judging.judged_stages import JUDGED
from streams.log.write_ahead import Entry, WriteAheadLog
from streams.stage_batches import StageBatch
from streams.topology import stage_named

INTAKE = stage_named("intake")
SOURCES = {INTAKE.name: INTAKE.source} | {stage.name: stage.source for stage in JUDGED}
"""Topics that stages read whose work goes through a write-ahead log."""


def land(
    transaction: Transaction, ahead: WriteAheadLog, runner: EmbeddedRunner, seen: KnownIdentities | None = None
) -> dict[str, Appended]:
    """Write what the log holds to the tables within a transaction; once that is committed, the log may `forget` it.

    Returns what was written of the records from outside, by topic.

    Where the database was asked to erase something since, or its topic ends elsewhere than it did, intake decides again, and the stages
    after it come later: records that are left out move those after them.
    """
    # A commit can fail and yet be durable: the database says what it has.
    entries = ahead.held(transaction.watermark(AHEAD, ""))
    if not entries:
        return {}
    asked, end = transaction.end_of(ERASURES), transaction.end_of(INTAKE.source)
    exchanges = [message for entry in entries for message in entry.exchanges]
    as_decided = entries[0].position == end and all(entry.erasures == asked for entry in entries)
    appended = transaction.append(INTAKE.source, exchanges, skip_known=not as_decided, seen=seen)
    if not as_decided:
        entries = [_undecided(transaction, entry) for entry in entries]
        decide(transaction, runner, appended)
    others = keep(transaction, entries, seen)
    transaction.set_watermark(AHEAD, "", ahead.next)
    return others | {INTAKE.source: appended}


def keep(transaction: Transaction, entries: Sequence[Entry], seen: KnownIdentities | None = None) -> dict[str, Appended]:
    """Write what stages made, their states, and each one's watermark: the farthest of the entries', never back.

    Returns what was written of the entries' other records, by topic.
    """
    made: dict[str, list[bytes]] = defaultdict(list)
    others: dict[str, list[bytes]] = defaultdict(list)
    states: dict[str, dict[str, bytes]] = defaultdict(dict)
    marks: dict[str, int] = defaultdict(int)
    for entry in entries:
        for topic, messages in (*entry.decided.items(), *entry.made.items()):
            made[topic] += messages
        for topic, messages in entry.others.items():
            others[topic] += messages
        for stage, changed in (*entry.states.items(), *entry.decided_states.items()):
            states[stage] |= changed
        for stage, mark in (*entry.marks.items(), *entry.decided_marks.items()):
            marks[stage] = max(marks[stage], mark)
    for topic, messages in made.items():
        transaction.append(topic, messages)
    appended = {topic: transaction.append(topic, messages, skip_known=True, seen=seen) for topic, messages in others.items()}
    for stage, changed in states.items():
        transaction.set_states(stage, changed, marks[stage])
    for stage, mark in marks.items():
        source = SOURCES[stage]
        transaction.set_watermark(stage, source, max(mark, transaction.watermark(stage, source)))
    return appended


def decide(transaction: Transaction, runner: EmbeddedRunner, appended: Appended) -> Sequence[tuple[str, Record]]:
    """Let intake decide on what was just appended to its topic, in the same transaction; return the records that it made."""
    if not appended.frames:
        return ()
    frames = {name: frame.drop(INDEX) for name, frame in appended.frames.items()}
    end = 1 + max(int(frame["_offset"][-1]) for frame in frames.values())
    return runner.process(transaction, INTAKE, StageBatch.of(INTAKE.source, frames), end).records


def recover(store: Store, ahead: WriteAheadLog, runner: EmbeddedRunner) -> int:
    """Land what an earlier process left in the log; return how many records those were. StoreError as `WriteAheadLog.recover`."""
    with store.transaction() as transaction:
        ahead.recover(transaction.watermark(AHEAD, ""))
        left = ahead.waiting.total()
        land(transaction, ahead, runner)
    ahead.forget()
    return left


def recover_closed(store: Store, runner: EmbeddedRunner) -> int:
    """Land what a process that was killed left beside the database, for a command that takes no exchanges in."""
    if store.path is None:
        return 0
    ahead = WriteAheadLog(store.path)
    try:
        return recover(store, ahead, runner)
    finally:
        ahead.close()


def waiting_in(store: Store) -> int:
    """How many records a process that was killed left beside the database; nothing is landed. StoreError as `WriteAheadLog.recover`."""
    if store.path is None:
        return 0
    with contextlib.closing(store.cursor()) as cursor:
        landed = watermarks_of(cursor, AHEAD).get(("", PARTITION), 0)
    ahead = WriteAheadLog(store.path)
    try:
        ahead.recover(landed)
        return ahead.waiting.total()
    finally:
        ahead.close()


def _undecided(transaction: Transaction, entry: Entry) -> Entry:
    """Return the entry without what intake reads, without what was decided, and without states of sessions that were erased meanwhile."""
    erased = erased_in(transaction.connection)
    states = {
        stage: {key: state for key, state in of_stage.items() if not erased.has(*key.split("/", 1))}
        for stage, of_stage in entry.states.items()
    }
    return msgspec.structs.replace(entry, exchanges=[], decided={}, decided_states={}, decided_marks={}, states=states)
