"""The version of the program."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return the installed version; a checkout that was not installed has none."""
    try:
        return importlib.metadata.version("driftline")
    except importlib.metadata.PackageNotFoundError:
        return "0+checkout"
