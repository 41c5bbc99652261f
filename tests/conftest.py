"""What holds for every test."""

from collections.abc import Iterator

import pytest
import slow_tests
from trials import load_profile

load_profile()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow before `-m` selects."""
    slow_tests.mark(items)


@pytest.fixture(scope="session", autouse=True)
def _new_files() -> Iterator[None]:
    from new_files import copied  # most of what collecting tests takes is imports

    with copied():
        yield
