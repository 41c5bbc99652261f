"""False discoveries: of the changes that are named among many series, few are wrong, whatever depends on what."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.drift.change_detector import CONFIRMED, HISTORY_DAYS
from audit.drift.discoveries import FLEET_RATE, find_confirmed, find_fleet_discoveries, log_e_value

EVIDENCE = st.lists(st.floats(-50, 50), max_size=30)
REPETITIONS = 4000


def test_a_series_alone_needs_the_threshold() -> None:
    """A family of one is decided as before."""
    assert find_confirmed([math.log(100)], 100).tolist() == [True]
    assert find_confirmed([math.log(99)], 100).tolist() == [False]
    assert find_confirmed([], 100).tolist() == []


def test_one_of_many_needs_more_and_all_of_them_need_no_more() -> None:
    """The price of watching many series is paid by a change that is alone."""
    one = [math.log(399), *[0.0] * 3]
    assert not find_confirmed(one, 100).any()
    one[0] = math.log(400)
    assert find_confirmed(one, 100).tolist() == [True, False, False, False]
    assert find_confirmed([math.log(100)] * 4, 100).all()
    assert find_confirmed([math.log(200), 0.0, math.log(200), 0.0], 100).tolist() == [True, False, True, False]


@given(EVIDENCE, st.floats(2, 1e6))
def test_the_k_named_series_have_n_kths_of_the_threshold_and_no_larger_set_does(
    evidence: list[float], threshold: float
) -> None:
    """This is the definition of e-BH, by trying every k."""
    n = len(evidence)
    ranked = sorted(evidence, reverse=True)
    largest = max((k for k in range(1, n + 1) if ranked[k - 1] >= math.log(threshold) + math.log(n) - math.log(k)), default=0)
    named = find_confirmed(evidence, threshold)
    assert named.sum() == sum(value >= ranked[largest - 1] for value in evidence) if largest else not named.any()


@given(EVIDENCE, st.integers(0, 29), st.floats(0, 20))
def test_more_evidence_never_names_less(evidence: list[float], index: int, more: float) -> None:
    """An upper bound of the evidence can therefore rule series out."""
    before = find_confirmed(evidence, 10)
    raised = [value + more * (place == index) for place, value in enumerate(evidence)]
    assert (find_confirmed(raised, 10) >= before).all()


@pytest.mark.parametrize("dependence", ["independent", "all equal", "halves opposed"])
@pytest.mark.parametrize("changed", [0, 5])
def test_at_most_one_in_ten_named_series_is_wrong(dependence: str, changed: int) -> None:
    """The bound holds under any dependence: a common shock moves all series at once.

    The e-values are likelihood ratios of normal numbers, whose expectation is 1 without a change.
    """
    rng = np.random.default_rng(1)
    series, distance = 50, 2.5
    shares = []
    for _ in range(REPETITIONS):
        common = rng.normal()
        noise = {
            "independent": rng.normal(size=series),
            "all equal": np.full(series, common),
            "halves opposed": np.where(np.arange(series) % 2, common, -common),
        }[dependence]
        scores = noise + np.where(np.arange(series) < changed, 5.0, 0.0)
        named = find_fleet_discoveries((distance * scores - distance**2 / 2).tolist())
        shares.append(named[changed:].sum() / max(1, named.sum()))
    error = np.std(shares) / math.sqrt(REPETITIONS)
    assert np.mean(shares) <= FLEET_RATE + 3 * error


def test_a_lone_project_keeps_its_threshold() -> None:
    """A project of four tiers confirms one of them with no more evidence than before."""
    evidence = [math.log(CONFIRMED), 0.0, 0.0, 0.0]
    assert find_fleet_discoveries([log_e_value(value) for value in evidence])[0]
    assert log_e_value(math.log(HISTORY_DAYS)) == pytest.approx(0.0)
