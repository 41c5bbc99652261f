"""Messages between the server and the processes that answer statements, their limits, and an answer as JSON."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from service.text.answers import Answer, Moment

MIB = 1024 * 1024
MAX_ROWS = 1_000_000
DEFAULT_ROWS = 10_000


class QueryLimits(msgspec.Struct, frozen=True):
    """The limits of one statement, and the maximum number of concurrent statements."""

    seconds: float = 10.0
    """Wall time of a statement; its process is killed `grace` seconds later in any case."""
    grace: float = 2.0
    memory: int = 512 * MIB
    """Memory limit that DuckDB enforces, in bytes."""
    data: int = 1024 * MIB
    """Bytes of data the process may map, which also bounds memory that DuckDB does not count.

    Programs and libraries are extra.
    """
    address_space: int = 3072 * MIB
    """Total bytes the process may map."""
    answer: int = 64 * MIB
    """Bytes of an answer."""
    at_once: int = 2
    """Maximum number of concurrent statements; further ones are refused."""
    fresh_for: float = 60.0
    """Seconds for which a snapshot is fresh. After that, new commits cause a new one."""
    kept_for: float = 600.0
    """Seconds after which a snapshot is dropped in any case, because it may contain records that were deleted since."""
    patience: float = 2.0
    """Seconds a statement waits for a new snapshot while an old one exists."""
    first_patience: float = 20.0
    """Seconds a statement waits for the very first snapshot."""
    building: float = 1800.0
    """Time limit for building a snapshot, in seconds."""


class Question(msgspec.Struct, frozen=True):
    """A statement with its values, the format of the answer and its maximum number of rows."""

    sql: str
    parameters: dict[str, Any] = {}
    format: str = "json"
    limit: int = DEFAULT_ROWS


class Outcome(msgspec.Struct, frozen=True):
    """The report that a process sends before the bytes of its answer."""

    columns: list[tuple[str, str]] = []
    rows: int = 0
    truncated: bool = False
    error: str = ""
    hint: str = ""


class QueryColumn(Answer, frozen=True):
    """A column of an answer."""

    name: str
    type: Annotated[str, Meta(description="Type, as DuckDB names it.", examples=["DOUBLE"])]


class QueryResult(Answer, frozen=True):
    """The answer to a statement, as JSON."""

    columns: list[QueryColumn]
    rows: Annotated[
        msgspec.Raw,
        Meta(description="One object per row.", extra_json_schema={"type": "array", "items": {"type": "object"}}),
    ]
    """Written by the process that answers."""
    row_count: int
    truncated: Annotated[bool, Meta(description="Whether there are more rows than the limit.")]
    as_of: Annotated[Moment, Meta(description="Time of the snapshot.")]
    elapsed_ms: int
