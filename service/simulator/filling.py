"""Making a value that fits a JSON schema: numbers by ratings, verdicts by signs, texts by reasons and quotes.

Enough of JSON schema for answers of a judge: objects, arrays, numbers, booleans, texts, enum, const, anyOf and $ref. What a number
or text is about is taken from the names on its path: the last one that is not a mere part of a verdict, such as `score` or `quote`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from audit.patterns import compile_pattern, encode

MAX_LEVELS = 8
"""Levels of nesting that are filled; what lies deeper is null."""
MAX_PLACES = 20_000
"""Places of a schema that are looked at: one that refers to itself can have any number."""
MAX_BOUND = 1e9
"""Bounds of a scale are smaller; others are not believed."""
LOW = 0.4
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
        numbers = [rated.rating(_about(path)) for path in self._numbers(root, ())]
        self._is_low = bool(numbers) and min(numbers) < LOW

    def value(self, given: Any, path: tuple[str, ...]) -> Any:
        """Return the value for the schema at the path."""
        schema = self._resolved(given)
        if len(path) > MAX_LEVELS:
            return None
        if "const" in schema:
            return schema["const"]
        kind = _kind(schema)
        made = _MAKERS.get(kind)
        return made(self, schema, path) if made else None

    def _resolved(self, given: Any) -> Schema:
        """Return the schema with references and alternatives followed: the first alternative that is not null."""
        self._left -= 1
        schema: Any = given if self._left > 0 else {}
        for _ in range(MAX_LEVELS):
            if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
                schema = self._referred(schema["$ref"])
            elif isinstance(schema, Mapping) and isinstance(schema.get("anyOf"), list):
                schema = next((one for one in schema["anyOf"] if one != {"type": "null"}), {})
            else:
                break
        return schema if isinstance(schema, Mapping) else {}

    def _referred(self, reference: str) -> Any:
        found: Any = self._root
        for name in reference.removeprefix("#/").split("/"):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _numbers(self, given: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield the paths of the numbers of the answer."""
        schema = self._resolved(given)
        if len(path) > MAX_LEVELS:
            return
        if _kind(schema) in _DEFAULT_SCALES:
            yield path
        for name, one in _properties(schema).items():
            yield from self._numbers(one, (*path, name))
        if "items" in schema:
            for label in self._labels(schema["items"]):
                yield from self._numbers(schema["items"], (*path, label))

    def _labels(self, items: Any) -> list[str]:
        """Return the subjects of an array's items: the values of the first property limited to several; else none."""
        for one in _properties(self._resolved(items)).values():
            values = self._resolved(one).get("enum")
            if isinstance(values, list) and all(isinstance(value, str) for value in values):
                return values
        return [""]

    def made_object(self, schema: Schema, path: tuple[str, ...]) -> dict[str, Any]:
        return {name: self.value(one, (*path, name)) for name, one in _properties(schema).items()}

    def made_array(self, schema: Schema, path: tuple[str, ...]) -> list[Any]:
        """Make an item for each label; quotes and evidence as far as there are any, and the schema has room."""
        items = schema.get("items", {})
        resolved = self._resolved(items)
        if _kind(resolved) == "string" and "enum" not in resolved and path and path[-1].endswith(_QUOTES):
            most = schema.get("maxItems")
            texts = [_fitting(text, resolved) for text in self._rated.quotes(_about(path))]
            return texts[: max(0, most)] if isinstance(most, int) else texts
        return [self.value(items, (*path, label) if label else path) for label in self._labels(items)]

    def made_number(self, schema: Schema, path: tuple[str, ...]) -> float:
        low, high = _scale(schema)
        number = low + (high - low) * self._rated.rating(_about(path))
        return round(number) if _kind(schema) == "integer" else round(number, 2)

    def made_boolean(self, _schema: Schema, path: tuple[str, ...]) -> bool:
        found = self._rated.found(_about(path))
        return self._is_low if found is None else found

    def made_text(self, schema: Schema, path: tuple[str, ...]) -> str | None:
        """Return a quote, the label of its item, or words; texts of a false verdict are empty."""
        allowed, name, about = schema.get("enum"), path[-1] if path else "", _about(path)
        if isinstance(allowed, list) and allowed:
            label = next((one for one in reversed(path) if one in allowed), allowed[0])
            return label if isinstance(label, str) else None
        if name.startswith(_OF_VERDICTS) and not self._is_low:
            return None if "null" in _kinds(schema) else ""
        text = self._rated.quote(about) if name.endswith(_QUOTES) else self._rated.words(about)
        return _fitting(text, schema)


_MAKERS = {
    "object": _Filling.made_object,
    "array": _Filling.made_array,
    "number": _Filling.made_number,
    "integer": _Filling.made_number,
    "boolean": _Filling.made_boolean,
    "string": _Filling.made_text,
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
    most = schema.get("maxLength")
    return text[: max(0, most)] if isinstance(most, int) else text


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
