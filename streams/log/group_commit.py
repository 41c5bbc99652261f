"""Group commit: what many callers want to have durable at the same moment is committed together.

1. A commit costs about the same for one record as for a hundred, so under load its cost is shared. Order is kept: what was submitted
   first is committed first.
2. What callers bring fails where it cannot be committed: they hear so, and may bring it again.
3. A thread commits. Whoever can commit without waiting does so itself while `is_idle`: a change of threads costs more than the commit.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from schemas.errors import BusyError
from streams.log.log_writer import AGAIN_SECONDS

Work = TypeVar("Work")
Done = TypeVar("Done")
log = logging.getLogger(__name__)


class GroupCommit(Generic[Work, Done]):
    """Commits submissions in order, as many at once as have come together.

    `commit` makes all of them durable or none, and answers one outcome each. When it fails for several, each is tried alone, so that
    one bad submission fails alone. `after` is called once a batch was answered, for work that must not wait for a rest. `rest` is called
    when nothing is waiting, for work that can wait; it answers after how many seconds it is to be called again, None: once something was
    committed; without it nothing can wait. `finish` is called at the end. All four run in one thread. `is_ordered` tells whether work
    has to be committed before whatever comes later.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Work]], Sequence[Done]],
        rest: Callable[[], float | None] = lambda: None,
        *,
        after: Callable[[], None] = lambda: None,
        finish: Callable[[], None] = lambda: None,
        is_ordered: Callable[[Work], bool] = lambda _: True,
        capacity: int,
        at_once: int,
    ) -> None:
        self._commit = commit
        self._rest = rest
        self._after = after
        self._finish = finish
        self._capacity = capacity
        self._at_once = at_once
        self._waiting: deque[tuple[Work, Future[Done]]] = deque()
        self._changed = threading.Condition()
        self._is_ordered = is_ordered
        self._ordered = 0
        self._closed = self._is_called = False
        self.is_asleep = False
        """True while the thread waits for something to do."""
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many submissions wait to be committed."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether it is open and has nothing to commit that is ordered."""
        return not (self._ordered or self._closed)

    def submit(self, work: Work, *, must: bool = False, wakes: bool = True) -> Future[Done]:
        """Ask for work to be committed; the future is done when it is durable.

        BusyError when too many wait already, unless it `must` be taken: what was begun is finished even under load. Without `wakes` the
        thread goes on to sleep until `wake` is called.
        """
        future: Future[Done] = Future()
        with self._changed:
            if self._closed or (not must and len(self._waiting) >= self._capacity):
                raise BusyError("the log cannot take more at the moment" if not self._closed else "the log is closed")
            self._waiting.append((work, future))
            self._ordered += self._is_ordered(work)
            if wakes:
                self._changed.notify()
        return future

    def wake(self) -> None:
        """Have what waits committed."""
        with self._changed:
            self._changed.notify()

    def call(self) -> None:
        """Have the work that can wait looked at."""
        with self._changed:
            self._is_called = True
            self._changed.notify()

    def close(self) -> None:
        """Commit what waits, then end; nothing more is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        pause: float | None = 0.0
        while (batch := self._next(pause)) is not None:
            if batch:
                # Whatever need not be committed before others may take long, such as a landing.
                ordered = [one for one in batch if self._is_ordered(one[0])]
                self._settle(ordered)
                with self._changed:
                    self._ordered -= len(ordered)
                self._settle([one for one in batch if not self._is_ordered(one[0])])
                self._quietly(self._after)
                pause = 0.0
            else:
                pause = self._quietly(self._rest)
        try:
            self._finish()
        except Exception:
            log.exception("the log could not be closed")

    def _next(self, pause: float | None) -> list[tuple[Work, Future[Done]]] | None:
        """Return what is waiting, nothing where nothing came for so many seconds; None at the end."""
        with self._changed:
            self.is_asleep = True
            self._changed.wait_for(lambda: self._waiting or self._closed or self._is_called, pause)
            self.is_asleep = self._is_called = False
            if self._closed and not self._waiting:
                return None
            count = min(self._at_once, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _settle(self, batch: Sequence[tuple[Work, Future[Done]]]) -> None:
        if not batch:
            return
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

    def _quietly(self, work: Callable[[], float | None]) -> float | None:
        try:
            return work()
        except Exception:
            log.exception("work that could wait failed")
            return AGAIN_SECONDS
