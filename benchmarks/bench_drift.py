"""Drift rules: how long they take to find a change, what they miss, and how often they are wrong."""

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.pool import Pool
from typing import NamedTuple, TypeVar

from audit.drift.change_detector import WINDOW_DAYS, find_change
from benchmarks.drift import (
    anomalies,
    bars,
    behaviour,
    causes,
    compared_rules,
    flags,
    fleet,
    lines,
    runs,
    scores,
    segments,
    slices,
    versions,
)
from benchmarks.drift.scores import Project, Shape
from benchmarks.measure import print_table

T = TypeVar("T")
CHANGE = 44
"""14 days of baseline and 30 quiet ones."""
WITHIN = 60
"""Days after which a change counts as missed."""
YEAR = 365
RATES = (3, 10, 50)
SIZES = (0.5, 1.0, 2.0)
RUNS = 60
ESTIMATED = 80
YEARS = {3: 120, 10: 60, 50: 20}
SHAPES: dict[str, Project] = {
    "normal": Project(scores.normal, 10, CHANGE + WITHIN, CHANGE, -1),
    "normal, upwards": Project(scores.normal, 10, CHANGE + WITHIN, CHANGE, 1),
    "normal, from noon on": Project(scores.normal, 10, CHANGE + WITHIN, CHANGE, -1, noon=True),
    "normal, slow ramp over 30 days": Project(scores.normal, 10, CHANGE + WITHIN, CHANGE, -1, ramp=30),
    "normal, no traffic at weekends": Project(scores.normal, 10, CHANGE + WITHIN, CHANGE, -1, weekends=False),
    "normal, each day 0.5 sigma off": Project(scores.normal, 10, CHANGE + WITHIN, CHANGE, -1, daily=0.5),
    "thirds (tier 1)": Project(scores.thirds, 10, CHANGE + WITHIN, CHANGE, -1),
    "always 1, then one in ten flagged": Project(scores.flags, 10, CHANGE + WITHIN, CHANGE, -1),
    "whole points from 1 to 5 (tier 3)": Project(scores.fifths, 10, CHANGE + WITHIN, CHANGE, -1),
    "skewed": Project(scores.skewed, 10, CHANGE + WITHIN, CHANGE, -1),
    "0.95, one in 25 is 0.2": Project(scores.rare, 10, CHANGE + WITHIN, CHANGE, -1),
    "sessions of dependent scores, 3 sessions a day": Project(scores.sessions, 3, CHANGE + WITHIN, CHANGE, -1),
}
SHAPE_YEARS = 40
CAUSES = 400
"""Simulated judges a line."""
AGENTS = 100
"""Simulated agents a line."""
SLICES = 40
"""Simulated causes a line."""
MIX = Project(scores.mix, 10, CHANGE + WITHIN, CHANGE, -1)
QUIET = "false alarms a year"


class Task(NamedTuple):
    """One simulated project under one rule."""

    rule: str
    project: Project
    seed: object


def delay(task: Task) -> float:
    """Days from the change to the first alarm after it; infinite when there is none."""
    alarms = compared_rules.RULES[task.rule](scores.simulated(task.project, task.seed))
    since = task.project.change + task.project.noon / 2
    return next((alarm - since for alarm in alarms if alarm >= since), math.inf)


def false_alarms(task: Task) -> int:
    """Alarms in a quiet year after the first 14 days."""
    quiet = task.project._replace(days=compared_rules.BASELINE + YEAR, change=compared_rules.BASELINE + YEAR, shift=0.0)
    return sum(1 for _ in compared_rules.RULES[task.rule](scores.simulated(quiet, task.seed)))


def estimates(task: Task) -> tuple[bool, bool, float, int] | None:
    """Tell, at the end of the day of the alarm, how good the estimate is; return None without an alarm or a change.

    The tuple says whether the intervals of day and size hold the truth. Then come the error of the first day and the length of
    its interval, both in days.
    """
    days = scores.simulated(task.project, task.seed)
    alarm = next((at for at in compared_rules.ours(days) if at >= task.project.change), None)
    if alarm is None:
        return None
    last = math.floor(alarm)
    change = find_change(compared_rules.units_of(days[: last + 1], max(0, last + 1 - WINDOW_DAYS)), compared_rules.day_of(last))
    if change is None:
        return None
    truth, size = compared_rules.day_of(task.project.change), TRUE_SIZES[task.project.shape, task.project.shift]
    return (
        change.earliest_day <= truth <= change.latest_day,
        change.size_interval.low <= size <= change.size_interval.high,
        (change.first_day - truth) / timedelta(days=1),
        (change.latest_day - change.earliest_day).days + 1,
    )


TRUE_SIZES: dict[tuple[Shape, float], float] = {
    (scores.normal, -size): scores.mean_of(scores.normal, -size) - scores.mean_of(scores.normal, 0) for size in SIZES
}


def print_delays(pool: Pool) -> None:
    """Normal scores: each rule, each rate, each size."""
    rows = []
    for rule in compared_rules.RULES:
        for rate in RATES:
            base = Project(scores.normal, rate, CHANGE + WITHIN, CHANGE)
            cells = [format_delays(spread(pool, delay, rule, base._replace(shift=-size), RUNS)) for size in SIZES]
            alarms = spread(pool, false_alarms, rule, base, YEARS[rate])
            rows.append([rule, f"{rate}", *cells, per_year(alarms)])
    print_table(["rule", "scores/day", *(f"{size:g} sigma" for size in SIZES), QUIET], rows)


def print_shapes(pool: Pool) -> None:
    """Each shape, each rule: a change of one sigma, and quiet years."""
    rows = []
    for name, project in SHAPES.items():
        cells = []
        for rule in compared_rules.RULES:
            delays_text = format_delays(spread(pool, delay, rule, project, RUNS))
            cells.append(f"{delays_text} · {per_year(spread(pool, false_alarms, rule, project, SHAPE_YEARS))}")
        rows.append([name, *cells])
    wrong = [spread(pool, delay, rule, MIX, RUNS) for rule in compared_rules.RULES]
    rows.append(
        ["other turns are sampled, the quality stays", *(f"alarm in {share(len(f) - missed(f), len(f))}" for f in wrong)]
    )
    print_table([f"median delay · {QUIET}", *compared_rules.RULES], rows)


def print_intervals(pool: Pool) -> None:
    """Print how often the intervals hold the truth."""
    rows = []
    for rate in RATES:
        for size in SIZES:
            project = Project(scores.normal, rate, CHANGE + WITHIN, CHANGE, -size)
            estimated = [estimate for estimate in spread(pool, estimates, "ours", project, ESTIMATED) if estimate is not None]
            days, sizes, errors, lengths = zip(*estimated, strict=True)
            near_first_day = sum(abs(error) <= 1 for error in errors)
            rows.append([
                f"{rate} a day, {size:g} sigma",
                share(sum(days), len(estimated)),
                f"{statistics.median(lengths):g}",
                share(near_first_day, len(estimated)),
                share(sum(sizes), len(estimated)),
            ])  # fmt: skip
    print_table(["at the alarm", "first day inside", "median days of it", "first day right, ± 1", "size inside"], rows)


def spread(pool: Pool, measure: Callable[[Task], T], rule: str, project: Project, runs: int) -> list[T]:
    """Return the results of a measure in so many simulations; every rule sees the same scores."""
    seeds = [(project.shape.__name__, project.rate, project.shift, run) for run in range(runs)]
    return pool.map(measure, [Task(rule, project, seed) for seed in seeds], chunksize=1)


def missed(delays: Sequence[float]) -> int:
    """Count the changes that were not found in time."""
    return sum(math.isinf(days) for days in delays)


def format_delays(delays: Sequence[float]) -> str:
    """Return the median delay of those that were found, and how many were not."""
    found_delays = [days for days in delays if not math.isinf(days)]
    lost = f"missed {share(missed(delays), len(delays))}" if missed(delays) else ""
    return ", ".join(filter(None, (f"{statistics.median(found_delays):.1f} d" if found_delays else "", lost)))


def share(part: int, total: int) -> str:
    """Return a share in per cent."""
    return f"{part / total:.0%}".replace("%", " %")


def per_year(alarms: Sequence[int]) -> str:
    """Alarms a project-year."""
    return f"{sum(alarms) / len(alarms):.2f}"


def print_bars(pool: Pool, seed: int, share: float) -> None:
    """The bars of detection and of causes, line by line, and what falls short of them."""
    rows = bars.measure(pool, seed, share)
    print_rows("line", rows)
    print(f"A check of 90 days of 50 scores in four tiers: {bars.processor_time():.0f} ms of processor (bar: 30).\n")
    spikes = anomalies.measure(pool, seed, share)
    print_rows("spikes", spikes)
    cause_rows = causes.measure(seed, max(20, round(share * CAUSES)))
    print(causes.table(cause_rows))
    streams = print_streams(seed, share)
    parts = [bars.share_row(*line) for line in slices.measure(seed, max(5, round(share * SLICES)))]
    print_rows("which part changed", parts)
    short = [
        row.line
        for row in (
            *rows,
            *spikes,
            *cause_rows,
            *streams,
            *parts,
            *print_flags(pool, seed, share),
            *print_runs(pool, seed, share),
        )
        if not row.met
    ]
    print(f"\nFalls short: {'; '.join(short) or 'nothing'}.\n")


def print_flags(pool: Pool, seed: int, share: float) -> list[bars.Row]:
    """Return the bars of scores that are nearly always 1, line by line."""
    rows = flags.measure(pool, seed, share)
    print_rows("scores that are nearly always 1", rows)
    return rows


def print_runs(pool: Pool, seed: int, share: float) -> list[causes.Row]:
    """Return the bars of the drift of runs, line by line."""
    rows = runs.measure(pool, seed, max(5, round(share * AGENTS)))
    print(causes.table(rows, "the drift of runs"))
    return rows


def print_streams(seed: int, share: float) -> list[causes.Row]:
    """Return the bars of streams whose judge or agent changes, line by line."""
    rows = causes.measure_streams(seed, share)
    print(causes.table(rows, "who changed"))
    return rows


def print_rows(title: str, rows: Sequence[bars.Row]) -> None:
    """Lines with their intervals and bars."""
    print_table([title, "measured", "95 %", "bar", "met"], [[*row[:4], "yes" if row.met else "**no**"] for row in rows])
    print()


def main(arguments: Sequence[str] = ()) -> None:
    """Print the bars and the comparison with other rules."""
    parser = argparse.ArgumentParser("python -m benchmarks drift")
    parser.add_argument("--seed", type=int, default=1, help="Draw other histories.")
    parser.add_argument("--share", type=float, default=1.0, help="Share of the simulations, for a quick look.")
    parser.add_argument("--bars", action="store_true", help="The bars alone, without the comparison with other rules.")
    parser.add_argument("--runs", action="store_true", help="The drift of runs alone.")
    parser.add_argument("--flags", action="store_true", help="Scores that are nearly always 1 alone.")
    parser.add_argument(
        "--lines", action="store_true", help="What the watch says of mixes, batches, sessions and judges alone."
    )
    parser.add_argument(
        "--part", default="", help="With --lines or --bars, only the lines of its first table whose name contains this text."
    )
    parser.add_argument("--streams", action="store_true", help="Streams whose judge or agent changes alone.")
    parser.add_argument("--fleet", action="store_true", help="False changes among all series of 200 projects alone.")
    parser.add_argument("--behaviour", action="store_true", help="The behaviour of agents, which needs no judge, alone.")
    parser.add_argument("--segments", action="store_true", help="Projects of several agents whose mix changes alone.")
    parser.add_argument("--versions", action="store_true", help="Versions of an agent side by side alone.")
    parser.add_argument("--prefilter", action="store_true", help="The cost of the prefilter of many series alone.")
    options = parser.parse_args(arguments)
    if options.lines:
        print_table(lines.HEADER, lines.measure(options.seed, options.share, options.part))
        return
    if options.streams:
        print_streams(options.seed, options.share)
        return
    if options.prefilter:
        cost = bars.prefilter_cost(options.seed)
        print_table(
            ["quiet series, 90 days of 10 sessions", ""],
            [
                ["the bound", f"{cost.bound:.2f} ms"],
                ["the bounds of 250 segments x 12 series", f"{3 * cost.bound:.2f} s"],
                ["the detector", f"{cost.detector:.2f} ms"],
                ["may have changed", share(round(1000 * cost.passed), 1000)],
                ["may have changed, in a family of 250", share(round(1000 * cost.passed_in_family), 1000)],
            ],
        )
        return
    with multiprocessing.Pool() as pool:
        if options.runs:
            print_runs(pool, options.seed, options.share)
        if options.flags:
            print_flags(pool, options.seed, options.share)
        if options.segments:
            print_rows("agents and their mix", segments.measure(pool, options.seed, options.share))
        if options.versions:
            print_rows("versions side by side", versions.measure(pool, options.seed, options.share))
        if options.fleet:
            print_rows("fleets", fleet.measure(pool, options.seed, options.share))
        if options.part:
            print_rows("line", bars.measure(pool, options.seed, options.share, options.part))
        if options.behaviour:
            print(causes.table(behaviour.measure(pool, options.seed, options.share), "the behaviour of agents"))
        is_alone = options.runs or options.flags or options.segments or options.versions or options.behaviour
        if is_alone or options.fleet or options.part:
            return
        print_bars(pool, options.seed, options.share)
        if not options.bars:
            print_comparison(pool)


def print_comparison(pool: Pool) -> None:
    """Each rule on the same histories."""
    if len(compared_rules.RULES) < 5:
        print("river is not installed (benchmarks/requirements.txt): its two rules are left out.\n")
    print(
        f"{RUNS} simulations a cell. Quiet years: {', '.join(f'{years} at {rate} a day' for rate, years in YEARS.items())}.\n"
    )
    print_delays(pool)
    print(f"\n10 scores a day where not said otherwise, a change of one sigma; {SHAPE_YEARS} quiet years.\n")
    print_shapes(pool)
    print(f"\n{ESTIMATED} simulations a row; the intervals are meant to hold the truth in 95 %.\n")
    print_intervals(pool)
