"""Fixtures of stores, for the tests of every package that needs a file of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from analytics.store.store import Store


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield the file of a newly created store."""
    path = tmp_path_factory.mktemp("empty") / "fleet.duckdb"
    Store(path).close()
    return path


@pytest.fixture
def store(empty_file: Path, tmp_path: Path) -> Iterator[Store]:
    """Yield an empty store. Its file is a copy, because creating the tables takes longer than most tests."""
    with Store(Path(shutil.copy(empty_file, tmp_path / "store.duckdb"))) as opened:
        yield opened
