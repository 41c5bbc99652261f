"""The period that a page shows: its parameters, its control, and comparisons with the preceding period.

The links of the control keep the other parameters of the page's address.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from pydantic import BeforeValidator

from service.pages.rendering import NOTHING, number
from service.text.formats import signed
from service.text.window import (
    ALL,
    BEFORE,
    LENGTHS,
    NAMES,
    USUAL,
    Length,
    RangeRequest,
    Window,
    read_day,
    read_until,
    window_of,
)
from service.web.errors import ApiError

_Until = Annotated[
    date | datetime | None, BeforeValidator(read_until), Query(description="The last day, or the end; now by default.")
]
_Compare = Annotated[Literal["before"] | None, Query(description="before: compare with the preceding period.")]


_Since = Annotated[
    date | None,
    BeforeValidator(read_day),
    Query(description="The first day of a list, up to the day of `until`, without `window`."),
]


def _read_range(
    request: Request,
    window: Annotated[Length | None, Query(description="The length; 14d by default.")] = None,
    until: _Until = None,
    compare: _Compare = None,
    since: _Since = None,
) -> RangeRequest:
    unknown = tuple(sorted(set(request.query_params) - set(NAMES)))
    if since is not None and window is None:
        days = RangeRequest(until=until, since=since, unknown=unknown)
        start, end = days.days
        if end is not None and end <= start:
            raise ApiError(400, "invalid", "since: must not be after until")
        return days
    return RangeRequest(window or USUAL, until, compare == BEFORE, unknown=unknown)


def _read_list_range(
    request: Request,
    window: Annotated[Literal[Length, "all"] | None, Query(description="The length, or all; 14d by default.")] = None,
    until: _Until = None,
    compare: _Compare = None,
    since: _Since = None,
) -> RangeRequest:
    if window == ALL:
        return RangeRequest(is_all=True)
    return _read_range(request, window, until, compare, since)


Period = Annotated[RangeRequest, Depends(_read_range)]
"""The period in the address."""
ListPeriod = Annotated[RangeRequest, Depends(_read_list_range)]
"""The period in the address of a list that can show all time."""


_UNITS = {"h": "hours", "d": "days"}
_PERIOD_PARAMS = frozenset({*NAMES, "since", "cursor"})
"""Parameters that a new period removes. The cursor of one period is not valid in another."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of the control, with its link."""

    words: str
    name: str
    """The full name, for screen readers."""
    address: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeControl:
    """The values of the period control."""

    choices: list[Choice]
    earlier: str | None
    later: str | None
    compare: Choice | None
    """None if the page does not compare periods."""
    words: str
    """The shown period in words; empty for all time."""
    is_part: bool
    """Whether other periods may have data."""
    offer: Choice | None
    """The last period of the same length with data, if the shown one has none."""


def range_control(
    request: Request,
    window: Window | None,
    now: datetime,
    *,
    days: RangeRequest | None = None,
    has_all: bool = False,
    has_comparison: bool = True,
    last: Window | None = None,
) -> RangeControl:
    """Return the period control of a page. `window` is the shown period; None for all time, or for the range of days in `days`.

    `has_all` adds all time to the choices, as in lists. `last` is the last period with data, if the shown one has none.
    """
    shown = window or window_of(RangeRequest(), now)
    choices = [
        Choice(
            *_name_length(length),
            _build_address(request, shown.params_for(length)),
            window is not None and length == window.length,
        )
        for length in LENGTHS
    ]
    day_before = {"window": "24h", "until": f"{(now - timedelta(days=1)).date()}"}
    is_day_before = window is not None and window.params == day_before
    lengths = [dataclasses.replace(choice, is_chosen=choice.is_chosen and not is_day_before) for choice in choices]
    choices = [*lengths, Choice("Yesterday", "Yesterday, UTC", _build_address(request, day_before), is_day_before)]
    has_days = days is not None and days.since is not None
    if has_all:
        choices.insert(0, Choice("All", "All time", _build_address(request, {"window": ALL}), window is None and not has_days))
    if window is None:
        words = ""
        if days is not None and days.since is not None:
            until = days.days[1]
            words = f"{days.since} to {'today' if until is None else (until - timedelta(days=1)).date()}"
        return RangeControl(choices=choices, earlier=None, later=None, compare=None, words=words, is_part=False, offer=None)
    toggled = {name: value for name, value in window.params.items() if name != "compare"}
    if not window.compare:
        toggled["compare"] = BEFORE
    earlier = window.earlier()
    later = window.later(now)
    return RangeControl(
        choices=choices,
        earlier=_build_address(request, earlier) if earlier else None,
        later=_build_address(request, later) if later else None,
        compare=Choice(
            "Compare with previous period",
            f"Compare with the previous period: {window.before.words}",
            _build_address(request, toggled),
            window.compare,
        )
        if has_comparison
        else None,
        words=window.words,
        is_part=last is not None or later is not None,
        offer=None
        if last is None
        else Choice(last.words, _name_length(last.length)[1], _build_address(request, last.params), False),
    )


def _name_length(length: str) -> tuple[str, str]:
    """Return the short and the full name of a length such as 24h."""
    number, unit = length[:-1], length[-1]
    return f"{number} {unit}", f"{number} {_UNITS[unit]}"


def _build_address(request: Request, time: Mapping[str, str]) -> str:
    """Return the address of the page with another period."""
    others: Iterable[tuple[str, str]] = request.query_params.multi_items()
    params = [(name, value) for name, value in others if name not in _PERIOD_PARAMS] + list(time.items())
    # The path has the name of an agent, decoded.
    path = quote(request.url.path)
    return f"{path}?{urlencode(params)}" if params else path


def compared(value: float | None, before: float | None, form: Callable[[float | None], str]) -> str:
    """Describe the previous value of a count and its change in percent. A change from 0 has no percentage."""
    if before is None:
        return f"before {NOTHING}"
    if value is None:
        return f"before {form(before)}"
    return f"before {form(before)}, {_format_percent(value, before)}"


def compared_means(value: float | None, before: float | None, digits: int = 2) -> str:
    """Describe the previous value and the change of a mean, in points."""
    if value is None or before is None:
        return f"before {number(before, digits)}"
    return f"before {number(before, digits)}, {_format_signed(value - before, digits)}"


def _format_percent(value: float, before: float) -> str:
    if value == before:
        return "no change"
    if not before:
        return "new"
    return f"{_format_signed(100 * (value - before) / before, 0)}%"


def _format_signed(value: float, digits: int) -> str:
    if not round(value, digits):
        return "no change" if digits else "±0"
    return signed(value, digits)
