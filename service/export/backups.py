"""Backups: copies of the database, with all records accepted before the backup, and of its tokens.

Pending records are flushed to the database first, so the write-ahead log need not be copied. A copy gets its final name when it is complete
and synced. Existing files are not replaced.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analytics.snapshots import copy_database
from analytics.store.connection import attach_files, select_log_rows
from analytics.store.copying import sync
from schemas.errors import InputError
from schemas.registry import current_schemas
from service.setup.access import access_file, copy_shared
from service.setup.workspace import Workspace

UNFINISHED_PREFIX = ".unfinished-"
"""The prefix of the name of the folder in which a backup is made."""


@dataclass(frozen=True)
class Backup:
    """The files of a backup, and the row counts of its record tables."""

    files: Sequence[Path]
    rows: Mapping[str, int]


def back_up(workspace: Workspace, folder: Path) -> Backup:
    """Copy a workspace's database, and its tokens if there are any, to a folder.

    Raises InputError if the folder already has files of these names or is not writable.
    """
    database = workspace.settings.database
    tokens = access_file(database)
    sources = [database, tokens] if tokens.exists() else [database]
    targets = [folder / path.name for path in sources]
    for target in targets:
        if os.path.lexists(target):
            raise InputError(
                f"{target}: exists already", hint="Use a new folder for each backup, such as one named by the date."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED_PREFIX, dir=folder) as unfinished:
            copies = [Path(unfinished) / path.name for path in sources]
            _copy(workspace, copies[0])
            if len(copies) > 1:
                copy_shared(tokens, copies[1])
            rows = _count_rows(copies[0])
            for copy, target in zip(copies, targets, strict=True):
                sync(copy)
                copy.replace(target)
        sync(folder)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}", hint="Choose a writable folder.") from error
    return Backup(targets, rows)


def unfinished_size(folder: Path) -> int:
    """Return the current size in bytes of a backup that is being made in a folder; 0 if it has just been finished."""
    with contextlib.suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in folder.glob(f"{UNFINISHED_PREFIX}*/*"))
    return 0


def _copy(workspace: Workspace, target: Path) -> None:
    if workspace.server is None:
        copy_database(workspace.store, target)
    else:
        workspace.server.call("copy", type(None), str(target))


def _count_rows(copy: Path) -> dict[str, int]:
    """Count the rows of each table of a copy. This also proves that the copy is readable."""
    with attach_files({"copy": copy}) as connection:
        counts = {
            schema.table: connection.execute(f"SELECT count(*) {select_log_rows('copy', schema.table)}").fetchall()[0][0]
            for schema in current_schemas().values()
            if schema.topics
        }
    return {table: count for table, count in counts.items() if count}
