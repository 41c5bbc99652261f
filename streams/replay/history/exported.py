"""The files that `driftline export` has written, as the source of a replay."""

from __future__ import annotations

import hashlib
from pathlib import Path

from audit.file_kinds import HEAD, binary_kind, unlike_json
from audit.file_kinds import PARQUET as PARQUET_FILE
from schemas.errors import InputError
from schemas.registry import schema_of
from streams.replay.history.table_history import PARQUET, RECORDS
from streams.replay.plan import Origin


def origin_of_parquet(folder: Path) -> Origin:
    """Parquet files as `driftline export` writes them; InputError when there is none with exchanges."""
    if folder.is_file():
        raise InputError(
            f"--from: {folder} is a file", hint="Use tables, topics, or the folder that `driftline export` has written."
        )
    files = [folder / f"{schema_of(name).table}.parquet" for name in RECORDS]
    for file in filter(Path.is_file, files):
        _require_parquet(file)
    if not (folder / "exchanges.parquet").is_file():
        raise InputError(
            f"--from: {folder} holds no exchanges.parquet",
            hint="Use tables, topics, or a folder that `driftline export` has written.",
        )
    known = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]
    return Origin(PARQUET, str(folder.resolve()), hashlib.sha256(repr(known).encode()).hexdigest()[:16])


def _require_parquet(file: Path) -> None:
    """InputError when a file is none that `driftline export` has written."""
    with file.open("rb") as stream:
        head = stream.read(HEAD)
    if binary_kind(head) is not PARQUET_FILE:
        kind = unlike_json(head)
        raise InputError(
            f"--from: {file} is {kind.name if kind else 'JSON'}{', not a Parquet file' if head else ''}",
            hint="Export the folder again with `driftline export`.",
        )
