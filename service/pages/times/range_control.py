"""The control of the time that a page shows: one for all pages, made of their address, which keeps everything else that it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from fastapi import Request

from service.text.window import ALL, BEFORE, LENGTHS, NAMES, AskedRange, Window, window_of

_UNITS = {"h": "hours", "d": "days"}
_REPLACED = frozenset({*NAMES, "since", "cursor"})
"""Parameters that another time replaces: a page of the old list is none of the new one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A length, or all of the time, and the address that shows it."""

    words: str
    name: str
    """The words in full, as they are read out."""
    address: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeControl:
    """The values of the control."""

    choices: list[Choice]
    earlier: str | None
    later: str | None
    compare: Choice | None
    """None where there is no time to compare."""
    words: str
    """The time that is shown; empty for all of it."""
    is_part: bool
    """Whether there may be something beside what is shown: nothing is where an empty time ends now and has no data before."""
    offer: Choice | None
    """The last time of this length with data, where the time that is shown has none."""


def range_control(
    request: Request,
    window: Window | None,
    now: datetime,
    *,
    has_all: bool = False,
    has_comparison: bool = True,
    last: Window | None = None,
) -> RangeControl:
    """Return the control of a page: `window` is the shown time, None for all of it.

    Lists have all of the time among their choices; a page without figures has no comparison. `last` is the last period with data, of a
    page whose time has none.
    """
    shown = window or window_of(AskedRange(), now)
    choices = [
        Choice(*_named(one), _address(request, shown.asked_of(one)), window is not None and one == window.length)
        for one in LENGTHS
    ]
    if has_all:
        choices.insert(0, Choice("All", "All of the time", _address(request, {"window": ALL}), window is None))
    if window is None:
        return RangeControl(choices=choices, earlier=None, later=None, compare=None, words="", is_part=False, offer=None)
    turned = {name: value for name, value in window.asked.items() if name != "compare"}
    turned |= {} if window.compare else {"compare": BEFORE}
    earlier, later = window.earlier(), window.later(now)
    return RangeControl(
        choices=choices,
        earlier=_address(request, earlier) if earlier else None,
        later=_address(request, later) if later else None,
        compare=Choice(
            "Compare with before", f"Compare with before: {window.before.words}", _address(request, turned), window.compare
        )
        if has_comparison
        else None,
        words=window.words,
        is_part=last is not None or later is not None,
        offer=None if last is None else Choice(last.words, _named(last.length)[1], _address(request, last.asked), False),
    )


def _named(length: str) -> tuple[str, str]:
    """Name a length such as 24h, short and in full."""
    number, unit = length[:-1], length[-1]
    return f"{number} {unit}", f"{number} {_UNITS[unit]}"


def _address(request: Request, time: Mapping[str, str]) -> str:
    """Return the address of the page with another time."""
    others: Iterable[tuple[str, str]] = request.query_params.multi_items()
    asked = [(name, value) for name, value in others if name not in _REPLACED] + list(time.items())
    return f"{request.url.path}?{urlencode(asked)}" if asked else request.url.path
