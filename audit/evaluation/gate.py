"""The gate of a build: the answers of a candidate to frozen cases, compared with the level before an incident.

Every answer has a reference: the score of the recorded answer for a case from before, and the mean before the change for a case of the
incident, whose own answer was the fault.

1. A score got worse if the mean of the differences is lower than its margin, beyond chance. The margin is the judge's own noise, so a judge
   in a bad mood blocks no build. The test is the sign-flip test: exact, for any distribution that is symmetric around the margin.
   A fault in a few answers hardly changes the mean. So the answers whose score is beyond a low one of before, by more than the margin, are
   counted, and compared by the precedence test.
2. A check fails more often than before beyond chance, by Fisher's exact test of its counts. One failed answer among many stops no build,
   because agents vary; a check that had never failed stops it from two or three on.
3. All comparisons of a gate are corrected together (Holm), so that a build that is as good as before is blocked with a probability of at
   most `ERROR`, however much is compared. A check that failed neither before nor now cannot block a build, so it is not counted (R. Tarone
   1990, "A modified Bonferroni method for discrete data", Biometrics 46).
4. An answer without a score, because the judge failed or the cap was reached, decides nothing, and the gate says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from audit.comparison import Interval, PairedSums, fisher_p, holm, paired_interval, precedence_p, sign_flip_p
from audit.evaluation.cases import FrozenCases, RecordedAnswer, ScoreLevel
from audit.evaluation.freezing import ANOMALIES, SCALES, TOKENS
from schemas.records import CheckOutcome

ERROR = 0.01
"""Probability that a build that is as good as before is blocked."""
LOW = "low "
"""Begins the name of a comparison of low scores."""
MIN_PAIRS = 5
"""Fewest answers with a score from which it is compared."""
_STEPS = 200
"""Steps of a scale to which differences are rounded for the test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAnswer:
    """A candidate's answer to a case, with its outcomes."""

    case_id: str
    recorded: RecordedAnswer
    checks: Sequence[CheckOutcome]
    scores: Mapping[str, float]
    """By series; empty if it was not judged."""
    is_anomalous: bool | None
    """None if it was not judged."""
    tokens: int | None
    reference_tokens: int | None
    """Tokens of the recorded answer; None if unknown."""
    reasons: Sequence[str] = ()
    """Why it is an anomaly."""


class WorstAnswer(NamedTuple):
    """An answer that made a comparison worse."""

    case_id: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A score or a check of a build beside its level before."""

    name: str
    kind: str
    """score, low, tokens or check; low counts answers beyond the low score of before."""
    answers: int
    before: float
    """The mean of the references, or the share of exchanges in which the check failed."""
    after: float
    margin: float
    interval: Interval | None
    """The interval of the mean difference; None for checks and for fewer than two answers."""
    counts: tuple[tuple[int, int], tuple[int, int]] | None
    """Failed and all exchanges, before and of the build, for checks and low scores."""
    probability: float
    """The chance of a change as large without a cause, corrected for the number of comparisons."""
    worst: Sequence[WorstAnswer]
    """The answers beyond the margin or with a failed check, the worst first."""

    @property
    def is_quiet(self) -> bool:
        """True for a check that failed neither before nor now."""
        return self.counts is not None and not self.counts[0][0] and not self.counts[1][0]

    @property
    def is_worse(self) -> bool:
        """True if it got worse beyond chance and margin."""
        return self.probability <= ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The outcome of a gate."""

    comparisons: Sequence[Comparison]
    """Worse ones first, then by probability."""
    answers: int
    unjudged: int
    """Answers without the judge's scores, if the cases have levels of a judge."""

    @property
    def worse(self) -> list[Comparison]:
        """The comparisons that block the build."""
        return [comparison for comparison in self.comparisons if comparison.is_worse]

    @property
    def worst_answers(self) -> dict[str, list[str]]:
        """What blocks the build in each answer, by case; the answers with most first. A score is named once, not by its dimensions too."""
        names = {comparison.name for comparison in self.worse}
        details: dict[str, list[str]] = {}
        for comparison in self.worse:
            tier = comparison.name.partition(".")[0]
            if comparison.kind in {"score", "tokens"} and names & {f"{LOW}{tier}", tier} - {comparison.name}:
                continue
            for worst in comparison.worst:
                details.setdefault(worst.case_id, []).append(worst.detail)
        return dict(sorted(details.items(), key=lambda item: -len(item[1])))


class _Open(NamedTuple):
    """A comparison before the correction."""

    comparison: Comparison
    probability: float


def compare(frozen: FrozenCases, answers: Sequence[MeasuredAnswer]) -> GateResult:
    """Compare the answers of a build with the levels before."""
    compared = [*_compare_scores(frozen, answers), *_compare_checks(frozen, answers)]
    counted = [item for item in compared if not item.comparison.is_quiet]
    adjusted = holm([item.probability for item in counted])
    comparisons = [
        replace(item.comparison, probability=probability) for item, probability in zip(counted, adjusted, strict=True)
    ]
    comparisons += [item.comparison for item in compared if item.comparison.is_quiet]
    return GateResult(
        comparisons=sorted(comparisons, key=lambda comparison: (comparison.probability, comparison.name)),
        answers=len(answers),
        unjudged=sum(answer.is_anomalous is None for answer in answers) if frozen.source.judge_model else 0,
    )


def _compare_scores(frozen: FrozenCases, answers: Sequence[MeasuredAnswer]) -> Iterator[_Open]:
    for series, level in frozen.levels.scores.items():
        pairs = list(_list_pairs(series, level.mean, answers))
        if len(pairs) < MIN_PAIRS:
            continue
        is_tokens = series == TOKENS
        # More tokens are worse, by a factor; of scores fewer are, by points.
        margin = math.log(1 + level.margin) if is_tokens else level.margin
        differences = [math.log(reference / value) if is_tokens else value - reference for _, value, reference in pairs]
        step = (1.0 if is_tokens else SCALES[series.partition(".")[0]]) / _STEPS
        sums = PairedSums.from_clusters([[difference] for difference in differences])
        by_size = sorted(zip(differences, pairs, strict=True), key=lambda item: item[0])
        comparison = Comparison(
            name=series,
            kind="tokens" if is_tokens else "score",
            answers=len(pairs),
            before=math.fsum(reference for _, _, reference in pairs) / len(pairs),
            after=math.fsum(value for _, value, _ in pairs) / len(pairs),
            margin=level.margin,
            interval=None if is_tokens else paired_interval(sums),
            counts=None,
            probability=1.0,
            worst=[
                WorstAnswer(answer.case_id, f"{series} {value:,.4g}, before {reference:,.4g}")
                for difference, (answer, value, reference) in by_size
                if difference < -margin
            ],
        )
        yield _Open(comparison, sign_flip_p([round((difference + margin) / step) for difference in differences]))
        if level.low is not None:
            yield _compare_low(series, level, level.low, pairs)


def _compare_low(series: str, level: ScoreLevel, low: float, pairs: Sequence[tuple[MeasuredAnswer, float, float]]) -> _Open:
    """Compare the number of answers beyond a low score of before."""
    is_tokens = series == TOKENS
    limit = low * (1 + level.margin) if is_tokens else low - level.margin
    lowest = [
        WorstAnswer(answer.case_id, f"{series} {value:,.4g}, beyond {limit:,.4g}")
        for answer, value, _ in pairs
        if (value > limit if is_tokens else value < limit)
    ]
    before, after = (level.low_rank - 1, level.scores), (len(lowest), len(pairs))
    comparison = Comparison(
        name=f"{LOW}{series}",
        kind="low",
        answers=len(pairs),
        before=before[0] / before[1],
        after=after[0] / after[1],
        margin=level.margin,
        interval=None,
        counts=(before, after),
        probability=1.0,
        worst=lowest,
    )
    return _Open(comparison, precedence_p(len(lowest), len(pairs), level.low_rank, level.scores))


def _list_pairs(series: str, level: float, answers: Sequence[MeasuredAnswer]) -> Iterator[tuple[MeasuredAnswer, float, float]]:
    """Yield the answers that have a value in the series, with the value and its reference."""
    for answer in answers:
        is_healthy = answer.recorded.side == "before"
        if series == TOKENS:
            value: float | None = answer.tokens
            reference: float | None = answer.reference_tokens if is_healthy else level
        else:
            value = answer.scores.get(series)
            reference = answer.recorded.scores.get(series, level) if is_healthy else level
        if value is not None and reference and (value or series != TOKENS):
            yield answer, value, reference


def _compare_checks(frozen: FrozenCases, answers: Sequence[MeasuredAnswer]) -> Iterator[_Open]:
    for check_id, level in frozen.levels.checks.items():
        outcomes = list(_list_outcomes(check_id, answers))
        if not outcomes:
            continue
        failed = [WorstAnswer(answer.case_id, detail) for answer, has_failed, detail in outcomes if has_failed]
        before, after = (level.failed, level.exchanges), (len(failed), len(outcomes))
        comparison = Comparison(
            name=check_id,
            kind="check",
            answers=len(outcomes),
            before=level.failed / level.exchanges,
            after=len(failed) / len(outcomes),
            margin=0.0,
            interval=None,
            counts=(before, after),
            probability=1.0,
            worst=failed,
        )
        yield _Open(comparison, fisher_p(before, after))


def _list_outcomes(check_id: str, answers: Sequence[MeasuredAnswer]) -> Iterator[tuple[MeasuredAnswer, bool, str]]:
    for answer in answers:
        if check_id == ANOMALIES:
            if answer.is_anomalous is not None:
                yield answer, answer.is_anomalous, "; ".join(answer.reasons) or "an anomaly, as recorded"
            continue
        for outcome in answer.checks:
            if outcome.check_id == check_id and outcome.outcome != "error":
                yield answer, outcome.outcome == "fail", outcome.detail
