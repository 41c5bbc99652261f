"""Making sure of a raw event that it can be written as JSON, in bounded time and without recursion.

JSON knows no NaN and no infinity: they become null. UTF-8 knows no lone surrogates: they become U+FFFD. What nests deeper than
MAX_DEPTH, or is no JSON value at all, is refused with the name of its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from audit.surrogates import mended_text
from schemas.bounds.limits import MAX_DEPTH, has_surrogates
from schemas.errors import BoundsError, InputError

MAX_DIGITS = 4000
"""Digits an integer may have: Python refuses to write integers of more than 4300."""

_MAX_INTEGER = 10**MAX_DIGITS
_NESTED = frozenset({dict, list, tuple})


def clean_payload(raw: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A copy of the raw event that can be written as JSON; nested values are shared with it unless they had to be mended.

    InputError when it is no object; BoundsError naming `events[index].field` when a value nests too deep or is not JSON.
    """
    if type(raw) is not dict and not isinstance(raw, Mapping):
        raise InputError(f"events[{index}]: is {type(raw).__name__}, not a JSON object", hint="Send one object an event.")
    payload = dict(raw)
    try:
        return _mended(payload) if _is_broken(payload) else payload
    except BoundsError as error:
        raise BoundsError(f"events[{index}]{_faulty_field(payload)}: {error}") from None


def _is_broken(payload: dict[str, Any]) -> bool:
    """Tell whether the event needs mending. Go down level by level, so that no depth can exhaust the stack."""
    broken = False
    level: list[Any] = [payload]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for container in level:
            items = container
            if type(container) is dict:
                broken = _has_broken_name(container) or broken
                items = container.values()
            for item in items:
                kind = type(item)
                if kind is str:
                    broken = broken or (not item.isascii() and has_surrogates(item))
                elif kind is bool or item is None or (kind is int and -_MAX_INTEGER < item < _MAX_INTEGER):
                    continue
                elif kind in _NESTED:
                    below.append(item)
                elif kind is float:
                    broken = broken or not isfinite(item)
                else:
                    raise BoundsError(f"holds a value that JSON cannot carry ({kind.__name__})")
        if not below:
            return broken
        level = below
    raise BoundsError(f"is nested deeper than {MAX_DEPTH} levels")


def _has_broken_name(container: dict[Any, Any]) -> bool:
    """Tell whether a name of the object needs mending; BoundsError for one that is not text."""
    try:
        names = "".join(container)
    except TypeError:
        raise BoundsError("holds a name that is not text") from None
    return has_surrogates(names)


def _faulty_field(payload: dict[Any, Any]) -> str:
    """`.field` for the first field that cannot be taken, for a message."""
    for field, value in payload.items():
        try:
            _is_broken({field: value})
        except BoundsError:
            return f".{mended_text(field[:80])}" if isinstance(field, str) else ""
    return ""


def _mended(value: Any) -> Any:
    """The value with its text and numbers as JSON can carry them; its depth is known to be bounded."""
    if isinstance(value, str):
        return mended_text(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {mended_text(name): _mended(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return value
