"""Text that hides from the eye of a person while a model reads it: invisible characters, and Base64."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from audit.patterns import compile_pattern, decode, encode

LONG = 256
"""Characters of Base64 from which on it is a hiding place of its own when it holds language."""
_SHORT = 24
_MIN_RUN = 8
"""Zero-width characters in a row: no script and no emoji has as many."""
_MIN_SPLITS = 8
"""Zero-width characters between Latin letters: a stray one or two come along when text is copied."""
_MAX_FLAG = 8

_ZERO_WIDTH = "\u180e\u200b-\u200d\u2060-\u2064\ufeff"
_TAGS = re.compile("[\U000e0000-\U000e007f]+")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4}")
_RUN = re.compile(f"[{_ZERO_WIDTH}\u00ad\u115f\u1160\u3164\uffa0]{{{_MIN_RUN}}}")
_SPLIT = re.compile(f"[a-zA-Z][{_ZERO_WIDTH}](?=[a-zA-Z])")
_REVERSED = re.compile("[\u202d\u202e][^a-zA-Z\u202c]{0,16}[a-zA-Z]{4}")
_FLAG = "\U0001f3f4"
_CANCEL = "\U000e007f"

BASE64 = compile_pattern(
    rf"[A-Za-z0-9+/_-]{{40,}}(?:\r?\n[A-Za-z0-9+/_-]{{4,}})*={{0,2}}|[A-Za-z0-9+/_-]{{{_SHORT},}}={{0,2}}",
    where="base64",
    ignore_case=False,
)
"""A run of Base64 that is long enough to be looked into."""
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\r\n" + bytes(range(0x80, 0x100))


def hides_text(text: str) -> bool:
    """Tell whether characters that cannot be seen carry or cover text.

    These are ordinary: a mark at the start of a file, joiners in emoji and in Persian or Indian words, a few soft hyphens
    and stray zero-width spaces, flags of regions (a black flag and up to eight tags), one variation selector after a
    character.
    """
    if text.isascii():
        return False
    return (
        any(pattern.search(text) for pattern in (_SELECTORS, _RUN, _REVERSED))
        or any(not _is_flag(text, found) for found in _TAGS.finditer(text))
        or sum(1 for _ in _SPLIT.finditer(text)) >= _MIN_SPLITS
    )


def decoded_runs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the decoded runs of Base64 in a text, where they are text; with each, whether the run alone is a hiding place.

    It is one when it is long and holds language. Digests, keys, certificates, images, tokens and source maps decode to bytes or
    to text without spaces between words.
    """
    data = encode(text)
    for start, end in BASE64.groups(data):
        run = b"".join(data[start:end].rstrip(b"=").split()).translate(_URL_SAFE)
        inside = _decoded(run)
        if len(inside) >= _SHORT // 2 and _is_text(inside):
            yield decode_loosely(inside), len(run) >= LONG and _is_language(inside)


def decode_loosely(data: bytes) -> str:
    """Bytes as text, whatever they are."""
    try:
        return decode(data)
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _decoded(run: bytes) -> bytes:
    whole = run[: len(run) - (len(run) % 4 == 1)]
    try:
        return base64.b64decode(whole + b"=" * (-len(whole) % 4))
    except binascii.Error:
        return b""


def _is_text(data: bytes) -> bool:
    """Tell whether nearly all bytes are characters that text has, and the bytes are UTF-8."""
    others = len(data.translate(None, _PRINTABLE))
    replaced = data.decode("utf-8", "replace").count("\ufffd")
    return (others + replaced) * 20 <= len(data)


def _is_language(data: bytes) -> bool:
    """Tell whether it is divided into words: in Latin script by white space, elsewhere by being written in another script."""
    spaces = sum(data.count(space) for space in (b" ", b"\n", b"\t"))
    beyond = len(data) - len(data.translate(None, bytes(range(0x80, 0x100))))
    return spaces * 12 >= len(data) or beyond * 2 >= len(data)


def _is_flag(text: str, tags: re.Match[str]) -> bool:
    """Tell whether the tags belong to the flag of a region."""
    found = tags.group()
    return text[tags.start() - 1 : tags.start()] == _FLAG and found.endswith(_CANCEL) and len(found) <= _MAX_FLAG
