"""Progress of long work, as one line on standard error. Without a terminal nothing is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from service.cli.terminal import err
from service.text.formats import plain


class Bar(Protocol):
    """Called to move a bar."""

    def __call__(self, done: float, total: float | None = None, words: str = "") -> None:
        """Report the progress, the total if it has changed, and a note about the state."""


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show that work of unknown length is running, and for how long. The yielded function changes the text."""
    with _line(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()) as line:
        task = line.add_task(what, total=None)
        yield lambda text: line.update(task, description=plain(text))


@contextmanager
def counting(what: str, total: float | None = None) -> Iterator[Bar]:
    """Show a bar over a count."""
    with _bar(what, total, MofNCompleteColumn()) as bar:
        yield bar


@contextmanager
def measuring(what: str, total: float | None = None) -> Iterator[Bar]:
    """Show a bar over bytes."""
    with _bar(what, total, DownloadColumn()) as bar:
        yield bar


@contextmanager
def growing(what: str, total: float, size: Callable[[], float]) -> Iterator[None]:
    """Show a bar over written bytes, which are polled through `size`."""
    with _Growing(size, *_columns(DownloadColumn()), console=err, transient=True, disable=not err.is_terminal) as line:
        line.task = line.add_task(what, total=total, words="")
        yield


def _columns(count: ProgressColumn) -> tuple[ProgressColumn, ...]:
    description = TextColumn("{task.description}", markup=False)
    note = TextColumn("{task.fields[words]}", markup=False)
    return description, BarColumn(), count, note, TimeRemainingColumn()


@contextmanager
def _bar(what: str, total: float | None, count: ProgressColumn) -> Iterator[Bar]:
    with _line(*_columns(count)) as line:
        task = line.add_task(what, total=total, words="")

        def move(done: float, total: float | None = None, words: str = "") -> None:
            line.update(task, completed=done, total=total, words=plain(words))

        yield move


def _line(*columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


class _Growing(Progress):
    """A bar that polls its progress whenever it is drawn."""

    def __init__(self, size: Callable[[], float], *columns: ProgressColumn, **options: object) -> None:
        self._size = size
        self.task: TaskID | None = None
        super().__init__(*columns, **options)  # type: ignore[arg-type]

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar with its current progress."""
        if self.task is not None:
            self.update(self.task, completed=self._size())
        yield from super().get_renderables()
