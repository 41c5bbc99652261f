"""Agreement of people and judge, and of judges: Cohen's kappa with quadratic weights, its 95% confidence interval, and the bias.

1. People score 1 to 5. The judge's Tier 3 mean is rounded to the nearest point, halves up, so that both use the same scale. The bias is
   the judge's unrounded mean less the person's score.
2. With quadratic weights kappa is 1 - D / E, where D is the mean squared deviation of the pairs and E what it would be if the same
   scores were paired at random (Fleiss and Cohen 1973).
3. People do not label a random sample: they look at anomalies first. So each label is weighted by the number of exchanges in its stratum
   per labeled exchange. Strata without labels are left out; `covered` is the share of the population in the others.
4. Exchanges of one session are not independent. The interval is computed for log(D / E), which is nearly normal and keeps kappa below 1.
   It is linearized, summed by session, and uses Student's t. If no pair deviates, the rule of three bounds the share of pairs that could.
5. With too few labels, or one score only on both sides, the estimate has a state instead of a number.
6. Two verdicts of judges on one exchange are compared in the same way. All tiers are put on the people's five points for kappa, so that
   their kappas can be compared; the bias stays on the scale of the tier.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from audit.comparison import CONFIDENCE, t_quantile

MIN_EXCHANGES = 30
"""Minimum number of labeled exchanges for an estimate."""
MIN_SESSIONS = 15
"""Minimum number of sessions for an estimate, whose interval is computed from the differences between sessions."""
ENOUGH, NOT_ENOUGH, ONE_CATEGORY = "enough", "not_enough_labels", "one_category"
LOWEST, HIGHEST = 1, 5
"""The scale that people use, which is that of Tier 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One person's score of an exchange, beside the judge's."""

    exchange: str
    session: Hashable
    rater: str
    human: int
    """1 to 5."""
    judge: float
    """The judge's Tier 3 mean, 1 to 5."""
    stratum: Hashable
    """The group of exchanges that the label represents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The agreement of two sides; the numbers are None unless the state is `enough`."""

    state: str
    """enough, not_enough_labels, or one_category: both sides gave the same score throughout, so kappa is 0 / 0."""
    labels: int
    exchanges: int
    sessions: int
    kappa: float | None = None
    low: float | None = None
    high: float | None = None
    bias: float | None = None
    """Mean of the judge less that of people, or of the second judge less that of the first; None between people."""
    bias_low: float | None = None
    bias_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The agreement of the judge with all people and with each of them, and of people with each other."""

    overall: Estimate
    raters: Mapping[str, Estimate]
    between_raters: Estimate
    covered: float | None
    """Share of the population whose strata have labels; None for an empty population."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two scores of one exchange, on the scale of people."""

    session: Hashable
    weight: float
    first: int
    second: int
    bias: float
    """The first score less the second, before rounding."""

    @property
    def squared_deviation(self) -> float:
        return float((self.first - self.second) ** 2)


def agreement(labels: Sequence[Label], population: Mapping[Hashable, int]) -> Agreement:
    """Estimate the agreement from the newest label of each rater and exchange.

    `population` is the number of judged exchanges in each stratum.
    """
    by_rater: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        by_rater[label.rater].append(label)
    return Agreement(
        overall=_estimate_with_judge(labels, population),
        raters={rater: _estimate_with_judge(by_rater[rater], population) for rater in sorted(by_rater)},
        between_raters=_estimate_between_raters(labels, population),
        covered=_covered_share(labels, population),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPair:
    """Two verdicts on one exchange, on the scale of their tier."""

    exchange: Hashable
    session: Hashable
    first: float
    second: float
    weight: float = 1.0
    """Number of exchanges that the exchange stands for."""


def verdict_agreement(pairs: Sequence[VerdictPair], lowest: float, highest: float) -> Estimate:
    """Estimate the agreement of two verdicts of a tier whose scale is given; the bias is the mean of the second less the first.

    The estimate counts pairs as `labels`. An exchange with several pairs, which an anchor has, counts once.
    """
    pairs_per_exchange = Counter(pair.exchange for pair in pairs)
    scale = (HIGHEST - LOWEST) / (highest - lowest)
    weighted = [
        _Pair(
            session=pair.session,
            weight=pair.weight / pairs_per_exchange[pair.exchange],
            first=round_to_point(LOWEST + (pair.second - lowest) * scale),
            second=round_to_point(LOWEST + (pair.first - lowest) * scale),
            bias=pair.second - pair.first,
        )
        for pair in pairs
    ]
    return _estimate_agreement(weighted, labels=len(pairs), exchanges=len(pairs_per_exchange), measured=len(pairs))


def round_to_point(judge: float) -> int:
    """Round the judge's mean to the nearest point of the people's scale, halves up."""
    return min(max(math.floor(judge + 0.5), LOWEST), HIGHEST)


def _covered_share(labels: Sequence[Label], population: Mapping[Hashable, int]) -> float | None:
    total = sum(population.values())
    if total == 0:
        return None
    labeled = {label.stratum for label in labels}
    return sum(count for stratum, count in population.items() if stratum in labeled) / total


def _estimate_with_judge(labels: Sequence[Label], population: Mapping[Hashable, int]) -> Estimate:
    """Compare the judge with people; each exchange counts once, however many people scored it."""
    weights = _stratum_weights(labels, population)
    labels_per_exchange = Counter(label.exchange for label in labels)
    pairs = [
        _Pair(
            session=label.session,
            weight=weights[label.stratum] / labels_per_exchange[label.exchange],
            first=round_to_point(label.judge),
            second=label.human,
            bias=label.judge - label.human,
        )
        for label in labels
    ]
    return _estimate_agreement(pairs, labels=len(labels), exchanges=len(labels_per_exchange))


def _estimate_between_raters(labels: Sequence[Label], population: Mapping[Hashable, int]) -> Estimate:
    """Compare people with each other over the exchanges that two or more have scored, each pair of people in both orders."""
    by_exchange: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        by_exchange[label.exchange].append(label)
    shared = [group for group in by_exchange.values() if len(group) > 1]
    weights = _stratum_weights([label for group in shared for label in group], population)

    pairs = []
    for group in shared:
        orders = len(group) * (len(group) - 1)
        for label, other in itertools.permutations(group, 2):
            weight = weights[label.stratum] / orders
            pairs.append(_Pair(session=label.session, weight=weight, first=label.human, second=other.human, bias=0.0))
    estimate = _estimate_agreement(pairs, labels=sum(map(len, shared)), exchanges=len(shared))
    return replace(estimate, bias=None, bias_low=None, bias_high=None)


def _stratum_weights(labels: Iterable[Label], population: Mapping[Hashable, int]) -> dict[Hashable, float]:
    """Return the number of exchanges that a labeled exchange represents, by stratum; at least 1."""
    stratum_of = {label.exchange: label.stratum for label in labels}
    labeled = Counter(stratum_of.values())
    return {stratum: max(population.get(stratum, 0), count) / count for stratum, count in labeled.items()}


def _estimate_agreement(pairs: Sequence[_Pair], *, labels: int, exchanges: int, measured: int | None = None) -> Estimate:
    """Estimate an agreement. `measured` is the number that must reach `MIN_EXCHANGES`; by default that of exchanges."""
    sessions = len({pair.session for pair in pairs})
    counts = {"labels": labels, "exchanges": exchanges, "sessions": sessions}
    if (exchanges if measured is None else measured) < MIN_EXCHANGES or sessions < MIN_SESSIONS:
        return Estimate(state=NOT_ENOUGH, **counts)

    bias, bias_low, bias_high = _bias_interval(pairs)
    if len({score for pair in pairs for score in (pair.first, pair.second)}) == 1:
        return Estimate(state=ONE_CATEGORY, **counts, bias=bias, bias_low=bias_low, bias_high=bias_high)

    observed = _weighted_mean(pairs, [pair.squared_deviation for pair in pairs])
    chance = _ChanceDeviation.from_pairs(pairs)
    if observed == 0:
        low, high = _kappa_bounds_without_deviation(chance, sessions)
    else:
        low, high = _kappa_interval(observed, chance, _log_ratio_influences(pairs, observed, chance))
    return Estimate(
        state=ENOUGH,
        **counts,
        kappa=1 - observed / chance.expected,
        low=low,
        high=high,
        bias=bias,
        bias_low=bias_low,
        bias_high=bias_high,
    )


def _bias_interval(pairs: Sequence[_Pair]) -> tuple[float, float, float]:
    """Return the weighted mean of the biases and the ends of its interval, with sessions as clusters."""
    total = math.fsum(pair.weight for pair in pairs)
    mean = _weighted_mean(pairs, [pair.bias for pair in pairs])
    half_width = _half_width(_sum_by_session(pairs, [pair.weight * (pair.bias - mean) / total for pair in pairs]))
    return mean, mean - half_width, mean + half_width


@dataclass(frozen=True, slots=True)
class _ChanceDeviation:
    """E, the mean squared deviation of scores that are paired at random: Var(first) + Var(second) + (mean difference)^2."""

    expected: float
    influences: Sequence[float]
    """The derivative of E by the weight of each pair, up to the factor 1 / total weight."""

    @classmethod
    def from_pairs(cls, pairs: Sequence[_Pair]) -> _ChanceDeviation:
        """Compute E and its influences.

        With the means m1 and m2, adding weight to the pair (x, y) changes Var(first) by (x - m1)^2 - Var(first), Var(second) likewise, and
        (m1 - m2)^2 by 2 (m1 - m2) ((x - m1) - (y - m2)). The sum of these three is a term of the pair less the mean of all terms.
        """
        mean_first = _weighted_mean(pairs, [float(pair.first) for pair in pairs])
        mean_second = _weighted_mean(pairs, [float(pair.second) for pair in pairs])
        mean_difference = mean_first - mean_second

        chance_terms = []
        for pair in pairs:
            first = pair.first - mean_first
            second = pair.second - mean_second
            chance_terms.append(first**2 + second**2 + 2 * mean_difference * (first - second))
        # The mean of the last summand is 0, so the mean of the terms is the sum of both variances.
        variances = _weighted_mean(pairs, chance_terms)
        return cls(variances + mean_difference**2, [term - variances for term in chance_terms])


def _log_ratio_influences(pairs: Sequence[_Pair], observed: float, chance: _ChanceDeviation) -> list[float]:
    """Return the influence of each session on log(D / E).

    Since log(D / E) = log D - log E, the influence of a pair is its influence on D, divided by D, less its influence on E, divided by E.
    Its influence on D, a mean, is its squared deviation less D.
    """
    total = math.fsum(pair.weight for pair in pairs)
    influences = [
        pair.weight / total * ((pair.squared_deviation - observed) / observed - chance_influence / chance.expected)
        for pair, chance_influence in zip(pairs, chance.influences, strict=True)
    ]
    return _sum_by_session(pairs, influences)


def _kappa_interval(observed: float, chance: _ChanceDeviation, session_influences: Sequence[float]) -> tuple[float, float]:
    ratio = observed / chance.expected
    half_width = _half_width(session_influences)
    return max(1 - ratio * math.exp(half_width), -1.0), 1 - ratio * math.exp(-half_width)


def _kappa_bounds_without_deviation(chance: _ChanceDeviation, sessions: int) -> tuple[float, float]:
    # If more than this share of all sessions had a deviation, one of these sessions would have had it, with 97.5% probability.
    max_share = 1 - ((1 - CONFIDENCE) / 2) ** (1 / sessions)
    return max(1 - max_share / chance.expected, -1.0), 1.0


def _half_width(session_sums: Sequence[float]) -> float:
    """Return half the width of the interval of an estimate whose deviations sum to these values in each session."""
    sessions = len(session_sums)
    # Linearization underestimates the error with few sessions. By simulation, the factor sessions / (sessions - 1) corrects this, while a
    # plain mean would need only its square root.
    error = sessions / (sessions - 1) * math.sqrt(math.fsum(value**2 for value in session_sums))
    return t_quantile((1 + CONFIDENCE) / 2, sessions - 1) * error


def _weighted_mean(pairs: Sequence[_Pair], values: Sequence[float]) -> float:
    total = math.fsum(pair.weight for pair in pairs)
    return math.fsum(pair.weight * value for pair, value in zip(pairs, values, strict=True)) / total


def _sum_by_session(pairs: Sequence[_Pair], values: Sequence[float]) -> list[float]:
    sums: dict[Hashable, float] = defaultdict(float)
    for pair, value in zip(pairs, values, strict=True):
        sums[pair.session] += value
    return list(sums.values())
