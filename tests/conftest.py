"""What holds for every test."""

from collections.abc import Iterator

import pytest
from trials import load_profile

load_profile()


@pytest.fixture(scope="session", autouse=True)
def _new_files() -> Iterator[None]:
    from new_files import copied  # most of what collecting tests takes is imports

    with copied():
        yield
