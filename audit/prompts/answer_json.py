"""JSON of a model: read strictly, with what is wrong in words that the model can act on; and found in prose."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from audit.exchanges.questions import Invalid

MAX_ANSWER = 200_000
"""Characters of an answer that is read at all; far beyond what the tokens of any question allow."""
_MAX_STARTS = 32
"""Braces at which an object is looked for, so that the sum of the searches stays linear."""
_MAX_NAME = 40
_THINKING = re.compile(r"[\s\ufeff]*<(think|thinking|reasoning)>")
"""Where thinking begins that a server did not take out of the text: only there is a mark no part of a quoted text."""
_BROKEN = re.compile(r'\{\s*"')
"""Where an object begins: other braces, as in `{name}`, are prose."""
_WRAPPER = re.compile(r'\{\s*"[^"\\]*"\s*:\s*(\{.*\})\s*\}', re.DOTALL)


class _FaultyError(Exception):
    """Something that JSON does not forbid and an answer must not hold."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _FaultyError
    return found


def _no_constant(_name: str) -> None:
    raise _FaultyError


_FAULTLESS = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
"""Reads an answer without any problem; one that has some is read again to name all of them."""


_MEMBER = re.compile(r'"[ \t\n\r]*:')
"""Where a member of an object can be, between its name and its value; texts can have it after an escaped quotation mark, too."""
_NEGATIVE = re.compile(r":[ \t\n\r]*-")
"""Where a negative number can be; no answer needs one."""


class AnswerForm:
    """The form of a faultless answer to a question, made of the JSON schema that it asks for, with the bounds of its numbers."""

    def __init__(self, schema: Mapping[str, Any], low: int, high: int) -> None:
        self._members = _members(schema)
        number = Annotated[float, msgspec.Meta(ge=low, le=high)]
        self._decode = msgspec.json.Decoder(_type_of(schema, number)).decode

    def read(self, text: str) -> tuple[Any, ...] | None:
        """The values in the order of the schema, in a third of the time of `read_json`; None where it takes that to know.

        A parser that keeps the last of two members with one name is quick. No name was there twice if there are no more places
        at which a member can be than members. It also takes the integer `-0` for the double -0.0. Texts it gives hold no surrogates.
        """
        if len(text) > MAX_ANSWER or _NEGATIVE.search(text) or len(_MEMBER.findall(text)) != self._members:
            return None
        try:
            return msgspec.structs.astuple(self._decode(text))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None


def _members(schema: Mapping[str, Any]) -> int:
    """The members of an answer and of the objects in it."""
    properties = schema.get("properties", {})
    return len(properties) + sum(map(_members, properties.values()))


def _type_of(schema: Mapping[str, Any], number: Any) -> Any:
    """The type of an answer, or of a part of it; an object is a struct whose fields have the names of JSON there alone."""
    if schema["type"] != "object":
        return {"string": str, "boolean": bool, "number": number}[schema["type"]]
    fields = [
        (f"field_{place}", _type_of(inside, number), msgspec.field(name=name))
        for place, (name, inside) in enumerate(schema["properties"].items())
    ]
    return msgspec.defstruct("Answer", fields, forbid_unknown_fields=True)


def read_json(text: str) -> Any:
    """The value the text is, or `Invalid`: no other text around it, no key twice, no NaN, no lone surrogates."""
    if len(text) > MAX_ANSWER:
        return Invalid((f"the answer has more than {MAX_ANSWER} characters",))
    try:
        return _FAULTLESS.decode(text)
    except (_FaultyError, ValueError, RecursionError):
        return _problems_of(text)


def _problems_of(text: str) -> Any:
    """`read_json` of a text in which something is wrong."""
    problems: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            problems.extend(f"{shown(name)} is there more than once" for name in found if names.count(name) > 1)
        return found

    def constant(name: str) -> None:
        problems.append(f"{name} is not a JSON number")

    try:
        value = json.loads(text, object_pairs_hook=members, parse_constant=constant)
    except json.JSONDecodeError as error:
        return Invalid((f"not one JSON object and nothing else: {error.msg} at character {error.pos}",))
    except RecursionError:
        return Invalid(("the JSON nests too deep",))
    except ValueError:
        return Invalid(("a number has too many digits",))
    return Invalid(tuple(problems)) if problems else value


def is_object(text: str) -> bool:
    """Tell whether a text is one JSON object and nothing else, as structured output has it."""
    part = _object_at(text, 0) if text.startswith("{") and len(text) <= MAX_ANSWER else None
    return part is not None and len(part.text) == len(text)


def answer_in(text: str, schema: Mapping[str, Any], read: Callable[[str], Any]) -> str | Invalid:
    """The part of a model's text that is its answer to a question with this schema and reader; `Invalid` where that is not certain.

    1. Thinking in `<think>` at the beginning is no part of the answer, whatever it drafts; where it does not end, there is no answer.
    2. A text that `read` takes is the answer. It may be quoted as one JSON string.
    3. Otherwise the answer is a JSON object in the text; prose and fences around it say nothing. It may stand in a wrapper: an object
       with one member whose name is none of the schema's.
    4. An object with any field of the schema competes with it: a draft, a correction, a second answer. All of them must be answers
       that read the same, and none may be broken off. So a later correction makes an answer unreadable: which of both the model
       means is a guess. An object without any such field, or that repeats the schema, is ignored.
    """
    if len(text) > MAX_ANSWER:
        return Invalid((f"the answer has more than {MAX_ANSWER} characters",))
    text = _unquoted(_without_thinking(text).strip())
    whole = read(text)
    if not isinstance(whole, Invalid):
        return text
    fields = _names_of(schema)
    objects = _objects_in(text)
    if objects is None:
        return Invalid((*whole.problems, "a JSON object in it is not complete"))
    candidates = [_unwrapped(one, fields) for one in objects if one.names & fields and one.value != schema]
    readings = [read(candidate) for candidate in candidates]
    problems = next((reading.problems for reading in readings if isinstance(reading, Invalid)), None)
    if len(candidates) > 1 and (problems is not None or any(reading != readings[0] for reading in readings)):
        return Invalid(("there is more than one JSON object, and they do not say the same",))
    if problems is not None:
        return Invalid(problems)
    return candidates[0] if candidates else whole


def _without_thinking(text: str) -> str:
    """The text after thinking that stands at its beginning; empty where that does not end."""
    opening = _THINKING.match(text)
    if opening is None:
        return text
    return text[opening.end() :].partition(f"</{opening[1]}>")[2]


def _unquoted(text: str) -> str:
    """The text, or what it quotes as one JSON string."""
    if not text.startswith('"'):
        return text
    try:
        quoted = json.loads(text)
    except ValueError:
        return text
    return quoted if isinstance(quoted, str) else text


class _Object(NamedTuple):
    text: str
    value: dict[str, Any]
    names: set[str]
    """Of its members and of those of the objects in it."""


def _objects_in(text: str) -> list[_Object] | None:
    """The outermost JSON objects in a text; None where one of them is broken, or there are too many braces to look at."""
    objects: list[_Object] = []
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            return objects
        part = _object_at(text, start)
        if part is not None:
            objects.append(part)
        elif _BROKEN.match(text, start):
            return None
        start = text.find("{", start + (len(part.text) if part else 1))
    return None


def _object_at(text: str, start: int) -> _Object | None:
    """The JSON object that starts here; None where none does."""
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


def _unwrapped(part: _Object, fields: set[str]) -> str:
    """The object's text, or that of the only object in it."""
    wrapper = _WRAPPER.fullmatch(part.text) if len(part.value) == 1 and not part.value.keys() & fields else None
    return part.text if wrapper is None else wrapper[1]


def _names_of(schema: Mapping[str, Any]) -> set[str]:
    """The names of the members of an answer and of the objects in it."""
    properties = schema.get("properties", {})
    return set(properties).union(*map(_names_of, properties.values()))


def shown(name: str) -> str:
    """A name the model chose, as it can be shown back: quoted, in ASCII, and short."""
    return json.dumps(name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…")
