"""Attributes of OTLP as Python values, and texts of JSON within them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic_core

from audit.surrogates import mended_escapes
from schemas.bounds import MAX_DEPTH

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Attributes = Mapping[str, Any]
MAX_ATTRIBUTES = 4_096
"""Attributes of one span, resource or event that are looked at: the SDKs' own limit is 128, flattened messages have more."""
MAX_PARSED = 4 * 1024 * 1024
"""Characters of the longest text that is read as JSON."""


_IS_JSON = re.compile(r"\s*[{\[]").match
_IS_ENCODED_AGAIN = re.compile(r'\s*"(?:\s|\\[nrt])*(?:\[|\{|\\")').match
"""A text of JSON in a text of JSON."""
MAX_ENCODED = 4
"""Times that a text is encoded as JSON and still read."""
_decode = msgspec.json.Decoder().decode
_decode_text = msgspec.json.Decoder(str).decode


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Return the attributes by name, at most MAX_ATTRIBUTES of them; of a name that comes twice, the last."""
    attributes: dict[str, Any] = {}
    for attribute in islice(pairs, MAX_ATTRIBUTES):
        value = attribute.value
        text = value.string_value  # most attributes are texts; an empty one may be of any kind
        attributes[attribute.key] = text or _plain(value, value.WhichOneof("value"), MAX_DEPTH)
    return attributes


def plain(value: AnyValue) -> Any:
    """Return a value as Python has it; bytes as hexadecimal digits."""
    return _plain(value, value.WhichOneof("value"), MAX_DEPTH)


def _plain(value: AnyValue, kind: str | None, depth: int) -> Any:
    if kind is None or not depth:
        return None
    if kind == "array_value":
        return [_plain(item, item.WhichOneof("value"), depth - 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        pairs = value.kvlist_value.values
        return {pair.key: _plain(pair.value, pair.value.WhichOneof("value"), depth - 1) for pair in pairs}
    raw = getattr(value, kind)
    return raw.hex() if kind == "bytes_value" else raw


class Parsed(msgspec.Struct, frozen=True):
    """A value that may have been a text of JSON. `is_cut`: the text broke off or halved a character, and `value` is the readable part."""

    value: Any
    is_cut: bool = False


def parsed(value: Any) -> Parsed:
    """Read a text of JSON that is an object or a list, whole or broken off in the middle; anything else stays as it is.

    What was encoded twice is decoded twice.
    """
    if not isinstance(value, str) or value[:1].isalnum() or len(value) > MAX_PARSED:
        return Parsed(value)
    if not _IS_JSON(value):
        inner = _decode_again(value)
        read = Parsed(value) if inner is None else parsed(inner)
        return Parsed(value) if isinstance(read.value, str) else read
    try:
        return Parsed(_decode(value))
    except RecursionError:
        return Parsed(value)
    except (msgspec.DecodeError, UnicodeError) as error:
        if "trailing characters" in str(error):  # a text that begins with brackets, and no JSON that was cut
            return Parsed(value)
        whole = mended_escapes(value)
        return _parse_cut(value) if whole == value else Parsed(parsed(whole).value, is_cut=True)


def _decode_again(text: str) -> str | None:
    """Return the text of an object or a list that was encoded as JSON once more, or oftener; None for any other text."""
    for _ in range(MAX_ENCODED):
        if not _IS_ENCODED_AGAIN(text):
            return None
        try:
            text = _decode_text(text)
        except (msgspec.DecodeError, UnicodeError):
            return None
        if _IS_JSON(text):
            return text
    return None


def _parse_cut(text: str) -> Parsed:
    """Read the complete part of a text of JSON that was cut; the text itself where it is no JSON."""
    try:
        return Parsed(pydantic_core.from_json(text, allow_partial="trailing-strings", allow_inf_nan=False), is_cut=True)
    except ValueError:
        return Parsed(text)
