"""Tables of exchanges, written in every format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

EXPORTS = Path(__file__).parents[1] / "corpus" / "exports"
ROWS = [
    {
        "id": f"e-{number}",
        "session_id": f"s-{number // 3}",
        "timestamp": f"2026-11-01T10:0{number}:00Z",
        "prompt": f"Where is my order {number}?",
        "response": f'It was shipped,\nsays "{number}".',
        "model": "gpt-4o",
        "prompt_tokens": 10 + number,
    }
    for number in range(6)
]
"""Exchanges of two sessions, in order."""


def write_lines(path: Path, rows: Sequence[Mapping[str, Any] | str]) -> Path:
    """Write rows as JSON lines; strings are written unchanged."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows in the format of the file's suffix: CSV, Parquet, or a JSON array."""
    lines = write_lines(path.with_name("rows-of-a-table.ndjson"), rows)
    with duckdb.connect() as connection:
        source = f"read_json('{lines}', columns={{{', '.join(f'{name}: {_type(value)}' for name, value in rows[0].items())}}})"
        options = {".csv": "FORMAT csv", ".parquet": "FORMAT parquet", ".json": "FORMAT json, ARRAY true"}[path.suffix]
        connection.execute(f"COPY (FROM {source}) TO '{path}' ({options})")
    lines.unlink()
    return path


def _type(value: Any) -> str:
    return "'BIGINT'" if isinstance(value, int) else "'VARCHAR'"
