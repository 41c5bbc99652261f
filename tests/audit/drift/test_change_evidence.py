"""The evidence of two stretches: its formula, its expectation, and its robustness against a single outlier."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.change_detector import contrasts_at
from audit.drift.change_evidence import EFFECT_SIZES, Contrast
from audit.drift.series import Series, Unit, cells_of

FIRST = date(2026, 8, 3)
START = datetime(2026, 8, 3, tzinfo=UTC)
values = st.lists(st.floats(0, 1).map(lambda value: round(value, 3)), min_size=12, max_size=30)


def compare(before: Sequence[float], after: Sequence[float], weight: float = 1.0) -> tuple[Contrast, float]:
    """Return the contrast and the log evidence of two stretches of scores, each within one day."""
    units = [Unit(START + number * timedelta(minutes=20), 1, weight, weight * score) for number, score in enumerate(before)]
    later = START + timedelta(days=1)
    units += [Unit(later + number * timedelta(minutes=20), 1, weight, weight * score) for number, score in enumerate(after)]
    return evidence_at(units, 1)


def evidence_at(units: Sequence[Unit], day: int) -> tuple[Contrast, float]:
    """Return the contrast and the log evidence of the last look for a change on a day."""
    series = Series(cells_of(units), FIRST, FIRST + timedelta(days=90))
    contrasts, evidence = contrasts_at(series, len(series.day) - 1, series.starts[[day]])
    return contrasts, float(evidence[0])


def test_the_evidence_is_the_bayes_factor_of_the_t_test() -> None:
    """Compare with the formula of Gönen and others for independent normal scores of one stratum."""
    rng = random.Random(1)
    before, after = [rng.gauss(0, 1) for _ in range(40)], [2.0, 0.0] * 6
    units = [Unit(START + timedelta(days=number), 1, 1.0, score) for number, score in enumerate(before)]
    units += [Unit(START + timedelta(days=40, hours=place), 1, 1.0, score) for place, score in enumerate(after)]
    contrasts, evidence = evidence_at(units, 40)
    variance, t2 = float(contrasts.variance[0]), float(contrasts.size[0] ** 2 / contrasts.variance[0])
    terms = []
    for spread, share in EFFECT_SIZES:
        wide = 1 + spread**2 * float(contrasts.unit_variance[0]) / variance
        free = float(contrasts.freedom[0])
        terms.append(
            share * math.exp(-math.log(wide) / 2 + (free + 1) / 2 * (math.log1p(t2 / free) - math.log1p(t2 / (free * wide))))
        )

    assert evidence <= math.log(sum(terms)) + 1e-9
    assert statistics.fmean(after) - statistics.fmean(before) == pytest.approx(float(contrasts.size[0]), abs=0.6)


@pytest.mark.parametrize(("before", "after"), [(20, 3), (60, 3), (60, 40)])
def test_without_a_change_it_is_at_most_one_on_average(before: int, after: int) -> None:
    """The false alarm rate rests on this expectation, however often one looks."""
    rng = random.Random(7)
    samples = [
        compare([rng.gauss(0.6, 0.1) for _ in range(before)], [rng.gauss(0.6, 0.1) for _ in range(after)])[1]
        for _ in range(600)
    ]

    assert statistics.fmean(map(math.exp, samples)) < 1.2


@given(values, values)
def test_both_directions_have_the_same_evidence(before: list[float], after: list[float]) -> None:
    """A rise is found as soon as a fall of the same size."""
    mirrored = compare([1 - score for score in before], [1 - score for score in after])

    assert compare(before, after)[1] == pytest.approx(mirrored[1], rel=1e-3, abs=1e-3)


@given(values, values, st.sampled_from([0.25, 3.0, 40.0]))
def test_the_scale_of_the_weights_does_not_matter(before: list[float], after: list[float], weight: float) -> None:
    """Weights of three on all scores change nothing."""
    assert compare(before, after)[1] == pytest.approx(compare(before, after, weight)[1], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 3])
def test_constant_scores_are_no_evidence(value: float) -> None:
    """Constant scores have no evidence for a change, and no division by zero."""
    assert compare([value] * 20, [value] * 5)[1] <= 0


@pytest.mark.parametrize("before", [40, 70])
def test_one_outlier_is_no_evidence(before: int) -> None:
    """A single session may be an outlier."""
    assert compare([1.0] * before, [0.0, 1.0, 1.0])[1] < math.log(100)


def test_varying_days_reduce_the_weight_of_each_session() -> None:
    """If days vary, another level on one day is not a change, however many sessions it has."""
    rng = random.Random(3)

    def history(mood: float) -> list[Unit]:
        units = []
        for number in range(30):
            level = 0.6 + mood * rng.gauss(0, 1) - 0.05 * (number == 29)
            units += [
                Unit(START + timedelta(days=number, minutes=20 * place), 1, 1.0, level + rng.gauss(0, 0.05))
                for place in range(60)
            ]
        return units

    assert evidence_at(history(0.0), 29)[1] > 8
    assert evidence_at(history(0.05), 29)[1] < 3


def test_correlated_scores_of_a_session_count_less() -> None:
    """Scores of one session are correlated: thirty scores in three sessions count as three."""
    rng = random.Random(4)
    means = [rng.gauss(0.7, 0.1) for _ in range(60)]
    session_units = [Unit(START + timedelta(hours=12 * number), 1, 1.0, mean) for number, mean in enumerate(means)]
    tens = [Unit(unit.at, 10, 10.0, 10 * unit.total) for unit in session_units]

    assert evidence_at(session_units, 25)[1] == pytest.approx(evidence_at(tens, 25)[1])
    assert np.allclose(evidence_at(session_units, 25)[0].variance, evidence_at(tens, 25)[0].variance)
