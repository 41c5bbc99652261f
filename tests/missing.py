"""Programs that tests need and a machine may lack: a browser, a broker, a package."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def without(reason: object) -> NoReturn:
    """Skip the test, saying what is missing; in CI, where a skip is read by nobody, fail."""
    if "CI" in os.environ:
        pytest.fail(f"CI has to run this test: {reason}", pytrace=False)
    pytest.skip(str(reason))
