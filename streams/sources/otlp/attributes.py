"""Converts OTLP attributes to Python values, and parses JSON text in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic_core

from audit.surrogates import repair_escapes
from schemas.bounds import MAX_DEPTH

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Attributes = Mapping[str, Any]
MAX_ATTRIBUTES = 4_096
"""Maximum number of attributes read per span, resource or event. The SDKs' own limit is 128; flattened messages need more."""
MAX_PARSED_CHARACTERS = 4 * 1024 * 1024
"""Maximum length of a text that is parsed as JSON."""


_IS_JSON = re.compile(r"\s*[{\[]").match
_IS_ENCODED_AGAIN = re.compile(r'\s*"(?:\s|\\[nrt])*(?:\[|\{|\\")').match
"""Matches JSON text that was JSON-encoded again."""
MAX_ENCODED = 4
"""Maximum number of nested JSON encodings that are decoded."""
_decode = msgspec.json.Decoder().decode
_decode_text = msgspec.json.Decoder(str).decode


def read_attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Return the attributes by name, at most MAX_ATTRIBUTES. The last value of a repeated name wins."""
    attributes: dict[str, Any] = {}
    for attribute in islice(pairs, MAX_ATTRIBUTES):
        value = attribute.value
        text = value.string_value  # most attributes are texts; an empty text may mean a value of another kind
        attributes[attribute.key] = text or _convert_value(value, value.WhichOneof("value"), MAX_DEPTH)
    return attributes


def to_python(value: AnyValue) -> Any:
    """Return a value as a Python value; bytes as hexadecimal digits."""
    return _convert_value(value, value.WhichOneof("value"), MAX_DEPTH)


def _convert_value(value: AnyValue, kind: str | None, depth: int) -> Any:
    if kind is None or not depth:
        return None
    if kind == "array_value":
        return [_convert_value(item, item.WhichOneof("value"), depth - 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        pairs = value.kvlist_value.values
        return {pair.key: _convert_value(pair.value, pair.value.WhichOneof("value"), depth - 1) for pair in pairs}
    raw = getattr(value, kind)
    return raw.hex() if kind == "bytes_value" else raw


class ParsedValue(msgspec.Struct, frozen=True):
    """A value that may have been JSON text. `is_cut` is True if the text was cut off, so that `value` is only its readable part."""

    value: Any
    is_cut: bool = False


def parse_json(value: Any) -> ParsedValue:
    """Return the value of JSON text with an object or a list, which may be cut off or encoded several times; any other value unchanged."""
    if not isinstance(value, str) or value[:1].isalnum() or len(value) > MAX_PARSED_CHARACTERS:
        return ParsedValue(value)
    if not _IS_JSON(value):
        inner = _decode_again(value)
        read = ParsedValue(value) if inner is None else parse_json(inner)
        return ParsedValue(value) if isinstance(read.value, str) else read
    try:
        return ParsedValue(_decode(value))
    except RecursionError:
        return ParsedValue(value)
    except (msgspec.DecodeError, UnicodeError) as error:
        if "trailing characters" in str(error):  # a text that starts with a bracket, not JSON that was cut off
            return ParsedValue(value)
        repaired = repair_escapes(value)
        return _parse_cut(value) if repaired == value else ParsedValue(parse_json(repaired).value, is_cut=True)


def _decode_again(text: str) -> str | None:
    """Return the JSON text of an object or a list that was JSON-encoded again; None for any other text."""
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


def _parse_cut(text: str) -> ParsedValue:
    """Return the complete part of JSON text that was cut off; a text that is not JSON unchanged."""
    try:
        return ParsedValue(pydantic_core.from_json(text, allow_partial="trailing-strings", allow_inf_nan=False), is_cut=True)
    except ValueError:
        return ParsedValue(text)
