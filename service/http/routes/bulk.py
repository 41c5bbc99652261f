"""Up to a thousand records in one call, as an array or one per line. A faulty record does not stop the others.

Each record has its own result, in the order of the call: its outcome, or its index with the reason for the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from service.text.answers import Answer
from service.web.bodies import FaultyLine
from service.write.outcomes import Refused

Kind = TypeVar("Kind")
Refusal = TypeVar("Refusal", bound=Refused)


@dataclass
class Batch(Generic[Kind, Refusal]):
    """The result of reading a call: records with their indexes and notes for their answers, and refusals by index."""

    records: list[Kind] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)

    def read(
        self, body: Sequence[Any], refused: type[Refusal], read: Callable[[Any, int], tuple[Kind, dict[str, str]] | Refusal]
    ) -> None:
        """Read each value of a body with its index, as a record with a note or as a refusal."""
        for index, value in enumerate(body):
            if isinstance(value, FaultyLine):
                self.refused[index] = refused(error=f"[{index}]: {value.detail}", code=value.code)
                continue
            record_or_refusal = read(value, index)
            if isinstance(record_or_refusal, Refused):
                self.refused[index] = record_or_refusal
            else:
                record, note = record_or_refusal
                self.records.append(record)
                self.indexes.append(index)
                self.notes.append(note)

    def results(self, answers: Mapping[int, Answer]) -> list[Any]:
        """Return the results in the order of the call; `answers` are the answers to records, by index."""
        results: dict[int, Answer] = {**answers, **self.refused}
        return [results[index] for index in sorted(results)]
