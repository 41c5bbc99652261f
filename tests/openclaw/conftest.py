"""The newest OpenClaw for the tests of this folder."""

from __future__ import annotations

import pytest
from npm import or_skip

from openclaw.install import Installed, installed


@pytest.fixture(scope="session")
def newest_openclaw() -> Installed:
    """The newest OpenClaw that tests run; without npm they are skipped, and in CI they fail."""
    return or_skip(installed)
