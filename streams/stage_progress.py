"""Progress of the stages of a database, by name and topic, without loading their code."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from analytics.store.positions import read_watermarks
from analytics.store.store import Store
from analytics.store.tables import PARTITION

SOURCES = {
    "intake": "exchanges",
    "scoring": "scoring-tasks",
    "diagnosis": "agent-events",
    "evaluation": "evaluation-requests",
    "traces": "spans",
}
"""The topic that each stage reads, in the order of the topology."""


class StageSource(Protocol):
    """The name and the source topic of a stage, on which its progress depends."""

    @property
    def name(self) -> str:
        """The name of the stage."""
        ...

    @property
    def source(self) -> str:
        """The topic that it reads."""
        ...


@dataclass(frozen=True)
class StageProgress:
    """The progress of a stage: its next position and the end of its topic."""

    stage: str
    position: int
    end: int


def stage_progress(store: Store, stage: StageSource) -> StageProgress:
    """Return the progress of a stage."""
    return _read_progress(store, stage.name, stage.source)


def lagging(store: Store) -> list[StageProgress]:
    """Return the progress of the stages that have not read their topic to its end."""
    stages = [_read_progress(store, name, source) for name, source in SOURCES.items()]
    return [progress for progress in stages if progress.position < progress.end]


def _read_progress(store: Store, name: str, source: str) -> StageProgress:
    with contextlib.closing(store.cursor()) as cursor:
        position = read_watermarks(cursor, name).get((source, PARTITION), 0)
    return StageProgress(name, position, store.end_of(source))
