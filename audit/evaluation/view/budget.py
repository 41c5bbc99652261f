"""Dividing the room of the view: between its sections, between the items of a list, and between the texts of an item.

Everything is a whole number of characters and depends on the content alone. A section that wants less than its share leaves the
rest to the others. An item that has no room is left out, and what stands in its place says how many of what kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from audit.evaluation.view.untrusted_text import LEAST, Text, left_out, size

_ENOUGH = 360
"""Characters of its texts that an item is to have before another one is taken in."""
_GAP = 110
"""Most that saying what is left out of a list takes."""
LEAST_LIST = _GAP + 2
"""Room in which a list can at least say that it is left out."""


@dataclass(frozen=True)
class Item:
    """Something in a list: a frame with texts in it."""

    frame: str
    """The JSON around the texts, with `{}` where one goes; braces of its own are doubled."""
    texts: tuple[Text, ...]
    counts: Mapping[str, int]
    """The numbers of things that are missing when it is left out: `{"calls": 1}`."""

    @cached_property
    def _bare(self) -> int:
        return len(self.frame.format(*("" for _ in self.texts)))

    @cached_property
    def wanted(self) -> int:
        """About how much room it takes."""
        return self._bare + sum(text.wanted for text in self.texts)

    @cached_property
    def least(self) -> int:
        """Room it needs to be worth showing; with it, every text is shown or said to be left out."""
        return self._bare + sum(max(LEAST, min(text.wanted, _ENOUGH // len(self.texts))) for text in self.texts)

    def render(self, room: int) -> str:
        """The item in at most `room` characters, of which there are at least `least`."""
        return self.frame.format(
            *shared([text.render for text in self.texts], [t.wanted for t in self.texts], room - self._bare)
        )


@dataclass(frozen=True)
class Listing:
    """A list of items; those that come first in `order` are the last to be left out."""

    items: Sequence[Item]
    order: Sequence[int] | None = None
    """None: first and last in turn."""

    @cached_property
    def wanted(self) -> int:
        """About how much room it takes."""
        return 2 + sum(item.wanted + 1 for item in self.items)

    def render(self, room: int) -> str:
        """The list in at most `room` characters, of which there are at least `LEAST_LIST`."""
        chosen = sorted(self._chosen(room))
        gaps = self._gaps(chosen)
        free = room - 2 - sum(len(gap) + 1 for gap in gaps.values()) - len(chosen)
        items = [self.items[at] for at in chosen]
        shown = shared([item.render for item in items], [item.wanted for item in items], free, [item.least for item in items])
        pieces: list[str] = []
        for at, piece in zip(chosen, shown, strict=True):
            pieces += [gaps[at], piece] if at in gaps else [piece]
        return f"[{','.join([*pieces, *([gaps[len(self.items)]] if len(self.items) in gaps else [])])}]"

    def _chosen(self, room: int) -> set[int]:
        """Positions of the items that there is room for."""
        count = len(self.items)
        chosen: set[int] = set()
        used, gaps = 2, 1
        for at in self.order if self.order is not None else outside_in(count):
            beside = [near for near in (at - 1, at + 1) if 0 <= near < count and near not in chosen]
            used += self.items[at].least + 1
            gaps += len(beside) - 1
            if used + gaps * _GAP > room:
                break
            chosen.add(at)
        return chosen

    def _gaps(self, chosen: Sequence[int]) -> dict[int, str]:
        """Return, for each of the chosen positions and for the end, the mark of what is left out before it."""
        gaps = {}
        start = 0
        for at in (*chosen, len(self.items)):
            if start < at:
                gaps[at] = left_out(**sum((Counter(item.counts) for item in self.items[start:at]), Counter[str]()))
            start = at + 1
        return gaps


def outside_in(count: int) -> Iterator[int]:
    """Positions from both ends in turn: 0, the last, 1, the last but one, and so on."""
    for near in range((count + 1) // 2):
        yield near
        if near != count - 1 - near:
            yield count - 1 - near


def shared(
    renders: Sequence[Callable[[int], str]], wanted: Sequence[int], room: int, least: Sequence[int] | None = None
) -> list[str]:
    """Render each in an equal share of the room; room that one does not take goes to those that want more.

    Each gets at least its `least` (or `LEAST`), of which the sum must not be more than the room.
    """
    floors = least if least is not None else [LEAST] * len(renders)
    shown = [""] * len(renders)
    reserved = sum(floors)
    order = sorted(range(len(renders)), key=lambda at: (wanted[at], at))
    for done, at in enumerate(order):
        reserved -= floors[at]
        share = max(floors[at], min(room - reserved, room // (len(order) - done)))
        shown[at] = renders[at](share)
        room -= size(shown[at])
    return shown
