"""The versions of Driftline and of its trial gear."""

from __future__ import annotations

import importlib.metadata
import importlib.util

TRIAL = "driftline_trial"
"""The package of the trial gear, a separate distribution. Only the command line imports it, when one of its commands is run."""
GET_TRIAL = "`pip install driftline-trial`, or `pip install ./trial` in a checkout of Driftline"
"""How to get the trial gear."""


def version() -> str:
    """Return the installed version; a checkout that is not installed has no version."""
    return _version_of("driftline")


def trial_version() -> str | None:
    """Return the version of the trial gear; None if it is not installed."""
    return _version_of("driftline-trial") if importlib.util.find_spec(TRIAL) else None


def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "0+checkout"
