"""Agent or judge: errors are as rare as stated for any moods of the judge, and an unknown cause has a reason."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.anchors import MAX_ROUNDS, MIN_ANCHORS, Attribution, IncidentChange, Verdict, attribute, measure_judge_shift
from benchmarks.drift.causes import Judge, answers, exact_interval, measure

START = datetime(2026, 10, 1, 9, tzinfo=UTC)
CHANGE = 10


def day(number: int) -> date:
    """Return the time of a round."""
    return (START + timedelta(days=number)).date()


def verdicts(
    rng: random.Random, *, rounds: int = 20, anchors: int = 20, shift: float = 0.0, change: int = CHANGE
) -> list[Verdict]:
    """Return daily rounds of a slightly noisy judge that moves by `shift` on the day of `change`."""
    levels = [rng.uniform(0.3, 0.9) for _ in range(anchors)]
    return [
        Verdict(
            f"a{anchor_number}",
            START + timedelta(days=number),
            level + rng.gauss(0, 0.03) + (shift if number >= change else 0.0),
        )
        for number in range(rounds)
        for anchor_number, level in enumerate(levels)
    ]


def moved(size: float = 0.1, direction: str = "down", first: int = CHANGE, last: int | None = None) -> IncidentChange:
    """Return an incident of a size that began between two days."""
    return IncidentChange(
        direction=direction, size=size, error=size / 10, earliest=day(first), latest=day(first if last is None else last)
    )


def attribute_change(attribution: list[Verdict], incident: IncidentChange | None = None) -> Attribution:
    """Attribute an incident by these verdicts."""
    return attribute(attribution, incident or moved())


def test_the_judge_is_the_cause_if_the_anchors_changed_as_much_as_the_incident() -> None:
    """Unchanged texts get lower scores, so it cannot be the agent."""
    attribution = attribute_change(verdicts(random.Random(1), shift=-0.1))
    assert attribution.cause == "judge"
    assert attribution.reason == "fully_explained"
    assert attribution.low is not None
    assert attribution.high is not None
    assert attribution.low < -0.1 < attribution.high < 0


def test_a_judge_that_explains_most_leaves_the_rest_to_the_agent() -> None:
    """Silence about the agent needs more than half: it could have fallen by the other half."""
    attribution = attribute_change(verdicts(random.Random(1), shift=-0.07))
    assert attribution.cause == "judge"
    assert attribution.reason == "explained"


def test_the_agent_is_the_cause_if_the_judge_changed_by_less_than_half() -> None:
    """By nothing, by a fifth, or in the other direction."""
    for shift in (0.0, -0.02, 0.1):
        attribution = attribute_change(verdicts(random.Random(2), shift=shift))
        assert attribution.cause == "agent"
        assert attribution.reason == "unexplained"


def test_the_size_of_the_incident_decides() -> None:
    """The same shift of the judge explains a small incident but not a large one."""
    fell = verdicts(random.Random(3), shift=-0.05)
    assert [attribute_change(fell, moved(size)).cause for size in (0.05, 0.1, 0.3)] == ["judge", None, "agent"]


def test_a_judge_that_changed_before_the_first_day_explains_nothing() -> None:
    """A judge that changed before the nearest rounds does not explain the incident either."""
    early = verdicts(random.Random(4), rounds=2 * MAX_ROUNDS + 10, shift=-0.2, change=2)
    assert attribute_change(early, moved(first=MAX_ROUNDS + 4)).cause == "agent"


def test_rounds_within_the_interval_of_the_first_day_are_ignored() -> None:
    """Rounds within the interval of the first day may be on either side."""
    rows = verdicts(random.Random(5), shift=-0.1)
    attribution = attribute_change(rows, moved(first=CHANGE - 2, last=CHANGE + 1))
    assert attribution.rounds_before == CHANGE - 2
    assert attribution.rounds_since == 20 - CHANGE - 2
    odd = [
        Verdict(verdict.anchor, verdict.at, 0.0 if day(CHANGE - 2) <= verdict.at.date() <= day(CHANGE + 1) else verdict.value)
        for verdict in rows
    ]
    assert attribute_change(odd, moved(first=CHANGE - 2, last=CHANGE + 1)) == attribution


def test_rounds_after_the_evidence_of_the_incident_do_not_count() -> None:
    """A check as of an earlier day gives that day's result."""
    rows = verdicts(random.Random(6))
    until = START + timedelta(days=CHANGE + 3)
    incident = IncidentChange(direction="down", size=0.1, earliest=day(CHANGE), latest=day(CHANGE), until=until)
    assert attribute([verdict for verdict in rows if verdict.at < until], incident) == attribute(rows, incident)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "no_anchors"),
        (verdicts(random.Random(7), rounds=CHANGE + 2), "few_rounds_since"),
        ([verdict for verdict in verdicts(random.Random(7)) if verdict.at.date() >= day(CHANGE - 1)], "few_rounds_before"),
        (verdicts(random.Random(7), anchors=MIN_ANCHORS - 1), "few_anchors"),
    ],
)
def test_an_unknown_cause_says_what_is_missing(rows: list[Verdict], reason: str) -> None:
    """The reason says what is missing."""
    attribution = attribute_change(rows)
    assert attribution.cause is None
    assert attribution.reason == reason
    assert attribution.judge is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.floats(0, 1)), max_size=120), st.floats(0.001, 1))
def test_any_verdicts_give_an_answer_independent_of_their_order(rows: list[tuple[int, int, float]], size: float) -> None:
    """Anchors come and go, rounds miss some, and caps cut rounds short."""
    given_rows = list(
        {
            (anchor_number, anchor): Verdict(f"a{anchor}", START + timedelta(days=anchor_number), value)
            for anchor_number, anchor, value in rows
        }.values()
    )
    incident = moved(size, first=5)
    attribution = attribute(given_rows, incident)
    assert attribution == attribute(given_rows[::-1], incident)
    assert (attribution.judge is None) == (attribution.reason not in {"explained", "fully_explained", "unexplained", "unclear"})
    mirrored = attribute(
        [Verdict(verdict.anchor, verdict.at, 1 - verdict.value) for verdict in given_rows], moved(size, "up", first=5)
    )
    assert attribution.rounds_since == mirrored.rounds_since


def test_an_unchanged_judge_is_rarely_accused() -> None:
    """At most one in twenty is allowed here; the benchmark measures the rate precisely."""
    for judge in (Judge(agent=-0.03, mood=0.03), Judge(agent=-0.1, mood=0.06, before=6, since=4)):
        assert answers(judge, 8, 60)["judge"] <= 4


def test_an_agent_is_rarely_accused_of_a_change_of_the_judge() -> None:
    """Seven rounds and a shift of 0.03 are too little evidence, and the reason says so."""
    attribution = answers(Judge(-0.03), 9, 60)
    assert attribution["agent"] <= 3
    assert attribution[None] > 0


def test_the_benchmark_has_a_row_per_line_and_an_interval_per_share() -> None:
    """The table of the decision record is generated by it."""
    rows = measure(3, 4)
    assert len(rows) == len({row.line for row in rows})
    assert all(0 <= row.low <= row.measured <= row.high <= 1 for row in rows)
    assert exact_interval(0, 10) == (0.0, pytest.approx(0.3085, abs=1e-4))
    assert exact_interval(5, 10) == (pytest.approx(0.1871, abs=1e-4), pytest.approx(0.8129, abs=1e-4))


def taken_over(rows: list[Verdict], change: int = CHANGE) -> list[Verdict]:
    """Return the verdicts with another judge since a day."""
    return [replace(verdict, judge="new" if verdict.at >= START + timedelta(days=change) else "old") for verdict in rows]


@pytest.mark.parametrize("shift", [-0.2, -0.1, 0.1])
def test_another_judge_is_not_the_cause(shift: float) -> None:
    """The series of the watch is one judge's, or has the difference of both removed: it fell for another reason."""
    attribution = attribute_change(taken_over(verdicts(random.Random(8), shift=shift)))
    assert attribution.cause == "agent"
    assert attribution.moved_judges == ("old",)


def test_a_change_under_the_same_name_is_found_beside_another_judge() -> None:
    """The judge that took over on the sixth day became harsher on the eleventh."""
    rows = verdicts(random.Random(9), rounds=30, shift=-0.1, change=18)
    attribution = attribute_change(taken_over(rows, 4), moved(first=18))
    assert attribution.cause == "judge"


def test_verdicts_of_a_judge_that_cannot_be_compared_do_not_count() -> None:
    """One round of it does not tell how far apart the judges are."""
    attribution = attribute_change(taken_over(verdicts(random.Random(10), shift=-0.1), 1), moved(first=1))
    assert attribution.reason == "few_rounds_before"


def test_the_interval_of_two_judges_has_their_difference() -> None:
    """In at least nine of ten draws; it is stated as 95%."""
    hits = 0
    for seed in range(200):
        shift = measure_judge_shift(taken_over(verdicts(random.Random(seed), rounds=14, shift=0.1)), "old", "new")
        assert shift is not None
        hits += shift.low < 0.1 < shift.high
    assert hits >= 180


def test_two_judges_need_enough_anchors_and_rounds() -> None:
    """Otherwise the series begins anew, and the check says so."""
    few_anchors = taken_over(verdicts(random.Random(11), anchors=MIN_ANCHORS - 1))
    one_round = taken_over(verdicts(random.Random(11)), 1)
    assert measure_judge_shift(few_anchors, "old", "new") is None
    assert measure_judge_shift(one_round, "old", "new") is None
    assert measure_judge_shift([], "old", "new") is None
