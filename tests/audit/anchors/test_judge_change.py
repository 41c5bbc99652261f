"""Anchors: a changed judge is found, an unchanged one is not accused, and no cause is named without evidence."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.anchors import Verdict, judge_change

START = datetime(2026, 10, 1, tzinfo=UTC)


def day(number: int) -> datetime:
    """Return the time of a day's round."""
    return START + timedelta(days=number)


def verdicts(
    rng: random.Random,
    *,
    anchors: int = 20,
    rounds: int = 30,
    noise: float = 0.1,
    change: int | None = None,
    shift: float = 0.0,
    mood: float = 0.0,
) -> list[Verdict]:
    """Return verdicts of a noisy judge with moods, in steps of a tenth, that moves by `shift` from round `change` on."""
    levels = [rng.uniform(0.2, 1) for _ in range(anchors)]
    moods = [rng.gauss(0, mood) if mood else 0.0 for _ in range(rounds)]
    return [
        Verdict(
            f"anchor {number}",
            day(round_number),
            _rounded(level + rng.gauss(0, noise) + moods[round_number] + _moved(round_number, change, shift)),
        )
        for round_number in range(rounds)
        for number, level in enumerate(levels)
    ]


def _moved(round_number: int, change: int | None, shift: float) -> float:
    return 0.0 if change is None or round_number < change else shift


def _rounded(value: float) -> float:
    return min(max(round(value * 10) / 10, 0.0), 1.0)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_an_unchanged_judge_is_not_accused(noise: float) -> None:
    """Over sixty rounds, the false alarm rate is one in a hundred, even with a check after every round."""
    rng = random.Random(1)
    wrong = sum(judge_change(verdicts(rng, rounds=60, noise=noise)).changed for _ in range(60))
    assert wrong <= 2


def test_moods_are_not_a_change() -> None:
    """A judge that is harsher with all anchors on some days has not changed; the bets alone accused 29 of 40."""
    rng = random.Random(12)
    wrong = sum(judge_change(verdicts(rng, rounds=60, noise=0.07, mood=0.03)).changed for _ in range(40))
    assert wrong <= 1


@pytest.mark.parametrize(("noise", "shift"), [(0.0, -0.1), (0.1, -0.1), (0.1, 0.2), (0.2, -0.2)])
@pytest.mark.parametrize(("change", "since"), [(3, 18), (20, 9)])
def test_a_change_is_found_within_days_with_direction_day_and_size(noise: float, shift: float, change: int, since: int) -> None:
    """A shift of the same anchors is direct evidence; three rounds before show little of the moods."""
    rng = random.Random(2)
    histories = [verdicts(rng, rounds=change + since, noise=noise, change=change, shift=shift) for _ in range(10)]
    changes = [result for result in map(judge_change, histories) if result.changed]
    assert len(changes) >= 8
    assert {result.direction for result in changes} == {"up" if shift > 0 else "down"}
    days = sorted((result.since - day(change)).days for result in changes if result.since)
    assert abs(days[len(days) // 2]) <= 1
    sizes = sorted(result.size for result in changes if result.size is not None)
    assert sizes[len(sizes) // 2] == pytest.approx(shift, abs=0.05)


def test_the_day_of_a_change_without_noise_is_exact() -> None:
    """All verdicts before the change are equal."""
    result = judge_change(verdicts(random.Random(3), noise=0.0, change=11, shift=-0.2))
    assert day(11) == result.since


def test_the_interval_contains_the_size_and_is_never_a_point() -> None:
    """A dozen unchanged verdicts do not prove that none would change."""
    rng, covered = random.Random(4), 0
    for _ in range(100):
        result = judge_change(verdicts(rng, rounds=20, change=10, shift=-0.1, noise=0.05))
        assert result.low is not None
        assert result.high is not None
        # Verdicts near the ends of the scale cannot move by the full shift.
        covered += result.low <= -0.1 <= result.high or result.low <= -0.08 <= result.high
    assert covered >= 90
    unchanged = judge_change(verdicts(rng, noise=0.0))
    assert unchanged.low is not None
    assert unchanged.high is not None
    assert unchanged.size == 0.0
    assert unchanged.low < 0 < unchanged.high


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.floats(0, 1)), max_size=30))
def test_any_verdicts_give_an_answer(rows: list[tuple[int, int, float]]) -> None:
    """Anchors come and go, rounds miss some, and the first round has nothing to compare with."""
    result = judge_change([Verdict(f"a{anchor}", day(round_number), value) for round_number, anchor, value in rows])
    assert len({round_number for round_number, _, _ in rows}) == result.rounds
    assert result.evidence >= 0
    assert result.changed == (result.since is not None) == (result.direction is not None)


def test_the_order_of_verdicts_does_not_matter() -> None:
    """Tables have no order."""
    rows = verdicts(random.Random(5), change=10, shift=-0.1)
    shuffled = rows.copy()
    random.Random(6).shuffle(shuffled)
    assert judge_change(rows) == judge_change(shuffled)
