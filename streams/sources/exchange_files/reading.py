"""Reads a file of exchanges in order of time. The rows of a span export give exchanges and events.

Items are spooled to disk and sorted by time, so that a file of any size and order is read in bounded memory. Without sorting, the sessions of
an export that starts with the newest rows would be scored backwards. Spooled items are already redacted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from pathlib import Path

import msgspec

from schemas.records import Exchange, Span, TraceAssembly
from streams.sources.exchange_files.profiling import Layout
from streams.sources.exchange_files.rows import Json, Row, read_rows
from streams.sources.exchange_files.span_exports import SpanExport
from streams.sources.exchange_files.tables import TableReader, exported_exchange
from streams.sources.lines import Line, Problem, line_fault, value_fault
from streams.sources.otlp.request import EPOCH
from streams.sources.otlp.stored_spans import SpanOwner, build_span_record
from streams.sources.otlp.trace_records import EVALUATION, NOT_UNDERSTOOD, Decision, assemble
from streams.sources.source import LineFault, Reading, ReadingBuilder, ReadingContext, SkippedTrace

BATCH_SIZE = 1_000
"""Maximum number of exchanges and events, or of faults, of one reading."""
MAX_SPANS = 10_000
"""Maximum number of spans read per trace."""
REASON = "import"
"""The reason why a trace of an export is complete."""
_WITH_EXAMPLE = frozenset({EVALUATION, NOT_UNDERSTOOD})
_encode = msgspec.msgpack.Encoder().encode
_exchanges = msgspec.msgpack.Decoder(Exchange)
_spans = msgspec.msgpack.Decoder(Span)
Labels = Mapping[str, Sequence[str]]


def read_exchange_file(
    path: Path, context: ReadingContext, layout: Layout, labels: Labels, *, rows: int | None = None
) -> Iterator[Reading]:
    """Yield the content of a file in readings of bounded size, faults first. `rows` limits the number of rows that are read.

    `labels` has the span attributes that give each label. Raises InputError as soon as the file cannot be read any further.
    """
    with closing(read_rows(path)) as file_rows, _open_spool() as spool:
        spool_row = _build_row_spooler(spool, context, layout, labels)
        reading = Reading()
        for row in islice(file_rows, rows):
            if not isinstance(row, Row):
                fault = line_fault(row.line, Problem("torn", "the last line is cut off"))
                _report_torn_line(reading, path, context, fault)
                continue
            problems = [row.value] if isinstance(row.value, Problem) else spool_row(row.value)
            reading.faults += map(row.fault, problems)
            if len(reading.faults) >= BATCH_SIZE:
                yield reading
                reading = Reading(complete=reading.complete)
        yield reading
        if layout.export is not None:
            yield from _read_traces(spool, context)
        else:
            yield from _read_exchanges(spool)


@contextmanager
def _open_spool() -> Iterator[_Spool]:
    """Open an empty spool, which is deleted afterwards."""
    with closing(sqlite3.connect("", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield _Spool(connection)


class _Spool:
    """Items by group, in an unnamed SQLite database. SQLite keeps it in a temporary file, which is deleted when it is closed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE items (place INTEGER PRIMARY KEY, name TEXT, at INTEGER, item BLOB)")

    def add(self, name: str, at: datetime, item: bytes) -> None:
        """Add an item to a group."""
        microseconds = (at - EPOCH) // timedelta(microseconds=1)
        self._connection.execute("INSERT INTO items (name, at, item) VALUES (?, ?, ?)", (name, microseconds, item))

    def items(self) -> Iterator[bytes]:
        """Yield the items by time, then in the order they were added."""
        yield from (item for (item,) in self._connection.execute("SELECT item FROM items ORDER BY at, place"))

    def groups(self) -> Iterator[Iterator[bytes]]:
        """Yield the items of each group. The groups are sorted by the time of their first item."""
        rows = self._connection.execute(
            "SELECT name, item FROM items JOIN (SELECT name, min(at) AS first FROM items GROUP BY name) USING (name) "
            "ORDER BY first, name, at, place"
        )
        for _, group in groupby(rows, key=lambda row: row[0]):
            yield (item for _, item in group)


def _build_row_spooler(
    spool: _Spool, context: ReadingContext, layout: Layout, labels: Labels
) -> Callable[[Json], list[Problem]]:
    """Return a function that spools the exchange or the spans of a row, and returns the problems of the row."""
    if layout.export is not None:
        return _build_span_spooler(spool, context, layout.export, labels)
    if layout.fields is not None:
        read = TableReader(layout.fields, context).exchange
    else:

        def read(row: Json) -> Exchange | Problem:
            return exported_exchange(row, context)

    def spool_row(row: Json) -> list[Problem]:
        exchange = read(row)
        if isinstance(exchange, Problem):
            return [exchange]
        spool.add("", exchange.occurred_at, _encode(exchange))
        return []

    return spool_row


def _build_span_spooler(
    spool: _Spool, context: ReadingContext, export: SpanExport, labels: Labels
) -> Callable[[Json], list[Problem]]:
    owner = SpanOwner(context.connection, context.project, context.agent)

    def spool_row(row: Json) -> list[Problem]:
        problems = []
        for span in export.spans(row, context):
            if isinstance(span, Problem):
                problems.append(span)
                continue
            record = build_span_record(span, owner, context.redactor, context.ingested_at, labels)
            spool.add(record.trace_id, record.started_at, _encode(record))
        return problems

    return spool_row


def _report_torn_line(reading: Reading, path: Path, context: ReadingContext, fault: LineFault) -> None:
    """Report a torn line if the file has not changed for a session gap. Otherwise the reading is incomplete."""
    modified_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    if context.ingested_at - modified_at > context.session_gap:
        reading.faults.append(fault)
    else:
        reading.complete = False


def _read_traces(spool: _Spool, context: ReadingContext) -> Iterator[Reading]:
    reading = ReadingBuilder()
    for group in spool.groups():
        # Exports may have a span twice; it counts once.
        spans = {span.span_id: span for span in map(_spans.decode, islice(group, MAX_SPANS))}
        excess = sum(1 for _ in group)
        if excess:
            reading.faults.append(_build_excess_fault(next(iter(spans.values())), excess))
        assembly = assemble(list(spans.values()), Decision(REASON, context.ingested_at))
        if not assembly.exchanges:
            reading.skipped_traces[_skip_reason(assembly.decision)] += 1
        reading.exchanges += assembly.exchanges
        reading.events += assembly.events
        if len(reading.exchanges) + len(reading.events) >= BATCH_SIZE:
            yield _with_session_ids(reading)
            reading = ReadingBuilder()
    yield _with_session_ids(reading)


def _build_excess_fault(span: Span, excess: int) -> LineFault:
    """Return the fault of a trace with more spans than are read."""
    problem = Problem("too_many_spans", f"the trace has more than {MAX_SPANS} spans; {excess} of them are left out")
    return value_fault(Line(0, b"", 0, ended=True), {"trace_id": span.trace_id}, problem)


def _skip_reason(decision: TraceAssembly) -> SkippedTrace:
    """Return the reason why a trace has no exchange, with an example if a value that the sender wrote caused it."""
    if decision.state in _WITH_EXAMPLE and decision.unused_spans:
        return SkippedTrace(decision.state, decision.unused_spans[0].example)
    return SkippedTrace(decision.state, "")


def _with_session_ids(reading: Reading) -> Reading:
    sessions = [exchange.session_id for exchange in reading.exchanges] + [event.session_id for event in reading.events]
    reading.session_ids = list(dict.fromkeys(sessions))
    return reading


def _read_exchanges(spool: _Spool) -> Iterator[Reading]:
    items = map(_exchanges.decode, spool.items())
    while exchanges := list(islice(items, BATCH_SIZE)):
        yield _with_session_ids(Reading(exchanges=exchanges))
