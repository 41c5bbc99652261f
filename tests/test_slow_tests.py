"""The list of slow tests: it names tests that exist, and leaves some of every kind to `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import slow_tests
from support.slow_tests import PROCESSOR, WALL, defined_tests, function_of, listed, measured, slow_among

ROOT = Path(__file__).parent.parent
KINDS = ("kafka", "browser", "openclaw", "service/http", "service/pages", "service/cli", "streams/replay", "analytics/store")


def functions_in(file: Path) -> set[str]:
    """The test functions of a file, as the list names them."""
    return {f"{file.relative_to(ROOT)}::{name}" for name in defined_tests(file)}


def test_every_slow_test_exists() -> None:
    """A test that was renamed would run in `make test` again, unmeasured."""
    files = {name.partition("::")[0] for name in listed()}
    assert listed() - set().union(*(functions_in(ROOT / file) for file in files)) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_some_tests_of_every_kind_are_quick(kind: str) -> None:
    """`make test` tries a broker, a browser, a server and a command, though not every one of their tests."""
    every = set().union(*map(functions_in, (ROOT / "tests" / kind).rglob("test_*.py")))
    assert every - listed()


def test_a_test_is_slow_by_its_mean_over_its_parameters(tmp_path: Path) -> None:
    """Five hundred quick cases of one test stay, however long they take together."""
    runs = {
        "a.py::test_many": [(0.1, 0.2)] * 500,
        "a.py::test_long": [(PROCESSOR + 0.1, 0.7)],
        "b.py::test_waits": [(0.0, WALL + 1)],
    }
    lines = [f"{name}\t{processor}\t{wall}\n" for name, found in runs.items() for processor, wall in found]
    (tmp_path / "gw0.tsv").write_text("".join(lines))

    assert runs == measured(tmp_path)
    assert slow_among(measured(tmp_path)) == ["a.py::test_long", "b.py::test_waits"]
    assert function_of("a.py::test_many[a::b[c]]") == "a.py::test_many"


def test_a_slow_test_is_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is what `make test` and `make test-slow` select by."""
    monkeypatch.setattr(slow_tests, "listed", lambda: frozenset({function_of(request.node.nodeid)}))
    slow_tests.mark([request.node])
    assert request.node.get_closest_marker("slow") is not None
