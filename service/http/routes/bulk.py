"""Up to a thousand records in one call, an array or one per line: what is wrong with one of them stops no other.

Each has its own result, in the order of the call: what became of it, or why it was refused, by its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from service.http.documents.bodies import FaultyLine
from service.http.documents.response_models import Answer, Refused

Kind = TypeVar("Kind")
Refusal = TypeVar("Refusal", bound=Refused)


@dataclass
class Batch(Generic[Kind, Refusal]):
    """The result of reading a call: the records with their places in it and notes for their answers, and refusals by place."""

    records: list[Kind] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)

    def read(
        self, body: Sequence[Any], refused: type[Refusal], read: Callable[[Any, int], tuple[Kind, dict[str, str]] | Refusal]
    ) -> None:
        """Read each value of a body, given its place: as a record with its note, or as a refusal."""
        for place, value in enumerate(body):
            if isinstance(value, FaultyLine):
                self.refused[place] = refused(error=f"[{place}]: {value.detail}", code=value.code)
                continue
            found = read(value, place)
            if isinstance(found, Refused):
                self.refused[place] = found
            else:
                self.records.append(found[0])
                self.places.append(place)
                self.notes.append(found[1])

    def results(self, taken: Mapping[int, Answer]) -> list[Any]:
        """Return the results in the order of the call; `taken` are those of records, by place."""
        results: dict[int, Answer] = {**taken, **self.refused}
        return [results[place] for place in sorted(results)]
