"""How many examples tests try: few with `make check`, as many as before with `make soak`, which sets HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

import os

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"
_QUICK_EXAMPLES, _MANY = 25, 100


def is_thorough() -> bool:
    """Whether this run takes the time to try many examples."""
    return os.environ.get("HYPOTHESIS_PROFILE") == THOROUGH


def examples(thorough: int) -> int:
    """So many examples where time is taken, else a few."""
    return thorough if is_thorough() else min(thorough, _QUICK_EXAMPLES)


def load_profile() -> None:
    """One profile for every test: no deadlines, because machines are shared, and the same examples on every CI run."""
    repeatable = "CI" in os.environ and not is_thorough()  # at night other examples are wanted than those tried by day
    settings.register_profile(QUICK, deadline=None, derandomize=repeatable, max_examples=examples(_MANY))
    settings.register_profile(THOROUGH, settings.get_profile(QUICK))
    settings.load_profile(THOROUGH if is_thorough() else QUICK)
