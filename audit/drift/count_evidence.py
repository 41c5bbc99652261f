"""Evidence for a change of a share, from the counts themselves: right for two runs as for two thousand.

Of `n0` runs before, `k0` had something, and of `n1` after, `k1`. If nothing changed, each order of the runs is as probable as any other,
so with `K = k0 + k1` of `n = n0 + n1` the order that was seen has the probability 1 / C(n, K), whatever the share is. The alternative
says nothing of the share before, so it gives its order 1 / C(n0, k0), and averages the share after over Jeffreys' prior, Beta(1/2, 1/2):

    e = B(k1 + 1/2, n1 - k1 + 1/2) / B(1/2, 1/2) * C(n, K) / C(n0, k0)

For independent runs of any share p it is an e-value. For its expectation is the sum over k1 of the Jeffreys probability of k1 times the
probability that a binomial (n, p) lies between k1 and k1 + n0, which is at most 1. That is the exact test of both counts (Fisher 1935)
with a bet on what follows (Grünwald, de Heide and Koolen 2024, "Safe testing"): 2 of 2 after 0 of 30 are 186 to 1, where Fisher's test
has 1 in 496. How it holds while one looks after every run is calculated, not proven: `docs/decisions/0082-shares-of-few-runs.md`.
"""

from __future__ import annotations

from typing import NamedTuple

from audit.drift.cells import Floats, Ints
from schemas.lazy.numpy import np


class Counts(NamedTuple):
    """Counts of stretches, one element per stretch."""

    having: Ints
    """How many have it."""
    of: Ints
    """How many there are."""


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
