"""Turns: so much work at once, dealt out in rotation to those who ask for it.

A judge answers so many questions at once. Work that is begun beyond that only waits in its queue, where each exchange's second question stands behind the
first question of all others: then no exchange is finished for a long time. So work waits here instead, before it is begun.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

Begin = Callable[[], None]
"""Begins one piece of work; its turn lasts until it is given back."""


class Turns:
    """Deals out at most `at_once` turns at a time. Belongs to one event loop."""

    def __init__(self, at_once: int = sys.maxsize) -> None:
        self._free = at_once
        self._asked: dict[Begin, int] = {}  # whose turn is next stands first

    def ask(self, begin: Begin) -> None:
        """Ask for one more turn: `begin` is called when it comes, perhaps at once."""
        self._asked[begin] = self._asked.get(begin, 0) + 1
        self._deal()

    def withdraw(self, begin: Begin) -> None:
        """Ask for none any more; turns that were dealt out are still to be given back."""
        self._asked.pop(begin, None)

    def give_back(self) -> None:
        """A turn has ended."""
        self._free += 1
        self._deal()

    def _deal(self) -> None:
        while self._free and self._asked:
            begin = next(iter(self._asked))
            if left := self._asked.pop(begin) - 1:
                self._asked[begin] = left
            self._free -= 1
            begin()
