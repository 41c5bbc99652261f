"""Files of other agents' transcripts: found below a folder, read by a dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import zstandard

from schemas.bounds.limits import MAX_ID
from schemas.errors import InputError
from streams.sources.dialects import Dialect
from streams.sources.folders import visible_files
from streams.sources.line_files import open_stream
from streams.sources.lines import Line, read_lines
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext


def jsonl_below(path: Path, *patterns: str) -> list[Path]:
    """The files of these names below a folder, sorted, without hidden ones and symbolic links; InputError where there is no folder."""
    if not path.is_dir():
        raise InputError(f"{path}: does not exist", hint="Give a transcript, or a folder of them.")
    return visible_files(path, patterns)


def read_agent_file(
    path: Path,
    context: ReadingContext,
    dialect: Dialect,
    *,
    session_id: str,
    agent: str,
    lines_of: Callable[[BinaryIO], Iterable[Line]] = read_lines,
) -> Reading:
    """Read one transcript; InputError when it cannot be opened, decompressed or is none.

    `session_id` and `agent` count where the lines, or the context, say nothing else. `lines_of` takes the file apart; its ValueError says
    why it is none.
    """
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        is_left = context.ingested_at - written > context.session_gap
        with open_stream(path) as stream:
            return read_session(
                lines_of(stream), context, session_id=session_id[:MAX_ID], agent=agent, is_left=is_left, dialect=dialect
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    except zstandard.ZstdError as error:
        raise InputError(
            f"{path}: cannot be decompressed ({error})", hint="Check whether the file was copied completely."
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", hint="Check whether the file was copied completely.") from error
