"""The interface of a source of history to a part of a replay."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from schemas.records import Judgement
from streams.judging.recorded_judgements import Subject
from streams.stage_batches import StageBatch

WINDOW_RECORDS = 4_000
"""Records that are read, scored and committed at once, about; each can hold a megabyte of text."""


class Window(NamedTuple):
    """Consecutive records of a part; every record's `_offset` is its position in the part."""

    batch: StageBatch
    end: int
    """The position after the window: where reading goes on."""


class History(Protocol):
    """One part of a history. It does not change while it is read."""

    @property
    def withdrawn(self) -> Collection[Subject]:
        """The exchanges that turn out to be part of another one: they have no score. Topics tell that only as they are read."""
        ...

    def windows(self, start: int) -> AsyncGenerator[Window]:
        """The records from a position on; each record once, those of a session in their order."""
        ...

    def recorded(self, subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        """The judgements of each of the exchanges that has any, in the order they were recorded."""
        ...

    def close(self) -> None:
        """Give back files and connections."""
        ...
