"""Lists on pages, a page at a time: the address of each page is one that can be sent to somebody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from service.http.paging import Place, page_of

Row = Mapping[str, Any]


def linked(entries: Sequence[Row], limit: int, place: Callable[[Any], Place], query: str = "") -> tuple[list[Row], str | None]:
    """The first `limit` of entries, and the part of an address that shows the next ones; None where there are none.

    `query` is what the address says beside, such as `?window=7d`.
    """
    shown, cursor = page_of(entries, limit, place)
    return shown, None if cursor is None else f"{query}{'&' if query else '?'}cursor={cursor}"
