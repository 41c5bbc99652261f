"""The series that the watch compares, of a project's scores or of an agent's runs: names, scales and directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

DRIFT, SPIKE = "drift", "anomaly_spike"
UP, DOWN = "up", "down"
VERBS = {UP: "rose", DOWN: "fell"}
"""The verb of a title for each direction."""
_FAILURE = "failure:"
SESSION = "session:"
"""Prefix of the series of judged sessions, before `overall` or a dimension."""
BEHAVIOUR = "behaviour:"
"""Prefix of the series of an agent's behaviour, before the name of its measure."""
TOOL_ERRORS = "tool_errors:"
"""Prefix of the shares of a tool's calls that failed."""
OTHER_TOOLS = "*"
"""Takes the place of a tool's name for further tools of an agent."""
_BEHAVIOUR_NAMES = {
    "failed": "Failed turns",
    "empty": "Empty answers",
    "abandoned": "Abandoned turns",
    "refusals": "Refusals",
    "repeats": "Turns with repeated tool calls",
    "tool_calls": "Tool calls per turn",
    "input_tokens": "Input tokens per turn",
    "output_tokens": "Output tokens per turn",
}
SIZES = ("tool_calls", "input_tokens", "output_tokens")
"""The measures of behaviour that are sizes; their values are ln(1 + size)."""
_SIZES = tuple(BEHAVIOUR + measure for measure in SIZES)
MAX_LOG_SIZE = 16.0
"""The end of the scale of sizes: some millions."""
RISING_IS_BAD = ("unsafe", _FAILURE, BEHAVIOUR)
"""Prefixes of the names of series for which a rise is bad."""
MEAN, SPREAD, FURTHER, VERSION = "mean", "spread", "further", "version"
"""Kinds of change: of the mean, of the spread, of the mean again in the same direction while the first change's incident is open, or the
difference of a version from the other versions of its agent."""
NOTICE, WARNING, CRITICAL = "notice", "warning", "critical"
SEVERITIES = (NOTICE, WARNING, CRITICAL)
"""In ascending order. An incident is a notice if no agent changed, only the judge; rules find warnings and critical changes."""
TIERS = {
    "tier1": "Answer structure",
    "tier2": "Answer quality",
    "tier2_5": "Thinking quality",
    "tier3": "Behavior quality",
}
"""The displayed names of the tiers by their columns."""
TIER_NUMBERS = {"tier1": "Tier 1", "tier2": "Tier 2", "tier2_5": "Tier 2.5", "tier3": "Tier 3"}
"""The second names of the tiers, which documents and prompts use."""
_NAMES = {**TIERS, "trust": "Trust", "unsafe": "Unsafe runs", "": "Anomalies", SPIKE: "Anomalies"}
_BOUNDS: Mapping[str, tuple[float, float]] = {"tier3": (1.0, 5.0), "trust": (0.0, 100.0)}
"""The ends of scales other than 0 to 1."""
_SESSION_BOUNDS = (0.0, 10.0)


class Key(NamedTuple):
    """A series of a project or of one of its agents, and the direction of its change."""

    type: str
    tier: str | None
    """Name of the series: a tier, or for runs `trust`, `unsafe` or `failure:<type>`, for judged sessions `session:overall` or `session:<dimension>`,
    for behaviour `behaviour:<measure>`; None for the rate of anomalies."""
    direction: str | None
    agent: str | None = None
    """The agent of the scores or runs, empty if the source tells none; None for a series of the whole project."""
    slice: str | None = None
    """The slice of the scores, such as `agent_version 7`; None for all of them."""

    @property
    def series(self) -> str:
        """The name of the series in references and decisions."""
        name = self.tier or self.type
        name = name if self.agent is None else f"{name} of {self.agent}"
        return name if self.slice is None else f"{name} with {self.slice}"

    @property
    def is_worse(self) -> bool:
        """True if the change is for the worse: down if high is good, up if low is good."""
        rising_is_bad = self.type == SPIKE or (self.tier or "").startswith(RISING_IS_BAD)
        return (self.direction == UP) == rising_is_bad


class Series(NamedTuple):
    """A series of an incident, with the direction and the kind of its change."""

    key: Key
    kind: str = MEAN

    @property
    def is_worse(self) -> bool | None:
        """True if the change is for the worse, None if it is neither better nor worse by itself.

        A wider spread is worse, because sessions get less reliable. A narrower one is neither: the weakest may have improved or the best
        become worse.
        """
        if self.kind != SPREAD:
            return self.key.is_worse
        return True if self.key.direction == UP else None

    def opposes(self, other: Series) -> bool:
        """Return whether one change is for the worse and the other for the better."""
        return None not in (self.is_worse, other.is_worse) and self.is_worse != other.is_worse

    @property
    def measure(self) -> str:
        """The displayed name of what the series measures, without its agent."""
        name = name_series(self.key.tier or "")
        if self.kind == SPREAD:
            name = f"Spread of {lower_first(name)}"
        if self.key.slice is not None:
            name = f"{name} with {name_slice(self.key.slice)}"
        return name

    @property
    def name(self) -> str:
        """The displayed name of the series."""
        name = self.measure
        if self.kind == FURTHER:
            name = f"{name}, further"
        elif self.kind == VERSION:
            name = f"{name}, beside other versions"
        return f"{name} ({self.key.agent})" if self.key.agent else name


def name_series(series: str) -> str:
    """Return the displayed name of a series, such as `tier2`; empty stands for the rate of anomalies."""
    if series.startswith(_FAILURE):
        return f"Runs with {series.removeprefix(_FAILURE).replace('_', ' ')}"
    if series.startswith(SESSION):
        return f"Session judge: {series.removeprefix(SESSION)}"
    if series.startswith(BEHAVIOUR):
        return name_behaviour(series.removeprefix(BEHAVIOUR))
    return _NAMES.get(series, series)


def name_slice(name: str) -> str:
    """Return the displayed name of a slice or a deployed version: `agent_version 7` becomes `version 7`."""
    label, separator, value = name.partition(" ")
    return f"{label.removeprefix('agent_').replace('_', ' ')}{separator}{value}"


def lower_first(name: str) -> str:
    """Return a name for the middle of a sentence."""
    return name[:1].lower() + name[1:]


def name_behaviour(measure: str) -> str:
    """Return the displayed name of a measure of behaviour."""
    if measure.startswith(TOOL_ERRORS):
        tool = measure.removeprefix(TOOL_ERRORS)
        return "Errors in other tools" if tool == OTHER_TOOLS else f"Errors in {tool}"
    return _BEHAVIOUR_NAMES.get(measure, measure)


def is_size(series: str | None) -> bool:
    """Return whether the values of a series are logarithms of 1 + size."""
    return series in _SIZES


def is_share(series: str | None) -> bool:
    """Return whether the values of a series are shares of exchanges, runs, turns or calls."""
    return not series or series == SPIKE or (series.startswith(RISING_IS_BAD) and series not in _SIZES)


def format_level(series: str | None, value: float) -> str:
    """Return a value of a series for people: a share in percent, the size of a typical turn, or a score."""
    if series in _SIZES:
        size = math.expm1(value)
        return f"{size:,.0f}" if size >= 10 else f"{size:.1f}"
    if is_share(series):
        return f"{value:.0%}" if value == 0 or value >= 0.1 else f"{value:.1%}".replace(".0%", "%")
    return f"{value:.1f}" if series == "trust" or (series or "").startswith(SESSION) else f"{value:.2f}"


_SIZE_VERBS = {"halved": 1 / 2, "doubled": 2.0, "tripled": 3.0}
_SIZE_TOLERANCE = 0.1
"""How far from the ratio a verb of size may be, as a share of it, to be true for a reader of the levels."""


def describe_change(series: Series, before: float, after: float) -> str:
    """Return a change of a mean for the middle of a title, such as `answer quality halved (0.90 → 0.47)`."""
    tier = series.key.tier
    levels = (format_level(tier, level) for level in (before, after))
    verb = VERBS[DOWN if after < before else UP]
    if series.kind == FURTHER:
        verb = f"{verb} further"
    # Half is a statement only on scales that begin at zero.
    elif bounds_of(tier)[0] == 0 and before > 0:
        sizes = [math.expm1(level) if tier in _SIZES else level for level in (before, after)]
        ratio = sizes[1] / sizes[0]
        verb = next((name for name, size in _SIZE_VERBS.items() if abs(ratio / size - 1) <= _SIZE_TOLERANCE), verb)
    return f"{lower_first(series.measure)} {verb} ({' → '.join(levels)})"


def describe_difference(key: Key, level: float, others_level: float) -> str:
    """Return the difference of a version from the others of its agent, for the middle of a title."""
    tier = key.tier or ""
    verb = "are" if tier.startswith(BEHAVIOUR) else "is"
    side = "higher" if level > others_level else "lower"
    levels = f"{format_level(tier, level)}, not {format_level(tier, others_level)} on the same days"
    return f"{lower_first(name_series(tier))} {verb} {side} with {name_slice(key.slice or '')} than with the others ({levels})"


def format_date(day: date) -> str:
    """Return a day for a title, such as `25 November 2026`. Titles are kept, so the year is part of it."""
    return f"{day.day} {day:%B %Y}"


def bounds_of(series: str | None) -> tuple[float, float]:
    """Return the lowest and the highest possible value of a series."""
    if series is not None and series.startswith(SESSION):
        return _SESSION_BOUNDS
    if series in _SIZES:
        return (0.0, MAX_LOG_SIZE)
    return _BOUNDS.get(series or "", (0.0, 1.0))


def is_more_severe(severity: str, other: str) -> bool:
    """Return whether one severity is above another."""
    return SEVERITIES.index(severity) > SEVERITIES.index(other)
