"""Causes of incidents in words and numbers: the agent, the judge, or why that is not known.

1. A finding says how far it moved its tier; anchors say how far the judge moved (`audit.anchors.attribution`).
2. One incident may move several tiers, and has one cause. Tiers that tell the same agree; tiers that cannot tell are silent; tiers that
   contradict each other leave the cause not known, because a single cause cannot be both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from audit.anchors.attribution import Attribution, Moved
from audit.anchors.judge_change import MIN_ANCHORS
from audit.anchors.judge_shift import FEWEST_ROUNDS
from audit.drift.incident_evidence import Cause, Evidence
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
    numbers: Cause
    """What the anchors say, and the numbers that this rests on."""
    shares: str = ""
    """Of a changed mix, how they changed."""


UNEXPLAINED = Explanation(None, "", Cause())
"""The explanation if the question does not arise, as for a rate of anomalies."""


def moved_by(finding: Finding) -> Moved | None:
    """Return how far a finding moved its tier, on the tier's own scale; None if it is not about the mean of one."""
    if finding.key.type != DRIFT or finding.key.direction is None or finding.expected is None or finding.kind == SPREAD:
        return None
    numbers = finding.numbers
    change, interval = numbers.change, numbers.change_interval
    if change is None:
        change, interval = _mean_of_days(finding), None
    if not change:
        return None
    earliest, latest = finding.first_days
    return Moved(
        direction=finding.key.direction,
        size=abs(change),
        error=0.0 if interval is None else abs(interval[1] - interval[0]) / (2 * _NORMAL),
        earliest=earliest,
        latest=latest,
        until=finding.after[1],
    )


def _mean_of_days(finding: Finding) -> float | None:
    """Return by how much the days of a finding lie off the expected value."""
    days = [(one.average, one.count) for one in finding.numbers.days or () if one.average is not None]
    count = sum(count for _, count in days)
    if not count or finding.expected is None:
        return None
    return math.fsum(average * count for average, count in days) / count - finding.expected


def explained(tier: str | None, moved: Moved | None, found: Attribution) -> Explanation:
    """Return the cause of a finding according to the anchors, in words and numbers."""
    if found.reason == "no_size":
        return UNEXPLAINED
    words = _words(TIERS.get(tier or "", "The verdict on runs"), moved, found)
    is_judged = found.reason != "rules"
    numbers = Cause(
        cause=found.cause,
        reason=found.reason,
        words=words,
        anchors=found.anchors if is_judged else None,
        rounds_before=found.rounds_before if is_judged else None,
        rounds_since=found.rounds_since if is_judged else None,
        judge_change=found.judge,
        judge_interval=None if found.judge is None else (found.low, found.high),
        tier_change=None if moved is None else _signed(moved),
    )
    return Explanation(found.cause, words, numbers)


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
    tiers = {tier: one.numbers for tier, one in asked.items()}
    telling = {tier: one for tier, one in asked.items() if one.cause is not None}
    if len({one.cause for one in telling.values()}) > 1:
        named = ", ".join(f"{TIERS.get(tier, tier)} tells of the {one.cause}" for tier, one in telling.items())
        words = f"The tiers contradict each other: {named}. Both may have changed."
        return Explanation(None, words, Cause(cause=None, reason="contradiction", words=words, tiers=tiers))
    best = next(iter(telling.values()), next(iter(asked.values())))
    return best if len(asked) == 1 else replace(best, numbers=msgspec.structs.replace(best.numbers, tiers=tiers))


def with_mix(explanation: Explanation, evidence: Evidence) -> Explanation:
    """Return the explanation, or that the mix of the traffic changed if its slices say so and the judge is not the cause."""
    mix = None if evidence.slices is None else evidence.slices.mix
    if mix is None or explanation.cause == "judge":
        return explanation
    return replace(explanation, cause=HISTORY if mix.label == ARRIVAL else MIX, words=mix.words, shares=mix.shares)


def _signed(moved: Moved | None) -> float:
    """The change of the tier, below 0 where it fell."""
    return 0.0 if moved is None else moved.size if moved.direction == UP else -moved.size
