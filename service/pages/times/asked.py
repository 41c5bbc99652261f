"""The period in a page's address, as a parameter of its endpoint."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Literal

from fastapi import Depends, Query, Request
from pydantic import BeforeValidator

from service.text.window import ALL, BEFORE, NAMES, USUAL, AskedRange, Length, read_until

_Until = Annotated[
    date | datetime | None, BeforeValidator(read_until), Query(description="The last day, or the end; now by default.")
]
_Compare = Annotated[Literal["before"] | None, Query(description="before: beside the period before.")]


def _read_range(
    request: Request,
    window: Annotated[Length | None, Query(description="The length; 14d by default.")] = None,
    until: _Until = None,
    compare: _Compare = None,
) -> AskedRange:
    unknown = tuple(sorted(set(request.query_params) - set(NAMES)))
    return AskedRange(window or USUAL, until, compare == BEFORE, unknown=unknown)


def _read_list_range(
    request: Request,
    window: Annotated[Literal[Length, "all"] | None, Query(description="The length, or all; 14d by default.")] = None,
    until: _Until = None,
    compare: _Compare = None,
) -> AskedRange:
    if window == ALL:
        return AskedRange(is_all=True)
    return _read_range(request, window, until, compare)


Asked = Annotated[AskedRange, Depends(_read_range)]
"""The period in the address."""
AskedOfList = Annotated[AskedRange, Depends(_read_list_range)]
"""The period in the address of a list that can show all time."""
