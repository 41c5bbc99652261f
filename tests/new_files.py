"""New files of stores are copies of one: making tables, views and comments takes seven times as long as opening a copy.

Processes that tests start make theirs themselves, and so does the first store of each version of the schemas.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import duckdb

from analytics.store import store
from analytics.store.connection import connect
from analytics.store.tables import migration_statements


@contextmanager
def copied() -> Iterator[None]:
    """As long as this lasts, a store whose file is not there begins with a copy of what another store made."""
    with tempfile.TemporaryDirectory(prefix="driftline-") as folder:
        made: dict[int, Path] = {}

        def template() -> Path:
            # Some tests have schemas of their own.
            version = hash(tuple(migration_statements({})))
            if version not in made:
                path = Path(folder) / f"{len(made)}.duckdb"
                with patch.object(store, "connect", connect):
                    store.Store(path).close()
                made[version] = path
            return made[version]

        def connect_to_copy(path: Path | None) -> duckdb.DuckDBPyConnection:
            if path is not None and _is_new(path):
                with suppress(OSError):  # what is wrong with the place is said when it is opened
                    shutil.copyfile(template(), path)
            return connect(path)

        with patch.object(store, "connect", connect_to_copy):
            yield


def _is_new(path: Path) -> bool:
    return path.parent.is_dir() and not path.exists() and not path.with_name(f"{path.name}.wal").exists()
