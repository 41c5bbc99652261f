"""Halves of surrogate pairs: what programs leave behind that cut a text in UTF-16 at a length. No UTF-8 can hold them.

Texts are repaired: each half becomes U+FFFD. Ids are not, because two ids that differ would become one: they are refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.bounds.limits import has_surrogates


def mended_text(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if has_surrogates(text) else text


def mended(value: Any) -> Any:
    """The JSON value with all its texts repaired, names of members included; its depth is known to be bounded."""
    if isinstance(value, str):
        return mended_text(value)
    if isinstance(value, dict):
        return {mended_text(name): mended(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mended(item) for item in value]
    return value


def json_bytes(value: Any) -> bytes:
    """The value, or the record, as JSON in UTF-8, its texts repaired where they have to be."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(mended(msgspec.to_builtins(value)))
