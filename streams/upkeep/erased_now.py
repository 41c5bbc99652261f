"""Erased sessions and connections as of now: nothing of them is judged or kept."""

from __future__ import annotations

import contextlib

from analytics.deletion.erased import ERASURES, Erased, erased_in
from analytics.store.store import Store


class ErasedNow:
    """The erasures requested of a store, read again when there are more. Belongs to one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._end = 0
        self._erased = Erased.of([])

    @property
    def is_read(self) -> bool:
        """True once all erasures were read."""
        return self._store.end_of(ERASURES) == self._end

    def has(self, connection: str, session_id: str) -> bool:
        """Tell whether the session is erased."""
        if not self.is_read:
            end = self._store.end_of(ERASURES)
            with contextlib.closing(self._store.cursor()) as cursor:
                self._erased = erased_in(cursor)
            self._end = end
        return self._erased.has(connection, session_id)
