"""The period that a page shows: its parameters, its control, and comparisons with the preceding period.

The links of the control keep the other parameters of the page's address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from pydantic import AfterValidator, BeforeValidator

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
    read_until,
    window_of,
)
from service.text.zone import find_zone, is_utc, local, reader_zone
from service.web.errors import ApiError

_Until = Annotated[
    date | datetime | None, BeforeValidator(read_until), Query(description="The last day, or the end; now by default.")
]
_Compare = Annotated[Literal["before"] | None, Query(description="before: compare with the preceding period.")]


_Since = Annotated[
    date | datetime | None,
    BeforeValidator(read_until),
    Query(description="The first day, or the start, of a custom range, without `window`."),
]


_UTC = "UTC"


def _check_zone(name: str) -> str:
    if find_zone(name) is None:
        raise ValueError("must be a time zone such as Europe/Berlin")
    return name


_Zone = Annotated[
    str, AfterValidator(_check_zone), Query(max_length=64, description="The zone of a custom range's days; UTC by default.")
]


def _read_range(
    request: Request,
    *,
    window: Annotated[Length | None, Query(description="The length; 14d by default.")] = None,
    until: _Until = None,
    compare: _Compare = None,
    since: _Since = None,
    zone: _Zone = _UTC,
) -> RangeRequest:
    unknown = tuple(sorted(set(request.query_params) - set(NAMES)))
    if since is None or window is not None:
        return RangeRequest(window or USUAL, until, compare == BEFORE, unknown=unknown)
    custom = RangeRequest(until=until, compare=compare == BEFORE, unknown=unknown, since=since, zone=zone)
    try:
        window_of(custom, request.app.state.context.engine.now())
    except ValueError as error:
        raise ApiError(400, "invalid", str(error)) from None
    return custom


def _read_list_range(
    request: Request,
    *,
    window: Annotated[Literal[Length, "all"] | None, Query(description="The length, or all; 14d by default.")] = None,
    until: _Until = None,
    compare: _Compare = None,
    since: _Since = None,
    zone: _Zone = _UTC,
) -> RangeRequest:
    if window == ALL:
        return RangeRequest(is_all=True)
    return _read_range(request, window=window, until=until, compare=compare, since=since, zone=zone)


Period = Annotated[RangeRequest, Depends(_read_range)]
"""The period in the address."""
ListPeriod = Annotated[RangeRequest, Depends(_read_list_range)]
"""The period in the address of a list that can show all time."""


_UNITS = {"h": "hours", "d": "days"}
_PERIOD_PARAMS = frozenset({*NAMES, "cursor"})
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
    is_custom: bool
    """Whether the period is a custom range, which `reset` removes."""
    reset: str
    """Address of the page with its default period."""
    fields: Mapping[str, str]
    """The shown period in the fields of the custom range, in the reader's zone: since, since_time, until, until_time."""
    zone: str
    """The zone of these fields; empty for UTC."""


def range_control(
    request: Request,
    window: Window | None,
    now: datetime,
    *,
    has_all: bool = False,
    has_comparison: bool = True,
    last: Window | None = None,
) -> RangeControl:
    """Return the period control of a page. `window` is the shown period; None for all time.

    `has_all` adds all time to the choices, as in lists. `last` is the last period with data, if the shown one has none.
    """
    shown = (window or window_of(RangeRequest(), now)).in_steps()
    days = _name_days(now)
    choices = [
        Choice(
            *_name_length(length),
            _build_address(request, shown.params_for(length)),
            window is not None and length == window.length,
        )
        for length in LENGTHS
    ]
    choices += [
        Choice(name, f"{name}, {reader_zone()}", _build_address(request, params), _is_shown(window, params))
        for name, params in days.items()
    ]
    if has_all:
        choices.insert(0, Choice("All", "All time", _build_address(request, {"window": ALL}), window is None))
    earlier, later, compare = None, None, None
    if window is not None:
        earlier, later = window.earlier(), window.later(now)
        compare = Choice(
            "Compare with previous period",
            f"Compare with the previous period: {window.before.words}",
            _build_address(request, replace(window, compare=not window.compare).params),
            window.compare,
        )
    is_custom = window is not None and window.length is None
    return RangeControl(
        choices=choices,
        earlier=_build_address(request, earlier) if earlier else None,
        later=_build_address(request, later) if later else None,
        compare=compare if has_comparison else None,
        words=window.words if window else "",
        is_part=is_custom or last is not None or later is not None,
        offer=None
        if last is None
        else Choice(last.words, _name_length(last.length)[1], _build_address(request, last.params), False),
        is_custom=is_custom and not any(choice.is_chosen for choice in choices),
        reset=_build_address(request, {}),
        fields=_build_fields(window) if window else dict.fromkeys(_FIELDS, ""),
        zone=days_zone(),
    )


_FIELDS = ("since", "since_time", "until", "until_time")


def _build_fields(window: Window) -> dict[str, str]:
    """Return the fields of the custom range that show a period: its days, or the reader's times."""
    if window.days is not None:
        return {"since": f"{window.days[0]}", "since_time": "", "until": f"{window.days[1]}", "until_time": ""}
    start, end = local(window.start), local(window.end)
    return {
        "since": f"{start:%Y-%m-%d}",
        "since_time": f"{start:%H:%M}",
        "until": f"{end:%Y-%m-%d}",
        "until_time": f"{end:%H:%M}",
    }


def days_zone() -> str:
    """Return the reader's zone as a parameter of an address; empty for UTC."""
    return "" if is_utc() else str(reader_zone())


def _name_days(now: datetime) -> dict[str, dict[str, str]]:
    """Return the reader's today and yesterday as periods."""
    today = local(now).date()
    zone = {"zone": days_zone()} if days_zone() else {}
    days = {"Today": today, "Yesterday": today - timedelta(days=1)}
    return {name: {"since": f"{day}", "until": f"{day}", **zone} for name, day in days.items()}


def _is_shown(window: Window | None, params: Mapping[str, str]) -> bool:
    return window is not None and replace(window, compare=False).params == params


def _name_length(length: str | None) -> tuple[str, str]:
    """Return the short and the full name of a length such as 24h; of a custom range without one."""
    if length is None:
        return "Custom", "period"
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
