"""The simulated judge's answers, without HTTP: by the signs in the materials, with a small jitter from their digest.

A dimension starts at `BASE` of its scale. Each sign takes its weight off, words of the question that the response lacks take a
little more, and the jitter moves it by what a model's mood might. A strict judge takes the same amount off every rating. The answer is
made from the JSON schema that was sent along, whatever dimensions it names: a dimension that is not known here is weighed by
`other_weights`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from audit.cost import Usage
from audit.fingerprints import canonical_json
from service.simulator.filling import fill_schema
from service.simulator.rules import RULES
from service.simulator.signs import SIGNS, Signs, read_signs

MODEL = "driftline-simulated-judge"
"""The model that the simulated judge claims to be."""
CHARACTERS_A_TOKEN = 4
"""Assumed length of a token."""
BASE = 0.94
JITTER = 0.05
"""Largest shift of a score by the jitter, as a share of the scale."""
_OTHER_LACKING = 0.1


@dataclass(frozen=True, slots=True)
class Ratings:
    """The basis of the answer; the same for the same materials and model."""

    signs: Signs
    key: str
    strictness: float = 0.0
    """The part of the scale that a strict judge takes off every rating."""

    def rating(self, dimension: str) -> float:
        """Return the place of the dimension on its scale, 0 to 1."""
        lost = sum(self._weights(dimension)[sign] for sign in self.signs.found)
        if self.signs.overlap is not None:
            lost += (1 - self.signs.overlap) * RULES.lacking.get(dimension, _OTHER_LACKING)
        return min(1.0, max(0.0, BASE - lost - self.strictness + JITTER * mood(dimension, self.key)))

    def found(self, name: str) -> bool | None:
        """Tell whether the sign of this name was found; None if there is no such sign."""
        return name in self.signs.found if name in SIGNS else None

    def quote(self, dimension: str) -> str:
        """Return the quote that best supports the rating: a sign's own, or that of a dimension's gravest sign."""
        if dimension in SIGNS:
            return self.signs.found.get(dimension, "")
        return self.signs.found[grave] if (grave := self._gravest(dimension)) else self.signs.opening

    def quotes(self, dimension: str) -> list[str]:
        """Return the one quote."""
        return [self.quote(dimension)]

    def words(self, dimension: str) -> str:
        """Return the reasons in words."""
        weights = self._weights(dimension)
        seen = [SIGNS[sign] for sign in sorted(self.signs.found, key=lambda sign: -weights[sign])]
        if self.signs.overlap is not None:
            seen.append(f"{self.signs.overlap:.0%} of the question's words return in the answer")
        return f"Simulated: {'; '.join(seen) or 'nothing speaks against it'}."

    def _weights(self, dimension: str) -> dict[str, float]:
        return RULES.other_weights | RULES.weights.get(dimension, {})

    def _gravest(self, dimension: str) -> str | None:
        weights = self._weights(dimension)
        return max(self.signs.found, key=lambda sign: weights[sign], default=None)


def mood(dimension: str, key: str) -> float:
    """Return a number from -1 to 1 that depends only on the dimension and the key."""
    drawn = hashlib.sha256(f"{dimension}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(drawn[:4]) / (2**32 - 1) * 2 - 1


def simulated_answer(
    schema: Mapping[str, Any], materials: Mapping[str, str], *, model: str = "", strictness: float = 0.0
) -> dict[str, Any]:
    """Return the answer that fits the schema, for the materials by name (as texts, not as literals) and the model.

    `strictness` is the part of its scale by which each rating of an exchange is lower.

    A pure function: the same request always gets the same answer.
    """
    key = hashlib.sha256(canonical_json([model, dict(materials)]).encode("utf-8", "surrogatepass")).hexdigest()
    answer = fill_schema(schema, Ratings(read_signs(materials), key, strictness))
    return answer if isinstance(answer, dict) else {"answer": answer}


def tokens_of(texts: Iterable[str]) -> int:
    """Estimate the tokens of the texts together; at least 1."""
    return max(1, -(-sum(map(len, texts)) // CHARACTERS_A_TOKEN))


def simulated_usage(texts: Iterable[str], answer: str) -> Usage:
    """Return the usage of a call with these texts (instructions, content, schema) and this answer, without a cache."""
    return Usage(input_tokens=tokens_of(texts), output_tokens=tokens_of([answer]))
