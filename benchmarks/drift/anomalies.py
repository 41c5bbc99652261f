"""Anomaly spikes: how often a rate that doubled or tripled is found within two weeks, and how often one that did not change."""

from __future__ import annotations

import zlib
from datetime import date, timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple

import numpy as np

from audit.drift.anomaly_rate import DAYS, Day, anomaly_spike
from benchmarks.drift.bars import Row, alarms_apart, rate_row, share_row

FIRST = date(2026, 1, 5)
BEFORE = 60
"""Days before a rate rises; and so many go by before quiet days are counted."""
YEAR = 365
LEAST_FOUND = 0.8
MOST_FALSE = 1.0
RUNS, YEARS = 200, 60


class Rates(NamedTuple):
    """The traffic and the rates of a simulation."""

    a_day: float
    """Exchanges, as a mean."""
    rate: float
    """Anomalies an exchange."""
    times: float = 1.0
    """The factor by which the rate rises."""
    bunch: int = 1
    """Exchanges of a session, all anomalous or none."""


FOUND = [Rates(50, rate, 2) for rate in (0.03, 0.05, 0.1)] + [Rates(10, rate, 3) for rate in (0.03, 0.05, 0.1)]
QUIET = [Rates(a_day, rate, bunch=bunch) for a_day in (10, 50) for rate in (0.03, 0.1) for bunch in (1, 4)]


def measure(pool: Pool, seed: int, share: float = 1.0) -> list[Row]:
    """Return every line; `share` of the runs of each."""
    runs, years = max(10, round(share * RUNS)), max(5, round(share * YEARS))
    detections = [pool.starmap(is_found, [(rates, seed, run) for run in range(runs)], chunksize=5) for rates in FOUND]
    false_alarm_counts = [
        pool.starmap(false_alarms, [(rates, seed, run) for run in range(years)], chunksize=1) for rates in QUIET
    ]
    rows = [share_row(_name(rates), sum(hits), runs, LEAST_FOUND) for rates, hits in zip(FOUND, detections, strict=True)]
    return rows + [
        rate_row(_name(rates), sum(alarms), years, MOST_FALSE) for rates, alarms in zip(QUIET, false_alarm_counts, strict=True)
    ]


def is_found(rates: Rates, seed: int, run: int) -> bool:
    """Tell whether a daily check finds the rise within two weeks."""
    days = drawn(rates, BEFORE + DAYS, seed, run)
    return any(anomaly_spike(days, FIRST + timedelta(days=day)) for day in range(BEFORE, BEFORE + DAYS))


def false_alarms(rates: Rates, seed: int, run: int) -> int:
    """Alarms in a year of daily checks; those with no more than a week between them are one."""
    days = drawn(rates, BEFORE + YEAR, seed, run)
    alarm_days = [day for day in range(BEFORE, BEFORE + YEAR) if anomaly_spike(days, FIRST + timedelta(days=day))]
    return alarms_apart(alarm_days)


def drawn(rates: Rates, count: int, seed: int, run: int) -> list[Day]:
    """Days in a row, of which those from `BEFORE` on have the higher rate."""
    rng = np.random.default_rng([seed, run, zlib.crc32(repr(rates).encode())])
    chance = np.where(np.arange(count) < BEFORE, rates.rate, rates.rate * rates.times)
    sessions = rng.poisson(rates.a_day / rates.bunch, count)
    anomalous = rng.binomial(sessions, chance)
    return [
        Day(FIRST + timedelta(days=day), int(anomalous[day]) * rates.bunch, int(sessions[day]) * rates.bunch)
        for day in range(count)
    ]


def _name(rates: Rates) -> str:
    bunches = f", in sessions of {rates.bunch}" if rates.bunch > 1 else ""
    what = f"become {rates.times:g} times as many" if rates.times > 1 else "stay as many"
    return f"anomalies of {rates.rate:.0%} {what}, {rates.a_day:g} a day{bunches}"
