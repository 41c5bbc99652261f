"""Our own export: rows of the table `exchanges`, taken as the records they were.

They keep connection, project, id, labels and digest, so that an exported log fills an empty database with the same exchanges.
Secrets are taken out once more, for the log may come from where redaction was off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from schemas.bounds.contract import check_record
from schemas.errors import RecordError
from schemas.records import Exchange, Redaction
from schemas.registry import current_schemas
from streams.sources.exchange_files.rows import Json
from streams.sources.lines import Problem
from streams.sources.source import ReadingContext

EXCHANGES = "exchanges"
COLUMNS = frozenset({"exchange_id", "connection", "project", "session_id", "user_message", "agent_response", "content_digest"})
"""The columns by which the export is known. A file of a partition has its project in the name of its folder."""
TABLE = frozenset({"_topic", "_partition", "_offset"})
"""Columns that every table of an export has."""
TABLES = frozenset(schema.table for schema in current_schemas().values())
_TEXTS = ("user_message", "agent_response", "agent_thinking", "raw_user_message")
_NAMES = ("agent", "agent_model", "stop_reason")
_FIELDS = frozenset(Exchange.__struct_fields__)


def table_of(path: Path, columns: Collection[str]) -> str | None:
    """Return the table that a file of an export holds, whole or of one project and day; None for any other file."""
    if set(columns) >= COLUMNS - {"project"}:
        return EXCHANGES
    folder, project, day = ("", "", "", *path.parent.parts)[-3:]
    is_partition = folder in TABLES and project.startswith("project=") and day.startswith("day=")
    if is_partition:
        return folder
    return path.stem if set(columns) >= TABLE and path.stem in TABLES else None


def exported_exchange(row: Json, context: ReadingContext) -> Exchange | Problem:
    """Return the exchange of an exported row, or why it is none."""
    given = {name: _value(value) for name, value in row.items() if name in _FIELDS and value is not None}
    if context.agent is not None:
        given["agent"] = context.agent
    try:
        exchange = _without_secrets(msgspec.convert(given, Exchange), context)
        check_record(exchange, context.ingested_at)
    except msgspec.ValidationError as error:
        return Problem("wrong_type", str(error))
    except RecordError as error:
        return Problem("bounds", str(error).removeprefix("Exchange."))
    return exchange


def _value(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _without_secrets(exchange: Exchange, context: ReadingContext) -> Exchange:
    found: Counter[str] = Counter()
    clean: dict[str, Any] = {}
    for name in (*_TEXTS, *_NAMES):
        text = getattr(exchange, name)
        if text is not None:
            clean[name], counts = context.redactor.redact(text)
            # The raw text holds the message again, and names are not counted.
            found.update(counts if name in _TEXTS[:3] else ())
    labels = context.redactor.redact_json({label.name: label.value for label in exchange.labels})[0]
    clean["labels"] = tuple(
        msgspec.structs.replace(label, value=labels.get(label.name, label.value)) for label in exchange.labels
    )
    if found:
        for one in exchange.redactions:
            found[one.kind] += one.count
        clean["redactions"] = tuple(Redaction(kind=kind, count=count) for kind, count in sorted(found.items()))
    return msgspec.structs.replace(exchange, **clean)
