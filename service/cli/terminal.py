"""Output on a terminal. Texts of agents may be hostile: they may contain control and direction characters.

Tables fit terminals of any width: a row of a list stays on one line and is cut, a row of another table continues on indented lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from schemas.errors import DriftlineError
from service.text.formats import plain

GAP = 3
"""Characters between two columns."""
LIST_GAP = 2
"""Characters between two columns of a list."""
INDENT = 2
MIN_LIST_WIDTH = 10
"""Minimum width of a cut column of a list."""
MIN_LAST_WIDTH = 20
"""Minimum width of the last column of a list, which says most."""
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


class Layout(NamedTuple):
    """The columns of a list that fit a terminal."""

    columns: Sequence[int]
    """Their indexes."""
    widths: Sequence[int]
    """Their widths."""
    left_out: Sequence[str]
    """Headers of the other columns."""
    max_width: int | None
    """The width of the terminal, at which lines are cut if not even the narrowest columns fit."""


class ListTable:
    """A table with one line per row. Cells are Text.

    If the terminal is too narrow, texts are cut, the longest first and the last column least, but not the columns in `whole`. If that is
    not enough, columns in `optional` are left out: first those with one value in all rows, then the others, in this order. Where no
    terminal reads the output, nothing is cut.
    """

    def __init__(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        right: Collection[str] = (),
        whole: Collection[str] = (),
        optional: Sequence[str] = (),
    ) -> None:
        self.headers = headers
        self.rows = [[cell if isinstance(cell, Text) else styled(cell) for cell in row] for row in rows]
        self._right = right
        self._whole = {*right, *whole}
        self._optional = optional

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the header and the rows."""
        layout = self.lay_out(options.max_width if console.is_terminal else None)
        yield from self.lines(layout)
        if layout.left_out:
            yield Text(f"left out: {', '.join(layout.left_out)}; a wider terminal or --json shows more", style="dim")

    def lay_out(self, max_width: int | None) -> Layout:
        """Choose the columns and their widths; all, and uncut, if `max_width` is None."""
        widths = [max(len(header), *(row[index].cell_len for row in self.rows)) for index, header in enumerate(self.headers)]
        if max_width is None:
            return Layout(range(len(widths)), widths, [], None)
        min_widths = [
            width if header in self._whole else min(width, MIN_LAST_WIDTH if header == self.headers[-1] else MIN_LIST_WIDTH)
            for header, width in zip(self.headers, widths, strict=True)
        ]
        columns = list(range(len(widths)))
        left_out: list[str] = []
        for header in sorted(self._optional, key=self._has_several_values):
            if _total_width([min_widths[index] for index in columns]) <= max_width:
                break
            columns.remove(self.headers.index(header))
            left_out.append(header)
        spare = max_width - _total_width([min_widths[index] for index in columns])
        chosen = {index: min_widths[index] for index in columns}
        # The columns that lack least are widened first, so that as few texts as possible are cut.
        needs = sorted((index for index in columns), key=lambda index: widths[index] - min_widths[index])
        for position, index in enumerate(needs):
            share = max(spare, 0) // (len(needs) - position)
            added = min(widths[index] - min_widths[index], share)
            chosen[index] += added
            spare -= added
        return Layout(columns, [chosen[index] for index in columns], left_out, max_width)

    def _has_several_values(self, header: str) -> bool:
        index = self.headers.index(header)
        return len({row[index].plain for row in self.rows}) > 1

    def lines(self, layout: Layout, *, with_header: bool = True) -> Iterator[Text]:
        """Yield the lines of the table, cut to a layout."""
        if with_header:
            yield self._line([Text(header, "bold") for header in self.headers], layout)
            total = _total_width(layout.widths)
            yield Text("─" * (total if layout.max_width is None else min(total, layout.max_width)))
        for row in self.rows:
            yield self._line(row, layout)

    def _line(self, cells: Sequence[Text], layout: Layout) -> Text:
        parts = []
        for index, width in zip(layout.columns, layout.widths, strict=True):
            cell = cells[index].copy()
            cell.truncate(width, overflow="ellipsis")
            cell.align("right" if self.headers[index] in self._right else "left", width)
            parts.append(cell)
        line = Text(" " * LIST_GAP, no_wrap=True, overflow="ignore").join(parts)
        line.rstrip()
        if layout.max_width is not None:
            line.truncate(layout.max_width, overflow="ellipsis")
        return line


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + LIST_GAP * (len(widths) - 1)


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
