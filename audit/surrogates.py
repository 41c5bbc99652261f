"""Lone surrogates: left behind by programs that cut UTF-16 text at a fixed length. UTF-8 cannot represent them.

Texts are repaired: each lone surrogate becomes U+FFFD. Ids are refused instead, because two different ids could become equal.
"""

from __future__ import annotations

import codecs
import re
from typing import Any

import msgspec

from schemas.bounds import has_surrogates


def mended_text(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if has_surrogates(text) else text


def mended(value: Any) -> Any:
    """Return the JSON value with all its texts repaired, including member names; its depth is known to be bounded."""
    if isinstance(value, str):
        return mended_text(value)
    if isinstance(value, dict):
        return {mended_text(name): mended(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mended(item) for item in value]
    return value


def decode_broken(raw: bytes) -> str:
    """Decode bytes that are not all UTF-8: an encoded lone surrogate stays one, any other bad byte becomes one.

    So both kinds of damage can be repaired by `mended_text`.
    """
    return raw.decode("utf-8", _HALVES)


def mended_escapes(text: str) -> str:
    r"""Replace each escape of a lone surrogate (`\ud83d`) in JSON text by `\ufffd`; other escapes stay."""
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape["half"] else escape[0], text) if _may_escape_half(text) else text


def _may_escape_half(text: str) -> bool:
    return r"\ud" in text or r"\uD" in text


def _decode_half(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    start = error.start
    try:
        # Three bytes that only `surrogatepass` decodes are one lone surrogate.
        return error.object[start : start + 3].decode("utf-8", "surrogatepass"), start + 3
    except UnicodeDecodeError:
        return "\udfff", error.end


_HALVES = "driftline.halves"
codecs.register_error(_HALVES, _decode_half)
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def json_bytes(value: Any) -> bytes:
    """Encode a value or a record as JSON in UTF-8, repairing its texts if necessary."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(mended(msgspec.to_builtins(value)))
