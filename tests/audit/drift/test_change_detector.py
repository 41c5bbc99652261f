"""The change detector: what it finds and how soon, what it ignores, and that the time and number of looks do not matter."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.drift.change_detector import (
    CONFIRMED,
    HISTORY_DAYS,
    SUSPECTED,
    WINDOW_DAYS,
    Change,
    check_series,
    find_change,
    take_looks,
)
from audit.drift.series import REFERENCE_DAYS, Cells, Reference, Series, Unit, cells_of

START = datetime(2026, 8, 3, tzinfo=UTC)
CHANGE = 44
"""Days before the change: 14 days of reference and another 30."""

Draw = Callable[[random.Random, bool], float]
"""Draws a score; the second argument is true after the change."""


def day(number: int) -> date:
    """Return the date of a day of the series."""
    return START.date() + timedelta(days=number)


def series(draw: Draw, rate: int, days: int, change: int = CHANGE, seed: int = 1) -> list[Unit]:
    """Return sessions of one score, evenly spread over each day."""
    rng = random.Random(f"{seed} {rate}")
    return [
        unit(draw(rng, number >= change), START + timedelta(days=number, hours=24 * (number_in_day + 0.5) / rate))
        for number in range(days)
        for number_in_day in range(rate)
    ]


def unit(score: float, time: datetime, weight: float = 1.0) -> Unit:
    """Return a session of one score."""
    return Unit(time, 1, weight, weight * score)


def falls(sigmas: float) -> Draw:
    """Return a draw with mean 0.85 and sigma 0.1 that falls by this many sigma, clipped to 0..1."""
    return lambda rng, is_after: min(1.0, max(0.0, rng.gauss(0.85 - 0.1 * sigmas * is_after, 0.1)))


def alarms(units: Iterable[Unit], days: int) -> list[float]:
    """Return the days of the looks that raise an alarm."""
    series = Series(cells_of(units), day(0), day(days - 1))
    looks = take_looks(series, range(series.length))
    raised = [series.time(int(cell)) for cell in looks.cells[looks.log_evidence >= math.log(SUSPECTED)]]
    return [(time.replace(tzinfo=UTC) - START) / timedelta(days=1) for time in raised]


def alarm(units: Iterable[Unit]) -> float | None:
    """Return the days from the change to the first alarm, with a look after every hour; None without an alarm."""
    return next((time - CHANGE for time in alarms(units, CHANGE + 60) if time >= CHANGE), None)


def require_change(change: Change | None) -> Change:
    """Return the change, which must exist."""
    assert change is not None
    return change


@pytest.mark.parametrize(
    ("sigmas", "rate", "bar"),
    [(1.0, 3, 12), (1.0, 10, 4), (1.0, 50, 2), (0.5, 10, 16), (0.5, 50, 4), (2.0, 3, 6), (-1.0, 10, 4)],
)
def test_a_change_is_found_in_time(sigmas: float, rate: int, bar: float) -> None:
    """Half of the changes are found within this many days, and none is missed within 60 days."""
    delays = [alarm(series(falls(sigmas), rate, CHANGE + 60, seed=seed)) for seed in range(9)]
    found_delays = [delay for delay in delays if delay is not None]

    assert len(delays) == len(found_delays)
    assert statistics.median(found_delays) <= bar


def test_quiet_years_are_quiet() -> None:
    """With one false alarm in eight years at most, more than six alarms in twenty quiet years have a probability below 2%."""
    assert sum(bool(alarms(series(falls(0), 3, 14 + 365, seed=seed), 14 + 365)) for seed in range(20)) <= 6


def test_a_change_has_a_first_day_and_a_size() -> None:
    """A person needs the day, the size, and the uncertainty of both."""
    change = require_change(find_change(series(falls(1), 10, CHANGE + 6), day(CHANGE + 5)))

    assert change.direction == "down"
    assert change.earliest_day <= day(CHANGE) <= change.latest_day
    assert abs((change.first_day - day(CHANGE)).days) <= 1
    assert change.size_interval.low <= change.size <= change.size_interval.high
    assert change.size == pytest.approx(change.mean_after - change.mean_before)
    assert change.size == pytest.approx(-0.1, abs=0.05)
    assert change.sigma == pytest.approx(0.1, abs=0.02)
    assert change.scores_before + change.scores_after == change.units_before + change.units_after == 10 * (CHANGE + 6)
    assert (START + timedelta(days=CHANGE)).replace(tzinfo=None) <= change.alarm_at <= change.seen_at
    assert change.log_evidence >= math.log(SUSPECTED)


def test_severity_depends_on_the_size_in_sigma() -> None:
    """A change beyond two sigma is critical."""
    severities = [require_change(find_change(series(falls(size), 10, CHANGE + 7), day(CHANGE + 6))).severity for size in (1, 4)]

    assert severities == ["warning", "critical"]


def test_the_level_rises_to_an_alarm() -> None:
    """The level is below 1 while the series is quiet, and at least 1 with an alarm."""
    units = series(falls(1), 10, CHANGE + 10)
    levels = [check_series(units, day(number)) for number in (CHANGE - 1, CHANGE + 9)]

    assert levels[0].level < 1 <= levels[1].level
    assert [level.change and level.change.direction for level in levels] == [None, "down"]


@pytest.mark.parametrize("days", [0, 1, REFERENCE_DAYS])
def test_without_a_reference_there_is_no_change(days: int) -> None:
    """The first two weeks of a project are its reference."""
    assert find_change(series(falls(4), 10, days, change=days // 2), day(days)) is None


def test_a_change_that_was_decided_on_is_the_new_normal() -> None:
    """Once a person has accepted the change, earlier days are no longer a reference."""
    units = series(falls(2), 10, CHANGE + 30)

    assert find_change(units, day(CHANGE + 29)) is not None
    assert find_change(units, day(CHANGE + 29), reference=Reference(since=day(CHANGE))) is None


def test_after_a_year_a_change_has_become_normal() -> None:
    """A change without a decision becomes normal once it is older than the history."""
    units = series(falls(1), 3, CHANGE + HISTORY_DAYS + 20)

    assert find_change(units, day(CHANGE + 200)) is not None
    assert find_change(units, day(CHANGE + HISTORY_DAYS + 19)) is None


def test_a_dip_that_ended_hides_no_later_change() -> None:
    """The days of the dip are cut out of the reference, so its end is not a rise and the next fall is not measured from it."""
    rng = random.Random(5)
    dip = range(CHANGE, CHANGE + 5)

    def score(number: int) -> float:
        return rng.gauss(0.85 - 0.15 * (number in dip) - 0.1 * (number >= CHANGE + 15), 0.1)

    units = [
        unit(score(number), START + timedelta(days=number, hours=2 * number_in_day))
        for number in range(CHANGE + 19)
        for number_in_day in range(10)
    ]
    over = Reference(cut=((day(CHANGE), day(CHANGE + 4)),))

    assert find_change(units, day(CHANGE + 14), reference=over) is None
    change = require_change(find_change(units, day(CHANGE + 18), reference=over))
    assert change.direction == "down"
    assert abs((change.first_day - day(CHANGE + 15)).days) <= 1


def test_a_large_change_is_found_on_the_second_session() -> None:
    """One session a day that is six sigma lower is an outlier; a second one in a row is a change."""
    rng = random.Random(3)
    units = [
        unit(rng.gauss(0.85, 0.1) - 0.6 * (number >= 30), START + timedelta(days=number, hours=12)) for number in range(32)
    ]

    assert find_change(units[:31], day(30)) is None
    assert require_change(find_change(units, day(31))).direction == "down"


def test_a_ramp_of_a_year_is_found_in_months() -> None:
    """A change too slow for any week is found against the whole history: half within four months, all within six."""
    delays = []
    for seed in range(5):
        rng = random.Random(seed)
        units = [
            unit(
                rng.gauss(0.75 - 0.1 * max(0, number - CHANGE) / 365, 0.1),
                START + timedelta(days=number, hours=2 * number_in_day),
            )
            for number in range(CHANGE + 180)
            for number_in_day in range(10)
        ]
        delays.append(min(alarms(units, CHANGE + 180)) - CHANGE)

    assert statistics.median(delays) <= 120


@pytest.mark.parametrize("rates", [(5, 2000), (600, 60)], ids=["many more", "many less"])
def test_another_volume_is_no_change(rates: tuple[int, int]) -> None:
    """More sessions mean more evidence but the same mean, and a busy day that is not over is not a change."""
    rng = random.Random(7)
    units = [
        unit(rng.gauss(0.6, 0.1), START + timedelta(days=number, seconds=86_400 * (number_in_day + 0.5) / rates[number >= 24]))
        for number in range(30)
        for number_in_day in range(rates[number >= 24] // (3 if number == 29 else 1))
    ]

    assert find_change(units, day(29)) is None


@pytest.mark.parametrize(("before", "after"), [(5, 1), (1, 10), (3, 12), (10, 1)])
def test_longer_or_shorter_sessions_are_no_change(before: int, after: int) -> None:
    """Sessions of other lengths have another variance but the same mean."""
    rng = random.Random(11)
    units = []
    for number in range(60):
        length = after if number >= CHANGE else before
        for number_in_day in range(10):
            scores = [rng.gauss(0.6, 0.1) for _ in range(length)]
            units.append(
                Unit(START + timedelta(days=number, hours=2 * number_in_day), length, float(length), math.fsum(scores))
            )

    assert find_change(units, day(59)) is None


def test_a_wider_spread_is_no_change_of_the_mean() -> None:
    """Scores that vary twice as much have the same mean."""
    rng = random.Random(2)
    units = series(lambda _rng, is_after: rng.gauss(0.6, 0.2 if is_after else 0.1), 10, 60)

    assert find_change(units, day(59)) is None


def test_nights_and_weekends_are_no_change() -> None:
    """Users ask other questions at night and on weekends; checks at any hour must compare like with like."""
    rng = random.Random(9)

    def score(time: datetime) -> float:
        return rng.gauss(0.7 - 0.05 * (time.hour < 8) - 0.1 * (time.weekday() >= 5), 0.1)

    times = [START + timedelta(days=number, minutes=12 * number_in_day) for number in range(60) for number_in_day in range(120)]
    units = [unit(score(time), time) for time in times]

    assert not [
        hour
        for hour in range(0, 24, 5)
        if find_change([unit for unit in units if unit.at < times[-1] - timedelta(hours=hour)], day(59))
    ]


@pytest.mark.parametrize("hour", [0, 12, 20])
def test_the_intervals_cover_the_change_at_any_hour(hour: int) -> None:
    """At most three of twenty changes are outside their 95% interval."""
    covered = []
    for seed in range(20):
        rng = random.Random(f"{seed} {hour}")
        changed_at = START + timedelta(days=CHANGE, hours=hour)
        times = [
            START + timedelta(days=number, hours=2.4 * (number_in_day + rng.random()))
            for number in range(CHANGE + 4)
            for number_in_day in range(10)
        ]
        units = [unit(rng.gauss(0.6 - 0.1 * (time >= changed_at), 0.1), time) for time in times]
        change = find_change(units, day(CHANGE + 3))
        if change is not None:
            covered.append(
                change.earliest_day <= day(CHANGE) <= change.latest_day
                and change.size_interval.low <= -0.1 <= change.size_interval.high
            )

    assert len(covered) >= 10
    assert covered.count(False) <= 3


def on_days(has_data: Callable[[int], bool], count: int, level: Callable[[int], float], days: int, seed: str) -> list[Unit]:
    """Return sessions of one score in the working hours of the days with data, around the level of each day."""
    rng = random.Random(seed)
    return [
        unit(rng.gauss(level(number), 0.1), START + timedelta(days=number, hours=8 + 12 * rng.random()))
        for number in range(days)
        if has_data(number)
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("has_data", "count", "looked_after"),
    [
        (lambda number: number % 7 < 5, 50, 1),
        (lambda number: number % 7 == 0, 300, 0),
        (lambda number: number % 7 == 0, 300, 14),
    ],
    ids=["after a weekend", "between weekly batches", "between weekly batches, two weeks later"],
)
@pytest.mark.parametrize("fall", [0.07, 0.1, 0.2])
def test_the_first_day_of_a_change_after_a_gap_is_the_first_day_with_data(
    has_data: Callable[[int], bool], count: int, looked_after: int, fall: float
) -> None:
    """A change that shows on Monday began after Friday's last data, so Friday is not its first day."""
    change = 63
    first_days = []
    for seed in range(6):
        units = on_days(has_data, count, lambda number: 0.7 - fall * (number >= change), change + 15, f"{fall} {seed}")
        found_change = find_change(units, day(change + looked_after))
        if found_change is not None:
            assert found_change.earliest_day <= day(change) <= found_change.latest_day
            first_days.append(found_change.first_day)

    assert len(first_days) >= 3
    assert first_days.count(day(change)) >= len(first_days) - 1


@pytest.mark.parametrize(("every", "count", "days"), [(7, 300, 120), (14, 200, 200), (30, 200, 300)])
def test_two_different_batches_are_no_change(every: int, count: int, days: int) -> None:
    """Two batches do not show how much batches vary, so comparisons begin after six days with data."""
    confirmed = []
    for seed in range(4):
        rng = random.Random(f"{every} {seed}")
        levels = [rng.gauss(0.7, 0.05) for _ in range(days)]
        units = on_days(lambda number: number % every == 0, count, levels.__getitem__, days, f"{every} {seed}")
        changes = [find_change(units, day(number)) for number in range(every, days, every)]
        confirmed += [change for change in changes if change is not None and change.confirmed_at is not None]

    assert not confirmed


def test_a_few_days_with_data_are_no_reference() -> None:
    """Five days with data within fourteen calendar days are not enough of a reference; six are."""

    def fallen(history: int) -> list[Unit]:
        has_data = {*range(0, 3 * history, 3), 40}
        return on_days(lambda number: number in has_data, 50, lambda number: 0.7 - 0.2 * (number == 40), 41, f"{history}")

    assert find_change(fallen(5), day(40)) is None
    assert find_change(fallen(6), day(40)) is not None


def test_a_change_is_suspected_first_and_confirmed_by_more() -> None:
    """Alerts need a confirmed change, with four false ones in a thousand years per tier instead of one in eight years."""
    units = series(falls(1), 10, CHANGE + 8)
    first = next(number for number in range(CHANGE, CHANGE + 8) if find_change(units, day(number)))
    last = require_change(find_change(units, day(CHANGE + 7)))

    assert SUSPECTED < CONFIRMED
    assert first < CHANGE + 4
    assert last.confirmed_at is not None
    assert last.alarm_at <= last.confirmed_at <= last.seen_at


@pytest.mark.parametrize("usual", [1.0, 0.75])
@pytest.mark.parametrize("odd", [0.0, 2 / 3])
def test_one_outlier_in_a_constant_series_is_no_change(usual: float, odd: float) -> None:
    """If Tier 1 was always 1, flagged exchanges of one day are anomalies; flagged exchanges on a second day are a change."""
    units = series(lambda _rng, _after: usual, 10, 40)

    def replace_last(count: int) -> list[Unit]:
        return [*units[:-count], *(unit(odd, session.at) for session in units[-count:])]

    assert find_change(units, day(39)) is None
    assert find_change(replace_last(1), day(39)) is None
    assert find_change(replace_last(5), day(39)) is None
    assert find_change(replace_last(15), day(39)) is not None


@pytest.mark.parametrize("earlier", [0, 1])
def test_flagged_sessions_of_one_hour_are_no_change_of_nearly_constant_scores(earlier: int) -> None:
    """Months of scores at 1 do not show how far, or how often, scores deviate, so one bad hour is not a change."""
    units = series(lambda _rng, _after: 1.0, 3, 120)
    bad = [unit(2 / 3, START + timedelta(days=100, hours=12, minutes=10 * number_in_day)) for number_in_day in range(3)]
    rare = [unit(2 / 3, START + timedelta(days=30, hours=11 + number_in_day)) for number_in_day in range(earlier)]

    for last in range(100, 120):
        units_until = [unit for unit in (*units, *bad, *rare) if unit.at.date() <= day(last)]
        assert find_change(units_until, day(last)) is None


def test_another_mix_of_sampled_turns_is_no_change() -> None:
    """First turns score lower.

    If all later turns are sampled instead of every third, the plain mean rises, but the quality does not.
    """
    rng = random.Random(4)
    units, plain = [], []
    for number in range(60):
        share, weight = (9, 1.0) if number >= CHANGE else (3, 3.0)
        for number_in_day in range(6):
            scores = [(rng.gauss(0.7, 0.1), 1.0) for _ in range(5)] + [(rng.gauss(0.9, 0.1), weight) for _ in range(share)]
            time = START + timedelta(days=number, hours=4 * number_in_day)
            units.append(Unit(time, len(scores), sum(w for _, w in scores), sum(x * w for x, w in scores)))
            plain.append(Unit(time, len(scores), len(scores), sum(x for x, _ in scores)))

    assert find_change(units, day(59)) is None
    assert require_change(find_change(plain, day(59))).direction == "up"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_order_and_data_outside_the_window_do_not_matter(seed: int, rng: random.Random) -> None:
    """Sessions may end at the same time; a late check and a rerun must find the same."""
    as_of = day(WINDOW_DAYS + 5)
    units = [
        unit(session.total, session.at.replace(hour=12, minute=0))
        for session in series(falls(1), 2, WINDOW_DAYS + 10, 375, seed)
    ]
    first = as_of - timedelta(days=WINDOW_DAYS - 1)
    inside = [unit for unit in units if first <= unit.at.date() <= as_of]
    rng.shuffle(units)

    assert check_series(inside, as_of) == check_series(units, as_of)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 59))
def test_a_look_never_depends_on_later_data(seed: int, last: int) -> None:
    """An alarm does not depend on when it is looked for."""
    cells = cells_of(series(falls(0.7), 5, 60, seed=seed))
    full_series, part = (take_looks(Series(cells, day(0), day(until)), range(last + 1)) for until in (59, last))

    assert part.log_evidence.tolist() == pytest.approx(full_series.log_evidence[: len(part.log_evidence)].tolist(), abs=1e-9)


@pytest.mark.parametrize("sigmas", [0, 0.7, 4])
def test_skipped_looks_could_not_have_raised_an_alarm(sigmas: float) -> None:
    """A bound skips looks that cannot raise an alarm; a bound that is too low would miss some."""
    whole_series = Series(cells_of(series(falls(sigmas), 8, 60)), day(0), day(59))
    least = math.log(SUSPECTED)
    every, some = take_looks(whole_series, range(60)), take_looks(whole_series, range(60), least)
    raised = [
        list(zip(looks.cells[may], looks.log_evidence[may], strict=True))
        for looks in (every, some)
        for may in [looks.log_evidence >= least]
    ]

    assert raised[0] == raised[1]
    assert every.cells[-1] == some.cells[-1]
    assert len(some.cells) < len(every.cells)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_sums_give_the_same_evidence_as_single_sessions(seed: int, parts: int) -> None:
    """The evidence does not depend on how the sessions of a day were split into sums."""
    units = series(falls(1), 12, 60, seed=seed)
    split = [cells_of(units[start::parts]) for start in range(parts)]
    merged_sums = merged(split)

    assert check_series(merged_sums, day(59)).level == pytest.approx(check_series(units, day(59)).level, abs=1e-6)


def merged(parts: Iterable[Cells]) -> Cells:
    """Merge cells of parts of the sessions into cells of all sessions."""
    filled = [part for part in parts if len(part.last)]
    columns = [np.concatenate(column) for column in zip(*filled, strict=True)]
    hours = columns[0].astype("datetime64[h]")
    order = np.argsort(hours, kind="stable")
    starts = np.flatnonzero(np.diff(hours[order].astype(np.int64), prepend=-1))
    reduce = [np.maximum, *[np.add] * 7, np.minimum, np.maximum]
    return Cells(*(how.reduceat(column[order], starts) for how, column in zip(reduce, columns, strict=True)))
