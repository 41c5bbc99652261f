"""OpenClaw for the tests of this folder: the newest one, and state folders in which each version played the scenarios."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.npm import or_skip

from openclaw.install import Installed, Version, installed
from openclaw.played import Played, played_on, shared_folder


@pytest.fixture(scope="session")
def newest_openclaw() -> Installed:
    """The newest OpenClaw that tests run; without npm they are skipped, and in CI they fail."""
    return or_skip(installed)


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Version], Played]:
    """What a version played, by version; without npm tests are skipped, and in CI they fail."""
    folder = shared_folder(tmp_path_factory)
    return lambda version: or_skip(lambda: played_on(version, installed, folder))
