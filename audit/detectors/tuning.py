"""Tuning thresholds to an agent's own history: the runs that each threshold flags, and a value that would flag hardly any.

1. `MEASURES` has the measure of a run that each threshold limits.
2. The proposal is the smallest value that at most a given share of the runs reaches, and never below the profile's default: a
   quiet history must not make detectors more sensitive, and a history full of failures must not hide the next failure below the
   default.
3. With fewer than MIN_RUNS runs nothing is proposed: of 20 runs, one in a hundred cannot be distinguished from none.

A proposal assumes that the history is normal. Before accepting it, look at the runs that it would no longer flag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from audit.detectors.thresholds import PROFILES, SEVERER, Profile, ProfileName, Thresholds
from audit.diagnosis.evidence import SessionEvidence, duplicates_of

MIN_RUNS = 50
"""Minimum number of runs for a proposal."""

Measure = Callable[[SessionEvidence, Thresholds], float]


def _count_longest_loop(evidence: SessionEvidence, thresholds: Thresholds) -> float:
    counts = (calls.count for calls in evidence.calls.values() if calls.tool not in (None, *thresholds.polling_tools))
    return max(counts, default=0)


def _count_problems(event: str) -> Measure:
    return lambda evidence, _: evidence.problem(event).count


MEASURES: dict[str, Measure] = {
    "loop_calls": _count_longest_loop,
    "critical_retries": lambda evidence, _: evidence.retries_in_scope,
    "lost_memories": _count_problems("memory_event"),
    "unused_outputs": _count_problems("tool_output"),
    "saturation": lambda evidence, _: evidence.fullest,
    "polluted_contexts": _count_problems("context_event"),
    "session_tokens": lambda evidence, _: evidence.total_tokens,
    "exchange_tokens": lambda evidence, _: evidence.new_tokens.max_count,
    "duplicate_calls": lambda evidence, thresholds: duplicates_of(evidence.most_repeated_except(thresholds.polling_tools)),
    "failed_skills": _count_problems("skill_event"),
    "alternating_rounds": lambda evidence, _: evidence.patterns.alternation.rounds if evidence.patterns else 0,
    "near_duplicate_calls": lambda evidence, _: evidence.patterns.near_duplicates if evidence.patterns else 0,
}
"""The measure of a run that each threshold limits; a severer threshold has the same measure."""
MEASURES |= {upper: MEASURES[lower] for lower, upper in SEVERER.items()}


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one threshold on an agent's runs, and the proposed value.

    `median`, `p95`, `p99` and `most` are statistics of the measure over the runs; `flagged` and `proposed_flagged` count the
    runs that reach the value. `runs` are the indexes of those that reach the current value, the newest first.
    """

    threshold: str
    value: float | None
    median: float
    p95: float
    p99: float
    most: float
    flagged: int
    runs: tuple[int, ...]
    proposed: float | None
    proposed_flagged: int

    @property
    def is_changed(self) -> bool:
        """True if the proposed value differs from the current one."""
        return self.proposed != self.value


def tune(
    evidence_by_run: Sequence[tuple[int, SessionEvidence]], profile: Profile, *, share: float, max_runs: int
) -> list[Tuned]:
    """Return the effect of each threshold of a profile on these runs, which are in order of time.

    `share` is the share of runs, 0 to 1, that a proposed value may flag. At most `max_runs` runs are listed for each threshold.
    """
    measurements = {
        name: [(number, measure(evidence, profile.thresholds)) for number, evidence in evidence_by_run]
        for name, measure in MEASURES.items()
    }
    values = {name: [value for _, value in pairs] for name, pairs in measurements.items()}
    proposals = _propose_all(values, profile, share)
    return [
        _measure_threshold(name, measurements[name], profile, proposals[name], max_runs)
        for name in Thresholds.model_fields
        if name in MEASURES
    ]


def proposed_policy(rows: Sequence[Tuned], name: ProfileName, agent: str) -> dict[str, Any]:
    """Return the part of a project's policy that sets the proposals; empty if nothing changes."""
    fields = Thresholds.model_fields
    changes = {str(fields[row.threshold].alias): row.proposed for row in rows if row.is_changed}
    return {"detectors": {"agents": {agent: {name: changes}}}} if changes else {}


def _propose_all(values: dict[str, list[float]], profile: Profile, share: float) -> dict[str, float | None]:
    """Return the proposed value of each threshold; a severer one is never below the other of its kind."""
    proposed = {name: _propose(name, run_values, profile, share) for name, run_values in values.items()}
    for lower, upper in SEVERER.items():
        lower_value = proposed[lower]
        upper_value = proposed[upper]
        if lower_value is not None and upper_value is not None:
            proposed[upper] = max(lower_value, upper_value)
    return proposed


def _propose(name: str, values: Sequence[float], profile: Profile, share: float) -> float | None:
    value: float | None = getattr(profile.thresholds, name)
    if value is None or len(values) < MIN_RUNS:
        return value
    shipped_value = getattr(PROFILES[profile.name], name) or 0
    return max(_find_rare_value(sorted(values), share, name), shipped_value)


def _measure_threshold(
    name: str, measurements: Sequence[tuple[int, float]], profile: Profile, proposed: float | None, max_runs: int
) -> Tuned:
    value = getattr(profile.thresholds, name)
    values = sorted(measured for _, measured in measurements)
    flagged = [number for number, measured in measurements if value is not None and measured >= value]
    proposed_flagged = 0 if proposed is None else sum(measured >= proposed for measured in values)
    return Tuned(
        threshold=name,
        value=value,
        median=_quantile(values, 0.5),
        p95=_quantile(values, 0.95),
        p99=_quantile(values, 0.99),
        most=values[-1] if values else 0,
        flagged=len(flagged),
        runs=tuple(flagged[-max_runs:][::-1]),
        proposed=proposed,
        proposed_flagged=proposed_flagged,
    )


def _find_rare_value(values: Sequence[float], share: float, name: str) -> float:
    """Return the smallest round value that at most this share of the sorted values reaches."""
    allowed = math.floor(share * len(values))
    largest_unflagged = values[len(values) - 1 - allowed]
    limit = math.floor(largest_unflagged) + 1
    if name.endswith("saturation"):
        return float(min(limit, 100))
    if limit < 100:
        return limit
    step = int(10 ** (len(str(limit)) - 2))
    return math.ceil(limit / step) * step


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the sorted values does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else 0
