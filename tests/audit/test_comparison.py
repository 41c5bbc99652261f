"""Confidence intervals of paired differences: compared with textbooks and other computations, and their coverage."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.comparison import (
    ROUGH_FREEDOM,
    Interval,
    PairedSums,
    expected_by_chance,
    fisher_p,
    holm,
    paired_interval,
    precedence_p,
    sign_flip_p,
    t_quantile,
)

DIFFERENCES = st.lists(st.lists(st.floats(-4, 4), min_size=1, max_size=8), min_size=2, max_size=12)


def interval_of(clusters: Sequence[Sequence[float]]) -> Interval:
    """Return the interval of differences grouped by session."""
    interval = paired_interval(PairedSums.from_clusters(clusters))
    assert interval is not None
    return interval


def t_between(freedom: float, end: float, steps: int = 20_000) -> float:
    """Return the probability that Student's t is between 0 and `end`, by integrating its density with Simpson's rule."""
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    width = end / steps
    values = [(1 + (step * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for step in range(steps + 1)]
    return constant * width / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))


@pytest.mark.parametrize(
    ("probability", "freedom", "published"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 5, 2.5706),
        (0.975, 30, 2.0423),
        (0.975, 1_000_000, 1.9600),
        (0.95, 10, 1.8125),
        (0.995, 3, 5.8409),
        (0.9995, 1, 636.619),
    ],
)
def test_quantiles_are_those_of_the_published_tables(probability: float, freedom: float, published: float) -> None:
    """The tables of every textbook, to their four decimals; the last one has three."""
    assert t_quantile(probability, freedom) == pytest.approx(published, abs=5e-4 if published > 100 else 5e-5)


@pytest.mark.parametrize("freedom", [1.0, 1.5, 3.7, 12.25, 80.5, 2_000.5])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975])
def test_quantiles_are_where_the_density_says(probability: float, freedom: float) -> None:
    """Degrees of freedom are rarely whole here, which no table has, so the density is integrated instead."""
    assert t_between(freedom, t_quantile(probability, freedom)) == pytest.approx(probability - 0.5, abs=1e-9)


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 3.0), (1.0, 3.0), (0.975, 0.0), (0.975, math.nan)])
def test_an_undefined_quantile_is_refused(probability: float, freedom: float) -> None:
    """A meaningless number would be shown as a result."""
    with pytest.raises(ValueError, match="must be"):
        t_quantile(probability, freedom)


def test_the_median_is_zero() -> None:
    """The distribution is symmetric."""
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=40))
def test_one_exchange_a_session_is_the_textbook_s_paired_interval(differences: list[float]) -> None:
    """If exchanges are independent, clustering must not change anything."""
    interval = interval_of([[difference] for difference in differences])
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    half_width = t_quantile(0.975, len(differences) - 1) * error

    assert interval.freedom == pytest.approx(len(differences) - 1)
    assert (interval.high - interval.low) / 2 == pytest.approx(half_width, abs=1e-9)
    assert (interval.high + interval.low) / 2 == pytest.approx(statistics.fmean(differences), abs=1e-9)


@given(st.lists(st.tuples(*[st.floats(-4, 4)] * 3), min_size=2, max_size=12))
def test_sessions_of_one_size_count_as_their_means(sessions: list[tuple[float, ...]]) -> None:
    """A session of equal exchanges counts as one."""
    of_sessions, of_means = interval_of(sessions), interval_of([[statistics.fmean(session)] for session in sessions])

    assert of_sessions.low == pytest.approx(of_means.low, abs=1e-9)
    assert of_sessions.high == pytest.approx(of_means.high, abs=1e-9)
    assert of_sessions.freedom == pytest.approx(of_means.freedom)


@given(st.lists(st.integers(1, 30), min_size=2, max_size=12))
def test_degrees_of_freedom_are_those_of_the_quadratic_form(sizes: list[int]) -> None:
    """The closed form is error-prone, so it is compared with the covariances of the residuals."""
    total = sum(sizes)
    weights = [1 / (total**2 * (1 - size / total)) for size in sizes]
    covariances = [
        [row_size * (row == column) - row_size * column_size / total for column, column_size in enumerate(sizes)]
        for row, row_size in enumerate(sizes)
    ]
    indexes = range(len(sizes))
    expected = sum(weights[index] * covariances[index][index] for index in indexes)
    variance = sum(weights[row] * weights[column] * covariances[row][column] ** 2 for row in indexes for column in indexes)

    assert expected == pytest.approx(1 / total), "the variance is unbiased where exchanges are independent"
    assert interval_of([[0.0] * size for size in sizes]).freedom == pytest.approx(expected**2 / variance)


def skewed(chance: random.Random) -> list[list[float]]:
    """Return fourteen sessions of very different length, each with a bias, and a mean difference of 0."""
    sizes = [1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 14, 20]
    return [[leaning + chance.gauss(0, 0.5) for _ in range(size)] for size in sizes for leaning in [chance.gauss(0, 1)]]


def test_the_interval_has_its_nominal_coverage() -> None:
    """The coverage is 95% over 1500 simulated fleets with sessions of very different size; without clusters it is not."""
    chance, rounds = random.Random(7), 1500
    fleets = [skewed(chance) for _ in range(rounds)]
    coverage = sum(not interval_of(fleet).excludes_zero for fleet in fleets) / rounds
    naive_coverage = (
        sum(not interval_of([[one] for session in fleet for one in session]).excludes_zero for fleet in fleets) / rounds
    )

    assert 0.93 < coverage < 0.975
    assert naive_coverage < 0.75


@given(DIFFERENCES, st.randoms(use_true_random=False))
def test_neither_order_nor_direction_matters(sessions: list[list[float]], chance: random.Random) -> None:
    """Swapping both sides mirrors the interval."""
    negated = [[-one for one in session] for session in sessions]
    chance.shuffle(negated)
    interval, mirrored = interval_of(sessions), interval_of(negated)

    assert interval.low == pytest.approx(-mirrored.high, abs=1e-9)
    assert interval.high == pytest.approx(-mirrored.low, abs=1e-9)


def test_one_session_has_no_interval() -> None:
    """One session does not show how much the next one would differ."""
    assert None is paired_interval(PairedSums.from_clusters([[0.5, 0.25, 0.5]]))


def test_a_difference_that_is_everywhere_the_same_is_certain() -> None:
    """Differences that cancel out are zero, however their sums are rounded."""
    assert interval_of([[0.25], [0.25, 0.25], [0.25]]).excludes_zero
    cancelling = [[0.1, 0.2, -0.3], [0.3, -0.1, -0.2], [0.7, -0.5, -0.2]] * 4
    assert not interval_of(cancelling).excludes_zero


def test_a_few_sessions_are_rough() -> None:
    """Twelve sessions of which one has nearly all exchanges are no better than three."""
    assert interval_of([[0.1], [0.2], [0.3]]).is_rough
    assert interval_of([[0.1]] * 11 + [[0.2] * 200]).freedom < ROUGH_FREEDOM
    assert not interval_of([[0.1], [0.2]] * 6).is_rough


def test_one_interval_in_twenty_excludes_zero_by_chance() -> None:
    """Of forty measures, two are expected to move by chance."""
    assert expected_by_chance(40) == pytest.approx(2)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_the_sign_flip_test_counts_every_choice_of_signs(differences: list[int]) -> None:
    """A gate blocks builds by this number, so it must be the count itself and no approximation."""
    choices = [sum(sign * value for sign, value in zip(signs, differences, strict=True)) for signs in itertools.product((1, -1), repeat=len(differences))]  # fmt: skip

    assert sign_flip_p(differences) == sum(total <= sum(differences) for total in choices) / len(choices)


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_tests_of_two_samples_count_every_way_to_draw_them(before: int, after: int, data: st.DataObject) -> None:
    """Both must hold for samples of any size, also of one."""
    failed = data.draw(st.integers(0, before + after))
    count = data.draw(st.integers(max(0, failed - before), min(after, failed)))
    rank = data.draw(st.integers(1, before))
    below = data.draw(st.integers(0, after))
    draws = list(
        itertools.combinations(range(before + after), after)
    )  # the places of the sample after in the order of all values

    fisher = sum(sum(place < failed for place in draw) >= count for draw in draws) / len(draws)
    precedence = 0
    for draw in draws:
        limit = [place for place in range(before + after) if place not in draw][rank - 1]
        precedence += sum(place < limit for place in draw) >= below

    assert fisher_p((failed - count, before), (count, after)) == pytest.approx(fisher)
    assert precedence_p(below, after, rank, before) == pytest.approx(precedence / len(draws))


def test_holm_corrects_the_smallest_probability_most() -> None:
    """Of many comparisons one is extreme by chance, and a correction that changes their order would name the wrong one."""
    assert holm([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.9])
