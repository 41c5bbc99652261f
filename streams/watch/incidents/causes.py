"""Causes of incidents in words and numbers: the agent, the judge, or why that is not known.

1. A finding says how far it moved its tier; anchors say how far the judge moved (`audit.anchors.attribution`).
2. One incident may move several tiers, and has one cause. Tiers that tell the same agree; tiers that cannot tell are silent; tiers that
   contradict each other leave the cause not known, because a single cause cannot be both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audit.anchors.attribution import Attribution, Moved
from audit.anchors.judge_change import MIN_ANCHORS
from audit.anchors.judge_shift import FEWEST_ROUNDS
from audit.drift.slices import ARRIVAL
from audit.drift.watched_series import DRIFT, SPREAD, TIERS, UP
from streams.watch.rules.findings import Finding

MIX, HISTORY = "mix", "history"
"""The causes of a change that comes from the shares of the traffic's parts: no part of it explains the change by itself. Of `HISTORY` the
parts are what came when it happened and what was imported later, so nothing happened on the day of the change."""
CAUSES = {
    "judge": "The anchors moved with it: the judge changed, not the agent.",
    "agent": "The judge did not change, as far as anchors or rules show: the agent changed.",
}
"""The cause in words, for incidents that keep no numbers of it."""
_UNKNOWN = "The anchors cannot tell whether the agent or the judge changed"
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of an incident, or why it is not known."""

    cause: str | None
    """agent, judge, mix or history."""
    words: str
    numbers: Mapping[str, Any]
    """The numbers it rests on, as JSON."""


UNEXPLAINED = Explanation(None, "", {})
"""The explanation if the question does not arise, as for a rate of anomalies."""


def moved_by(finding: Finding) -> Moved | None:
    """Return how far a finding moved its tier, on the tier's own scale; None if it is not about the mean of one."""
    if finding.key.type != DRIFT or finding.key.direction is None or finding.expected is None or finding.kind == SPREAD:
        return None
    numbers = finding.numbers
    change = numbers.get("change")
    low, high = numbers.get("changeInterval") or (None, None)
    if not isinstance(change, (int, float)):
        change, low, high = _mean_of_days(finding), None, None
    if change is None or not change:
        return None
    earliest, latest = finding.first_days
    return Moved(
        direction=finding.key.direction,
        size=abs(change),
        error=0.0 if low is None or high is None else abs(high - low) / (2 * _NORMAL),
        earliest=earliest,
        latest=latest,
        until=finding.after[1],
    )


def _mean_of_days(finding: Finding) -> float | None:
    """Return by how much the days of a finding lie off the expected value."""
    days = [one for one in finding.numbers.get("days", ()) if one.get("average") is not None]
    count = sum(one["count"] for one in days)
    if not count or finding.expected is None:
        return None
    total: float = math.fsum(one["average"] * one["count"] for one in days)
    return total / float(count) - finding.expected


def explained(tier: str | None, moved: Moved | None, found: Attribution) -> Explanation:
    """Return the cause of a finding according to the anchors, in words and numbers."""
    if found.reason == "no_size":
        return UNEXPLAINED
    numbers: dict[str, Any] = {"cause": found.cause, "reason": found.reason}
    if found.reason != "rules":
        numbers |= {"anchors": found.anchors, "roundsBefore": found.rounds_before, "roundsSince": found.rounds_since}
    if found.judge is not None:
        numbers |= {"judgeChange": found.judge, "judgeInterval": [found.low, found.high]}
    if moved is not None:
        numbers["tierChange"] = _signed(moved)
    words = _words(TIERS.get(tier or "", "The verdict on runs"), moved, found)
    return Explanation(found.cause, words, {**numbers, "words": words})


def _words(name: str, moved: Moved | None, found: Attribution) -> str:
    if found.reason == "rules":
        return f"{name} comes from fixed rules and not from the judge. The rules did not change, so the agent did."
    lacking = {
        "no_anchors": "none were judged",
        "few_anchors": f"too few were judged before and since, {found.anchors} of {MIN_ANCHORS}",
        "few_rounds_before": f"too few rounds before the change, {found.rounds_before} of {FEWEST_ROUNDS}",
        "few_rounds_since": f"too few rounds since the change, {found.rounds_since} of {FEWEST_ROUNDS}",
    }
    if found.reason in lacking:
        return f"{_UNKNOWN}: {lacking[found.reason]}."
    anchors = (
        f"The anchors moved by {found.judge:+.3f} (95 % interval {found.low:+.3f} to {found.high:+.3f}; {found.anchors} anchors, "
        f"{found.rounds_before} rounds before and {found.rounds_since} since), {name} by {_signed(moved):+.3f}"
    )
    if found.cause == "judge":
        return f"{anchors}: the judge explains most of it."
    if found.cause == "agent":
        return f"{anchors}: the judge explains less than half of it, so the agent changed."
    return f"{anchors}: either the judge or the agent may have changed."


def combined(explanations: Mapping[str, Explanation]) -> Explanation:
    """The cause of one incident that moved several tiers, from what each of them tells by its name."""
    asked = {tier: one for tier, one in explanations.items() if one is not UNEXPLAINED}
    if not asked:
        return UNEXPLAINED
    numbers = {"tiers": {tier: dict(one.numbers) for tier, one in asked.items()}}
    telling = {tier: one for tier, one in asked.items() if one.cause is not None}
    if len({one.cause for one in telling.values()}) > 1:
        named = ", ".join(f"{TIERS.get(tier, tier)} tells of the {one.cause}" for tier, one in telling.items())
        words = f"The tiers contradict each other: {named}. Both may have changed."
        return Explanation(None, words, {"cause": None, "reason": "contradiction", "words": words, **numbers})
    best = next(iter(telling.values()), next(iter(asked.values())))
    return Explanation(best.cause, best.words, {**best.numbers, **(numbers if len(asked) > 1 else {})})


def with_mix(explanation: Explanation, evidence: Mapping[str, Any]) -> Explanation:
    """Return the explanation, or that the mix of the traffic changed if its slices say so and the judge is not the cause."""
    slices = evidence.get("slices")
    mix = slices.get(MIX) if isinstance(slices, dict) else None
    if not isinstance(mix, dict) or explanation.cause == "judge":
        return explanation
    return Explanation(HISTORY if mix["label"] == ARRIVAL else MIX, mix["words"], mix)


def _signed(moved: Moved | None) -> float:
    """The change of the tier, below 0 where it fell."""
    return 0.0 if moved is None else moved.size if moved.direction == UP else -moved.size
