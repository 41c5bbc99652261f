"""The version of the program."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """The version that is installed; a checkout that runs as it is has none."""
    try:
        return importlib.metadata.version("driftline")
    except importlib.metadata.PackageNotFoundError:
        return "0+checkout"
