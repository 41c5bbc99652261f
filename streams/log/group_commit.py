"""Group commit: what many callers want to have durable at the same moment is committed together, by one thread.

A commit costs about the same for one record as for a hundred, so under load its cost is shared. Order is kept: what was submitted first
is committed first.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from schemas.errors import BusyError

Work = TypeVar("Work")
Done = TypeVar("Done")
log = logging.getLogger(__name__)


class GroupCommit(Generic[Work, Done]):
    """Commits submissions in order, as many at once as have come together.

    `commit` makes all of them durable or none, and answers one outcome each. When it fails for several, each is tried alone, so that
    one bad submission fails alone. `rest` is called when nothing is waiting, for work that can wait; it answers whether more is left.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Work]], Sequence[Done]],
        rest: Callable[[], bool],
        *,
        capacity: int,
        at_once: int,
    ) -> None:
        self._commit = commit
        self._rest = rest
        self._capacity = capacity
        self._at_once = at_once
        self._waiting: deque[tuple[Work, Future[Done]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many submissions wait to be committed."""
        return len(self._waiting)

    def submit(self, work: Work, *, must: bool = False) -> Future[Done]:
        """Ask for work to be committed; the future is done when it is durable.

        BusyError when too many wait already, unless it `must` be taken: what was begun is finished even under load.
        """
        future: Future[Done] = Future()
        with self._changed:
            if self._closed or (not must and len(self._waiting) >= self._capacity):
                raise BusyError("the log cannot take more at the moment" if not self._closed else "the log is closed")
            self._waiting.append((work, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Commit what waits, then end; nothing more is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        restless = True
        while (batch := self._next(wait=not restless)) is not None:
            if batch:
                self._settle(batch)
                restless = True
            else:
                restless = self._rest_quietly()

    def _next(self, *, wait: bool) -> list[tuple[Work, Future[Done]]] | None:
        """What is waiting, perhaps nothing; None at the end."""
        with self._changed:
            while wait and not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed and not self._waiting:
                return None
            count = min(self._at_once, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _settle(self, batch: Sequence[tuple[Work, Future[Done]]]) -> None:
        try:
            done = self._commit([work for work, _ in batch])
        except Exception as error:  # noqa: BLE001 - whoever submitted gets it
            if len(batch) == 1:
                if batch[0][1].set_running_or_notify_cancel():
                    batch[0][1].set_exception(error)
                return
            log.warning("a group of %d could not be committed together: %s", len(batch), error)
            for one in batch:
                self._settle([one])
            return
        for (_, future), outcome in zip(batch, done, strict=True):
            if future.set_running_or_notify_cancel():
                future.set_result(outcome)

    def _rest_quietly(self) -> bool:
        try:
            return self._rest()
        except Exception:
            log.exception("work that could wait failed")
            return False
