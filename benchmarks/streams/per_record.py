"""The parts for frameworks that hand over one record at a time: fastavro's decoder, and the same fold."""

import io
import json
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import fastavro

from audit.diagnosis.evidence import FOLD_COLUMNS, SessionEvidence, fold_columns

PREFIX_BYTES = 10
REFERENCES = 100
"""References kept of each kind, as the diagnosis stage does."""
SCHEMA = fastavro.parse_schema(
    json.loads((Path(__file__).parents[2] / "schemas" / "avsc" / "driftline.AgentEvent.avsc").read_text())
)
Row = tuple[Any, ...]
row_of: Callable[[dict[str, Any]], Row] = itemgetter("session_id", *FOLD_COLUMNS[1:])


def decode(message: bytes) -> dict[str, Any]:
    """Return the record of a single-object encoded message, its schema taken for granted."""
    record: dict[str, Any] = fastavro.schemaless_reader(io.BytesIO(message[PREFIX_BYTES:]), SCHEMA)  # type: ignore[assignment]
    return record


def fold(evidence: dict[str, SessionEvidence], records: Iterable[dict[str, Any]]) -> None:
    """Fold records into the evidence of their sessions."""
    fold_columns(evidence, map(row_of, records), reference_limit=REFERENCES)
