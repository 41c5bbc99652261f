"""Output on a terminal. Texts of agents may be hostile: they may contain control and direction characters.

Tables fit terminals of any width: a row that is too long continues on indented lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from schemas.errors import DriftlineError
from service.text.formats import plain

GAP = 3
"""Characters between two columns."""
INDENT = 2
MIN_CUT_WIDTH = 12
"""Minimum width of a cut column that is still readable."""
MIN_WRAPPED_WIDTH = 24
"""Minimum width of the last column, whose text wraps, that is still readable."""


class FoldingTable(Table):
    """A table that folds each row into several lines if the terminal is too narrow for its columns. Cells are Text."""

    def __init__(self) -> None:
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table, folded if needed."""
        widths = [_width(column) for column in self.columns]
        # rich shortens cells that do not wrap only after the wrapping cells have shrunk to nothing.
        min_widths = [
            width if column.no_wrap else min(width, MIN_CUT_WIDTH) for column, width in zip(self.columns, widths, strict=True)
        ]
        min_table_width = sum(width + GAP for width in min_widths[:-1]) + min(widths[-1], MIN_WRAPPED_WIDTH)
        if min_table_width <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._render_folded(widths, options.max_width)

    def _render_folded(self, widths: Sequence[int], max_width: int) -> Iterator[RenderableType]:
        lines = _assign_columns(widths, max_width)
        yield from _fold_row([Text(str(column.header), "bold") for column in self.columns], self.columns, lines, widths)
        yield Text("─" * max_width)
        for row in zip(*(column.cells for column in self.columns), strict=True):
            yield from _fold_row([cell for cell in row if isinstance(cell, Text)], self.columns, lines, widths)


def _width(column: Column) -> int:
    return max([len(str(column.header)), *(cell.cell_len for cell in column.cells if isinstance(cell, Text))])


def _assign_columns(widths: Sequence[int], max_width: int) -> list[list[int]]:
    """Return the indexes of the columns on each line: as many as fit, at least one."""
    lines: list[list[int]] = [[]]
    used = 0
    for index, width in enumerate(widths):
        if lines[-1] and used + GAP + width > max_width:
            lines.append([])
            used = INDENT
        used += width + GAP if lines[-1] else width
        lines[-1].append(index)
    return lines


def _fold_row(
    cells: Sequence[Text], columns: Sequence[Column], lines: Sequence[Sequence[int]], widths: Sequence[int]
) -> Iterator[RenderableType]:
    """Yield the lines of one row, without empty ones."""
    for number, line in enumerate(lines):
        text = Text(" " * GAP).join(_align(cells[index], columns[index], widths[index]) for index in line)
        text.rstrip()
        if text:
            yield Padding(text, (0, 0, 0, INDENT if number else 0), expand=False)


def _align(cell: Text, column: Column, width: int) -> Text:
    aligned = cell.copy()
    aligned.align("right" if column.justify == "right" else "left", width)
    return aligned


PIPE_WIDTH = 200
"""Width of a table that is not printed to a terminal, wide enough that nothing is cut."""


def leave_quietly() -> NoReturn:
    """Exit with 0 when the reader of a pipe has closed it, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


class _Console(Console):
    """A console that exits quietly when the reader of its pipe has closed it."""

    def say(self, text: RenderableType, *, style: str | None = None) -> None:
        """Print text unchanged: brackets are not markup, and lines are not wrapped, so that they can be copied."""
        self.print(text, style=style, markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Called by rich when a write fails."""
        leave_quietly()


def _console(*, stderr: bool) -> _Console:
    # No emoji: `:100:` in file.jsonl:100:1 is the name of one.
    console = _Console(stderr=stderr, highlight=False, emoji=False)
    return console if console.is_terminal else _Console(stderr=stderr, highlight=False, emoji=False, width=PIPE_WIDTH)


out = _console(stderr=False)
"""Standard output, for results."""
err = _console(stderr=True)
"""Standard error, for progress, notes and errors."""


def print_text(text: str) -> None:
    """Print the text unchanged to standard output. Exit quietly if the reader of a pipe has closed it."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        leave_quietly()


SEVERITY_STYLES = {
    "critical": "bold red",
    "unsafe_for_production": "bold red",
    "high": "yellow",
    "review_recommended": "yellow",
    "medium": "cyan",
    "ready_for_runtime": "green",
    "insufficient_evidence": "dim",
}


def warn(sentences: Iterable[str]) -> None:
    """Print warnings to standard error, one per line."""
    for sentence in sentences:
        err.say(f"warning: {sentence}", style="yellow")


def warn_skipped(errors: Iterable[DriftlineError]) -> None:
    """Print the skipped files with their reasons to standard error."""
    for error in errors:
        err.say(f"{plain(error, 1000)}: skipped. {error.hint}")


def styled(value: Any) -> Text:
    """Return the value as text, coloured if it is a severity or a readiness level. Markup in it has no effect."""
    text = plain(value)
    return Text(text, style=SEVERITY_STYLES.get(text, ""))


def heading(text: str) -> Text:
    """Return the heading of a part of a report."""
    return Text(f"\n{text}", style="bold")


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), cut_last: bool = False) -> Table:
    """Build a table; the columns named in `right` are aligned to the right.

    On a narrow terminal, all columns are cut and the last one wraps. With `cut_last`, only the last column is cut, and a row stays on
    one line. If the cut columns would not be readable, each row is folded into several lines.
    """
    cells = [[cell if isinstance(cell, Text) else styled(cell) for cell in row] for row in rows]
    result = FoldingTable()
    for index, header in enumerate(headers):
        is_last = index == len(headers) - 1
        result.add_column(
            header,
            justify="right" if header in right else "left",
            overflow="fold" if is_last and not cut_last else "ellipsis",
            no_wrap=not is_last or cut_last,
            min_width=max([len(header), *[len(row[index]) for row in cells]]) if cut_last and not is_last else None,
        )
    for row in cells:
        result.add_row(*row)
    return result


def bar(value: float, largest: float, width: int = 20) -> str:
    """Draw a bar of at most `width` characters for a value between 0 and `largest`."""
    filled = 0 if largest <= 0 else round(width * max(0.0, min(value, largest)) / largest)
    return "█" * filled + "░" * (width - filled)
