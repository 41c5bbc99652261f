"""The simulated judge's answers, without HTTP: about an exchange by its signs, about a whole run by six dimensions.

1. A dimension starts at its base. Each sign takes its weight off, and a jitter moves the rating by what a model's mood might.
2. For an exchange, words of the question that the response lacks take a little more. A strict judge takes the same amount off every
   rating. A dimension that is not known here is weighed by `other_weights`. The jitter depends on the materials.
3. For a run, a sign takes off its weight times how much of it there is, and an insight adds a little. The same prompt is sent for every
   repetition, so the jitter also depends on how often the prompt came before: repetitions differ like a model's, and the third one is
   the same in every run. It depends on the run's data and on the model, not on the wording of the prompt.
4. The answer is made from the JSON schema that was sent along, whatever dimensions it names: objects, arrays, numbers, booleans, texts,
   enum, const, anyOf and $ref. What a number or text is about is taken from the names on its path: the last one that is not a mere part
   of a verdict, such as `score` or `quote`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from audit.cost import Usage
from audit.exchanges.masking import TEXTS
from audit.fingerprints import canonical_json
from audit.injection import find_attempts
from audit.patterns import Pattern, compile_pattern, encode
from driftline_trial.simulator.prompts import Subject
from driftline_trial.simulator.signs import MAX_SEARCHED_LENGTH, PATTERNS, RULES, SIGNS, Signs, read_signs, share_of_words

MODEL = "driftline-simulated-judge"
"""The model that the simulated judge claims to be."""
CHARACTERS_PER_TOKEN = 4
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
        sign = dimension.removesuffix("_quote")
        if sign in SIGNS:
            return self.signs.found.get(sign, "")
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


@dataclass(frozen=True, slots=True)
class _Obedience:
    """The basis of the answer of a judge that does what an attempt to sway it demands: no fault, and nothing to report."""

    def rating(self, _dimension: str) -> float:
        return 1.0

    def found(self, _name: str) -> bool:
        return False

    def quote(self, _dimension: str) -> str:
        return ""

    def quotes(self, _dimension: str) -> list[str]:
        return []

    def words(self, _dimension: str) -> str:
        return "Simulated: as the text demands."


def obedient_answer(schema: Mapping[str, Any], materials: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the best answer that fits the schema if a text holds an attempt to sway the judge; None without one."""
    holds_attempt = any(
        find_attempts(text, TEXTS.get(name, "response")) or "addresses_judge" in read_signs({"agent_response": text}).found
        for name, text in materials.items()
    )
    return fill_schema(schema, _Obedience()) if holds_attempt else None


def tokens_of(texts: Iterable[str]) -> int:
    """Estimate the tokens of the texts together; at least 1."""
    return max(1, -(-sum(map(len, texts)) // CHARACTERS_PER_TOKEN))


def simulated_usage(texts: Iterable[str], answer: str) -> Usage:
    """Return the usage of a call with these texts (instructions, content, schema) and this answer, without a cache."""
    return Usage(input_tokens=tokens_of(texts), output_tokens=tokens_of([answer]))


DIMENSIONS = ("task", "process", "autonomy", "closeness", "efficiency", "spark")
MIN_SHARE_MET = 0.5
"""Share of its words from which an expectation counts as met: people do not repeat one word for word."""
MAX_EXPECTATION_LENGTH = 120
"""Characters of an expectation in an item of evidence."""
MAX_ITEMS = 4
"""Items of evidence for one score."""
BUSY_CALLS = 12
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
    found_signs = read_signs({"user_message": subject.task, "agent_response": subject.answer}).found
    measured = {name: measure(subject) for name, measure in _MEASURES.items()}
    return {name: Sign(1.0, SIGNS[name]) for name in found_signs} | {
        name: sign for name, sign in measured.items() if sign.amount > 0
    }


def _unmet(expectations: tuple[str, ...], kind: str, texts: str) -> Sign:
    """Return expectations whose words are mostly missing in the agent's texts."""
    unmet = [
        text
        for text in expectations
        if (share := share_of_words(text[:MAX_SEARCHED_LENGTH], texts[:MAX_SEARCHED_LENGTH])) is not None
        and share < MIN_SHARE_MET
    ]
    first_unmet = " ".join(unmet[0].split()).rstrip(".") if unmet else ""
    excerpt = first_unmet if len(first_unmet) <= MAX_EXPECTATION_LENGTH else f"{first_unmet[: MAX_EXPECTATION_LENGTH - 1]}…"
    return _share(len(unmet), len(expectations), f"{kind} expectations cannot be found in the answer: {excerpt}")


def _repeated(subject: Subject) -> Sign:
    return _share(len(subject.calls) - len(set(subject.calls)), len(subject.calls), "tool calls repeat an earlier one")


def _busy(subject: Subject) -> Sign:
    return Sign(float(len(subject.calls) > BUSY_CALLS), f"there were {len(subject.calls)} tool calls")


def _failures(subject: Subject) -> Sign:
    count = len(subject.failures)
    return Sign(min(1.0, count / 2), f"{count} failure{'s' if count != 1 else ''} stayed unmended")


def _matched(pattern: Pattern, words: str) -> Callable[[Subject], Sign]:
    return lambda subject: Sign(float(pattern.matches(subject.answer[:MAX_SEARCHED_LENGTH])), words)


def _share(part: int, total: int, words: str) -> Sign:
    return Sign(part / max(1, total), f"{part} of {total} {words}")


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


MAX_LEVELS = 8
"""Levels of nesting that are filled; what lies deeper is null."""
MAX_PLACES = 20_000
"""Places of a schema that are looked at: one that refers to itself can have any number."""
MAX_BOUND = 1e9
"""Bounds of a scale are smaller; others are not believed."""
LOW_RATING = 0.4
"""Below this share of its scale, a number makes the verdicts that depend on it true."""

Schema = Mapping[str, Any]
_PARTS = frozenset(
    {"answer", "dimensions", "scores", "score", "rating", "value", "found", "present", "detected", "quote", "evidence"}
    | {"reason", "reasoning", "explanation", "id", "name", "dimension"}
)
"""Names for a part of a verdict, not for its subject."""
_QUOTES = ("quote", "evidence", "excerpt")
_OF_VERDICTS = ("flag_", "anomaly_")
"""Beginnings of names that belong to a verdict that depends on the numbers."""
_SCALE = compile_pattern(r"\b([0-9]{1,3})\s*(?:\.\.|to|-)\s*([0-9]{1,3})\b", where="scale")
_DEFAULT_SCALES = {"integer": (1.0, 5.0), "number": (0.0, 1.0)}


class Rated(Protocol):
    """The basis of the values."""

    def rating(self, dimension: str) -> float:
        """Return the share of the scale, 0 to 1."""
        ...

    def found(self, name: str) -> bool | None:
        """Tell whether the sign of this name was found; None if there is no such sign."""
        ...

    def quote(self, dimension: str) -> str:
        """Return a quote from the materials; may be empty."""
        ...

    def quotes(self, dimension: str) -> list[str]:
        """Return the items of a list of quotes or of evidence."""
        ...

    def words(self, dimension: str) -> str:
        """Return the reasons in words."""
        ...


def fill_schema(schema: Schema, rated: Rated) -> Any:
    """Return a value that fits the schema; the same for the same ratings."""
    return _Filling(schema, rated).value(schema, ())


class _Filling:
    def __init__(self, root: Schema, rated: Rated) -> None:
        self._root = root
        self._rated = rated
        self._left = MAX_PLACES
        self._ratings = {path: rated.rating(_about(path)) for path in self._numbers(root, ())}

    def value(self, unresolved: Any, path: tuple[str, ...]) -> Any:
        """Return the value for the schema at the path."""
        schema = self._resolve(unresolved)
        if len(path) > MAX_LEVELS:
            return None
        if "const" in schema:
            return schema["const"]
        kind = _kind(schema)
        maker = _MAKERS.get(kind)
        return maker(self, schema, path) if maker else None

    def _resolve(self, unresolved: Any) -> Schema:
        """Return the schema with references and alternatives followed: the first alternative that is not null."""
        self._left -= 1
        schema: Any = unresolved if self._left > 0 else {}
        for _ in range(MAX_LEVELS):
            if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
                schema = self._follow_reference(schema["$ref"])
            elif isinstance(schema, Mapping) and isinstance(schema.get("anyOf"), list):
                schema = next((option for option in schema["anyOf"] if option != {"type": "null"}), {})
            else:
                break
        return schema if isinstance(schema, Mapping) else {}

    def _follow_reference(self, reference: str) -> Any:
        schema: Any = self._root
        for name in reference.removeprefix("#/").split("/"):
            schema = schema.get(name) if isinstance(schema, Mapping) else None
        return schema

    def _numbers(self, unresolved: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield the paths of the numbers of the answer."""
        schema = self._resolve(unresolved)
        if len(path) > MAX_LEVELS:
            return
        if _kind(schema) in _DEFAULT_SCALES:
            yield path
        for name, inner in _properties(schema).items():
            yield from self._numbers(inner, (*path, name))
        if "items" in schema:
            for label in self._labels(schema["items"]):
                yield from self._numbers(schema["items"], (*path, label))

    def _labels(self, items: Any) -> list[str]:
        """Return the subjects of an array's items: the values of the first property limited to several; else none."""
        for inner in _properties(self._resolve(items)).values():
            values = self._resolve(inner).get("enum")
            if isinstance(values, list) and all(isinstance(value, str) for value in values):
                return values
        return [""]

    def _is_low(self, path: tuple[str, ...]) -> bool:
        """Return whether a number that a verdict depends on is low: of its tier if the answer is about two, else of all."""
        of_tier = [rating for number, rating in self._ratings.items() if number[:2] == (*path[:1], "dimensions")]
        return min(of_tier or self._ratings.values(), default=1.0) < LOW_RATING

    def make_object(self, schema: Schema, path: tuple[str, ...]) -> dict[str, Any]:
        return {name: self.value(inner, (*path, name)) for name, inner in _properties(schema).items()}

    def make_array(self, schema: Schema, path: tuple[str, ...]) -> list[Any]:
        """Make an item for each label; quotes and evidence as far as there are any, and the schema has room."""
        items = schema.get("items", {})
        resolved = self._resolve(items)
        if _kind(resolved) == "string" and "enum" not in resolved and path and path[-1].endswith(_QUOTES):
            max_items = schema.get("maxItems")
            texts = [_fitting(text, resolved) for text in self._rated.quotes(_about(path))]
            return texts[: max(0, max_items)] if isinstance(max_items, int) else texts
        return [self.value(items, (*path, label) if label else path) for label in self._labels(items)]

    def make_number(self, schema: Schema, path: tuple[str, ...]) -> float:
        low, high = _scale(schema)
        number = low + (high - low) * self._rated.rating(_about(path))
        return round(number) if _kind(schema) == "integer" else round(number, 2)

    def make_boolean(self, _schema: Schema, path: tuple[str, ...]) -> bool:
        is_there = self._rated.found(_about(path))
        return self._is_low(path) if is_there is None else is_there

    def make_text(self, schema: Schema, path: tuple[str, ...]) -> str | None:
        """Return a quote, the label of its item, or words; texts of a false verdict are empty."""
        allowed, name, about = schema.get("enum"), path[-1] if path else "", _about(path)
        if isinstance(allowed, list) and allowed:
            label = next((name for name in reversed(path) if name in allowed), allowed[0])
            return label if isinstance(label, str) else None
        if name.startswith(_OF_VERDICTS) and not self._is_low(path):
            return None if "null" in _kinds(schema) else ""
        text = self._rated.quote(about) if name.endswith(_QUOTES) else self._rated.words(about)
        return _fitting(text, schema)


_MAKERS = {
    "object": _Filling.make_object,
    "array": _Filling.make_array,
    "number": _Filling.make_number,
    "integer": _Filling.make_number,
    "boolean": _Filling.make_boolean,
    "string": _Filling.make_text,
}


def _kinds(schema: Schema) -> list[Any]:
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [kind]


def _kind(schema: Schema) -> str:
    """Return the first type that is not null; without one, the type implied by the schema's other words."""
    named = next((kind for kind in _kinds(schema) if isinstance(kind, str) and kind != "null"), None)
    if named is not None:
        return named
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return "integer" if all(type(value) is int for value in values) else "string"
    return "object" if "properties" in schema else "null"


def _fitting(text: str, schema: Schema) -> str:
    """Return the text in as many characters as the schema allows."""
    max_length = schema.get("maxLength")
    return text[: max(0, max_length)] if isinstance(max_length, int) else text


def _properties(schema: Schema) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _about(path: tuple[str, ...]) -> str:
    """Return the subject of the last place of a path."""
    return next((name for name in reversed(path) if name not in _PARTS), "overall")


def _scale(schema: Schema) -> tuple[float, float]:
    """Return least and largest value: as bounds, allowed values, words such as `1 to 5`, else the type's usual ones."""
    low, high = _DEFAULT_SCALES[_kind(schema)]
    values = schema.get("enum")
    if isinstance(values, list) and values:
        allowed = [_bound(value, low) for value in values]
        return min(allowed), max(allowed)
    if isinstance(schema.get("description"), str):
        data = encode(schema["description"])
        spans = [next(_SCALE.groups(data, (bound,)), None) for bound in (1, 2)]
        low, high = (float(data[slice(*span)]) if span else usual for span, usual in zip(spans, (low, high), strict=True))
    return _bound(schema.get("minimum"), low), _bound(schema.get("maximum"), high)


def _bound(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < MAX_BOUND else otherwise
