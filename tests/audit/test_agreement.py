"""Agreement of people and judge: kappa matches its definition, the interval has its stated coverage, few labels give no number."""

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
    VerdictPair,
    agreement,
    round_to_point,
    verdict_agreement,
)

SCORES = st.integers(1, 5)


def labels_of(pairs: Iterable[tuple[int, float]], rater: str = "ann", stratum: str = "routine") -> list[Label]:
    """Return a label for each pair of a person's and a judge's score, each in its own session."""
    return [
        Label(exchange=f"{stratum} {n}", session=n, rater=rater, human=human, judge=judge, stratum=stratum)
        for n, (human, judge) in enumerate(pairs)
    ]


def textbook_kappa(pairs: list[tuple[int, int]]) -> float | None:
    """Return the quadratically weighted kappa from the table of counts, as textbooks compute it; None if it is 0 / 0."""
    table = {(a, b): sum(pair == (a, b) for pair in pairs) / len(pairs) for a in range(1, 6) for b in range(1, 6)}
    rows = {a: sum(table[a, b] for b in range(1, 6)) for a in range(1, 6)}
    columns = {b: sum(table[a, b] for a in range(1, 6)) for b in range(1, 6)}
    observed = sum(share * (a - b) ** 2 for (a, b), share in table.items())
    expected = sum(rows[a] * columns[b] * (a - b) ** 2 for a, b in table)
    return None if expected < 1e-12 else 1 - observed / expected


@given(st.lists(st.tuples(SCORES, SCORES), min_size=MIN_EXCHANGES, max_size=80))
def test_kappa_is_that_of_the_textbook(pairs: list[tuple[int, int]]) -> None:
    """The module uses sums of weights instead of the table of counts; both must give the same kappa."""
    estimate = agreement(labels_of(pairs), {}).overall
    expected = textbook_kappa(pairs)
    assert (estimate.state == ONE_CATEGORY) == (expected is None)
    if expected is not None:
        assert expected == pytest.approx(estimate.kappa, abs=1e-9)
        assert -1 <= bounds(estimate)[0] <= estimate.kappa + 1e-9 <= bounds(estimate)[1] + 2e-9 <= 1 + 3e-9  # type: ignore[operator]


@given(st.lists(st.tuples(SCORES, SCORES), min_size=MIN_EXCHANGES, max_size=60), st.integers(2, 4))
def test_a_stratum_with_fewer_labels_counts_by_its_size(pairs: list[tuple[int, int]], times: int) -> None:
    """A label that represents several exchanges counts as if each of them had been scored."""
    routine = labels_of(pairs, stratum="routine")
    anomalies = labels_of(pairs[:10], stratum="anomaly")
    weighted = agreement([*routine, *anomalies], {"routine": len(routine) * times, "anomaly": len(anomalies)}).overall
    repeated = textbook_kappa([*pairs * times, *pairs[:10]])
    assert (repeated is None) == (weighted.kappa is None)
    if repeated is not None:
        assert repeated == pytest.approx(weighted.kappa, abs=1e-9)


def test_an_exchange_that_two_people_scored_counts_once() -> None:
    """Otherwise the exchanges that everybody looks at would outweigh the others."""
    pairs = [(number % 5 + 1, (number * 7) % 5 + 1) for number in range(40)]
    one_rater = agreement(labels_of(pairs), {}).overall
    two_raters = agreement([*labels_of(pairs), *labels_of(pairs, rater="bob")], {}).overall
    assert two_raters.kappa == pytest.approx(one_rater.kappa)
    assert two_raters.bias == pytest.approx(one_rater.bias)
    assert two_raters.exchanges == one_rater.exchanges
    assert one_rater.labels == 40
    assert two_raters.labels == 80


@pytest.mark.parametrize(
    ("number", "sessions"), [(0, 1), (MIN_EXCHANGES - 1, MIN_EXCHANGES), (MIN_EXCHANGES, MIN_SESSIONS - 1)]
)
def test_too_few_labels_or_sessions_give_no_kappa(number: int, sessions: int) -> None:
    """A kappa from a handful of labels would be quoted as if it meant something."""
    labels = [dataclasses.replace(label, session=n % sessions) for n, label in enumerate(labels_of([(3, 4.0)] * number))]
    estimate = agreement(labels, {"routine": 100}).overall
    assert estimate.state == NOT_ENOUGH
    assert estimate.exchanges == number
    assert estimate.sessions == min(sessions, number)
    assert {estimate.kappa, estimate.low, estimate.high, estimate.bias} == {None}


def test_one_and_the_same_score_on_both_sides_has_no_kappa() -> None:
    """Kappa is 0 / 0: chance and agreement look the same. The bias is still known."""
    estimate = agreement(labels_of([(4, 4.2)] * 50), {}).overall
    assert estimate.state == ONE_CATEGORY
    assert estimate.kappa is None
    assert estimate.low is None
    assert estimate.bias == pytest.approx(0.2)


def test_a_judge_that_always_says_the_same_agrees_by_chance_only() -> None:
    """A constant has no skill, however often it happens to be right."""
    estimate = agreement(labels_of([(4 if n % 3 else 2, 4.0) for n in range(60)]), {}).overall
    assert estimate.state == ENOUGH
    assert estimate.kappa == pytest.approx(0.0)


def test_agreement_without_a_difference_is_not_certain() -> None:
    """Forty pairs that agree do not prove that the next one will."""
    estimate = agreement(labels_of([(n % 5 + 1, n % 5 + 1.0) for n in range(40)]), {}).overall
    assert estimate.kappa == 1.0
    assert estimate.high == 1.0
    assert 0.9 < bounds(estimate)[0] < 1


def test_the_bias_is_of_the_mean_before_it_is_rounded() -> None:
    """A judge that is 0.25 too kind has a bias of 0.25, though rounding hides it from kappa."""
    estimate = agreement(labels_of([(n % 4 + 1, n % 4 + 1.25) for n in range(60)]), {}).overall
    assert estimate.kappa == 1.0
    assert estimate.bias == pytest.approx(0.25)


@pytest.mark.parametrize(("judge", "expected"), [(1.0, 1), (2.49, 2), (2.5, 3), (3.5, 4), (4.9, 5), (5.0, 5)])
def test_the_judge_is_rounded_to_the_nearest_point(judge: float, expected: int) -> None:
    """Halves round up, not to the even number as Python's round() does."""
    assert round_to_point(judge) == expected


def test_people_are_compared_over_what_several_have_scored() -> None:
    """People have no order, so each pair counts both ways round and there is no bias."""
    ann = labels_of([(n % 5 + 1, 3.0) for n in range(60)])
    bob = [dataclasses.replace(label, rater="bob", human=min(label.human + 1, 5)) for label in ann[:40]]
    estimate = agreement([*ann, *bob], {}).between_raters
    scores = [(label.human, other_label.human) for label, other_label in zip(ann, bob, strict=False)]
    assert estimate.exchanges == 40
    assert estimate.labels == 80
    assert estimate.bias is None
    assert estimate.kappa == pytest.approx(textbook_kappa([*scores, *((b, a) for a, b in scores)]))
    assert list(agreement([*ann, *bob], {}).raters) == ["ann", "bob"]


def test_what_nobody_looked_at_is_not_spoken_for() -> None:
    """`covered` says how much of the project an estimate describes."""
    labels = labels_of([(3, 4.0)] * 5, stratum="anomaly")
    assert agreement(labels, {"anomaly": 10, "routine": 30}).covered == 0.25
    assert agreement([], {}).covered is None


@pytest.mark.parametrize(
    ("sessions", "exchanges_per_session", "noise"), [(15, 2, 0.5), (40, 1, 0.5), (30, 3, 0.3), (40, 2, 1.5)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(sessions: int, exchanges_per_session: int, noise: float) -> None:
    """Exchanges of a session are alike; an interval that treated them as independent would cover the truth far too rarely."""
    rng = random.Random(7)
    truth = agreement(simulated_labels(rng, 12_000 // exchanges_per_session, exchanges_per_session, noise), {}).overall
    estimates = [agreement(simulated_labels(rng, sessions, exchanges_per_session, noise), {}).overall for _ in range(250)]
    kappa, bias = truth.kappa or math.nan, truth.bias or math.nan
    assert sum(bounds(estimate)[0] <= kappa <= bounds(estimate)[1] for estimate in estimates) / len(estimates) >= 0.90
    assert sum((estimate.bias_low or 0) <= bias <= (estimate.bias_high or 0) for estimate in estimates) / len(estimates) >= 0.90


def bounds(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of the interval, which must exist."""
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def simulated_labels(rng: random.Random, sessions: int, exchanges_per_session: int, noise: float) -> list[Label]:
    """Return one person's labels; quality varies by session and by exchange, and the judge is 0.2 points too kind."""
    labels = []
    for session in range(sessions):
        level = 3.6 + rng.gauss(0, 0.4)
        for number in range(exchanges_per_session):
            quality = level + rng.gauss(0, 0.9)
            human = min(max(round(quality + rng.gauss(0, noise)), 1), 5)
            judge = min(max(round(3 * (quality + 0.2 + rng.gauss(0, noise))) / 3, 1.0), 5.0)
            exchange = f"{session}:{number}"
            labels.append(Label(exchange=exchange, session=session, rater="ann", human=human, judge=judge, stratum="all"))
    return labels


def spread_table(table: list[list[int]], scores: tuple[int, ...]) -> list[VerdictPair]:
    """Return a pair for each count of a table whose rows are the first judge's scores and whose columns are the second's."""
    cells = [
        (a, b) for a, row in zip(scores, table, strict=True) for b, count in zip(scores, row, strict=True) for _ in range(count)
    ]
    return [VerdictPair(exchange=n, session=n, first=float(a), second=float(b)) for n, (a, b) in enumerate(cells)]


@pytest.mark.parametrize(
    ("table", "scores", "kappa"),
    [
        # Two observers, a yes-or-no question on 50 subjects: Viera and Garrett 2005, "Understanding interobserver agreement: the kappa
        # statistic", Family Medicine 37. With two categories, all weights give Cohen's unweighted kappa.
        ([[15, 5], [10, 20]], (1, 2), 0.40),
        # Cohen 1968, "Weighted kappa", and Fleiss and Cohen 1973 state the limits: full agreement, and scores that are independent.
        ([[10, 0, 0], [0, 20, 0], [0, 0, 15]], (1, 3, 5), 1.0),
        ([[4, 8], [6, 12]], (1, 5), 0.0),
    ],
)
def test_kappa_of_two_judges_is_the_published_one(table: list[list[int]], scores: tuple[int, ...], kappa: float) -> None:
    """A kappa that differs from everybody else's cannot be compared with theirs."""
    assert verdict_agreement(spread_table(table, scores), 1.0, 5.0).kappa == pytest.approx(kappa, abs=1e-9)


VERDICTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=MIN_EXCHANGES, max_size=60)


def pairs_of(verdicts: list[tuple[int, int]], step: float, lowest: float) -> list[VerdictPair]:
    """Return pairs of verdicts, which are steps above the lowest score."""
    return [
        VerdictPair(exchange=n, session=n, first=lowest + step * a, second=lowest + step * b)
        for n, (a, b) in enumerate(verdicts)
    ]


@given(VERDICTS)
def test_the_order_of_judges_changes_the_sign_of_their_difference_only(verdicts: list[tuple[int, int]]) -> None:
    """Which judge is called the first must not change how far they agree."""
    forth = verdict_agreement(pairs_of(verdicts, 0.5, 1.0), 1.0, 5.0)
    back = verdict_agreement(pairs_of([(b, a) for a, b in verdicts], 0.5, 1.0), 1.0, 5.0)
    assert back.kappa == (None if forth.kappa is None else pytest.approx(forth.kappa))
    assert back.bias == pytest.approx(-(forth.bias or 0.0))
    if forth.bias_high is not None and back.bias_low is not None:
        assert back.bias_low == pytest.approx(-forth.bias_high)


@given(VERDICTS)
def test_kappa_does_not_depend_on_the_scale_of_a_tier(verdicts: list[tuple[int, int]]) -> None:
    """Tier 2 goes from 0 to 1 and Tier 3 from 1 to 5; their kappas stand in one table."""
    tier2 = verdict_agreement(pairs_of(verdicts, 0.125, 0.0), 0.0, 1.0)
    tier3 = verdict_agreement(pairs_of(verdicts, 0.5, 1.0), 1.0, 5.0)
    assert tier2.kappa == (None if tier3.kappa is None else pytest.approx(tier3.kappa))
    assert tier2.bias == pytest.approx((tier3.bias or 0.0) / 4)


def test_an_anchor_counts_once_however_often_it_was_judged() -> None:
    """An anchor chosen early has more rounds than a later one and must not outweigh it."""
    pairs = [VerdictPair(exchange=n, session=n, first=1.0 + n % 5, second=1.0 + (2 * n) % 5) for n in range(40)]
    often = [*pairs, *[pairs[3]] * 20]
    assert verdict_agreement(often, 1.0, 5.0).kappa == pytest.approx(verdict_agreement(pairs, 1.0, 5.0).kappa)
    assert verdict_agreement(often, 1.0, 5.0).exchanges == 40
    assert verdict_agreement(pairs[:14] * 3, 1.0, 5.0).state == NOT_ENOUGH
