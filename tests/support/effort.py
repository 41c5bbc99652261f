"""How much a test run tries: few examples and faults in `make check`, as many as it takes to meet rare coincidences in `make soak`.

The laws are the same in both. A test names both numbers where it counts:

    ROUNDS = times(8, soak=50)
"""

from __future__ import annotations

import os

from hypothesis import settings

VARIABLE = "DRIFTLINE_TESTS"
SOAK = os.environ.get(VARIABLE) == "soak"
"""Whether this run has hours: `DRIFTLINE_TESTS=soak pytest`, as `make soak` has it."""


def times(few: int, *, soak: int) -> int:
    """Return how often to repeat a check: `few` times, or `soak` times in a soak run."""
    return soak if SOAK else few


QUICK, THOROUGH = "quick", "thorough"
_QUICK_EXAMPLES, _MANY = 25, 100


def is_thorough() -> bool:
    """Return whether this is a soak run, which tries many examples."""
    return os.environ.get("HYPOTHESIS_PROFILE") == THOROUGH


def examples(thorough: int) -> int:
    """Return this number of examples in a soak run, and fewer otherwise."""
    return thorough if is_thorough() else min(thorough, _QUICK_EXAMPLES)


def load_profile() -> None:
    """Load one Hypothesis profile for every test: no deadlines, because machines are shared, and the same examples on every CI run."""
    repeatable = "CI" in os.environ and not is_thorough()  # at night other examples are wanted than those tried by day
    settings.register_profile(QUICK, deadline=None, derandomize=repeatable, max_examples=examples(_MANY))
    settings.register_profile(THOROUGH, settings.get_profile(QUICK))
    settings.load_profile(THOROUGH if is_thorough() else QUICK)
