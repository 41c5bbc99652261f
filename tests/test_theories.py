"""The theories of operation: documents at the top of the rooms with the hard mechanisms, and the tests that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.slow_tests import defined_tests

ROOT = Path(__file__).parent.parent
THEORIES = sorted(
    path.relative_to(ROOT) for room in ("analytics", "audit", "service", "streams") for path in (ROOT / room).rglob("README.md")
)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
RULE = re.compile(r"^(\d+)\. \*\*", re.MULTILINE)


def test_the_hard_mechanisms_have_a_theory() -> None:
    """A stranger reads the one of a room before changing anything there, and finds all of them in the guide for contributors."""
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert set(re.findall(r"\(([\w/]+/README\.md)\)", guide)) == {f"{path}" for path in THEORIES}
    assert {
        *("analytics/deletion", "analytics/identity", "service/write"),
        *("streams/judging", "streams/kafka", "streams/log", "streams/replay"),
    } <= {f"{path.parent}" for path in THEORIES}


@pytest.mark.parametrize("theory", THEORIES, ids=lambda path: path.parent.name)
def test_the_tests_of_a_theory_exist(theory: Path) -> None:
    """A rule whose test is gone is a wish."""
    named = NAMED.findall((ROOT / theory).read_text("utf-8"))
    missing = [f"{file}::{name}" for file, name in named if name not in defined_tests(ROOT / file)]
    assert named
    assert missing == []


@pytest.mark.parametrize("theory", THEORIES, ids=lambda path: path.parent.name)
def test_every_rule_has_a_test(theory: Path) -> None:
    """Each number of the rules is in the list of tests."""
    text = (ROOT / theory).read_text("utf-8")
    rules, _, tests = text.partition("## Tests")
    tested = {
        int(number) for line in re.findall(r"^- Rules? ([\d, ]+)", tests, re.MULTILINE) for number in re.findall(r"\d+", line)
    }
    assert tested == {int(number) for number in RULE.findall(rules)}
