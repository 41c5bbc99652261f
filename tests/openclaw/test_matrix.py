"""The documents say what was tried, and nothing else."""

from __future__ import annotations

from pathlib import Path

from openclaw.matrix import table

DOCUMENT = Path(__file__).parents[2] / "docs" / "openclaw.md"


def test_the_table_says_what_the_tests_play() -> None:
    """A reader decides by it whether an import of an older version can be trusted."""
    assert "\n".join(table()) in DOCUMENT.read_text("utf-8")
