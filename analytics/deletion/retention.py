"""Retention: finds the rows of the log that are too old by event time, and the rows that belong to them.

The rules are in `README.md`. Hourly sums stay until `analytics.sums.daily.forget_hours`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from analytics.deletion.removing import remove
from analytics.deletion.retention_rules import (
    AT_ONCE,
    BY_AGE,
    CUTOFFS,
    DOOMED,
    GONE,
    LETTER_REVIEWS,
    OF_EXCHANGES,
    PLACES,
    PROJECTS,
    WITHOUT_EXCHANGE,
)
from analytics.store.connection import fetch
from analytics.store.positions import RETENTION
from analytics.store.store import Store
from schemas.codec.arrow import decode_batch
from schemas.lazy.duckdb import duckdb
from schemas.lazy.polars import pl

NOTHING_UNREAD = 2**62
"""Position that no topic reaches."""
FOR_EVER = datetime(1970, 1, 1, tzinfo=UTC)
"""Cutoff of what is kept for ever: no record is older."""
CUT = "retention"
"""Stage whose states name the sessions of which retention has deleted the first records."""
ONE_BY_ONE = 100
"""Up to so many projects are noted one by one: that is done in hundredths of a second, and loads no library for columns."""
SESSION_STAGES = (CUT, "intake", "scoring", "diagnosis", "evaluation")
"""Stages that keep a state of each session."""


@dataclass(frozen=True)
class Unread:
    """The positions from which on a topic is not read by its stage."""

    exchanges: int = NOTHING_UNREAD
    tasks: int = NOTHING_UNREAD
    events: int = NOTHING_UNREAD
    requests: int = NOTHING_UNREAD
    """Of evaluations."""


@dataclass
class Purged:
    """The deletions of a run: exchanges, their scores, each once whatever revisions there were, and rows by record type."""

    exchanges: int = 0
    scores: int = 0
    rows: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Cutoffs:
    """From when on records are kept, by project, and for what belongs to no project; times are UTC."""

    of: Callable[[str], datetime]
    otherwise: datetime
    spans: datetime
    """From when on spans are kept, by the time of their intake."""


class Retention:
    """One run over a store. `unread` is None where no stage of this database reads its topics: then there are no states either."""

    def __init__(self, store: Store, cutoffs: Cutoffs, unread: Unread | None) -> None:
        self._store = store
        self._cutoffs = cutoffs
        self._has_states = unread is not None
        self._unread = unread or Unread()
        self._purged = Purged()

    def run(self) -> Purged:
        """Delete what is too old."""
        with contextlib.closing(self._store.cursor()) as cursor:
            by_project = self._cutoffs_of_projects(cursor)
            self._note(by_project)
            while self._with_exchanges(cursor):
                pass
            values = {
                "events": self._unread.events,
                "requests": self._unread.requests,
                "otherwise": self._cutoffs.otherwise,
                "spans": self._cutoffs.spans,
            }
            for name, statement in [*BY_AGE.items(), ("Review", LETTER_REVIEWS)]:
                while self._delete(cursor, name, f"{statement} LIMIT {AT_ONCE}", values) == AT_ONCE:
                    pass
            for name, table, unread in (
                ("ScoringTask", "scoring_tasks", self._unread.tasks),
                ("JudgingRequest", "judging_requests", self._unread.exchanges),
            ):
                statement = WITHOUT_EXCHANGE.format(table=table, places=PLACES)
                if _finds(cursor, statement, {"unread": unread}):
                    self._remove(name, _too_old(fetch(cursor, statement, {"unread": unread}), by_project))
            if self._has_states:
                self._forget_sessions(cursor)
        return self._purged

    def _cutoffs_of_projects(self, cursor: duckdb.DuckDBPyConnection) -> dict[str, datetime]:
        """The cutoff of each project that has anything; the cursor has them as the table cutoffs."""
        names = [name for (name,) in cursor.execute(PROJECTS).fetchall()]
        by_project = {name: self._cutoffs.of(name) for name in names}
        values = {"projects": names, "cutoffs": [by_project[name].replace(tzinfo=None) for name in names]}
        cursor.execute(CUTOFFS, values)
        return by_project

    def _note(self, by_project: Mapping[str, datetime]) -> None:
        """Note from when on each project's history is whole."""
        with self._store.transaction() as transaction:
            before = transaction.watermarks(RETENTION)
            starts = {(name, 0): _microseconds(cutoff) for name, cutoff in by_project.items() if cutoff > FOR_EVER}
            moved = {one: at for one, at in starts.items() if at > before.get(one, 0)}
            for part in [{one: at} for one, at in moved.items()] if len(moved) <= ONE_BY_ONE else [moved]:
                transaction.set_watermarks(RETENTION, part)

    def _with_exchanges(self, cursor: duckdb.DuckDBPyConnection) -> bool:
        """Delete the oldest exchanges with all that belongs to them; answers whether there may be more."""
        positions = {"tasks": self._unread.tasks, "exchanges": self._unread.exchanges}
        cursor.begin()
        try:
            cursor.execute(DOOMED, positions)
            if not _finds(cursor, "FROM doomed"):
                return False
            found = {name: fetch(cursor, statement) for name, statement in OF_EXCHANGES.items()}
        finally:
            cursor.commit()
        for name, frame in found.items():
            self._remove(name, frame)
        return found["Exchange"].height == AT_ONCE

    def _delete(self, cursor: duckdb.DuckDBPyConnection, name: str, statement: str, values: Mapping[str, Any]) -> int:
        used = {key: value for key, value in values.items() if f"${key}" in statement}
        return self._remove(name, fetch(cursor, statement, used)) if _finds(cursor, statement, used) else 0

    def _remove(self, name: str, rows: pl.DataFrame) -> int:
        """Delete rows of a record type; a session that loses records is noted before."""
        if self._has_states and "session_id" in rows.columns and rows.height:
            keys = rows.select(pl.concat_str("connection", pl.lit("/"), "session_id")).to_series().unique().to_list()
            with self._store.transaction() as transaction:
                transaction.set_states(CUT, dict.fromkeys(keys, b""), 0)
        removed = remove(self._store, name, rows)
        self._purged.rows[name] += removed
        self._purged.exchanges += rows.n_unique(["connection", "exchange_id"]) if name == "Exchange" and rows.height else 0
        self._purged.scores += rows["score_id"].n_unique() if name == "Score" else 0
        return rows.height

    def _forget_sessions(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete the states of sessions without any record left."""
        ends = {topic: self._store.end_of(topic) for topic in ("exchanges", "agent-events")}
        keys = {key for (key,) in cursor.execute(GONE, {"cut": CUT}).fetchall()}
        if not keys:
            return
        with self._store.transaction() as transaction:
            for topic, end in ends.items():
                # Whoever has come back meanwhile goes on where it was.
                for frame in self._store.read(topic, end, transaction.end_of(topic) - end).values():
                    keys -= set(frame.select(pl.concat_str("connection", pl.lit("/"), "session_id")).to_series())
            transaction.drop_states(sorted(keys), SESSION_STAGES)


def _finds(cursor: duckdb.DuckDBPyConnection, statement: str, values: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a statement finds anything: on most days there is nothing to delete, and no frame is made."""
    return bool(cursor.execute(f"SELECT EXISTS ({statement})", dict(values or {})).fetchall()[0][0])


def _too_old(left: pl.DataFrame, by_project: Mapping[str, datetime]) -> pl.DataFrame:
    """Those of the rows whose encoded exchange happened before its project's cutoff."""
    batch = decode_batch(left["exchange"].to_list())
    exchanges = batch.frames.get("Exchange", pl.DataFrame())
    old = [
        place
        for place, project, at in exchanges.select("_index", "project", "occurred_at").iter_rows()
        if at < by_project.get(project, FOR_EVER)
    ]
    return left[old]


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000
