"""Choice of the script for a request: the one for all, or one for prompts that hold a certain text.

A script for a text applies to each question separately: every question with the text starts at the first step, independent of the
number and order of other questions. So "the judge of this case fails twice of three" is reproducible.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from schemas.errors import SettingsError
from service.simulator.api.request_validation import Asked, Problem
from service.simulator.api.script import Play, Step, parse_script

MAX_KEPT = 10_000
"""Questions that are remembered, the newest ones, so that memory is bounded."""


class Plays:
    """Returns the step for each request. Safe to use from several threads."""

    def __init__(self, script: str, scripts_for: Mapping[str, str], *, faults: float = 0.0, seed: int = 0) -> None:
        """`scripts_for` are scripts by text; `faults` by chance meet only requests without one.

        SettingsError for a script that cannot be read, an empty text, and a share outside 0 to 1.
        """
        if not all(scripts_for):
            raise SettingsError(
                "script for a text: the text is empty", hint="Write TEXT=STEPS, such as 'rotate the key=garbage*2,answer'."
            )
        for steps in scripts_for.values():
            parse_script(steps)
        self.requests = 0
        """Requests so far."""
        self._for_all = Play(script, faults=faults, seed=seed)
        self._for_texts = dict(scripts_for)
        self._begun: OrderedDict[str, Play] = OrderedDict()
        self._lock = threading.Lock()

    def next(self, read: Callable[[], Asked | Problem]) -> Step:
        """Return the step for the request that has just arrived; `read` is called only if there are scripts for texts."""
        asked = read() if self._for_texts else None
        steps = self._script_for(asked) if isinstance(asked, Asked) else None
        with self._lock:
            self.requests += 1
            if asked is None or isinstance(asked, Problem) or steps is None:
                return self._for_all.next()
            play = self._begun.setdefault(asked.key, Play(steps))
            _keep(self._begun, asked.key)
            return play.next()

    def _script_for(self, asked: Asked) -> str | None:
        """Return the script of the first text that the prompt holds."""
        held = (steps for text, steps in self._for_texts.items() if any(text in block.text for block in asked.blocks))
        return next(held, None)


class Arrivals:
    """Counts the arrivals of each question."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, key: str) -> int:
        """Return the number of this arrival, from 1."""
        self._counts[key] = self._counts.get(key, 0) + 1
        _keep(self._counts, key)
        return self._counts[key]


def _keep(known: OrderedDict[str, Any], key: str) -> None:
    """Make the key the newest, and forget the oldest beyond the limit."""
    known.move_to_end(key)
    if len(known) > MAX_KEPT:
        known.popitem(last=False)
