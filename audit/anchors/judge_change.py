"""Judge change: anchors stay the same, so a change of their scores is the judge's.

1. Under a judge that does not change, the verdicts on one anchor could as well have come in any other order: each new one is as likely
   as any of those before it to have any rank among them. So the share of earlier verdicts below the new one, less that above, is zero on average.
2. A bet on that share going up (or down) is fair, and its winnings multiply over anchors and rounds. What begins with 1 and is a
   fair bet reaches 1 / a with a chance of a at most, however often one looks (Ville 1939); ranks make it hold for verdicts of any
   distribution (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, on exchangeability martingales).
3. Bets of several sizes begin at every round, each with its part of the stake, so that a late change is found as well.
4. The chance that a judge that never changes is ever said to have changed is ERROR for a tier, half of it for each direction.
5. The bets take the verdicts on different anchors to be independent. A judge with moods, harsher with all of them on some days, breaks
   that. So the change has to be more than rounds differ anyway as well (`audit.anchors.judge_shift`), wherever among them it was looked for.

All values are on a scale from 0 to 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from audit.anchors.judge_shift import FEWEST_ROUNDS, Shift, Verdict, by_round, shift_between, sides

ERROR = 0.01
"""Chance, for ever, that a tier's judge is wrongly said to have changed."""
MIN_ANCHORS = 8
"""With fewer, no cause is named."""
UP, DOWN = "up", "down"
_BETS = (0.15, 0.4, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeChange:
    """The finding of the anchors about a tier's judge."""

    changed: bool
    direction: str | None
    """up or down; None where it has not changed."""
    since: datetime | None
    """First round that shows the change, at the likeliest."""
    evidence: float
    """The outcome of the better of the two bets; 2 / ERROR is the proof."""
    size: float | None
    """Mean of the anchors since then less that before; of the last two rounds where nothing changed. None without
    two rounds on either side."""
    low: float | None
    high: float | None
    anchors: int
    """Anchors that the size rests on."""
    rounds: int


def judge_change(verdicts: Sequence[Verdict]) -> JudgeChange:
    """Tell whether a tier's judge has ever changed."""
    rounds = by_round(verdicts)
    times = list(rounds)
    starts = {place: 1 / (place * (place + 1)) for place in range(1, len(times))}
    evidence, direction, found = max(_evidence(rounds, starts, sign) for sign in (1, -1)) if starts else (0.0, 0, 0)
    place = found if evidence >= 2 / ERROR else max(1, len(times) - FEWEST_ROUNDS)
    compared = sides(rounds, times[:place], times[place:])
    shift = shift_between(rounds, compared)
    reach = math.nan if shift is None else shift.reach()
    changed = evidence >= 2 / ERROR and shift is not None and _is_beyond_moods(shift, direction, len(times))
    return JudgeChange(
        changed=changed,
        direction=(UP if direction > 0 else DOWN) if changed else None,
        since=times[found] if changed else None,
        evidence=evidence,
        size=None if shift is None else shift.size,
        low=None if shift is None else shift.size - reach,
        high=None if shift is None else shift.size + reach,
        anchors=len(compared.anchors),
        rounds=len(times),
    )


def _is_beyond_moods(shift: Shift, direction: int, rounds: int) -> bool:
    """Tell whether a shift exceeds the differences between rounds, wherever among them it was looked for."""
    return shift.size * direction > shift.moods_reach(1 - ERROR / rounds)


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
