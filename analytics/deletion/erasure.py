# ruff: noqa: S608 - statements are built from the names in the schemas, quoted; values are always parameters
"""Erasing sessions and connections from a log, by rules 9 to 13 of `README.md`: their own rows, and mentions of them in other rows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from analytics.deletion.deleting import Erased, schemas_of_sessions
from analytics.deletion.retention import remove, remove_scores
from analytics.store.connection import fetch
from analytics.store.inserting import BATCH, registered
from analytics.store.positions import COMPACTION, PLACE
from analytics.store.store import Store
from analytics.store.tables import full_name
from analytics.sums.list_sums import outline_again
from audit.anchors import ANCHORS
from audit.fingerprints import canonical_json
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.lazy import duckdb, pl
from schemas.registry import schema_of

ERASED = {"erased": True}
"""The mark that replaces an exchange in an incident's evidence."""
TELLING = 8
"""Minimum length of a session id whose occurrence in unreadable bytes, or in a path, cannot be chance."""
MOST = 10_000
"""Maximum number of session ids searched for in such bytes and paths."""
READ_AT_ONCE = 1_000
"""Incidents whose evidence is in memory together: some ten kilobytes each, in every revision."""
_P = ", ".join(PLACE)
_THEIRS = (
    "(connection IN (SELECT connection FROM erased WHERE session_id IS NULL) "
    "OR (connection, session_id) IN (SELECT (connection, session_id) FROM erased WHERE session_id IS NOT NULL))"
)
_JUDGED = (
    f"SELECT score_id AS subject_id FROM log.scores WHERE {_THEIRS} "
    f"UNION ALL SELECT evaluation_id FROM log.evaluations WHERE {_THEIRS}"
)
_REVIEWS = f"SELECT {_P} FROM log.reviews SEMI JOIN ({_JUDGED}) USING (subject_id)"
_COPIES = {
    "ScoringTask": "exchange_id",
    "JudgingRequest": "exchange_id",
    "Reservation": "subject_id",
    "Judgement": "subject_id",
    "Score": "exchange_id",
    "Exchange": "exchange_id",
}
"""The records of a copy of an anchor's exchange, and the column with the copy's id: the anchor's, an at sign and the round."""
_OF_ANCHORS = "list_contains($ids, split_part({}, '@', 1))"
_LAST = ("Reservation", "Judgement", "Score", "Exchange")
"""The records of a session that are deleted after all others, in this order."""
_SPANS = (
    f"SELECT {_P} FROM log.spans WHERE {_THEIRS} OR (session_id = trace_id AND (connection, trace_id) IN ("
    f"SELECT (connection, trace_id) FROM log.spans WHERE {_THEIRS} "
    f"UNION SELECT (connection, trace_id) FROM log.trace_assemblies WHERE {_THEIRS}))"
)
"""Spans of erased sessions, and spans of their traces that name no session and so have the trace's id as session id."""
_STATES = (
    "DELETE FROM log.stage_state WHERE key IN (SELECT connection || '/' || session_id FROM gone) "
    "OR split_part(key, '/', 1) IN (SELECT connection FROM gone WHERE session_id IS NULL)"
)
_FILES = "DELETE FROM log.import_progress WHERE EXISTS (SELECT 1 FROM (SELECT unnest($ids) AS id) WHERE contains(path, id))"
_IDS = (
    f"SELECT session_id FROM log.exchanges WHERE {_THEIRS} UNION SELECT session_id FROM log.agent_events WHERE {_THEIRS} "
    "UNION SELECT session_id FROM erased WHERE session_id IS NOT NULL LIMIT $most"
)


class Erasing:
    """One erasure run over a store."""

    def __init__(self, store: Store, erased: Erased) -> None:
        self._store = store
        self._erased = erased
        self._deleted: Counter[str] = Counter()
        self._ids: list[str] = []
        self._is_marked = False

    def run(self) -> Counter[str]:
        """Erase; return the number of rows deleted or redacted, by table."""
        with contextlib.closing(self._store.cursor()) as cursor:
            with registered(cursor, self._erased.frame()):
                cursor.execute(f"CREATE OR REPLACE TEMP TABLE erased AS SELECT * FROM {BATCH}")
            ids = cursor.execute(_IDS, {"most": MOST}).fetchall()
            self._ids = [session for (session,) in ids if len(session) >= TELLING]
            self._blacken_incidents(cursor)
            self._drop_alerts(cursor)
            self._remove_anchors(cursor)
            self._remove_letters(cursor)
            self._remove("Review", fetch(cursor, _REVIEWS))
            self._remove("Span", fetch(cursor, _SPANS))
            names = [schema.name for schema in schemas_of_sessions()]
            for name in [*(name for name in names if name not in _LAST), *_LAST]:
                days = ", project, exchange_at" if name == "Score" else ""
                statement = f"SELECT {_P}{days} FROM {full_name(schema_of(name))} WHERE {_THEIRS}"
                self._remove(name, fetch(cursor, statement))
        self._forget_states()
        self._store.checkpoint()
        return self._deleted

    def _must_be_compacted(self) -> None:
        """Mark the file for compaction before anything is deleted, because free space will hold the data. A run that finds nothing sets no mark."""
        if not self._is_marked:
            with self._store.transaction() as transaction:
                transaction.set_watermark(COMPACTION, "", 1)
            self._is_marked = True

    def _remove(self, name: str, places: pl.DataFrame) -> None:
        if places.height:
            self._must_be_compacted()
        removed = remove_scores(self._store, places) if name == "Score" else remove(self._store, name, places)
        self._deleted[schema_of(name).table] += removed

    def _blacken_incidents(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Redact the erased sessions in the evidence of incidents, in every revision."""
        incidents = cursor.execute(f"SELECT {_P}, metadata FROM log.incidents")
        while part := incidents.fetchmany(READ_AT_ONCE):
            for *position, metadata in part:
                before = _json(metadata.encode())
                after = _blackened(before, self._erased)
                if after != before:
                    self._rewrite_incident(position, after)

    def _rewrite_incident(self, position: Sequence[object], evidence: Any) -> None:
        self._must_be_compacted()
        with self._store.transaction() as transaction:
            transaction.connection.execute(
                "UPDATE log.incidents SET metadata = ? WHERE _topic = ? AND _partition = ? AND _offset = ?",
                [canonical_json(evidence), *position],
            )
            outline_again(transaction.connection, position)
        self._deleted["incidents"] += 1

    def _drop_alerts(self, cursor: duckdb.DuckDBPyConnection) -> None:
        rows = cursor.execute("SELECT alert_id, subject_id, body FROM log.alerts").fetchall()
        theirs = [alert for alert, subject, body in rows if self._is_named(subject) or self._is_theirs(body.encode())]
        if theirs:
            self._must_be_compacted()
            with self._store.transaction() as transaction:
                transaction.connection.execute("DELETE FROM log.alerts WHERE alert_id IN (SELECT unnest(?))", [theirs])
            self._deleted["alerts"] += len(theirs)

    def _remove_anchors(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete the anchors made from erased exchanges; first their copies in every round, with the scores and judgements of those copies."""
        rows = fetch(cursor, f"SELECT {_P}, anchor_id, exchange FROM log.anchors")
        theirs = rows.filter(pl.Series([self._is_theirs(body) for body in rows["exchange"]], dtype=pl.Boolean))
        if theirs.height:
            for name, column in _COPIES.items():
                days = ", project, exchange_at" if name == "Score" else ""
                statement = f"SELECT {_P}{days} FROM {full_name(schema_of(name))} WHERE connection = $anchors AND {_OF_ANCHORS.format(column)}"
                self._remove(name, fetch(cursor, statement, {"anchors": ANCHORS, "ids": theirs["anchor_id"].to_list()}))
            self._remove("Anchor", theirs)

    def _remove_letters(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Delete dead letters whose bytes hold erased records, and people's decisions about those letters."""
        rows = fetch(cursor, f"SELECT {_P}, dead_letter_id, source, body, detail FROM log.dead_letters")
        theirs = rows.filter(
            pl.Series(
                [
                    self._is_theirs(body) or self._is_named(source) or self._stands_in(detail.encode())
                    for source, body, detail in rows.select("source", "body", "detail").iter_rows()
                ],
                dtype=pl.Boolean,
            )
        )
        with registered(cursor, theirs.select("dead_letter_id")):
            self._remove(
                "Review", fetch(cursor, f"SELECT {_P} FROM log.reviews SEMI JOIN {BATCH} ON subject_id = dead_letter_id")
            )
        self._remove("DeadLetter", theirs)

    def _forget_states(self) -> None:
        """Delete their stage states and the import progress of their files."""
        with self._store.transaction() as transaction, registered(transaction.connection, self._erased.frame()):
            transaction.connection.execute(f"CREATE OR REPLACE TEMP TABLE gone AS SELECT * FROM {BATCH}")
            for table, statement, values in (("stage_state", _STATES, {}), ("import_progress", _FILES, {"ids": self._ids})):
                ((deleted,),) = transaction.connection.execute(statement, values).fetchall()
                self._deleted[table] += deleted
                if deleted:
                    transaction.set_watermark(COMPACTION, "", 1)

    def _is_named(self, name: str) -> bool:
        """Tell whether a name refers to an erased session: by its id, its key, or a source that ends in its id."""
        parts = name.split("/", 1)
        return self._erased.has(parts[0], parts[-1]) or any(name == session for _, session in self._erased.sessions)

    def _is_theirs(self, body: bytes) -> bool:
        """Tell whether bytes hold a record of an erased session, or JSON that mentions one.

        Unreadable bytes count if they contain the id of an erased session.
        """
        try:
            value: Any = msgspec.to_builtins(decode(body))
        except RecordError:
            value = _json(body)
        if isinstance(value, dict | list):
            return bool(_blackened(value, self._erased) != value)
        return self._stands_in(body)

    def _stands_in(self, body: bytes) -> bool:
        return any(session.encode() in body for session in self._ids)


def _json(body: bytes) -> Any:
    """The JSON value of bytes; None if they are not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _blackened(value: Any, erased: Erased) -> Any:
    """A copy of a JSON value in which every part that names an erased session is replaced."""
    if isinstance(value, dict):
        connection = value.get("connection", value.get("connectionId", value.get("connection_id")))
        session = value.get("sessionId", value.get("session_id"))
        if erased.has(connection, session) or (connection is None and session in {one for _, one in erased.sessions}):
            return ERASED
        return {key: _blackened(inner, erased) for key, inner in value.items()}
    return [_blackened(inner, erased) for inner in value] if isinstance(value, list) else value
