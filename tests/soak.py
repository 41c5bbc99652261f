"""How often a fault is injected: a few times in `make check`, and as often as it takes to meet rare coincidences in `make soak`.

The laws are the same in both. A test names both numbers where it counts:

    ROUNDS = times(8, soak=50)
"""

from __future__ import annotations

import os

VARIABLE = "DRIFTLINE_TESTS"
SOAK = os.environ.get(VARIABLE) == "soak"
"""Whether this run has hours: `DRIFTLINE_TESTS=soak pytest`, as `make soak` has it."""


def times(few: int, *, soak: int) -> int:
    """How often to repeat what a test repeats: `few` times, or as often as `soak` says in a soak run."""
    return soak if SOAK else few
