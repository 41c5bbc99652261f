"""The newest states of sessions, in memory: what the tables have, with what was appended to the log since."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from analytics.store.stage_states import KnownSessions, states_of_stages
from analytics.store.store import Store
from streams.log.log import Log

SESSIONS = 100_000
"""Sessions whose states are kept in memory; those of others are read again when they come back."""


class SessionStates:
    """States of some stages by session key. Belongs to one event loop; `read` is called in a thread meanwhile."""

    def __init__(self, store: Store, log: Log, stages: Sequence[str]) -> None:
        self._store = store
        self._log = log
        self._stages = stages
        self._states: dict[str, dict[str, bytes | None]] = {stage: {} for stage in stages}
        """By stage and session key; None: the session has no state."""
        self._sessions = KnownSessions(stages)
        self._changes = self._rebuilds = -1

    def has_read(self, keys: Iterable[str]) -> bool:
        """Tell whether the states of these sessions are in memory; those of sessions that never had one need not be read."""
        if not self._is_current or self._is_full:
            return False
        missing = self._missing(keys)
        if missing and len(self._sessions.unknown(missing)) == len(missing):
            self._take_in(missing, {})
            return True
        return not missing

    def read(self, keys: Iterable[str]) -> None:
        """Read the states of sessions from the tables, unless they are in memory."""
        # Another way into the tables, such as a deletion, has changed states.
        if not self._is_current or self._is_full:
            self._states = {stage: {} for stage in self._stages}
        wanted = self._missing(keys)
        with contextlib.closing(self._store.cursor()) as cursor:
            if not self._is_current:
                changes, rebuilds = self._count_changes(), self._store.state_changes(())
                if rebuilds != self._rebuilds:
                    self._sessions, self._rebuilds = KnownSessions(self._stages), rebuilds
                self._sessions.read(cursor)
                self._changes = changes
            # A look through the table for the states of a few sessions takes as long as for those of many.
            rest = list(set(wanted).difference(self._sessions.unknown(wanted)))
            stored = states_of_stages(cursor, self._stages, rest) if rest else {}
        self._take_in(wanted, stored)

    def of(self, stage: str, keys: Iterable[str]) -> dict[str, bytes]:
        """The states of those of the sessions that have one; they were read before."""
        states = self._states[stage]
        return {key: state for key in keys if (state := states[key]) is not None}

    def add(self, changed: Mapping[str, Mapping[str, bytes]]) -> None:
        """Take in states that were appended to the log, by stage and session key; those of sessions not in memory are read when needed."""
        for stage, in_memory in self._states.items():
            states = changed.get(stage, {})
            self._sessions.add(self._sessions.unknown([key for key in states if in_memory.get(key) is None]))
            in_memory |= {key: state for key, state in states.items() if key in in_memory}

    def _missing(self, keys: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(key for key in keys for states in self._states.values() if key not in states))

    def _take_in(self, keys: Sequence[str], stored: Mapping[str, Mapping[str, bytes]]) -> None:
        for stage, states in self._states.items():
            newest = {**stored.get(stage, {}), **self._log.states(stage, keys)}
            for key in keys:
                states.setdefault(key, newest.get(key))

    @property
    def _is_full(self) -> bool:
        return any(len(states) > SESSIONS for states in self._states.values())

    @property
    def _is_current(self) -> bool:
        return self._changes == self._count_changes()

    def _count_changes(self) -> int:
        return self._store.state_changes(self._stages)
