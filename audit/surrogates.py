"""Lone surrogates: produced by programs that cut UTF-16 text at a fixed length. UTF-8 cannot represent them.

Texts are repaired: each lone surrogate becomes U+FFFD. Ids with a lone surrogate are refused, because two different ids could
become equal.
"""

from __future__ import annotations

import codecs
import re
from typing import Any

import msgspec

from schemas.bounds import has_surrogates


def repair_text(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if has_surrogates(text) else text


def repair_value(value: Any) -> Any:
    """Return the JSON value with all its texts repaired, including member names. The caller must have bounded its depth."""
    if isinstance(value, str):
        return repair_text(value)
    if isinstance(value, dict):
        return {repair_text(name): repair_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [repair_value(item) for item in value]
    return value


def decode_leniently(raw: bytes) -> str:
    """Decode bytes that are not valid UTF-8: encoded lone surrogates and other invalid bytes become lone surrogates.

    `repair_text` then repairs both kinds of damage.
    """
    return raw.decode("utf-8", _ERROR_HANDLER)


def repair_escapes(text: str) -> str:
    r"""Replace each escape of a lone surrogate (`\ud83d`) in JSON text by `\ufffd`; other escapes stay."""
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape["half"] else escape[0], text) if _may_escape_surrogate(text) else text


def _may_escape_surrogate(text: str) -> bool:
    return r"\ud" in text or r"\uD" in text


def _decode_surrogate(error: UnicodeError) -> tuple[str, int]:
    """Replace invalid bytes by a lone surrogate; returns it with the position after them."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    start = error.start
    try:
        # Three bytes that only `surrogatepass` decodes are one lone surrogate.
        return error.object[start : start + 3].decode("utf-8", "surrogatepass"), start + 3
    except UnicodeDecodeError:
        return "\udfff", error.end


_ERROR_HANDLER = "driftline.surrogates"
codecs.register_error(_ERROR_HANDLER, _decode_surrogate)
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def json_bytes(value: Any) -> bytes:
    """Encode a value or a record as JSON in UTF-8, repairing its texts if necessary."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(repair_value(msgspec.to_builtins(value)))
