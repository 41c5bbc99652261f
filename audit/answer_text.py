"""The answer in a judge's text: found beside thinking, prose and fences, and repaired where that loses nothing.

Models quote, wrap, rename and decorate what they were asked for, and each answer is paid for. A repair changes the form and never the
content: whatever could be meant in two ways is left to the judge to correct. Every repair is named, so that people see how often a
model needs them.

1. Thinking in `<think>` at the beginning is not part of the answer. If it does not end, there is no answer.
2. A text that `read` accepts is the answer. It may be quoted as one JSON string.
3. Otherwise the answer is a JSON object in the text; prose and fences around it are ignored. It may be wrapped in an object with one
   member whose name is not in the schema.
4. Every object with a field of the schema is a candidate: a draft, a correction, a second answer. All candidates must be complete and
   read the same. So a later correction makes an answer unreadable, because the model's intention is unclear. An object without any field
   of the schema, or that repeats the schema, is ignored.
5. Syntax is repaired if an object cannot be parsed: comments after `//`, commas before a closing bracket, single quotation marks, and
   `True`, `False` and `None`. A text that ends too early stays broken.
6. A candidate that `read` refuses is fitted to the schema: numbers and verdicts written as texts, names in other letters, null for an
   empty text, half a surrogate pair. Fields that the schema does not have are dropped, unless there is a second answer in them.
7. An object that stands in one of the judged texts is no answer, whoever repeats it: its author may have written it for the judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from audit.answers import MAX_ANSWER, read_json
from audit.exchanges.questions import Invalid, Material

QUOTED, WRAPPED, SYNTAX = "quoted", "wrapped", "syntax"
NUMBER_AS_TEXT, VERDICT_AS_TEXT, OTHER_NAME = "number_as_text", "verdict_as_text", "other_name"
EXTRA_FIELD, NULL_TEXT, SURROGATE = "extra_field", "null_text", "surrogate"

_MAX_OBJECTS = 32
"""Most braces at which an object is searched for, so that the search stays linear."""
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
"""A text of JSON, or something that JSON does not have. Texts come first, so nothing inside them is taken for anything else."""
_LAST_COMMA = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*")|,(?=\s*[}\]])""", re.DOTALL)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class AnswerText(NamedTuple):
    """The text of an answer that its reader accepts."""

    text: str
    repairs: tuple[str, ...] = ()
    """What had to be repaired, each kind once."""


def extract_answer(
    text: str, schema: Mapping[str, Any], read: Callable[[str], Any], materials: Sequence[Material] = ()
) -> AnswerText | Invalid:
    """Return the part of a model's text that is its answer; `Invalid` if that is ambiguous. See the module.

    `materials` are the texts that the judge was shown.
    """
    if len(text) > MAX_ANSWER:
        return Invalid((f"the answer has more than {MAX_ANSWER} characters",))
    repairs: set[str] = set()
    text = _unquote(_without_thinking(text).strip(), repairs)
    if _repeats_material(text, materials, schema):
        return Invalid(("the answer repeats one that stands in a judged text",))
    direct = read(text)
    answer: str | Invalid = text
    if isinstance(direct, Invalid):
        objects = _objects_in(text)
        if objects is None:
            objects = _objects_in(_repair_syntax(text))
            repairs.add(SYNTAX)
        answer = _choose_object(objects, direct, schema, read, repairs)
    return answer if isinstance(answer, Invalid) else AnswerText(answer, tuple(sorted(repairs)))


def _choose_object(
    objects: Sequence[_Object] | None,
    direct: Invalid,
    schema: Mapping[str, Any],
    read: Callable[[str], Any],
    repairs: set[str],
) -> str | Invalid:
    """Return the text of the object that is the answer; `Invalid` if there is none, or if it is unusable or ambiguous.

    `direct` has the problems of the whole text. The objects are None if one of them is broken.
    """
    if objects is None:
        return Invalid((*direct.problems, "a JSON object in it is not complete"))
    fields = _collect_names(schema)
    candidates = [
        _fit(_unwrap(part, fields, repairs), schema, read, repairs)
        for part in objects
        if part.names & fields and part.value != schema
    ]
    readings = [read(candidate) for candidate in candidates]
    problems = next((reading.problems for reading in readings if isinstance(reading, Invalid)), None)
    if len(candidates) > 1 and (problems is not None or any(reading != readings[0] for reading in readings)):
        return Invalid(("there is more than one JSON object, and they do not say the same",))
    if problems is not None:
        return Invalid(problems)
    return candidates[0] if candidates else direct


def _repeats_material(text: str, materials: Sequence[Material], schema: Mapping[str, Any]) -> bool:
    """Return whether an object in the text stands in one of the judged texts, in whatever form."""
    fields = set(schema.get("properties", ()))
    planted: list[dict[str, Any]] = []
    for material in materials:
        if "{" in material.literal and any(field in material.literal for field in fields):
            planted += [part.value for part in _complete_objects(json.loads(material.literal)) if part.names & fields]
    if not planted:
        return False
    return any(part.value in planted for form in {text, _repair_syntax(text)} for part in _complete_objects(form))


def is_object(text: str) -> bool:
    """Return whether a text is exactly one JSON object, as structured output has it."""
    part = _object_at(text, 0) if text.startswith("{") and len(text) <= MAX_ANSWER else None
    return part is not None and len(part.text) == len(text)


class _Object(NamedTuple):
    text: str
    value: dict[str, Any]
    names: set[str]
    """The names of its members and of those of the objects in it."""


def _objects_in(text: str) -> list[_Object] | None:
    """Return the outermost JSON objects in a text; None if one of them is broken, or if there are too many braces."""
    objects: list[_Object] = []
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return objects
        part = _object_at(text, start)
        if part is not None:
            objects.append(part)
        elif _OBJECT_START.match(text, start):
            return None
        start = text.find("{", start + (len(part.text) if part else 1))
    return None


def _complete_objects(text: str) -> Iterator[_Object]:
    """Yield the outermost complete JSON objects in a text, whatever else is broken in it."""
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return
        part = _object_at(text, start)
        if part is not None:
            yield part
        start = text.find("{", start + (len(part.text) if part else 1))


def _object_at(text: str, start: int) -> _Object | None:
    """Parse the JSON object that starts here; None if there is none."""
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


def _unquote(text: str, repairs: set[str]) -> str:
    """Return the text, or the text that it quotes as one JSON string."""
    if not text.startswith('"'):
        return text
    try:
        quoted = json.loads(text)
    except ValueError:
        return text
    if not isinstance(quoted, str):
        return text
    repairs.add(QUOTED)
    return quoted


def _without_thinking(text: str) -> str:
    """Return the text after thinking at its beginning; empty if the thinking does not end."""
    opening = _THINKING_MARK.match(text)
    if opening is None:
        return text
    return text[opening.end() :].partition(f"</{opening[1]}>")[2]


def _repair_syntax(text: str) -> str:
    """Return the text as JSON writes it, where it is written as JSON5 or Python would."""
    return _LAST_COMMA.sub(lambda match: match["text"] or "", _TOKEN.sub(_as_json, text))


def _as_json(token: re.Match[str]) -> str:
    if token["text"] is not None:
        return token["text"]
    if token["single"] is not None:
        content = token["single"].replace("\\'", "'").replace('\\"', '"').replace('"', '\\"')
        return f'{token["before"]}"{content}"'
    return _CONSTANTS[token["constant"]] if token["constant"] is not None else ""


def _collect_names(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of the members of an answer and of the objects in it."""
    properties = schema.get("properties", {})
    return set(properties).union(*map(_collect_names, properties.values()))


def _unwrap(part: _Object, fields: set[str], repairs: set[str]) -> str:
    """Return the object's text, or that of the only object wrapped in it."""
    wrapper = _WRAPPER.fullmatch(part.text) if len(part.value) == 1 and not part.value.keys() & fields else None
    if wrapper is None:
        return part.text
    repairs.add(WRAPPED)
    return wrapper[1]


def _fit(text: str, schema: Mapping[str, Any], read: Callable[[str], Any], repairs: set[str]) -> str:
    """Return the text of an object fitted to the schema if its reader accepts it only then; else the text."""
    if not isinstance(read(text), Invalid):
        return text
    value = read_json(text)  # refuses what has two meanings, such as a name that is there twice
    if isinstance(value, Invalid):
        return text
    made: set[str] = set()
    fitted = json.dumps(_fit_value(value, schema, frozenset(schema.get("properties", ())), made), ensure_ascii=False)
    if isinstance(read(fitted), Invalid):
        return text
    repairs |= made
    return fitted


def _fit_value(value: Any, schema: Mapping[str, Any], reserved: frozenset[str], repairs: set[str]) -> Any:
    kind = schema.get("type")
    if kind == "object" and isinstance(value, dict):
        return _fit_object(value, schema, reserved, repairs)
    if kind == "number" and isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        repairs.add(NUMBER_AS_TEXT)
        return float(value)
    if kind == "boolean" and isinstance(value, str) and value.strip().lower() in _VERDICTS:
        repairs.add(VERDICT_AS_TEXT)
        return _VERDICTS[value.strip().lower()]
    if kind == "string" and value is None:
        repairs.add(NULL_TEXT)
        return ""
    if kind == "string" and isinstance(value, str):
        encoded = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if encoded != value:
            repairs.add(SURROGATE)
        return encoded
    return value


def _fit_object(
    value: Mapping[str, Any], schema: Mapping[str, Any], reserved: frozenset[str], repairs: set[str]
) -> dict[str, Any]:
    """Return the object with the names of the schema. `reserved` are the names that make an extra field a second answer."""
    properties: Mapping[str, Mapping[str, Any]] = schema["properties"]
    plain_names = {_plain_name(name): name for name in properties}
    fitted: dict[str, Any] = {}
    for name, member in value.items():
        known = name if name in properties else plain_names.get(_plain_name(name))
        if known is None and not _names_in(member) & reserved:
            repairs.add(EXTRA_FIELD)
            continue
        if known is None or (known != name and known in value) or known in fitted:
            fitted[name] = member  # ambiguous, so the reader refuses it
            continue
        if known != name:
            repairs.add(OTHER_NAME)
        fitted[known] = _fit_value(member, properties[known], reserved, repairs)
    return fitted


def _plain_name(name: str) -> str:
    """Return a name without what models change in it: case, spaces and hyphens."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _names_in(value: Any) -> set[str]:
    """Return the names of all members in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(_names_in, value.values()))
    if isinstance(value, list):
        return set().union(*map(_names_in, value))
    return set()
