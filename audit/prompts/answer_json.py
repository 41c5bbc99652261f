"""JSON of a model: read strictly, with what is wrong in words that the model can act on; and found in prose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from audit.exchanges.questions import Invalid

MAX_ANSWER = 200_000
"""Characters of an answer that is read at all; far beyond what the tokens of any question allow."""
_MAX_STARTS = 32
"""Braces at which `json_in` looks for an object, so that the sum of the searches stays linear."""
_MAX_NAME = 40
_DECODER = json.JSONDecoder()


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


def json_in(text: str) -> str | None:
    """The one JSON object in a text that has prose or a code fence around it; None where there is none, or more than one."""
    found: list[str] = []
    start = text.find("{") if len(text) <= MAX_ANSWER else -1
    for _ in range(_MAX_STARTS):
        if start < 0 or len(found) > 1:
            break
        end = _end_of_object(text, start)
        if end:
            found.append(text[start:end])
        start = text.find("{", end or start + 1)
    return found[0] if len(found) == 1 and start < 0 else None


def shown(name: str) -> str:
    """A name the model chose, as it can be shown back: quoted, in ASCII, and short."""
    return json.dumps(name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…")


def _end_of_object(text: str, start: int) -> int:
    """Return the end of the JSON object that starts here; 0 where none does."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return 0
