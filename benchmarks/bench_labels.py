"""Labels that the corrected mean needs: the order that narrows its interval, anomalies first, and random.

Each kind of project is simulated: sessions of different lengths, a judge that is 0.3 points too kind, first turns judged always and
others with probability 1/5. People label in one of the orders, and the product's code corrects the mean.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from audit.corrected_mean import CorrectedMean, PopulationSums, SessionSum, WeightedLabel, corrected_mean, rank_strata

ORDERS = ("interval", "anomalies", "random")
SAMPLED = 5.0
"""Weight of an exchange that is not the first of its session."""
Array = np.ndarray[Any, Any]


class Kind(NamedTuple):
    """A kind of project."""

    name: str
    between: float = 0.3
    """Share of the variance of the quality that lies between sessions."""
    noise: float = 0.5
    """Standard deviation of the judge's noise around the quality."""
    bias_by_score: float = 0.0
    """How much kinder the judge is per point of quality below the mean."""
    doubt: float = 0.0
    """Further noise of people in the middle of the scale, where judgement is hardest."""
    kindness: float = 0.3
    sessions: int = 600
    length: int = 8
    """Mean number of exchanges of a session."""


KINDS = (
    Kind("constant bias"),
    Kind("bias depends on the score", bias_by_score=0.4),
    Kind("doubt in the middle", doubt=1.0),
    Kind("sessions alike", between=0.7),
    Kind("few sessions", sessions=120, length=20),
    Kind("poor judge", noise=1.5),
)


class Project(NamedTuple):
    """The judged exchanges of a simulated project; one element per exchange."""

    session: Array
    human: Array
    judge: Array
    weight: Array
    stratum: Array
    """0 to 2: anomaly, unsure, routine; 3 more if it was sampled."""


def draw_project(kind: Kind, random: np.random.Generator) -> tuple[Project, float]:
    """Draw a project. Return its judged exchanges, and the mean that people would give to all exchanges."""
    lengths = random.integers(1, 2 * kind.length, kind.sessions)
    session = np.repeat(np.arange(kind.sessions), lengths)
    is_first = np.diff(session, prepend=-1) > 0
    count = len(session)
    quality = random.standard_normal(kind.sessions)[session] * kind.between**0.5
    quality = quality + random.standard_normal(count) * (1 - kind.between) ** 0.5
    doubt = kind.doubt * np.exp(-(quality**2)) * random.standard_normal(count)
    human = np.clip(np.round(3.6 + quality + doubt), 1, 5)
    kindness = kind.kindness - kind.bias_by_score * np.minimum(quality, 0)
    judge = np.clip(3.6 + kindness + quality + kind.noise * random.standard_normal(count), 1, 5)
    is_judged = is_first | (random.random(count) < 1 / SAMPLED)
    weight = np.where(is_first, 1.0, SAMPLED)
    stratum = np.where(judge < 2.2, 0, np.where(judge <= 3.5, 1, 2)) + 3 * ~is_first
    judged = Project(session, human, judge, weight, stratum)
    return Project(*(column[is_judged] for column in judged)), float(human.mean())


def label_order(project: Project, order: str, random: np.random.Generator) -> Iterator[int]:
    """Yield the exchanges to label, as the review queue does."""
    shuffled = random.permutation(len(project.session))
    if order == "random":
        yield from shuffled.tolist()
        return
    queues = {code: [row for row in shuffled.tolist() if project.stratum[row] == code] for code in range(6)}
    if order == "anomalies":  # every fourth is random, the others are anomalies, then unsure ones, then the rest
        urgent = sorted(shuffled.tolist(), key=lambda row: int(project.stratum[row]) % 3)
        drawn: set[int] = set()
        sources = (iter(urgent), iter(shuffled.tolist()))
        while len(drawn) < len(shuffled):
            row = next(row for row in sources[random.random() < 0.25] if row not in drawn)
            drawn.add(row)
            yield row
    represented: dict[Hashable, float] = {code: float(project.weight[queue].sum()) for code, queue in queues.items() if queue}
    rows: list[int] = []
    while any(queues.values()):
        if len(rows) % 5 == 0:  # the queue does this for each label
            gains = rank_strata(weigh_labels(project, rows), represented)
        queue = next(queues[gain.stratum] for gain in gains if queues[gain.stratum])  # type: ignore[index]
        rows.append(queue.pop())
        yield rows[-1]


def weigh_labels(project: Project, rows: Sequence[int]) -> list[WeightedLabel]:
    """Weigh the labels by their strata, as the page of agreement does."""
    judged = Counter(project.stratum.tolist())
    labelled = Counter(project.stratum[list(rows)].tolist())
    # A class with labels of only one kind of sampling is one stratum.
    whole = {code % 3 for code in judged if not labelled[code]}
    merged = [{code, (code + 3) % 6} if code % 3 in whole else {code} for code in range(6)]
    return [
        WeightedLabel(
            int(project.session[row]),
            float(project.weight[row])
            * sum(judged[code] for code in merged[project.stratum[row]])
            / sum(labelled[code] for code in merged[project.stratum[row]]),
            float(project.human[row]),
            float(project.judge[row]),
            int(project.stratum[row]),
        )
        for row in rows
    ]


def correct(project: Project, rows: Sequence[int]) -> CorrectedMean:
    """Correct the judge's mean by the labels of these exchanges."""
    weights = np.bincount(project.session, project.weight)
    totals = np.bincount(project.session, project.weight * project.judge)
    labels = weigh_labels(project, rows)
    labelled = {label.session for label in labels}
    sums = {int(code): SessionSum(float(weights[code]), float(totals[code])) for code in np.unique(project.session)}
    others = [total for code, total in sums.items() if code not in labelled]
    return corrected_mean(labels, {code: sums[code] for code in labelled}, PopulationSums.of(others))  # type: ignore[index]


class Measured(NamedTuple):
    """The median half width of an order's intervals, and the share of them that cover the true mean, by the number of labels.

    Too few effective labels give no interval: its half width counts as infinite, and its coverage not at all.
    """

    half_width: dict[int, float]
    coverage: dict[int, float]


def measure(kind: Kind, order: str, counts: Sequence[int], repetitions: int, seed: int = 120) -> Measured:
    """Simulate an order. The true mean is that of all exchanges that such projects have."""
    random = np.random.default_rng(seed)
    truth = np.mean([draw_project(kind, random)[1] for _ in range(2000)])
    widths: dict[int, list[float]] = {count: [] for count in counts}
    hits: dict[int, list[bool]] = {count: [] for count in counts}
    for _ in range(repetitions):
        project, _ = draw_project(kind, random)
        source = label_order(project, order, random)
        rows = [next(source) for _ in range(max(counts))]
        for count in counts:
            mean = correct(project, rows[:count])
            if mean.low is None or mean.high is None:
                widths[count].append(math.inf)
            else:
                widths[count].append((mean.high - mean.low) / 2)
                hits[count].append(bool(mean.low <= truth <= mean.high))
    return Measured(
        {count: float(np.median(values)) for count, values in widths.items()},
        {count: sum(values) / len(values) if values else math.nan for count, values in hits.items()},
    )


def labels_needed(measured: Measured, half_width: float) -> float:
    """Return the number of labels at which the half width falls to this, interpolated by 1 / √n; inf if none of the numbers suffices."""
    points = sorted(measured.half_width.items())
    for (few, wide), (many, narrow) in pairwise(points):
        if wide >= half_width >= narrow:
            part = 1.0 if math.isinf(wide) else (wide - half_width) / (wide - narrow)
            return float((few**-0.5 + part * (many**-0.5 - few**-0.5)) ** -2)
    return math.inf


def main(options: Sequence[str] = ()) -> None:
    """Print the table."""
    repetitions = int(options[-1]) if options else 400
    counts = (40, 60, 90, 130, 200, 300)
    print(f"{repetitions} repetitions. Labels for the interval that 90 labels in the order of the interval give.\n")
    print("| kind | ± points | interval | anomalies first | random | least coverage, in the same order |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for kind in KINDS:
        measured = [measure(kind, order, counts, repetitions) for order in ORDERS]
        target = measured[0].half_width[90]
        needed = [f"{labels_needed(of_order, target):.0f}" for of_order in measured]
        least = [f"{np.nanmin(list(of_order.coverage.values())):.1%}" for of_order in measured]
        print(f"| {kind.name} | {target:.3f} | {' | '.join(needed)} | {', '.join(least)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
