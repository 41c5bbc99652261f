"""Records at hand: what this process has just appended to a topic, for the stages to take up without reading it from the tables again."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.lazy.polars import pl
from streams.stage_batches import OFFSET


class RecordsAtHand:
    """The frames that were appended to each topic since it was cleared, as far as they follow each other without a gap."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Mapping[str, pl.DataFrame]]] = {}
        self._bounds: dict[str, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    def note(self, topic: str, frames: Mapping[str, pl.DataFrame], end: int) -> None:
        """Take in what was appended to a topic, whose end is now at `end`; frames as `Appended` has them."""
        rows = sum(frame.height for frame in frames.values())
        if not rows:
            return
        start, known = self._bounds.get(topic, (end - rows, end - rows))
        if known != end - rows:  # others have appended, too
            start, self._parts[topic] = end - rows, []
        self._parts.setdefault(topic, []).append(frames)
        self._bounds[topic] = start, end

    def rows(self, topic: str, start: int, end: int) -> dict[str, pl.DataFrame] | None:
        """The records of a topic from `start` to its end, by type; None where not all of them are at hand."""
        begun, done = self._bounds.get(topic, (0, 0))
        if not begun <= start < end == done:
            return None
        parts: dict[str, list[pl.DataFrame]] = {}
        for frames in self._parts[topic]:
            for name, frame in frames.items():
                parts.setdefault(name, []).append(frame)
        whole = {name: pl.concat(found) if len(found) > 1 else found[0] for name, found in parts.items()}
        return {name: frame.filter(pl.col(OFFSET) >= start) for name, frame in whole.items()}

    def clear(self) -> None:
        """Forget them."""
        self._parts.clear()
        self._bounds.clear()
