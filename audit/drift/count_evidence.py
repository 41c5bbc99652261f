"""Evidence for a change of a share, from the counts themselves: right for two runs as for two thousand.

Of `n0` runs before, `k0` had something, and of `n1` after, `k1`. If nothing changed, each order of the runs is as probable as any other,
so with `K = k0 + k1` of `n = n0 + n1` the order that was seen has the probability 1 / C(n, K), whatever the share is. The alternative
says nothing of the share before, so it gives its order 1 / C(n0, k0), and averages the share after over Jeffreys' prior, Beta(1/2, 1/2):

    e = B(k1 + 1/2, n1 - k1 + 1/2) / B(1/2, 1/2) * C(n, K) / C(n0, k0)

For independent runs of any share p it is an e-value. For its expectation is the sum over k1 of the Jeffreys probability of k1 times the
probability that a binomial (n, p) lies between k1 and k1 + n0, which is at most 1. That is the exact test of both counts (Fisher 1935)
with a bet on what follows (Grünwald, de Heide and Koolen 2024, "Safe testing"): 2 of 2 after 0 of 30 are 186 to 1, where Fisher's test
has 1 in 496. How it holds while one looks after every run is calculated, not proven: `docs/decisions/0082-shares-of-few-runs.md`.

Runs of one day are seldom independent: what breaks one breaks the next. How much so is measured before the change, and after it over the
days that are over, by how often another run of the same day has it where one has (the moments of a beta-binomial distribution). Where
that is too rare to know, runs of a day are taken to be a little alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from audit.drift.cells import Floats, Ints
from schemas.lazy.numpy import np

ALIKE = 0.25
"""How much alike runs of one day are taken to be where nothing is known: the correlation of any two of them."""
PAIRS = 4.0
"""The weight of that assumption, in pairs of runs of which one has it."""


class Counts(NamedTuple):
    """Counts of stretches, one element per stretch. They are whole numbers except for `alike`."""

    having: Ints | Floats
    """How many have it."""
    of: Ints | Floats
    """How many there are."""


class Days(NamedTuple):
    """Sums over the days of a stretch, one element per stretch."""

    squares: Floats
    """Of the squared numbers of runs."""
    mixed: Floats
    """Of the runs times those that have it."""
    having: Floats
    """Of the squared numbers of those that have it."""


def alike(stretches: Iterable[tuple[Counts, Days]]) -> Floats:
    """Return the correlation of two runs of one day, 0 to 1, measured in stretches of one share each."""
    found = [_paired(counts, days) for counts, days in stretches]
    more, beside = (np.add.reduce([one[column] for one in found]) for column in (0, 1))
    correlation: Floats = np.clip((PAIRS * ALIKE + more) / (PAIRS + beside), 0.0, 1.0)
    return correlation


def _paired(counts: Counts, days: Days) -> tuple[Floats, Floats]:
    """Return by how many more runs have it beside one that has than by chance, and of how many beside it, by what is the rarer.

    If one has it, another of its day has it with the probability p + r (1 - p), where p is the share and r the correlation. The share
    is that of the same runs, so what one day says is compared with itself in part: a single day says nothing.
    """
    is_rare = 2 * counts.having <= counts.of
    rare = np.where(is_rare, counts.having, counts.of - counts.having)
    # If not having it is the rarer, n - k stands for k.
    mixed = np.where(is_rare, days.mixed, days.squares - days.mixed)
    squared = np.where(is_rare, days.having, days.squares - 2 * days.mixed + days.having)
    runs = np.maximum(counts.of, 1)
    share, a_day = rare / runs, days.squares / runs
    both, others = squared - rare, mixed - rare
    own = share * (1 - share) * runs / np.maximum(runs - 1, 1) * np.maximum(a_day - 1, 0.0)
    return (both - share * others + own) / (1 - share), others * (1 - a_day / runs)


def log_count_evidence(before: Counts, after: Counts) -> Floats:
    """Return the natural logarithm of the e-values that the share differs between each stretch before and the one after it."""
    top = int(np.max(before.of + after.of, initial=0))
    numbers = np.arange(1, top + 1, dtype=np.float64)
    whole = np.concatenate(([0.0], np.cumsum(np.log(numbers))))
    half = np.concatenate(([0.0], np.cumsum(np.log(numbers - 0.5))))
    orders_before = whole[before.of] - whole[before.having] - whole[before.of - before.having]
    both = Counts(before.having + after.having, before.of + after.of)
    orders = whole[both.of] - whole[both.having] - whole[both.of - both.having]
    averaged = half[after.having] + half[after.of - after.having] - whole[after.of]
    evidence: Floats = averaged + orders - orders_before
    return evidence


def among_alike(counted: Floats, correlation: Floats, a_day: Floats) -> Floats:
    """Return the logarithms of the evidence of counts, less where runs of a day are alike: they count for less, never for more.

    `a_day` is how many runs there are beside a run on its day, itself included, on average.
    """
    found: Floats = np.minimum(counted, counted / (1 + correlation * np.maximum(a_day - 1, 0.0)))
    return found
