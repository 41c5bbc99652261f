"""Has the judge changed? Anchors are exchanges that do not change, so what is said of them over the rounds tells.

1. Under a judge that does not change, the verdicts on one anchor could as well have come in any other order: each new one is as likely
   as any of those before it to have any rank among them. So the share of earlier verdicts below the new one, less that above, is zero on average.
2. A bet on that share going up (or down) is fair, and its winnings multiply over anchors and rounds. What begins with 1 and is a
   fair bet reaches 1 / a with a chance of a at most, however often one looks (Ville 1939); ranks make it hold for verdicts of any
   distribution (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, on exchangeability martingales).
3. Bets of several sizes begin at every round, each with its part of the stake, so that a late change is found as well.
4. The chance that a judge that never changes is ever said to have changed is ERROR for a tier, half of it for each direction.
5. How large the change is, is told by each anchor's mean since the change less its mean before; anchors are independent, rounds are not.

Assumed is that the verdicts on different anchors are independent. A day on which a judge is harsher with all of them is a change of
the judge, if a short one. All values are on a scale from 0 to 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from audit.comparison import PairedSums, paired_interval

ERROR = 0.01
"""Chance, for ever, that a tier's judge is wrongly said to have changed."""
MIN_ANCHORS = 8
"""With fewer nobody is said to be the cause."""
NEGLIGIBLE = 0.05
"""A change of the judge below this, a twentieth of the scale, does not explain an incident."""
NEAR = timedelta(days=7)
"""How far the first day of a change, as an incident estimates it, may be off."""
UP, DOWN = "up", "down"
_BETS = (0.15, 0.4, 0.8)
_RESOLUTION = 0.05
Cause = Literal["agent", "judge"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a tier said of an anchor in a round."""

    anchor: str
    at: datetime
    """When the round began; the same for all of it."""
    value: float
    """0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeChange:
    """What the anchors say of a tier's judge."""

    changed: bool
    direction: str | None
    """up or down; None where it has not changed."""
    since: datetime | None
    """First round that shows the change, at the likeliest."""
    evidence: float
    """What the better of the two bets has come to; 2 / ERROR is the proof."""
    size: float | None
    """Mean of the anchors since then less that before; since the last round where nothing changed. None without two rounds."""
    low: float | None
    high: float | None
    anchors: int
    """Anchors that the size rests on."""
    rounds: int


def judge_change(verdicts: Sequence[Verdict], since: datetime | None = None) -> JudgeChange:
    """Whether a tier's judge has changed: ever, or with `since` about then, which must not have been chosen by these verdicts."""
    rounds = _rounds(verdicts)
    times = list(rounds)
    starts = _starts(times, since)
    evidence, direction, found = max(_evidence(rounds, starts, sign) for sign in (1, -1)) if starts else (0.0, 0, 0)
    changed = evidence >= 2 / ERROR
    at = times[found] if changed else (since or (times[-1] if len(times) > 1 else None))
    differences = [] if at is None else list(_differences(rounds, at))
    size, low, high = _size(differences)
    return JudgeChange(
        changed=changed,
        direction=(UP if direction > 0 else DOWN) if changed else None,
        since=times[found] if changed else None,
        evidence=evidence,
        size=size,
        low=low,
        high=high,
        anchors=len(differences),
        rounds=len(times),
    )


def cause_by(change: JudgeChange, direction: str) -> Cause | None:
    """What made a tier's scores go in a direction, by what the anchors say of about that time.

    The judge, where it went the same way. The agent, where the judge can have moved that way by a negligible part of the scale at
    most. None where the anchors say neither, or are too few.
    """
    if change.anchors < MIN_ANCHORS or change.low is None or change.high is None:
        return None
    if change.changed and change.direction == direction:
        return "judge"
    furthest = change.high if direction == UP else -change.low
    return "agent" if furthest < NEGLIGIBLE else None


def _rounds(verdicts: Sequence[Verdict]) -> dict[datetime, dict[str, float]]:
    """The verdicts of each round by anchor, in order of time."""
    rounds: dict[datetime, dict[str, float]] = defaultdict(dict)
    for one in sorted(verdicts, key=lambda one: (one.at, one.anchor)):
        rounds[one.at][one.anchor] = one.value
    return rounds


def _starts(times: Sequence[datetime], since: datetime | None) -> dict[int, float]:
    """At which rounds bets begin, and with what part of the stake."""
    if since is None:
        return {place: 1 / (place * (place + 1)) for place in range(1, len(times))}
    places = [place for place, at in enumerate(times) if place and abs(at - since) <= NEAR]
    places = places or [place for place, at in enumerate(times) if place and at >= since][:1]
    return {place: 1 / len(places) for place in places}


def _evidence(rounds: Mapping[datetime, Mapping[str, float]], starts: Mapping[int, float], sign: int) -> tuple[float, int, int]:
    """The highest that the bets on a direction ever came to, the direction, and where the bet that gave most began."""
    bets: dict[tuple[int, float], float] = {}
    highest, began = 0.0, min(starts)
    for place, shares in enumerate(_shares(rounds)):
        bets.update({(place, bet): 0.0 for bet in _BETS if place in starts})
        won = {bet: math.fsum(math.log1p(sign * bet * share) for share in shares) for bet in _BETS}
        bets = {key: gain + won[key[1]] for key, gain in bets.items()}
        worth = {(start, bet): starts[start] / len(_BETS) * math.exp(min(gain, 700.0)) for (start, bet), gain in bets.items()}
        # The stake of bets that have not begun lies idle.
        total = math.fsum(worth.values()) + math.fsum(part for start, part in starts.items() if start > place)
        if total > highest:
            highest = total
            # Where verdicts stay as they are, all bets that begin before the change gain alike: the last of them is nearest to it.
            began = max(bets, key=lambda key: (round(bets[key], 9), key[0]))[0] if bets else began
    return highest, sign, began


def _shares(rounds: Mapping[datetime, Mapping[str, float]]) -> Iterator[list[float]]:
    """For each round and each anchor that was judged before: the share of earlier verdicts below, less that above, of all with the new one."""
    earlier: dict[str, list[float]] = defaultdict(list)
    for verdicts in rounds.values():
        shares = []
        for anchor, value in verdicts.items():
            known = earlier[anchor]
            if known:
                shares.append((sum(one < value for one in known) - sum(one > value for one in known)) / (len(known) + 1))
            known.append(value)
        yield shares


def _differences(rounds: Mapping[datetime, Mapping[str, float]], at: datetime) -> Iterator[float]:
    """Of each anchor that was judged before and since: its mean since, less its mean before."""
    before: dict[str, list[float]] = defaultdict(list)
    after: dict[str, list[float]] = defaultdict(list)
    for when, verdicts in rounds.items():
        for anchor, value in verdicts.items():
            (before if when < at else after)[anchor].append(value)
    for anchor in sorted(before.keys() & after.keys()):
        yield math.fsum(after[anchor]) / len(after[anchor]) - math.fsum(before[anchor]) / len(before[anchor])


def _size(differences: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The mean of the differences with its 95 % interval.

    Two anchors are added, a step to either side of the mean: verdicts are coarse, and a dozen that did not move do not prove that none would.
    """
    if len(differences) < 2:
        return None, None, None
    mean = math.fsum(differences) / len(differences)
    interval = paired_interval(PairedSums.of([[one] for one in (*differences, mean - _RESOLUTION, mean + _RESOLUTION)]))
    if interval is None:
        return mean, None, None
    return mean, interval.low, interval.high
