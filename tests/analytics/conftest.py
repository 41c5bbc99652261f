"""Fixtures of the store's tests: a path, sample records, and record types with added fields."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sample_records import SampleMaker
from support.store_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here

import schemas
from schemas import registry
from schemas.codec import arrow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a DuckDB file that does not exist yet."""
    return tmp_path / "fleet.duckdb"


@pytest.fixture
def samples() -> SampleMaker:
    """Records from a fixed seed."""
    return SampleMaker(20261001)


CACHED = (registry.current_schemas, registry.published_schemas, registry.schemas_by_prefix, registry.topics, arrow.empty_frame)


@pytest.fixture
def add_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that adds fields to a record type, as a newer version would."""

    def add(name: str, *fields: dict[str, Any]) -> None:
        folder = tmp_path / "avsc"
        shutil.copytree(Path(schemas.__file__).parent / "avsc", folder)
        file = folder / f"driftline.{name}.avsc"
        definition = json.loads(file.read_text("utf-8"))
        definition["fields"] += fields
        file.write_text(json.dumps(definition), encoding="utf-8")
        monkeypatch.setattr(registry, "_avsc_folder", lambda: folder)
        for cached in CACHED:
            cached.cache_clear()

    yield add
    monkeypatch.undo()
    for cached in CACHED:
        cached.cache_clear()
