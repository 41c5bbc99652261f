"""Intervals of shares, against the published examples."""

from __future__ import annotations

import pytest

from audit.comparison import share_difference, share_interval


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_of_a_share_is_wilsons(count: int, of: int, low: float, high: float) -> None:
    """Newcombe's table of examples, method 3: a share of 0 has an interval as well."""
    assert (low, high) == pytest.approx(share_interval(count, of), abs=5e-5)


@pytest.mark.parametrize(
    ("after", "before", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_the_interval_of_a_difference_is_newcombes(
    after: tuple[int, int], before: tuple[int, int], low: float, high: float
) -> None:
    """Newcombe's examples of method 10: no interval is wider than the scale."""
    assert (low, high) == pytest.approx(share_difference(before, after), abs=5e-5)


def test_a_share_of_nothing_has_no_difference() -> None:
    """A version without runs has no share."""
    assert share_difference((0, 0), (1, 3)) is None
    assert share_difference((1, 3), (0, 0)) is None
