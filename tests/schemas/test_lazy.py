"""Libraries that load when they are first used."""

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
    """Importing what uses it costs nothing."""
    late = LazyModule("loaded_late")
    assert loads.read_text() == ""
    assert [late.VALUE, late.VALUE] == [7, 7]
    assert loads.read_text() == "loaded\n"


def test_threads_that_come_at_once_load_it_once(loads: Path) -> None:
    """Each finds the whole module, whoever was first."""
    late, start = LazyModule("loaded_late"), threading.Barrier(THREADS)

    def value(_: int) -> int:
        start.wait()
        return int(late.VALUE)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(value, range(THREADS))) == [7] * THREADS
    assert loads.read_text() == "loaded\n"


@pytest.mark.usefixtures("loads")
def test_a_name_that_is_not_there_is_an_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="NOTHING"):
        _ = LazyModule("loaded_late").NOTHING
