"""Codex rollouts: `<root>/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`, old ones compressed, archived ones elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from streams.sources.agent_files import COMPRESSED, jsonl_below, read_agent_file
from streams.sources.codex.lines import SOURCE, CodexDialect
from streams.sources.source import Reading, ReadingContext

_NAMES = ("rollout-*.jsonl", f"rollout-*.jsonl{COMPRESSED}")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def find_codex(path: Path) -> list[Path]:
    """The rollouts at a path, sorted: the file itself, or every `rollout-*.jsonl` below a folder, compressed ones included.

    Hidden files and symbolic links are left out, and so is a compressed rollout beside itself. InputError when there is nothing at
    the path.
    """
    if path.is_file():
        return [path]
    found = jsonl_below(path, *_NAMES)
    plain = set(found)
    return [file for file in found if file.suffix != COMPRESSED or file.with_suffix("") not in plain]


def read_codex(path: Path, context: ReadingContext) -> Reading:
    """Read one rollout; InputError when the file cannot be opened."""
    stem = path.name.removesuffix(COMPRESSED).removesuffix(".jsonl")
    named = _ID.search(stem)
    return read_agent_file(path, context, CodexDialect(), session_id=named.group() if named else stem, agent=SOURCE)
