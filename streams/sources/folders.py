"""Files below a folder that another program writes: hidden ones and those behind symbolic links are left alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_COPY = re.compile(r"\.jsonl(?:~|[.\-_ ][^/]{0,120})?\Z")
_NO_COPIES = (".zst", ".gz", ".tmp", ".lock", ".partial", ".swp")


def may_be_copy(name: str) -> bool:
    """Tell whether a name is that of a file of JSON lines, or of a backup of one: `a.jsonl`, `a.jsonl.bak`, `a.jsonl~`."""
    return _COPY.search(name) is not None and not name.endswith(_NO_COPIES)


def visible_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of these names below a folder, sorted, without hidden ones and those behind a link."""
    found = {file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()}
    return sorted(file for file in found if not file.name.startswith(".") and not is_linked(file, folder))


def is_linked(file: Path, folder: Path) -> bool:
    """Tell whether a step from the folder to the file is a symbolic link: that may lead to any file of the machine."""
    return any(step.is_symlink() for step in (file, *file.parents) if folder in step.parents)
