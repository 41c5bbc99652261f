"""Agreement of people and judge: kappa by its definition, an interval that holds what it says, and no number where there is none."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.agreement import (
    ENOUGH,
    MIN_EXCHANGES,
    MIN_SESSIONS,
    NOT_ENOUGH,
    ONE_CATEGORY,
    Estimate,
    Label,
    agreement,
    rounded,
)

POINTS = st.integers(1, 5)


def labels_of(pairs: Iterable[tuple[int, float]], rater: str = "ann", stratum: str = "routine") -> list[Label]:
    """A label an exchange, each in a session of its own: what the person says, and what the judge says."""
    return [
        Label(exchange=f"{stratum} {n}", session=n, rater=rater, human=human, judge=judge, stratum=stratum)
        for n, (human, judge) in enumerate(pairs)
    ]


def by_the_book(pairs: list[tuple[int, int]]) -> float | None:
    """Quadratically weighted kappa from the table of counts, as textbooks write it; None where it is 0 / 0."""
    table = {(a, b): sum(pair == (a, b) for pair in pairs) / len(pairs) for a in range(1, 6) for b in range(1, 6)}
    rows = {a: sum(table[a, b] for b in range(1, 6)) for a in range(1, 6)}
    columns = {b: sum(table[a, b] for a in range(1, 6)) for b in range(1, 6)}
    observed = sum(share * (a - b) ** 2 for (a, b), share in table.items())
    expected = sum(rows[a] * columns[b] * (a - b) ** 2 for a, b in table)
    return None if expected < 1e-12 else 1 - observed / expected


@given(st.lists(st.tuples(POINTS, POINTS), min_size=MIN_EXCHANGES, max_size=80))
def test_kappa_is_that_of_the_textbook(pairs: list[tuple[int, int]]) -> None:
    """The sums are a way to compute it, not another statistic."""
    found = agreement(labels_of(pairs), {}).overall
    expected = by_the_book(pairs)
    assert (found.state == ONE_CATEGORY) == (expected is None)
    if expected is not None:
        assert expected == pytest.approx(found.kappa, abs=1e-9)
        assert -1 <= bounds(found)[0] <= found.kappa + 1e-9 <= bounds(found)[1] + 2e-9 <= 1 + 3e-9  # type: ignore[operator]


@given(st.lists(st.tuples(POINTS, POINTS), min_size=MIN_EXCHANGES, max_size=60), st.integers(2, 4))
def test_a_stratum_that_was_looked_at_less_counts_as_often_as_it_is_there(pairs: list[tuple[int, int]], times: int) -> None:
    """What stands for several exchanges is as if each of them had been scored."""
    few = labels_of(pairs, stratum="routine")
    many = labels_of(pairs[:10], stratum="anomaly")
    weighted = agreement([*few, *many], {"routine": len(few) * times, "anomaly": len(many)}).overall
    repeated = by_the_book([*pairs * times, *pairs[:10]])
    assert (repeated is None) == (weighted.kappa is None)
    if repeated is not None:
        assert repeated == pytest.approx(weighted.kappa, abs=1e-9)


def test_an_exchange_that_two_people_scored_counts_once() -> None:
    """Otherwise whoever is looked at by everybody would be heard most."""
    pairs = [(one % 5 + 1, (one * 7) % 5 + 1) for one in range(40)]
    once = agreement(labels_of(pairs), {}).overall
    twice = agreement([*labels_of(pairs), *labels_of(pairs, rater="bob")], {}).overall
    assert (once.kappa, once.bias, once.exchanges) == pytest.approx((twice.kappa, twice.bias, twice.exchanges))
    assert (once.labels, twice.labels) == (40, 80)


@pytest.mark.parametrize(
    ("number", "sessions"), [(0, 1), (MIN_EXCHANGES - 1, MIN_EXCHANGES), (MIN_EXCHANGES, MIN_SESSIONS - 1)]
)
def test_few_labels_or_few_sessions_are_a_state_and_no_number(number: int, sessions: int) -> None:
    """A kappa of a handful of labels would be quoted."""
    labels = [dataclasses.replace(one, session=n % sessions) for n, one in enumerate(labels_of([(3, 4.0)] * number))]
    found = agreement(labels, {"routine": 100}).overall
    assert (found.state, found.exchanges, found.sessions) == (NOT_ENOUGH, number, min(sessions, number))
    assert {found.kappa, found.low, found.high, found.bias} == {None}


def test_one_and_the_same_score_on_both_sides_has_no_kappa() -> None:
    """It is 0 / 0: as likely by chance as by agreement. The bias is known all the same."""
    found = agreement(labels_of([(4, 4.2)] * 50), {}).overall
    assert (found.state, found.kappa, found.low) == (ONE_CATEGORY, None, None)
    assert found.bias == pytest.approx(0.2)


def test_a_judge_that_always_says_the_same_agrees_by_chance_only() -> None:
    """However often the constant happens to be right."""
    found = agreement(labels_of([(4 if n % 3 else 2, 4.0) for n in range(60)]), {}).overall
    assert found.state == ENOUGH
    assert found.kappa == pytest.approx(0.0)


def test_agreement_without_a_difference_is_not_certain() -> None:
    """Forty pairs that agree do not prove that the next one will."""
    found = agreement(labels_of([(n % 5 + 1, n % 5 + 1.0) for n in range(40)]), {}).overall
    assert (found.kappa, found.high) == (1.0, 1.0)
    assert 0.9 < bounds(found)[0] < 1


def test_the_bias_is_of_the_mean_before_it_is_rounded() -> None:
    """A judge that is a quarter of a point too kind is a quarter of a point too kind."""
    found = agreement(labels_of([(n % 4 + 1, n % 4 + 1.25) for n in range(60)]), {}).overall
    assert found.kappa == 1.0
    assert found.bias == pytest.approx(0.25)


@pytest.mark.parametrize(("judge", "expected"), [(1.0, 1), (2.49, 2), (2.5, 3), (3.5, 4), (4.9, 5), (5.0, 5)])
def test_the_judge_is_rounded_to_the_nearest_point(judge: float, expected: int) -> None:
    """Halves go up, not to the even number, which nobody would guess."""
    assert rounded(judge) == expected


def test_people_are_compared_over_what_several_have_scored() -> None:
    """Among themselves there is no first and no second: both ways round, and so without a bias."""
    ann = labels_of([(n % 5 + 1, 3.0) for n in range(60)])
    bob = [dataclasses.replace(one, rater="bob", human=min(one.human + 1, 5)) for one in ann[:40]]
    found = agreement([*ann, *bob], {}).between_raters
    both = [(one.human, other.human) for one, other in zip(ann, bob, strict=False)]
    assert (found.exchanges, found.labels, found.bias) == (40, 80, None)
    assert found.kappa == pytest.approx(by_the_book([*both, *((b, a) for a, b in both)]))
    assert list(agreement([*ann, *bob], {}).raters) == ["ann", "bob"]


def test_what_nobody_looked_at_is_not_spoken_for() -> None:
    """The share that is covered says how much of the project an estimate is about."""
    labels = labels_of([(3, 4.0)] * 5, stratum="anomaly")
    assert agreement(labels, {"anomaly": 10, "routine": 30}).covered == 0.25
    assert agreement([], {}).covered is None


@pytest.mark.parametrize(("sessions", "each", "noise"), [(15, 2, 0.5), (40, 1, 0.5), (30, 3, 0.3), (40, 2, 1.5)])
def test_the_interval_holds_the_truth_as_often_as_it_says(sessions: int, each: int, noise: float) -> None:
    """Exchanges of a session are alike; an interval that took them as independent would hold it far too rarely."""
    rng = random.Random(7)
    truth = agreement(drawn(rng, 12_000 // each, each, noise), {}).overall
    found = [agreement(drawn(rng, sessions, each, noise), {}).overall for _ in range(250)]
    kappa, bias = truth.kappa or math.nan, truth.bias or math.nan
    assert sum(bounds(one)[0] <= kappa <= bounds(one)[1] for one in found) / len(found) >= 0.90
    assert sum((one.bias_low or 0) <= bias <= (one.bias_high or 0) for one in found) / len(found) >= 0.90


def bounds(found: Estimate) -> tuple[float, float]:
    """The ends of an interval that must be there."""
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def drawn(rng: random.Random, sessions: int, each: int, noise: float) -> list[Label]:
    """Labels of one person: exchanges differ, sessions too, and so do person and judge, who is a little kind."""
    labels = []
    for session in range(sessions):
        level = 3.6 + rng.gauss(0, 0.4)
        for number in range(each):
            quality = level + rng.gauss(0, 0.9)
            human = min(max(round(quality + rng.gauss(0, noise)), 1), 5)
            judge = min(max(round(3 * (quality + 0.2 + rng.gauss(0, noise))) / 3, 1.0), 5.0)
            exchange = f"{session}:{number}"
            labels.append(Label(exchange=exchange, session=session, rater="ann", human=human, judge=judge, stratum="all"))
    return labels
