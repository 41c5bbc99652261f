"""Tables for terminals of any width: a row too long for its line continues in indented lines instead of cut cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

GAP = 3
"""Characters between two columns."""
INDENT = 2
LEAST = 12
"""Characters of a cut column that still say something."""
LEAST_OF_WORDS = 24
"""Characters of the last column, which holds words, that can still be read when they are wrapped."""


class Listing(Table):
    """A table that is folded if the terminal is too narrow for its columns. Cells are Text."""

    def __init__(self) -> None:
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table, folded if needed."""
        widths = [_width(column) for column in self.columns]
        # rich shortens unbreakable cells only after the wrapping ones have shrunk to nothing.
        least = [width if column.no_wrap else min(width, LEAST) for column, width in zip(self.columns, widths, strict=True)]
        needed = sum(width + GAP for width in least[:-1]) + min(widths[-1], LEAST_OF_WORDS)
        if needed <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._folded(widths, options.max_width)

    def _folded(self, widths: Sequence[int], room: int) -> Iterator[RenderableType]:
        lines = _lines(widths, room)
        yield from _row([Text(str(column.header), "bold") for column in self.columns], self.columns, lines, widths)
        yield Text("─" * room)
        for row in zip(*(column.cells for column in self.columns), strict=True):
            yield from _row([cell for cell in row if isinstance(cell, Text)], self.columns, lines, widths)


def _width(column: Column) -> int:
    return max([len(str(column.header)), *(cell.cell_len for cell in column.cells if isinstance(cell, Text))])


def _lines(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns for each line: as many as fit, at least one."""
    lines: list[list[int]] = [[]]
    taken = 0
    for place, width in enumerate(widths):
        if lines[-1] and taken + GAP + width > room:
            lines.append([])
        taken = taken + GAP + width if lines[-1] else (INDENT if len(lines) > 1 else 0) + width
        lines[-1].append(place)
    return lines


def _row(
    cells: Sequence[Text], columns: Sequence[Column], lines: Sequence[Sequence[int]], widths: Sequence[int]
) -> Iterator[RenderableType]:
    """Return the lines of one row, without empty ones."""
    for number, line in enumerate(lines):
        shown = Text(" " * GAP).join(_aligned(cells[place], columns[place], widths[place]) for place in line)
        shown.rstrip()
        if shown:
            yield Padding(shown, (0, 0, 0, INDENT if number else 0), expand=False)


def _aligned(cell: Text, column: Column, width: int) -> Text:
    aligned = cell.copy()
    aligned.align("right" if column.justify == "right" else "left", width)
    return aligned
