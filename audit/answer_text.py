"""Extracts the answer from a judge's text: skips thinking, prose and fences, and repairs the form where that loses nothing.

Models quote, wrap and rename the answer that they were asked for, and every answer costs money. A repair changes the form and never
the content. If a text can be read in two ways, the judge must correct it. Each kind of repair has a name, so that people see how often
a model needs it.

1. Thinking in `<think>` at the beginning is not part of the answer. If it does not end, there is no answer.
2. A text that `read` accepts is the answer. It may be quoted as one JSON string.
3. Otherwise the answer is a JSON object in the text; prose and fences around it are ignored. It may be wrapped in an object with one
   member whose name is not in the schema.
4. Every object with a field of the schema is a candidate: a draft, a correction, a second answer. All candidates must be complete and
   read the same. A later correction therefore makes an answer unreadable, because the model's intention is unclear. An object is ignored
   if it has no field of the schema, or if it repeats the schema.
5. If an object cannot be parsed, its syntax is repaired: comments after `//`, commas before a closing bracket, single quotation marks,
   and `True`, `False` and `None`. A text that ends too early is not repaired.
6. A candidate that `read` refuses is fitted to the schema. Numbers and verdicts may be strings, names may be spelled differently, an
   empty text may be null, and a surrogate pair may be incomplete. Fields outside the schema are dropped, unless they hold a second answer.
7. An object that also occurs in one of the judged texts is not an answer, because its author may have written it for the judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from audit.answers import MAX_ANSWER, read_json
from audit.exchanges.questions import Invalid, Material, literal_texts

QUOTED, WRAPPED, SYNTAX = "quoted", "wrapped", "syntax"
NUMBER_AS_TEXT, VERDICT_AS_TEXT, OTHER_NAME = "number_as_text", "verdict_as_text", "other_name"
EXTRA_FIELD, NULL_TEXT, SURROGATE = "extra_field", "null_text", "surrogate"

_MAX_OBJECTS = 32
"""Most braces at which a parse is tried, so that the search stays linear."""
_THINKING_MARK = re.compile(r"[\s\ufeff]*<(think|thinking|reasoning)>")
"""Start of thinking that a server left in the text; recognized only at the beginning, elsewhere the mark may be quoted."""
_OBJECT_START = re.compile(r"""\{\s*["']""")
"""Start of an object; other braces, as in `{name}`, are prose."""
_WRAPPER = re.compile(r'\{\s*"[^"\\]*"\s*:\s*(\{.*\})\s*\}', re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]{1,4}(?:\.[0-9]{1,17})?")
_VERDICTS = {"true": True, "false": False}
_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*")
    | (?P<before>[{\[,:]\s*)'(?P<single>(?:\\.|[^'\\])*)'
    | (?P<comment>//[^\n]*)
    | \b(?P<constant>True|False|None)\b""",
    re.DOTALL | re.VERBOSE,
)
"""A JSON string, or syntax that JSON does not have. Strings come first, so their content never matches as syntax."""
_LAST_COMMA = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*")|,(?=\s*[}\]])""", re.DOTALL)
_DIMENSIONS = "dimensions"
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class AnswerText(NamedTuple):
    """The text of an answer that its reader accepts."""

    text: str
    repairs: tuple[str, ...] = ()
    """The kinds of repair that it needed, each once."""


def extract_answer(
    text: str, schema: Mapping[str, Any], read: Callable[[str], Any], materials: Sequence[Material] = ()
) -> AnswerText | Invalid:
    """Return the part of a model's text that is its answer; `Invalid` if that is ambiguous. See the module.

    `materials` are the texts that the judge was shown.
    """
    if len(text) > MAX_ANSWER:
        return Invalid((f"the answer has more than {MAX_ANSWER} characters",))
    repairer = _Repairer(schema, read)
    text = repairer.unquote(_without_thinking(text).strip())
    if _repeats_material(text, materials, schema):
        return Invalid(("the answer repeats an object of a judged text",))
    reading = read(text)
    answer = repairer.find_answer(text, reading) if isinstance(reading, Invalid) else text
    return answer if isinstance(answer, Invalid) else AnswerText(answer, tuple(sorted(repairer.repairs)))


def is_object(text: str) -> bool:
    """Return whether a text is exactly one JSON object, as structured output has it."""
    if not text.startswith("{") or len(text) > MAX_ANSWER:
        return False
    parsed = _parse_object(text, 0)
    return parsed is not None and len(parsed.text) == len(text)


class _Repairer:
    """Finds and repairs the answer to a question. `repairs` are the kinds of repair that it needed."""

    def __init__(self, schema: Mapping[str, Any], read: Callable[[str], Any]) -> None:
        self.repairs: set[str] = set()
        self._schema = schema
        self._read = read
        self._fields = _collect_names(schema)

    def unquote(self, text: str) -> str:
        """Return the text, or the text that it quotes as one JSON string."""
        if not text.startswith('"'):
            return text
        try:
            quoted = json.loads(text)
        except ValueError:
            return text
        if not isinstance(quoted, str):
            return text
        self.repairs.add(QUOTED)
        return quoted

    def find_answer(self, text: str, refusal: Invalid) -> str | Invalid:
        """Return the text of the object that is the answer; `Invalid` if there is none, or if it is unusable or ambiguous.

        `refusal` holds the problems of the whole text.
        """
        objects = _parse_objects(text)
        if objects is None:
            objects = _parse_objects(_repair_syntax(text))
            self.repairs.add(SYNTAX)
        if objects is None:
            return Invalid((*refusal.problems, "a JSON object in it is not complete"))
        candidates = []
        readings = []
        for parsed in objects:
            if parsed.names & self._fields and parsed.value != self._schema:
                candidate, reading = self._fit(self._unwrap(parsed))
                candidates.append(candidate)
                readings.append(reading)
        if not candidates:
            return refusal
        invalid = next((reading for reading in readings if isinstance(reading, Invalid)), None)
        if len(candidates) > 1 and (invalid is not None or any(reading != readings[0] for reading in readings)):
            return Invalid(("there is more than one JSON object, and they do not say the same",))
        return candidates[0] if invalid is None else Invalid(invalid.problems)

    def _unwrap(self, parsed: _Object) -> str:
        """Return the object's text, or that of the only object wrapped in it."""
        if len(parsed.value) != 1 or parsed.value.keys() & self._fields:
            return parsed.text
        wrapper = _WRAPPER.fullmatch(parsed.text)
        if wrapper is None:
            return parsed.text
        self.repairs.add(WRAPPED)
        return wrapper[1]

    def _fit(self, text: str) -> tuple[str, Any]:
        """Return the text of an object, fitted to the schema if its reader accepts it only then, and what the reader returns for it."""
        reading = self._read(text)
        if not isinstance(reading, Invalid):
            return text, reading
        value = read_json(text)  # refuses ambiguous objects, such as one with a repeated name
        if isinstance(value, Invalid):
            return text, reading
        fitter = _Fitter(self._schema)
        fitted = json.dumps(fitter.fit(value, self._schema), ensure_ascii=False)
        fitted_reading = self._read(fitted)
        if isinstance(fitted_reading, Invalid):
            return text, reading
        self.repairs |= fitter.repairs
        return fitted, fitted_reading


class _Fitter:
    """Fits values to an answer's schema. `repairs` are the kinds of change that it made."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.repairs: set[str] = set()
        self._answer_fields = _list_answer_fields(schema)
        """Names that make an extra field a second answer."""

    def fit(self, value: Any, schema: Mapping[str, Any]) -> Any:
        """Return the value in the type of the schema where that is clear, else the value."""
        expected_type = schema.get("type")
        if expected_type == "object" and isinstance(value, dict):
            return self._fit_object(value, schema)
        if expected_type == "number" and isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            self.repairs.add(NUMBER_AS_TEXT)
            return float(value)
        if expected_type == "boolean" and isinstance(value, str) and value.strip().lower() in _VERDICTS:
            self.repairs.add(VERDICT_AS_TEXT)
            return _VERDICTS[value.strip().lower()]
        if expected_type == "string" and value is None:
            self.repairs.add(NULL_TEXT)
            return ""
        if expected_type == "string" and isinstance(value, str):
            return self._replace_lone_surrogates(value)
        return value

    def _fit_object(self, value: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object with the names of the schema."""
        properties: Mapping[str, Mapping[str, Any]] = schema["properties"]
        names_by_plain_name = {_normalize_name(name): name for name in properties}
        fitted: dict[str, Any] = {}
        for name, member in value.items():
            field = name if name in properties else names_by_plain_name.get(_normalize_name(name))
            if field is None and not _collect_member_names(member) & self._answer_fields:
                self.repairs.add(EXTRA_FIELD)
                continue
            if field is None or (field != name and field in value) or field in fitted:
                fitted[name] = member  # ambiguous, so the reader refuses it
                continue
            if field != name:
                self.repairs.add(OTHER_NAME)
            fitted[field] = self.fit(member, properties[field])
        return fitted

    def _replace_lone_surrogates(self, text: str) -> str:
        replaced = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if replaced != text:
            self.repairs.add(SURROGATE)
        return replaced


def _repeats_material(text: str, materials: Sequence[Material], schema: Mapping[str, Any]) -> bool:
    """Return whether an object in the text also occurs in one of the judged texts, as it is or with repaired syntax."""
    fields = _list_answer_fields(schema)
    parts = [name for name, part in schema.get("properties", {}).items() if _DIMENSIONS in part.get("properties", ())]
    judged_objects: list[dict[str, Any]] = []
    for material in materials:
        if "{" in material.literal and any(field in material.literal for field in fields):
            judged_objects += [
                parsed.value
                for judged_text in literal_texts(material.literal)
                for parsed in _complete_objects(judged_text)
                if parsed.names & fields
            ]
    if not judged_objects:
        return False
    return any(
        value in judged_objects
        for form in {text, _repair_syntax(text)}
        for parsed in _complete_objects(form)
        for value in (parsed.value, *map(parsed.value.get, parts))
    )


def _list_answer_fields(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of an answer's members, and of those of its parts if it is about several tiers."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    parts = [part["properties"] for part in properties.values() if _DIMENSIONS in part.get("properties", ())]
    return frozenset(properties).union(*parts)


class _Object(NamedTuple):
    text: str
    value: dict[str, Any]
    names: set[str]
    """The names of its members and of those of the objects in it."""


def _parse_objects(text: str) -> list[_Object] | None:
    """Return the outermost JSON objects in a text; None if one of them is broken, or if there are too many braces."""
    objects: list[_Object] = []
    for parsed in _scan_objects(text):
        if parsed is None:
            return None
        objects.append(parsed)
    return objects


def _complete_objects(text: str) -> list[_Object]:
    """Return the outermost complete JSON objects in a text; broken ones are skipped."""
    return [parsed for parsed in _scan_objects(text) if parsed is not None]


def _scan_objects(text: str) -> Iterator[_Object | None]:
    """Yield the outermost JSON objects in a text, and None for a broken one, or in place of those after too many braces."""
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return
        parsed = _parse_object(text, start)
        if parsed is not None or _OBJECT_START.match(text, start):
            yield parsed
        start = text.find("{", start + (len(parsed.text) if parsed else 1))
    yield None


def _parse_object(text: str, start: int) -> _Object | None:
    """Return the JSON object that starts here; None if there is none."""
    names: set[str] = set()

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        names.update(members)
        return members

    try:
        value, end = json.JSONDecoder(object_pairs_hook=collect).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return _Object(text[start:end], value, names)


def _without_thinking(text: str) -> str:
    """Return the text after thinking at its beginning; empty if the thinking does not end."""
    opening = _THINKING_MARK.match(text)
    if opening is None:
        return text
    return text[opening.end() :].partition(f"</{opening[1]}>")[2]


def _repair_syntax(text: str) -> str:
    """Return the text with JSON5 and Python syntax replaced by JSON."""
    return _LAST_COMMA.sub(lambda match: match["text"] or "", _TOKEN.sub(_convert_to_json, text))


def _convert_to_json(token: re.Match[str]) -> str:
    """Return a token in JSON; comments are dropped."""
    if token["text"] is not None:
        return token["text"]
    if token["single"] is not None:
        content = token["single"].replace("\\'", "'").replace('\\"', '"').replace('"', '\\"')
        return f'{token["before"]}"{content}"'
    if token["constant"] is not None:
        return _CONSTANTS[token["constant"]]
    return ""


def _collect_names(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of the members of an answer and of the objects in it."""
    properties = schema.get("properties", {})
    return set(properties).union(*map(_collect_names, properties.values()))


def _normalize_name(name: str) -> str:
    """Return a name in lower case with underscores, because models change case, spaces and hyphens."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _collect_member_names(value: Any) -> set[str]:
    """Return the names of all members in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(_collect_member_names, value.values()))
    if isinstance(value, list):
        return set().union(*map(_collect_member_names, value))
    return set()
