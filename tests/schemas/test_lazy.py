"""Lazy modules load on first use."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schemas.lazy_numpy import LazyModule

THREADS = 8
BODY = "from pathlib import Path\nwith Path({!r}).open('a') as loads:\n    print('loaded', file=loads)\nVALUE = 7\n"


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each time that the module `loaded_late` was loaded."""
    log = tmp_path / "loads"
    (tmp_path / "loaded_late.py").write_text(BODY.format(str(log)))
    log.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loaded_late", raising=False)
    return log


def test_a_lazy_module_loads_with_its_first_name(loads: Path) -> None:
    """Importing a module that uses it costs nothing."""
    late = LazyModule("loaded_late")
    assert loads.read_text() == ""
    assert late.VALUE == 7
    assert late.VALUE == 7
    assert loads.read_text() == "loaded\n"


def test_concurrent_threads_load_a_module_once(loads: Path) -> None:
    """Every thread gets the completely loaded module."""
    late, start = LazyModule("loaded_late"), threading.Barrier(THREADS)

    def value(_: int) -> int:
        start.wait()
        return int(late.VALUE)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(value, range(THREADS))) == [7] * THREADS
    assert loads.read_text() == "loaded\n"


@pytest.mark.usefixtures("loads")
def test_an_unknown_name_is_an_attribute_error() -> None:
    """A lazy module behaves like any other module."""
    with pytest.raises(AttributeError, match="NOTHING"):
        _ = LazyModule("loaded_late").NOTHING
