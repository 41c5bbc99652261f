"""Paths of artifacts as text: compared however a machine writes them, and never looked up."""

from __future__ import annotations

import posixpath
import re

_DRIVE = re.compile(r"[A-Za-z]:/")


def normalised(path: str) -> str:
    """The path with slashes, without `./` and without `..` where a folder precedes it."""
    return posixpath.normpath(path.strip().replace("\\", "/"))


def is_recorded_as(wanted: str, recorded: str) -> bool:
    """Tell whether an artifact recorded under one path is the wanted one: an absolute recorded path matches by its end."""
    path, own = normalised(wanted), normalised(recorded)
    is_absolute = own.startswith(("/", "~/")) or _DRIVE.match(own) is not None
    return path == own or (is_absolute and own.endswith("/" + path))
