"""The simulated judge's answers about a whole run: six dimensions and an overall verdict, by signs of the run.

A dimension starts at its base. Every sign takes off its weight times how much of it there is, an insight adds a little, and the
jitter moves it by what a model's mood might. The same prompt is sent for every repetition, so the jitter depends on how often the
prompt came before: repetitions differ like a model's, and the third one is the same in every run. It also depends on the run's data and
on the model, not on the wording of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from audit.fingerprints import canonical_json
from audit.patterns import Pattern
from service.simulator.filling import fill_schema
from service.simulator.rules import PATTERNS, RULES
from service.simulator.scoring import JITTER, mood
from service.simulator.signs import MAX_SEEN, SIGNS, read_signs, share_of_words
from service.simulator.subjects import Subject

DIMENSIONS = ("task", "process", "autonomy", "closeness", "efficiency", "spark")
MET = 0.5
"""Share of its words from which an expectation counts as met: people do not repeat one word for word."""
MAX_SHOWN = 120
"""Characters of an expectation in an item of evidence."""
MAX_ITEMS = 4
"""Items of evidence for one score."""
MANY = 12
"""Tool calls from which a run is called busy."""
_PART: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "evidence": {"type": "array", "items": {"type": "string"}},
        "score": {"type": "number", "minimum": 0, "maximum": 10},
    },
}
SHAPE: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "dimensions": {"type": "object", "properties": dict.fromkeys(DIMENSIONS, _PART)},
        "overall": _PART,
    },
}
"""Shape of an answer for requests that come without a schema."""
_OTHER_BASE = 0.87


class Sign(NamedTuple):
    """An observation in a run."""

    amount: float
    """Its extent, 0 to 1."""
    words: str


@dataclass(frozen=True, slots=True)
class RunRatings:
    """The basis of the answer; the same for the same subject and key."""

    signs: Mapping[str, Sign]
    key: str

    def rating(self, dimension: str) -> float:
        """Return the place of the dimension on its scale, 0 to 1."""
        weights = RULES.run_weights.get(dimension, RULES.run_weights["overall"])
        lost = sum(weights.get(name, 0.0) * sign.amount for name, sign in self.signs.items())
        return min(1.0, max(0.0, RULES.run_bases.get(dimension, _OTHER_BASE) - lost + JITTER * mood(dimension, self.key)))

    def found(self, name: str) -> bool | None:
        """Tell whether the sign of this name was found; None if there is no such sign."""
        return name in self.signs if name in SIGNS or name in _MEASURES else None

    def quote(self, dimension: str) -> str:
        """Return the gravest observation."""
        return self.quotes(dimension)[0]

    def quotes(self, dimension: str) -> list[str]:
        """Return the observations, the gravest first, as items of evidence."""
        weights = RULES.run_weights.get(dimension, RULES.run_weights["overall"])
        counted = sorted(
            self.signs.keys() & weights.keys(), key=lambda name: (-abs(weights[name]) * self.signs[name].amount, name)
        )
        return [f"Simulated: {self.signs[name].words}." for name in counted[:MAX_ITEMS]] or [
            "Simulated: nothing speaks against it."
        ]

    def words(self, dimension: str) -> str:
        """Return the reasons in words."""
        return " ".join(self.quotes(dimension))


def simulated_evaluation(
    schema: Mapping[str, Any] | None, subject: Subject, *, model: str = "", arrival: int = 1
) -> dict[str, Any]:
    """Return the answer that fits the schema, else `SHAPE`, to a question's `arrival`th time. A pure function."""
    key = canonical_json([model, asdict(subject), arrival])
    answer = fill_schema(schema or SHAPE, RunRatings(signs_of(subject), key))
    return answer if isinstance(answer, dict) else {"answer": answer}


def signs_of(subject: Subject) -> dict[str, Sign]:
    """Return the signs in a run."""
    seen = read_signs({"user_message": subject.task, "agent_response": subject.answer}).found
    measured = {name: measure(subject) for name, measure in _MEASURES.items()}
    return {name: Sign(1.0, SIGNS[name]) for name in seen} | {name: sign for name, sign in measured.items() if sign.amount > 0}


def _unmet(expectations: tuple[str, ...], kind: str, said: str) -> Sign:
    """Return expectations whose words are mostly missing in the agent's texts."""
    unmet = [
        one for one in expectations if (share := share_of_words(one[:MAX_SEEN], said[:MAX_SEEN])) is not None and share < MET
    ]
    first = " ".join(unmet[0].split()).rstrip(".") if unmet else ""
    shown = first if len(first) <= MAX_SHOWN else f"{first[: MAX_SHOWN - 1]}…"
    return _share(len(unmet), len(expectations), f"{kind} expectations cannot be found in the answer: {shown}")


def _repeated(subject: Subject) -> Sign:
    return _share(len(subject.calls) - len(set(subject.calls)), len(subject.calls), "tool calls repeat an earlier one")


def _busy(subject: Subject) -> Sign:
    return Sign(float(len(subject.calls) > MANY), f"there were {len(subject.calls)} tool calls")


def _failures(subject: Subject) -> Sign:
    count = len(subject.failures)
    return Sign(min(1.0, count / 2), f"{count} failure{'s' if count != 1 else ''} stayed unmended")


def _matched(pattern: Pattern, words: str) -> Callable[[Subject], Sign]:
    return lambda subject: Sign(float(pattern.matches(subject.answer[:MAX_SEEN])), words)


def _share(part: int, whole: int, words: str) -> Sign:
    return Sign(part / max(1, whole), f"{part} of {whole} {words}")


_MEASURES: dict[str, Callable[[Subject], Sign]] = {
    "unmet": lambda subject: _unmet(subject.hard, "hard", subject.answer),
    "unmet_soft": lambda subject: _unmet(subject.soft, "soft", subject.said),
    "failed_checks": lambda subject: _share(subject.failed_checks, subject.checks, "deterministic checks did not pass"),
    "failed_calls": lambda subject: _share(subject.failed_results, subject.results, "tool results are failures"),
    "failures": _failures,
    "repeated": _repeated,
    "busy": _busy,
    "asks_back": _matched(PATTERNS["asks_back"], "it asks back"),
    "insight": _matched(PATTERNS["insight"], "it shows an insight"),
}
"""Signs that only a run can have; an amount of 0 is no sign."""
