"""The time that the address of a page asks for, as a parameter of its endpoint."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Literal

from fastapi import Depends, Query, Request
from pydantic import BeforeValidator

from service.documents.addresses.window import BEFORE, NAMES, USUAL, AskedRange, Length, read_until


def _asked_range(
    request: Request,
    window: Annotated[Length | None, Query(description="The length; 14d by default.")] = None,
    until: Annotated[
        date | datetime | None, BeforeValidator(read_until), Query(description="The last day, or the end; now by default.")
    ] = None,
    compare: Annotated[Literal["before"] | None, Query(description="before: beside the period before.")] = None,
) -> AskedRange:
    is_given = window is not None or until is not None
    return AskedRange(
        window or USUAL, until, compare == BEFORE, is_given, tuple(sorted(set(request.query_params) - set(NAMES)))
    )


Asked = Annotated[AskedRange, Depends(_asked_range)]
"""The time in the address."""
