"""Canonical forms, digests and ids: equal content has the same text, digest and id in every process."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from json.encoder import encode_basestring as _quoted
from typing import Any

import msgspec

# json.dumps would build an encoder on every call, which takes as long as encoding a small value.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_encode_msgspec = msgspec.json.Encoder(order="sorted").encode
MIN_PLAIN_FLOAT, MAX_PLAIN_FLOAT = 1e-4, 1e16
"""Floats in this range have no exponent in Python's JSON. Both encoders write the shortest form, so they agree."""
NAMESPACE = uuid.UUID("6f9c6a52-98b1-5d6e-9c1f-2f0d3a7c41aa")
"""Namespace of every id that is derived from content."""
_NAMESPACE_BYTES = NAMESPACE.bytes
_VARIANTS = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}
"""Maps a hexadecimal digit of the digest to the digit that marks the variant of a UUID."""


def canonical_json(value: Any) -> str:
    """Return the value as JSON with sorted keys, without spaces and ASCII escapes; raises ValueError for NaN and infinities."""
    if type(value) is str:
        return _quoted(value)
    if _is_encoded_alike(value):
        try:
            return _encode_msgspec(value).decode()
        except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot represent
            pass
    return _encode(value)


def canonical_bytes(value: Any) -> bytes:
    """Return the `canonical_json` of a value in UTF-8; raises UnicodeEncodeError for a lone surrogate."""
    return _encode_msgspec(value) if _is_encoded_alike(value) else _encode(value).encode()


def _is_encoded_alike(value: Any) -> bool:
    """Return whether msgspec, which is ten times faster, encodes a value as `json` does: not if a float may have an exponent.

    The list of items grows while it is iterated, so that no depth exhausts the stack.
    """
    items = [value]
    for item in items:
        kind = type(item)
        if kind is str or kind is int or kind is bool or item is None:
            continue
        if kind is dict:
            for name in item:
                if type(name) is not str:
                    return False
            items += item.values()
        elif kind is list or kind is tuple:
            items += item
        elif kind is not float or not (MIN_PLAIN_FLOAT <= abs(item) < MAX_PLAIN_FLOAT or item == 0):
            return False
    return True


def canonical_list(*items: str) -> str:
    """Return the canonical JSON of a list of items that are already canonical JSON."""
    return f"[{','.join(items)}]"


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of a text's SHA-256: 64 bits distinguish versions, but do not resist attacks."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def digest_of_value(value: Any) -> str:
    """Return the `digest` of the `canonical_json` of a value."""
    try:
        return hashlib.sha256(canonical_bytes(value)).hexdigest()[:16]
    except UnicodeEncodeError:  # a lone surrogate
        return digest(canonical_json(value))


def digest_of_texts(*texts: str | None) -> str:
    """Return the `digest` of the `canonical_json` of a list of texts."""
    try:
        return hashlib.sha256(_encode_msgspec(texts)).hexdigest()[:16]
    except UnicodeEncodeError:
        return digest(_encode(texts))


def stable_id(kind: str, *parts: str | int) -> str:
    """Return a UUID of version 5 of the parts; `kind` separates ids of different record types."""
    digits = hashlib.sha1(_NAMESPACE_BYTES + _encode_parts(kind, parts).encode(), usedforsecurity=False).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{_VARIANTS[digits[16]]}{digits[17:20]}-{digits[20:32]}"


def _encode_parts(kind: str, parts: Iterable[str | int]) -> str:
    """Return the canonical JSON of a list of texts and numbers, three times faster than for any list."""
    return canonical_list(_quoted(kind), *[_quoted(part) if type(part) is str else canonical_json(part) for part in parts])
