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


def print_table(width: int, rows: list[list[object]]) -> list[str]:
    """Return the lines of a table on a terminal of this width."""
    console = Console(width=width, file=io.StringIO(), highlight=False, emoji=False)
    console.print(table(HEADERS, rows, right=["turn"]))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_row_is_folded_if_its_line_is_too_long() -> None:
    """A table with columns of three letters is unreadable."""
    expected = [
        "exchange at        session                                turn",
        "  tiers",
        "  why",
        "─" * 64,
        "2026-11-01 12:40   18e83a30-fb39-535d-9b48-ed8bc291d8e7      7",
        "  1.00 0.95 0.24 4.62",
        "  thinking and answer align at 0.24, 0.3 or less is low",
    ]

    assert print_table(64, [ROW]) == expected


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_folded_row_keeps_all_of_its_text(width: int) -> None:
    """A truncated id cannot be copied into the next command."""
    lines = print_table(width, [ROW])

    assert all(len(line) <= width for line in lines)
    assert " ".join(map(str, ROW)).split() == " ".join(lines[lines.index("─" * width) + 1 :]).split()


def test_an_empty_line_is_omitted() -> None:
    """Most exchanges have no flags."""
    lines = print_table(64, [[*ROW[:4], ""], ROW])

    assert lines[5:7] == ["  1.00 0.95 0.24 4.62", lines[4]]


@pytest.mark.parametrize("width", [120, 200])
def test_a_row_stays_on_one_line_if_it_fits(width: int) -> None:
    """Readers compare the rows of a column."""
    header, _, first, *_ = print_table(width, [ROW])

    assert " ".join(HEADERS) == " ".join(header.split())
    assert first.startswith("2026-11-01")
    assert "1.00 0.95 0.24 4.62   thinking and" in first
