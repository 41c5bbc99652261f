"""What holds for every test."""

import gc
from collections.abc import Iterator

import pytest
from support import slow_tests
from support.effort import load_profile

load_profile()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow before `-m` selects."""
    slow_tests.mark(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected, and never look through tests and modules: they live as long as the process.

    Looking through them again and again was an eighth of what collecting takes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _new_files() -> Iterator[None]:
    from support.database_files import copied  # most of what collecting tests takes is imports

    with copied():
        yield
