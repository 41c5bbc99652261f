"""Output on a terminal. Agents' texts may be hostile here too: they may contain control and direction characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.errors import DriftlineError
from service.cli.listings import Listing
from service.text.plain import plain

PIPE_WIDTH = 200
"""Width of a table that does not go to a terminal, wide enough that nothing is cut."""


def leave_quietly() -> NoReturn:
    """Exit with 0 when the reader of a pipe is gone, because it has read all it wanted."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


class _Console(Console):
    """A console that exits quietly when the reader of its pipe is gone, as after `head`."""

    def say(self, words: RenderableType, *, style: str | None = None) -> None:
        """Print words unchanged: brackets are not markup, and lines are not wrapped, so that they can be copied."""
        self.print(words, style=style, markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Called by rich when a write fails."""
        leave_quietly()


def _console(*, stderr: bool) -> _Console:
    # No emoji: a place such as file.jsonl:100:1 contains the name of one.
    console = _Console(stderr=stderr, highlight=False, emoji=False)
    return console if console.is_terminal else _Console(stderr=stderr, highlight=False, emoji=False, width=PIPE_WIDTH)


out = _console(stderr=False)
"""Standard output: the results."""
err = _console(stderr=True)
"""Error output: progress, notices, errors."""


def print_text(text: str) -> None:
    """Print the text unchanged to standard output; exit quietly if the reader of a pipe is gone."""
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
    """Print warnings to the error output, one per line."""
    for sentence in sentences:
        err.say(f"warning: {sentence}", style="yellow")


def warn_skipped(errors: Iterable[DriftlineError]) -> None:
    """Name files that were skipped, with the reason of each, on the error output."""
    for error in errors:
        err.say(f"{plain(error, 1000)}: skipped. {error.hint}")


def styled(value: Any) -> Text:
    """Return the value as text, coloured if it is a severity or a readiness level, and never parsed as markup."""
    text = plain(value)
    return Text(text, style=SEVERITY_STYLES.get(text, ""))


def heading(text: str) -> Text:
    """Return the heading of a part of a report."""
    return Text(f"\n{text}", style="bold")


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), cut_last: bool = False) -> Table:
    """Build a table; the columns named in `right` are aligned to the right.

    On a narrow terminal all columns are cut and the last one wraps; with `cut_last` only the last one is cut, and a row stays on one line.
    If that would leave nothing readable, a row is folded into several lines.
    """
    cells = [[cell if isinstance(cell, Text) else styled(cell) for cell in row] for row in rows]
    shown = Listing()
    for place, header in enumerate(headers):
        is_last = place == len(headers) - 1
        shown.add_column(
            header,
            justify="right" if header in right else "left",
            overflow="fold" if is_last and not cut_last else "ellipsis",
            no_wrap=not is_last or cut_last,
            min_width=max([len(header), *[len(row[place]) for row in cells]]) if cut_last and not is_last else None,
        )
    for row in cells:
        shown.add_row(*row)
    return shown


def bar(value: float, largest: float, width: int = 20) -> str:
    """Draw a bar of at most `width` characters for a value between 0 and `largest`."""
    filled = 0 if largest <= 0 else round(width * max(0.0, min(value, largest)) / largest)
    return "█" * filled + "░" * (width - filled)
