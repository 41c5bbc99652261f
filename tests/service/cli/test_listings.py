"""Tables on narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from service.cli.terminal import table

HEADERS = ["exchange at", "session", "turn", "tiers", "why"]
ROW = [
    "2026-11-01 12:40",
    "18e83a30-fb39-535d-9b48-ed8bc291d8e7",
    7,
    "1.00 0.95 0.24 4.62",
    "thinking and answer align at 0.24, 0.3 or less is low",
]


def printed(width: int, rows: list[list[object]]) -> list[str]:
    """The lines of a table on a terminal of so many columns."""
    console = Console(width=width, file=io.StringIO(), highlight=False, emoji=False)
    console.print(table(HEADERS, rows, right=["turn"]))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_row_is_folded_where_its_line_is_too_short() -> None:
    """Cut to a letter or two, or three letters a line, a table says nothing."""
    expected = [
        "exchange at        session                                turn",
        "  tiers",
        "  why",
        "─" * 64,
        "2026-11-01 12:40   18e83a30-fb39-535d-9b48-ed8bc291d8e7      7",
        "  1.00 0.95 0.24 4.62",
        "  thinking and answer align at 0.24, 0.3 or less is low",
    ]

    assert printed(64, [ROW]) == expected


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_nothing_of_a_folded_row_is_lost(width: int) -> None:
    """An id that is cut cannot be copied into the next command; words of which three letters stand in a line are not read."""
    lines = printed(width, [ROW])

    assert all(len(line) <= width for line in lines)
    assert " ".join(map(str, ROW)).split() == " ".join(lines[lines.index("─" * width) + 1 :]).split()


def test_a_line_without_anything_in_it_is_left_out() -> None:
    """Nothing was said against most exchanges."""
    lines = printed(64, [[*ROW[:4], ""], ROW])

    assert lines[5:7] == ["  1.00 0.95 0.24 4.62", lines[4]]


@pytest.mark.parametrize("width", [120, 200])
def test_a_row_stays_a_line_where_there_is_room(width: int) -> None:
    """A table is read down its columns."""
    header, _, first, *_ = printed(width, [ROW])

    assert " ".join(HEADERS) == " ".join(header.split())
    assert first.startswith("2026-11-01")
    assert "1.00 0.95 0.24 4.62   thinking and" in first
