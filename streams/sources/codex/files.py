"""Codex rollouts: `<root>/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`, old ones compressed, archived ones elsewhere.

The first versions wrote `<root>/sessions/rollout-<date>-<id>.json`, one JSON object, whole each time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

import zstandard

from streams.sources.agent_files import jsonl_below, read_agent_file
from streams.sources.codex.forks import count_copied
from streams.sources.codex.lines import SOURCE, CodexDialect
from streams.sources.codex.rollout_lines import document_lines
from streams.sources.folders import may_be_copy
from streams.sources.line_files import COMPRESSED
from streams.sources.lines import Line
from streams.sources.source import Reading, ReadingContext

DOCUMENT = ".json"
"""Suffix of a rollout that is one JSON object."""
MAX_DOCUMENT = 256 * 1024 * 1024
"""Bytes of the largest such rollout that is read."""
_NAMES = ("rollout-*.jsonl*", f"rollout-*{DOCUMENT}")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def find_codex(path: Path) -> list[Path]:
    """The rollouts at a path, sorted: the file itself, or every `rollout-*.jsonl` below a folder, compressed ones included.

    Hidden files and symbolic links are left out, and so is a compressed rollout beside itself. InputError when there is nothing at
    the path.
    """
    if path.is_file():
        return [path]
    found = [file for file in jsonl_below(path, *_NAMES) if file.suffix in (COMPRESSED, DOCUMENT) or may_be_copy(file.name)]
    plain = set(found)
    return [file for file in found if file.suffix != COMPRESSED or file.with_suffix("") not in plain]


def read_codex(path: Path, context: ReadingContext) -> Reading:
    """Read one rollout; InputError when the file cannot be opened."""
    stem = path.name.removesuffix(COMPRESSED).removesuffix(".jsonl").removesuffix(DOCUMENT)
    named = _ID.search(stem)
    session_id = named.group() if named else stem
    if path.suffix == DOCUMENT:
        return read_agent_file(path, context, CodexDialect(), session_id=session_id, agent=SOURCE, lines_of=_document_lines)
    try:
        copied = count_copied(path)
    except (OSError, zstandard.ZstdError):
        copied = 0  # the reading itself says what is wrong
    return read_agent_file(path, context, CodexDialect(copied), session_id=session_id, agent=SOURCE)


def _document_lines(stream: BinaryIO) -> list[Line]:
    document = stream.read(MAX_DOCUMENT + 1)
    if len(document) > MAX_DOCUMENT:
        raise ValueError(f"has more than {MAX_DOCUMENT} bytes")
    return document_lines(document)
