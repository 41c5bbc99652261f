"""The files of the plugin's queue, as a test may look at them while a process of OpenClaw writes them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Queue:
    """The folder of a queue: a lane for each process, with files of lines and the place up to which they were delivered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def records(self) -> list[Json]:
        """Every record that is in a file, lane by lane in its order, delivered or not."""
        return [json.loads(line) for lane in self._lanes() for path in _files(lane) for line in _lines(path)]

    def is_empty(self) -> bool:
        """Whether all that is in the files was delivered."""
        return not any(map(self._has_more, self._lanes()))

    def size(self) -> int:
        """Bytes of the largest lane."""
        return max(sum(len(_bytes(path)) for path in _files(lane)) for lane in self._lanes())

    def count(self, counter: str) -> int:
        """How many records were `delivered`, `dropped` or `refused`, over all lanes."""
        return sum(_state(lane).get("counters", {}).get(counter, 0) for lane in self._lanes())

    def refused(self) -> list[Json]:
        """What the server refused."""
        return [json.loads(line) for lane in self._lanes() for line in _lines(lane / "refused.jsonl")]

    def _lanes(self) -> list[Path]:
        return sorted(self.folder.glob("lane-*"))

    def _has_more(self, lane: Path) -> bool:
        cursor = _state(lane).get("cursor", {"segment": 0, "offset": 0})
        for path in _files(lane):
            number, size = int(path.stem), len(_bytes(path))
            if number > cursor["segment"] or (number == cursor["segment"] and size > cursor["offset"]):
                return size > 0
        return False


def identity(record: Json) -> tuple[str, str, str]:
    """What tells a record from every other: its kind, its session and its id."""
    body = record.get("b", {})
    return record["k"], record["s"], body.get("event_id") or body.get("exchange", {}).get("id") or ""


def _files(lane: Path) -> list[Path]:
    return sorted(path for path in lane.glob("*.jsonl") if path.stem.isdigit())


def _bytes(path: Path) -> bytes:
    with suppress(FileNotFoundError):  # it was delivered meanwhile
        return path.read_bytes()
    return b""


def _lines(path: Path) -> list[str]:
    """Whole lines: a kill may have torn the last one."""
    return _bytes(path).decode("utf-8").split("\n")[:-1]


def _state(lane: Path) -> Json:
    text = _bytes(lane / "state.json")
    found: Json = json.loads(text) if text else {}
    return found
