"""The report of a chaos run, which is written at the end of hours of work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from chaos.report import BEGIN, END, write
from chaos.run import Outcome

OUTCOME = Outcome(rounds=3, seed=7, happened=Counter({"kill -9 of a worker": 2}), counted={"exchanges": 1_234}, seconds=90.0)


def test_a_report_is_written_where_there_is_no_page_yet(tmp_path: Path) -> None:
    """A run that fails at its last step has lost hours."""
    page = tmp_path / "new" / "chaos.md"
    write(page, OUTCOME)
    first = page.read_text("utf-8")
    assert "| kill -9 of a worker | 2 |" in first
    write(page, OUTCOME)
    assert first == page.read_text("utf-8"), "a second run replaces the table of the first"


def test_a_page_keeps_what_stands_around_its_table(tmp_path: Path) -> None:
    """The page belongs to the documentation; only the table is the run's."""
    page = tmp_path / "chaos.md"
    page.write_text(f"# Chaos\n\n{BEGIN}\nold\n{END}\nEnd.\n", "utf-8")
    write(page, OUTCOME)
    text = page.read_text("utf-8")
    assert text.startswith(f"# Chaos\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\nEnd.\n")
    assert "old" not in text


def test_a_page_without_markers_is_not_overwritten(tmp_path: Path) -> None:
    """It is some other file, named by mistake."""
    page = tmp_path / "other.md"
    page.write_text("mine", "utf-8")
    with pytest.raises(ValueError, match="must have the lines"):
        write(page, OUTCOME)
    assert page.read_text("utf-8") == "mine"
