"""Files below a folder that another program writes: hidden ones and those behind symbolic links are left alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def visible_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of these names below a folder, sorted, without hidden ones and those behind a link."""
    found = {file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()}
    return sorted(file for file in found if not file.name.startswith(".") and not is_linked(file, folder))


def is_linked(file: Path, folder: Path) -> bool:
    """Tell whether a step from the folder to the file is a symbolic link: that may lead to any file of the machine."""
    return any(step.is_symlink() for step in (file, *file.parents) if folder in step.parents)
