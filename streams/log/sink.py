"""The sink of the local log: commits become rows, with the states and positions of the stages, in one transaction."""

from __future__ import annotations

import contextlib
from collections import defaultdict

from analytics.store.inserting import PARTITION
from analytics.store.positions import AHEAD, watermarks_of
from analytics.store.store import Store
from streams.log.local_log import LocalLog, LogFolder, Pending
from streams.log.ownership import log_folder
from streams.stage_progress import SOURCES


def local_log(store: Store) -> LocalLog:
    """The log beside a database, as far as it was before: `recover` takes up what an earlier process left."""
    return LocalLog(None if store.path is None else LogFolder(log_folder(store.path)), store.end_of)


def flush(store: Store, pending: Pending, *, are_own: bool = True) -> None:
    """Write commits to the tables; the log may `trim` them then. `are_own` as of `Transaction.append_at`.

    Those that the tables have already are left out by their numbers: a commit of DuckDB can fail and yet be durable.
    """
    with store.transaction() as transaction:
        commits = pending.since(transaction.watermark(AHEAD, ""))
        if not commits:
            return
        records: dict[str, list[bytes]] = defaultdict(list)
        offsets: dict[str, int] = {}
        states: dict[str, dict[str, bytes]] = defaultdict(dict)
        positions: dict[str, int] = {}
        for commit in commits:
            for topic, messages in commit.records.items():
                offsets.setdefault(topic, commit.offsets[topic])
                records[topic] += messages
            for stage, changed in commit.states.items():
                states[stage] |= changed
            for stage, position in commit.positions.items():
                positions[stage] = max(position, positions.get(stage, 0))
        for topic, messages in records.items():
            transaction.append_at(topic, offsets[topic], messages, are_own=are_own)
        transaction.set_states_of_stages(states, positions)
        for stage, position in positions.items():
            transaction.set_watermark(stage, SOURCES[stage], max(position, transaction.watermark(stage, SOURCES[stage])))
        transaction.set_watermark(AHEAD, "", pending.end)


def recover(store: Store, log: LocalLog) -> int:
    """Flush what an earlier process left in the log; answers how many records. StoreError as `LocalLog.recover`."""
    log.recover(_next_number(store))
    pending, count = log.pending, log.waiting.total()
    # That process may have had other schemas.
    flush(store, pending, are_own=False)
    log.trim(pending.end)
    return count


def recover_closed(store: Store) -> int:
    """`recover` for a command that takes no records: what a killed process left beside the database."""
    with contextlib.closing(local_log(store)) as log:
        return recover(store, log)


def waiting_in(store: Store) -> int:
    """How many records a killed process left beside the database; none is flushed. StoreError as `LocalLog.recover`."""
    with contextlib.closing(local_log(store)) as log:
        log.recover(_next_number(store))
        return log.waiting.total()


def _next_number(store: Store) -> int:
    """The number of the commit that the database flushes next."""
    with contextlib.closing(store.cursor()) as cursor:
        return watermarks_of(cursor, AHEAD).get(("", PARTITION), 0)
