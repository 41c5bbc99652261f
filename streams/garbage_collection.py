"""The garbage collector: rarely in processes that work on large batches, in short pauses where callers wait.

A collection of young objects stops every thread of the process for about a microsecond per object.
"""

from __future__ import annotations

import gc
import sys

_RARELY = (400_000, 50, 100)
_SHORTLY = (1_000, 10, 10)


def collect_rarely() -> None:
    """Let the collector leave alone what is there already, and look at new objects seldom: few of a batch's are in cycles.

    For a process of its own, before it begins its work: tens of thousands of its records live for a moment.
    """
    gc.freeze()
    gc.set_threshold(*_RARELY)


def collect_in_short_pauses() -> None:
    """Let the collector leave alone what is there already, and look at few new objects at a time.

    For a process that answers callers, once it has started: the command line lets 50 000 objects come together while code loads.
    """
    gc.freeze()
    gc.set_threshold(*_SHORTLY)


class LoadedCode:
    """The periodic task that has the collector leave alone code that was loaded since the start: it is never garbage.

    Libraries load when they are first used: 30 000 objects, which each collection of old objects would look through again.
    """

    name = "loaded code"
    interval = 5.0

    def __init__(self) -> None:
        self._modules = len(sys.modules)

    async def run(self) -> None:
        """Collect what is garbage, and freeze what is left, if modules were loaded since the last run."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.collect()
            gc.freeze()
