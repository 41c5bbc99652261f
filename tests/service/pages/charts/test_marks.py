"""Marks of charts: deployments, and what scores are made with from an hour on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.builders import score
from support.stored_sessions import diagnosed
from support.watch_histories import put

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from schemas.records import Deployment
from service.pages.charts import find_run_policy_changes, marks_between, marks_within

START, DAY, HOUR = datetime(2026, 10, 1, tzinfo=UTC), timedelta(days=1), timedelta(hours=1)
OLD = {"judge_model": "judge-1", "policy_digest": "aaaaaaaa00000000"}
NEW = {"judge_model": "judge-2", "policy_digest": "bbbbbbbb00000000"}


def scores(store: Store, made: dict[datetime, dict[str, str]], project: str = "ops") -> None:
    """Return one score per hour, made with the given judge and policy."""
    put(store, "scores", [
        score(f"{project}-{at:%d%H%M}", 1, project=project, exchange_at=at, scored_at=at, **fields) for at, fields in made.items()
    ])  # fmt: skip


def marked(store: Store, step: timedelta = DAY, until: int = 10) -> list[tuple[datetime, str]]:
    """Return the marks of ops, as time and text."""
    return [(one.at, one.words) for one in marks_within(store.cursor(), "ops", START, START + until * DAY, step)]


@pytest.mark.parametrize("step", [DAY, HOUR])
def test_a_change_of_judge_and_policy_is_marked_in_its_first_hour(store: Store, step: timedelta) -> None:
    """A fall of the scores on that day is more likely caused by the judge than by the agent."""
    scores(store, {START + hour * HOUR: OLD if hour < 40 else NEW for hour in range(80)})
    marks = marked(store, step)
    assert [at for at, _ in marks] == [START + 40 * HOUR] * 2
    assert [words for _, words in marks if words.startswith("judge")] == ["judge changed from judge-1 to judge-2"]
    assert ["aaaaaaaa" in words and "bbbbbbbb" in words for _, words in marks if words.startswith("policy")] == [True]


def test_a_few_rejudged_scores_are_no_change(store: Store) -> None:
    """A few rejudged exchanges do not mean a change of judge."""
    scores(store, {START + hour * HOUR: NEW if hour in (30, 55) else OLD for hour in range(80)})
    assert marked(store) == []


def test_a_change_at_the_start_of_a_chart_needs_earlier_scores(store: Store) -> None:
    """Without scores before the chart, there is nothing to compare with."""
    scores(store, {START - 3 * DAY: OLD, START + HOUR: NEW})
    assert len(marked(store)) == 2
    scores(store, {START + HOUR: NEW}, project="web")
    assert marks_within(store.cursor(), "web", START, START + DAY, DAY) == []


def test_a_deployment_is_marked_at_its_time(store: Store) -> None:
    """Only deployments of the project within the period are marked."""
    fields = {"label": "agent_version", "ingested_at": START, "deployed_by": "ci", "comment": None, "url": None}
    put(store, "deployments", [
        Deployment(deployment_id=f"{project}{hours}", project=project, version=f"{hours}", agent="scout", occurred_at=START + hours * HOUR, **fields)
        for project, hours in (("ops", 5), ("ops", -90), ("web", 6))
    ])  # fmt: skip
    assert marked(store) == [(START + 5 * HOUR, "deployed agent_version 5 of scout")]
    assert marks_between(store.cursor(), "ops", [START]) == []
    assert len(marks_between(store.cursor(), "ops", [START + 6 * HOUR, START])) == 1


@pytest.mark.parametrize("is_added_up", [False, True])
def test_a_change_after_the_end_of_a_chart_is_not_marked(store: Store, *, is_added_up: bool) -> None:
    """On the last, partial day only scores before the end count, for the change and for its day."""
    scores(store, {START + hour * HOUR: OLD if hour < 30 else NEW for hour in range(48)})
    if is_added_up:
        refresh_daily(store)

    def judges(end: datetime) -> list[datetime]:
        return [one.at for one in marks_within(store.cursor(), "ops", START, end, DAY) if one.kind == "judge"]

    assert judges(START + 29 * HOUR) == []
    assert judges(START + 35 * HOUR) == []
    assert judges(START + 2 * DAY) == judges(START + 9 * DAY) == [START + 30 * HOUR]


def test_a_policy_change_is_marked_among_runs_without_a_judge(store: Store) -> None:
    """Other thresholds give other verdicts, so a chart of runs marks them too, within its agent and period."""
    digests = {0: "aaaaaaaa0", 1: "aaaaaaaa0", 2: "bbbbbbbb0", 3: "bbbbbbbb0"}
    ended = {day: START + day * DAY + 5 * HOUR for day in digests}
    put(store, "diagnoses", [
        diagnosed(f"{agent}-{day}", agent=agent, ended_at=ended[day], closed_at=ended[day], policy_digest=digest)
        for day, digest in digests.items() for agent in ("scout", "other")[: 1 + (day < 2)]
    ])  # fmt: skip
    (mark,) = find_run_policy_changes(store.cursor(), "ops", "scout", START, START + 10 * DAY)
    assert mark.at == ended[2]
    assert mark.kind == "policy"
    assert mark.words == "policy changed from aaaaaaaa to bbbbbbbb"
    assert find_run_policy_changes(store.cursor(), "ops", "other", START, START + 10 * DAY) == []
    assert find_run_policy_changes(store.cursor(), "ops", "scout", START, ended[2]) == []
