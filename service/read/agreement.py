"""The agreement of people with judges and of judges with each other, the corrected mean, and what a further label does for it.

Two verdicts on one exchange come from two places. A replay with another judge has a second verdict beside the live one. Anchors are
judged again in every round: by the same judge, or by the next one after a change. Only verdicts of the same methodology and rules
are compared, on the same text, and only if each has an answer of its own.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple, Self

from msgspec import Meta

from analytics.queries import query_rows
from analytics.store.connection import attach_files, select_log_rows
from analytics.sums.daily import query_days
from audit.agreement import MIN_EXCHANGES, MIN_SESSIONS, Label, VerdictPair, agreement, verdict_agreement
from audit.agreement import Estimate as MeasuredEstimate
from audit.anchors import MAX_ROUNDS, anchor_project
from audit.corrected_mean import (
    NO_SESSIONS,
    PopulationSums,
    SessionSum,
    WeightedLabel,
    corrected_mean,
    has_enough_labels,
    rank_strata,
)
from schemas.errors import StoreError
from schemas.lazy import duckdb
from service.text.answers import Answer
from service.text.formats import counted
from streams.replay.plan import folder_of
from streams.upkeep.anchors import TIERS

MAX_REPLAYS = 10
"""Maximum number of replays that are read, the newest ones."""
ANCHORS = "anchors"


Class = Literal["anomaly", "unsure", "routine"]


class LabelGain(Answer, frozen=True):
    """What a label of an exchange does for the interval of the corrected mean: the reason for the pick."""

    stratum: Class
    is_sampled: Annotated[bool, Meta(description="Whether its exchanges were sampled, so that each stands for several.")]
    share: Annotated[float, Meta(description="Share of all exchanges that the stratum stands for.")]
    labels: Annotated[int, Meta(description="Labels of the stratum so far.")]
    narrowing: Annotated[
        float | None,
        Meta(description="Expected share by which the label narrows the interval; null if a stratum has no labels."),
    ]

    @property
    def reason(self) -> str:
        """Explain the pick in a sentence."""
        name = {"anomaly": "Anomalous", "unsure": "Unsure", "routine": "Ordinary"}[self.stratum]
        kind = f"{name} exchanges that were sampled" if self.is_sampled else f"{name} exchanges, all of which are judged,"
        effect = "most" if self.narrowing is None else f"by about {self.narrowing:.1%}, more than elsewhere"
        return f"{kind} stand for {self.share:.0%} of the project and have {counted(self.labels, 'label')}: one more narrows the interval {effect}."


class Estimate(Answer, frozen=True):
    """Agreement of two sides: kappa with quadratic weights and bias, with 95% intervals; null with too few labels."""

    state: Literal["enough", "not_enough_labels", "one_category"]
    labels: int
    exchanges: int
    sessions: int
    kappa: float | None
    low: float | None
    high: float | None
    bias: Annotated[
        float | None, Meta(description="Mean of the judge's points minus the people's, or of the second judge minus the first.")
    ]
    bias_low: float | None
    bias_high: float | None

    @classmethod
    def measured(cls, estimate: MeasuredEstimate, **others: Any) -> Self:
        """Return the answer for an estimate. `others` are the fields that the estimate lacks."""
        return cls.of(dataclasses.asdict(estimate), **others)


class RaterEstimate(Estimate, frozen=True):
    """The agreement of the judge with one person."""

    rater: str


class QueueEstimate(Estimate, frozen=True):
    """The agreement of the judge with people on the exchanges of a review queue, which stand for nothing but themselves."""

    queue: str


class CorrectedMean(Answer, frozen=True):
    """The judge's Tier 3 mean, corrected by people's scores, with its 95% interval; null with too few labels."""

    state: Literal["enough", "not_enough_labels"]
    labels: Annotated[int, Meta(description="Exchanges that people have scored.")]
    sessions: Annotated[int, Meta(description="Sessions with such exchanges.")]
    effective: Annotated[
        float, Meta(description="Labels of equal weight that say as much: few if some labels stand for many more exchanges.")
    ]
    judge: Annotated[float | None, Meta(description="The judge's mean of all exchanges, 1 to 5.")]
    corrected: Annotated[float | None, Meta(description="The mean that people would have given, by estimate.")]
    low: float | None
    high: float | None
    power: Annotated[
        float | None,
        Meta(description="Share of the judge's information that is used: near 0 if its scores vary unlike people's."),
    ]

    @property
    def shortage(self) -> str:
        """Explain why there is no number."""
        counts = f"{counted(self.labels, 'label')} of {counted(self.sessions, 'session')}"
        if self.labels >= MIN_EXCHANGES and self.sessions >= MIN_SESSIONS:
            counts += f" count like {self.effective:.0f}, because some of them stand for many exchanges"
        else:
            counts += " are too few"
        return f"{counts}. It takes {MIN_EXCHANGES} labels of {MIN_SESSIONS} sessions with equal weights."


class MonthEstimate(Estimate, frozen=True):
    """The agreement of the judge with people on the exchanges of a month."""

    month: Annotated[str, Meta(examples=["2026-11"])]


class VerdictEstimate(Estimate, frozen=True):
    """The agreement of two verdicts on the same exchanges, in one tier; `labels` are pairs of verdicts."""

    tier: Literal["tier2", "tier2_5", "tier3"]
    first: Annotated[str, Meta(description="Judge of the first verdict.")]
    second: Annotated[str, Meta(description="Judge of the second verdict; the bias is its mean minus that of the first.")]
    source: Annotated[str, Meta(description="anchors, or the label of the replay with the second verdict.")]
    month: Annotated[str | None, Meta(description="Month of the second verdicts; null for all.", examples=["2026-11"])]


class Agreement(Answer, frozen=True):
    """The agreement of the judge with people, of people among themselves, of judges, and of a judge with itself."""

    project: str
    overall: Estimate
    corrected_mean: CorrectedMean
    raters: list[RaterEstimate]
    between_raters: Estimate
    queues: Annotated[
        list[QueueEstimate],
        Meta(
            description="The judge against people in each review queue. People and rules chose its exchanges, so its labels count "
            "nowhere else."
        ),
    ]
    covered: Annotated[float | None, Meta(description="Share of the judged exchanges that the labels represent.")]
    unjudged: Annotated[int, Meta(description="Labels of exchanges that have no Tier 3 to compare with.")]
    months: Annotated[
        list[MonthEstimate],
        Meta(description="The judge against people by month, if there are several, weighted by the whole period."),
    ]
    judges: Annotated[list[VerdictEstimate], Meta(description="Different judges on the same exchanges.")]
    itself: Annotated[list[VerdictEstimate], Meta(description="A judge's next verdict on the same exchange: anchors.")]
    itself_by_month: list[VerdictEstimate]
    unreadable_replays: Annotated[list[str], Meta(description="Replays that could not be read, and why.")]

    @property
    def second_opinion(self) -> str:
        """The command that has another judge score a project's exchanges, beside the scores that count.

        `second.yaml` is a copy of the policy with another `judgeModel`.
        """
        return f"driftline replay --project {self.project} --since 7d --judge live --label second-judge --policy second.yaml"


def project_agreement(
    cursor: duckdb.DuckDBPyConnection,
    project: str,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    times: Sequence[datetime] | None = None,
    database: Path | None = None,
) -> Agreement:
    """Return the agreement of people and judges in a project, for exchanges from `start` (inclusive) to `end` (exclusive).

    `times` are those of the exchanges that people have scored, if known; the replays beside the file `database` are
    read, too.
    """
    params = {"project": project, "from": start, "to": end}
    pairs = query_rows(cursor, "agreement_pairs", params | {"times": times})
    # What people or rules chose for a queue stands for no other exchange.
    rows = [row for row in pairs if row["queue"] is None]
    judged = [row for row in rows if row["judge_score"] is not None]
    strata = _Strata(query_days(cursor, "review_strata", params), judged)
    labels = [_build_label(row, strata.of(row)) for row in judged]
    measured = agreement(labels, strata.judged)
    judges = _JudgePairs(cursor, params, database)
    return Agreement(
        project=project,
        overall=Estimate.measured(measured.overall),
        corrected_mean=_correct_mean(cursor, params, judged, strata),
        raters=[RaterEstimate.measured(estimate, rater=name) for name, estimate in measured.raters.items()],
        between_raters=Estimate.measured(measured.between_raters),
        queues=_measure_queues(pairs),
        covered=measured.covered,
        unjudged=len(rows) - len(judged),
        months=_measure_months(labels, strata.judged, [row["exchange_at"] for row in judged]),
        judges=judges.measure(judges.between),
        itself=judges.measure(judges.itself),
        itself_by_month=judges.measure_months(),
        unreadable_replays=judges.unreadable,
    )


def _build_label(row: Mapping[str, Any], stratum: Hashable) -> Label:
    return Label(
        exchange=row["score_id"],
        session=(row["connection"], row["session_id"]),
        rater=row["rater"],
        human=row["human_score"],
        judge=row["judge_score"],
        stratum=stratum,
    )


def _measure_queues(pairs: Iterable[Mapping[str, Any]]) -> list[QueueEstimate]:
    """Measure the agreement within each review queue, in which all exchanges weigh the same."""
    by_queue: dict[str, list[Label]] = defaultdict(list)
    for row in pairs:
        if row["queue"] is not None and row["judge_score"] is not None:
            by_queue[row["queue"]].append(_build_label(row, row["queue"]))
    return [
        QueueEstimate.measured(agreement(labels, {queue: len({label.exchange for label in labels})}).overall, queue=queue)
        for queue, labels in sorted(by_queue.items())
    ]


def label_gains(cursor: duckdb.DuckDBPyConnection, project: str, times: Sequence[datetime] | None = None) -> list[LabelGain]:
    """Return what a label of each stratum does for the corrected mean, the most useful first. `times` are as in `project_agreement`."""
    params = {"project": project, "from": None, "to": None}
    rows = query_days(cursor, "review_strata", params)
    strata = _Strata(rows)
    pairs = query_rows(cursor, "agreement_pairs", params | {"times": times})
    labels = _weigh_labels([pair for pair in pairs if pair["judge_score"] is not None and pair["queue"] is None], strata)
    row_of = {strata.of(row): row for row in rows}
    return [
        LabelGain.of(
            dataclasses.asdict(gain), stratum=row_of[gain.stratum]["class"], is_sampled=row_of[gain.stratum]["is_sampled"]
        )
        for gain in rank_strata(labels, strata.represented)
    ]


class _Strata:
    """The strata of a project's judged exchanges: class, and whether they were sampled."""

    def __init__(self, rows: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]] | None = None) -> None:
        """With pairs, a class is one stratum if a part of it has no pair, because no label would stand for that part."""
        labeled = {(pair["class"], pair["is_sampled"]) for pair in pairs or ()}
        keys = {(row["class"], row["is_sampled"]) for row in rows}
        self._whole = set() if pairs is None else {name for name, _ in keys - labeled}
        self.judged = Counter[Hashable]()
        self.represented: dict[Hashable, float] = defaultdict(float)
        for row in rows:
            self.judged[self.of(row)] += row["judged"]
            self.represented[self.of(row)] += row["represented"]

    def of(self, row: dict[str, Any]) -> Hashable:
        """Return the stratum of a row with its class and whether it was sampled."""
        return row["class"] if row["class"] in self._whole else (row["class"], row["is_sampled"])


def _correct_mean(
    cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], pairs: Sequence[dict[str, Any]], strata: _Strata
) -> CorrectedMean:
    """Correct the judge's mean of a project and period. `pairs` are its human scores, each beside the judge's score of the exchange."""
    labels = _weigh_labels(pairs, strata)
    rows: list[dict[str, Any]] = []
    if has_enough_labels(labels):  # the query reads all scores of the period
        sessions = {(pair["connection"], pair["session_id"]) for pair in pairs}
        keys = [{"connection": connection, "session_id": session_id} for connection, session_id in sessions]
        rows = query_rows(cursor, "judged_sessions", {**params, "sessions": keys})
    mean = corrected_mean(labels, _sum_labeled_sessions(rows), _sum_other_sessions(rows))
    return CorrectedMean.of(dataclasses.asdict(mean))


def _weigh_labels(pairs: Sequence[dict[str, Any]], strata: _Strata) -> list[WeightedLabel]:
    """Return a label for each exchange in the pairs. Several human scores of an exchange count as their mean."""
    by_exchange: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for pair in pairs:
        by_exchange[pair["score_id"]].append(pair)
    labeled = Counter(strata.of(ratings[0]) for ratings in by_exchange.values())
    labels = []
    for ratings in by_exchange.values():
        pair = ratings[0]
        stratum = strata.of(pair)
        labels.append(
            WeightedLabel(
                session=(pair["connection"], pair["session_id"]),
                weight=pair["weight"] * max(strata.judged[stratum], labeled[stratum]) / labeled[stratum],
                human=fmean(rating["human_score"] for rating in ratings),
                judge=pair["judge_score"],
                stratum=stratum,
            )
        )
    return labels


def _sum_labeled_sessions(rows: Sequence[dict[str, Any]]) -> dict[Hashable, SessionSum]:
    """Return the judge's sums of the sessions with labels, from rows of the query `judged_sessions`."""
    return {
        (row["connection"], row["session_id"]): SessionSum(weight=row["weight"], total=row["total"])
        for row in rows
        if row["session_id"] is not None
    }


def _sum_other_sessions(rows: Sequence[dict[str, Any]]) -> PopulationSums:
    """Return the judge's sums over all sessions without labels: the row of `judged_sessions` that has no session id."""
    for row in rows:
        if row["session_id"] is None:
            return PopulationSums(
                weight=row["weight"],
                total=row["total"],
                weight_squares=row["weight_squares"],
                mixed=row["mixed"],
                total_squares=row["total_squares"],
            )
    return NO_SESSIONS


def _measure_months(
    labels: Sequence[Label], population: Mapping[Hashable, int], times: Sequence[datetime]
) -> list[MonthEstimate]:
    """Measure the agreement with people by the month of the exchange; nothing if there is only one month."""
    by_month: dict[str, list[Label]] = defaultdict(list)
    for label, at in zip(labels, times, strict=True):
        by_month[f"{at:%Y-%m}"].append(label)
    if len(by_month) < 2:
        return []
    return [
        MonthEstimate.measured(agreement(of_month, population).overall, month=month)
        for month, of_month in sorted(by_month.items())
    ]


class _Comparison(NamedTuple):
    """The key of comparable pairs of verdicts."""

    source: str
    tier: str
    first: str
    second: str


_Pairs = dict[_Comparison, list[tuple[datetime, VerdictPair]]]
"""Pairs of verdicts, each with the time of the second verdict."""


class _JudgePairs:
    """The pairs of verdicts on the same exchanges of a project."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], database: Path | None) -> None:
        self.between: _Pairs = defaultdict(list)
        self.itself: _Pairs = defaultdict(list)
        self.unreadable: list[str] = []
        self._pair_anchors(_read_verdicts(cursor, {**params, "project": anchor_project(params["project"])}))
        for path in _list_replays(database):
            try:
                self._pair_replay(cursor, params, path)
            except (StoreError, duckdb.Error) as error:
                self.unreadable.append(f"{path.stem}: {str(error).splitlines()[0]}")

    @staticmethod
    def measure(pairs: _Pairs, month: str | None = None) -> list[VerdictEstimate]:
        """Measure the agreement of each comparison."""
        return [
            VerdictEstimate.measured(
                verdict_agreement([pair for _, pair in timed], *TIERS[key.tier][1:]), **key._asdict(), month=month
            )
            for key, timed in sorted(pairs.items())
        ]

    def measure_months(self) -> list[VerdictEstimate]:
        """Measure the agreement of judges with themselves by month; nothing if there is only one month."""
        by_month: dict[str, _Pairs] = defaultdict(lambda: defaultdict(list))
        for key, timed in self.itself.items():
            for at, pair in timed:
                by_month[f"{at:%Y-%m}"][key].append((at, pair))
        if len(by_month) < 2:
            return []
        return [estimate for month, pairs in sorted(by_month.items()) for estimate in self.measure(pairs, month)]

    def _pair_anchors(self, rows: Sequence[dict[str, Any]]) -> None:
        """Pair each verdict on an anchor with the next one of the same judge, and the last ones of a judge with the first of the next."""
        for tier in TIERS:
            verdicts: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
            for row in rows:
                if row[f"{tier}_score"] is not None:
                    anchor, _, _ = row["exchange_id"].partition("@")
                    verdicts[anchor, row["yardstick"]][row[f"{tier}_judge"] or row["judge_model"]].append(row)
            for (anchor, _), by_judge in verdicts.items():
                for judge, own in by_judge.items():
                    self._add(self.itself, _Comparison(ANCHORS, tier, judge, judge), anchor, pairwise(own))
                for (judge, earlier), (next_judge, later) in pairwise(by_judge.items()):
                    nearest = zip(earlier[: -MAX_ROUNDS - 1 : -1], later, strict=False)
                    self._add(self.between, _Comparison(ANCHORS, tier, judge, next_judge), anchor, nearest)

    def _add(
        self, pairs: _Pairs, key: _Comparison, anchor: str, verdicts: Iterable[tuple[dict[str, Any], dict[str, Any]]]
    ) -> None:
        column = f"{key.tier}_score"
        for first, second in verdicts:
            pair = VerdictPair(exchange=anchor, session=anchor, first=first[column], second=second[column])
            pairs[key].append((second["exchange_at"], pair))

    def _pair_replay(self, cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any], path: Path) -> None:
        """Pair the verdicts that a replay has paid for with the live ones."""
        with attach_files({"replay": path}) as connection:
            tables = {name: select_log_rows("replay", name) for name in ("scores", "judgements")}
            replayed = {row["score_id"]: row for row in _read_verdicts(connection, {**params, **tables})}
        times = sorted({row["exchange_at"] for row in replayed.values()})
        if not times:
            return
        for live in _read_verdicts(cursor, {**params, "times": times}):
            other = replayed.get(live["score_id"])
            if other is None or any(live[name] != other[name] for name in ("yardstick", "evidence_digest")):
                continue
            for tier in TIERS:
                column, judge = f"{tier}_score", other[f"{tier}_judge"]
                if judge is not None and live[column] is not None and other[column] is not None:
                    key = _Comparison(path.stem, tier, live[f"{tier}_judge"] or live["judge_model"], judge)
                    pair = VerdictPair(
                        exchange=live["score_id"],
                        session=(live["connection"], live["session_id"]),
                        first=live[column],
                        second=other[column],
                        weight=live["weight"],
                    )
                    pairs = self.itself if key.first == key.second else self.between
                    pairs[key].append((live["exchange_at"], pair))


def _list_replays(database: Path | None) -> list[Path]:
    """Return the files of the newest replays of a database."""
    if database is None:
        return []
    files = folder_of(database).glob("*.duckdb")
    return sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:MAX_REPLAYS]


def _read_verdicts(cursor: duckdb.DuckDBPyConnection, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the verdicts on a project's newest exchanges; unless given, those of all times in this database."""
    return query_rows(cursor, "verdicts", {"scores": None, "judgements": None, "times": None, **params})
