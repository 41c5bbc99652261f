"""The mean of a judge's scores, corrected by people's scores of a few exchanges: prediction-powered inference.

A judge that is 0.3 points too kind has a narrow interval around the wrong mean. People score few exchanges, so the interval of their
mean alone is wide. The corrected mean uses both: the judge's mean of all exchanges, plus the mean difference of people and judge on
the labeled exchanges.

    corrected = mean(people) + power * (mean(judge, all) - mean(judge, labeled))

1. `power` is chosen so that the interval is narrow: near 1 if the judge's scores vary as people's do, and 0 if they are unrelated, which
   leaves the people's mean (PPI++: Angelopoulos, Duchi and Zrnic 2023, "PPI++: Efficient Prediction-Powered Inference").
2. Exchanges of one session are not independent, so deviations are added up by session before they are squared. The labeled sessions are
   among all sessions, so their deviations are added as one.
3. People do not label a random sample. Each label is weighted by the number of exchanges that it stands for, and each of the judge's
   scores by the inverse of its sampling probability.
4. With too few labels there is no number: below `MIN_EXCHANGES` exchanges or `MIN_SESSIONS` sessions the interval is not reliable. Both
   are effective numbers (Kish 1965): if a few labels have most of the weight, they decide the mean, however many others there are. The
   degrees of freedom are effective, too.

Which label narrows the interval most:

5. Within a stratum, exchanges are drawn at random, so their labels say the same as those of the others. The choice is of the stratum, by
   numbers that are known before the label. This keeps the mean unbiased, which picking single exchanges by their scores would not.
6. Let stratum s stand for the share W of all exchanges, with n labels whose residuals (people less power times judge) deviate from their
   mean by M (root mean square). With labels of equal weight W / n, the variance of the mean is the sum of (W M)² / n over the strata.
   One more label in s reduces it by (W M)² / (n (n + 1)), which is about (W M / (n + ½))². So the next label is due where
   W M / (n + ½) is largest: Sainte-Laguë's rule, whose limit is Neyman's allocation, n proportional to W M.
7. M is unknown with few labels, so every stratum starts with `PRIOR_LABELS` labels of the overall deviation. A stratum whose first labels
   agree by chance is therefore not left alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from audit.agreement import ENOUGH, MIN_EXCHANGES, MIN_SESSIONS, NOT_ENOUGH
from audit.comparison import CONFIDENCE, t_quantile


class WeightedLabel(NamedTuple):
    """A person's score of an exchange beside the judge's."""

    session: Hashable
    weight: float
    """Number of exchanges that it stands for."""
    human: float
    judge: float
    stratum: Hashable = None
    """The group of exchanges that it represents; only `rank_strata` reads it."""


PRIOR_LABELS = 4
"""Number of labels that the overall deviation counts for in the deviation of each stratum."""


class SessionSum(NamedTuple):
    """The judge's scores of one session."""

    weight: float
    """Sum of the weights of its scores."""
    total: float
    """Sum of weight times score."""


class PopulationSums(NamedTuple):
    """Sums over sessions of the judge's scores: of the weight w and the total t of each."""

    weight: float
    total: float
    weight_squares: float
    """Sum of w²."""
    mixed: float
    """Sum of w t."""
    total_squares: float
    """Sum of t²."""

    @classmethod
    def of(cls, sessions: Sequence[SessionSum]) -> PopulationSums:
        """Add up sessions."""
        return cls(
            weight=math.fsum(session.weight for session in sessions),
            total=math.fsum(session.total for session in sessions),
            weight_squares=math.fsum(session.weight**2 for session in sessions),
            mixed=math.fsum(session.weight * session.total for session in sessions),
            total_squares=math.fsum(session.total**2 for session in sessions),
        )


NO_SESSIONS = PopulationSums(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedMean:
    """The corrected mean with its 95% interval; the numbers are None unless the state is `enough`."""

    state: str
    """enough, or not_enough_labels."""
    labels: int
    sessions: int
    """Sessions with labels."""
    effective: float
    """Number of labels of equal weight that say as much as these."""
    judge: float | None = None
    """The judge's mean of all exchanges."""
    corrected: float | None = None
    low: float | None = None
    high: float | None = None
    power: float | None = None
    """The share of the judge's information that is used, 0 to 1."""


def has_enough_labels(labels: Sequence[WeightedLabel]) -> bool:
    """Return whether there are labels enough for a number; without, the sums of sessions are not needed."""
    return _effective_labels(labels) >= MIN_EXCHANGES and _effective_sessions(labels) >= MIN_SESSIONS


def _effective_labels(labels: Sequence[WeightedLabel]) -> float:
    return _effective_number([label.weight for label in labels])


def _effective_sessions(labels: Sequence[WeightedLabel]) -> float:
    weights: dict[Hashable, float] = defaultdict(float)
    for label in labels:
        weights[label.session] += label.weight
    return _effective_number(list(weights.values()))


def _effective_number(weights: Sequence[float]) -> float:
    """Return the number of equal weights with the same relative variance; rounded, so that equal weights give their count."""
    squares = math.fsum(weight**2 for weight in weights)
    return round(math.fsum(weights) ** 2 / squares, 6) if squares else 0.0


def corrected_mean(
    labels: Sequence[WeightedLabel], labeled_sessions: Mapping[Hashable, SessionSum], others: PopulationSums
) -> CorrectedMean:
    """Correct the judge's mean.

    `labeled_sessions` are the judge's scores of the sessions with labels, all of them and not only the labeled exchanges; `others`
    are those of all other sessions.
    """
    sessions = {label.session for label in labels}
    effective = _effective_labels(labels)
    if not has_enough_labels(labels):
        return CorrectedMean(state=NOT_ENOUGH, labels=len(labels), sessions=len(sessions), effective=effective)

    label_weight = math.fsum(label.weight for label in labels)
    human_mean = math.fsum(label.weight * label.human for label in labels) / label_weight
    labeled_judge_mean = math.fsum(label.weight * label.judge for label in labels) / label_weight
    population = PopulationSums.of(list(labeled_sessions.values()))
    weight = population.weight + others.weight
    judge_mean = (population.total + others.total) / weight

    human_by_session: dict[Hashable, float] = defaultdict(float)
    judge_by_session: dict[Hashable, float] = defaultdict(float)
    for label in labels:
        human_by_session[label.session] += label.weight * (label.human - human_mean) / label_weight
        judge_by_session[label.session] -= label.weight * (label.judge - labeled_judge_mean) / label_weight
    for session, scores in labeled_sessions.items():
        judge_by_session[session] += (scores.total - judge_mean * scores.weight) / weight
    other_squares = others.total_squares - 2 * judge_mean * others.mixed + judge_mean**2 * others.weight_squares
    other_variance = max(other_squares, 0.0) / weight**2

    covariance = math.fsum(human_by_session[session] * judge_by_session[session] for session in sessions)
    judge_variance = math.fsum(value**2 for value in judge_by_session.values()) + other_variance
    power = min(max(-covariance / judge_variance, 0.0), 1.0) if judge_variance > 0 else 0.0

    labeled_variance = math.fsum(
        (human_by_session.get(session, 0.0) + power * value) ** 2 for session, value in judge_by_session.items()
    )
    # As in `audit.agreement`, linearization understates the error with few sessions.
    clusters = _effective_sessions(labels)
    correction = (clusters / (clusters - 1)) ** 2
    error = math.sqrt(correction * labeled_variance + power**2 * other_variance)
    half = t_quantile((1 + CONFIDENCE) / 2, clusters - 1) * error
    corrected = human_mean + power * (judge_mean - labeled_judge_mean)
    return CorrectedMean(
        state=ENOUGH,
        labels=len(labels),
        sessions=len(sessions),
        effective=effective,
        judge=judge_mean,
        corrected=corrected,
        low=corrected - half,
        high=corrected + half,
        power=power,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StratumGain:
    """What one more label of a stratum does for the interval of the corrected mean."""

    stratum: Hashable
    share: float
    """Share of all exchanges that it represents."""
    labels: int
    narrowing: float | None
    """Share by which the label is expected to narrow the interval; None while a stratum has no labels."""


def rank_strata(labels: Sequence[WeightedLabel], represented: Mapping[Hashable, float]) -> list[StratumGain]:
    """Return the strata, the one whose next label narrows the interval most first (rules 5 to 7).

    `represented` is the number of exchanges that each stratum stands for, including unsampled ones.
    """
    total = math.fsum(represented.values())
    squares: dict[Hashable, float] = defaultdict(float)
    counts: dict[Hashable, int] = defaultdict(int)
    overall, residual_squares = _square_residuals(labels)
    for label, square in zip(labels, residual_squares, strict=True):
        counts[label.stratum] += 1
        squares[label.stratum] += square
    # The weighted squared deviation (W M)² of each stratum.
    sizes = {
        stratum: (count / total) ** 2 * (squares[stratum] + PRIOR_LABELS * overall) / (counts[stratum] + PRIOR_LABELS)
        for stratum, count in represented.items()
        if count > 0
    }
    variance = math.fsum(size / counts[stratum] for stratum, size in sizes.items()) if all(counts[s] for s in sizes) else None
    gains = [
        StratumGain(
            stratum=stratum,
            share=represented[stratum] / total,
            labels=counts[stratum],
            narrowing=_narrowing(variance, size, counts[stratum]),
        )
        for stratum, size in sizes.items()
    ]
    return sorted(gains, key=lambda gain: math.sqrt(sizes[gain.stratum]) / (gain.labels + 0.5), reverse=True)


def _square_residuals(labels: Sequence[WeightedLabel]) -> tuple[float, list[float]]:
    """Return the weighted mean of the squared deviations of the residuals, and those of each label; 1 without a deviation."""
    weight = math.fsum(label.weight for label in labels)
    if not weight:
        return 1.0, []
    human_mean = math.fsum(label.weight * label.human for label in labels) / weight
    judge_mean = math.fsum(label.weight * label.judge for label in labels) / weight
    covariance = math.fsum(label.weight * (label.human - human_mean) * (label.judge - judge_mean) for label in labels)
    judge_variance = math.fsum(label.weight * (label.judge - judge_mean) ** 2 for label in labels)
    power = min(max(covariance / judge_variance, 0.0), 1.0) if judge_variance > 0 else 0.0
    squares = [((label.human - human_mean) - power * (label.judge - judge_mean)) ** 2 for label in labels]
    overall = math.fsum(label.weight * square for label, square in zip(labels, squares, strict=True)) / weight
    return overall or 1.0, squares


def _narrowing(variance: float | None, size: float, labels: int) -> float | None:
    """Return the share by which one more label narrows the interval, given its variance and the stratum's part of it."""
    if variance is None or variance <= 0:
        return None
    return 1 - math.sqrt(1 - size / (labels * (labels + 1)) / variance)
