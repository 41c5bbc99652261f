"""docs/deploying.md on a fleet of 100,000 agents: every result follows from the formulas and the inputs, and measured inputs are measured."""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SECTION = (DOCS / "deploying.md").read_text("utf-8").split("\n## On paper: ")[1].split("\n## ")[0]
PERFORMANCE = (DOCS / "performance.md").read_text("utf-8")
INPUTS = re.findall(r"^\| `(\w+)` \| (\S+) \| [^|]+ \| ([^|]+) \|$", SECTION, re.MULTILINE)
"""The name, value and source of each input."""
RESULTS = re.findall(r"^\| [^|]+ \| `(\w+) = ([^`|]+)` \| ([^|]*) \|$", SECTION, re.MULTILINE)
"""The name, formula and value of each result, in the order in which they build on each other."""
MEASURED = {name: (value, source) for name, value, source in INPUTS if source.startswith("[measured]")}


def evaluate() -> dict[str, float]:
    """Return every input and result by name."""
    values = {name: float(value) for name, value, _ in INPUTS}
    for name, formula, _ in RESULTS:
        values[name] = eval(formula, {"ceil": ceil, "max": max}, values)  # noqa: S307 - the page is ours
    return values


def show(value: float) -> str:
    """Return a value with three digits."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, _, value in RESULTS])
def test_a_result_follows_from_the_inputs(name: str, value: str) -> None:
    """A changed input or formula changes the page, too."""
    assert value == show(evaluate()[name])


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_input_is_in_the_table_that_it_names(name: str) -> None:
    """The benchmark is run again, and the page must follow."""
    value, source = MEASURED[name]
    anchor, row = re.fullmatch(r"\[measured\]\(performance\.md#([\w-]+)\): (.+)", source.strip()).groups()  # type: ignore[union-attr]
    sections = {_anchor_of(title): text for title, _, text in (part.partition("\n") for part in PERFORMANCE.split("\n## "))}
    cells = [
        [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        for line in sections[anchor].splitlines()
        if line.startswith("|")
    ]
    # In a table of both kinds of exchanges, the column is the one of the input's own kind.
    column = {"left": 2, "judged": 1, "intake": 2, "scoring": 1, "sink": 2}.get(name.split("_", maxsplit=1)[0])
    matches = [line for line in cells if line[0] == row.replace(",", "")]
    assert matches
    assert value in (matches[-1][1:] if column is None else [matches[-1][column]])


def _anchor_of(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_every_row_of_both_tables_is_read() -> None:
    """A row that the patterns miss is checked by nothing."""
    rows = [line for line in SECTION.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == len(INPUTS) + len(RESULTS) + 2
    assert len(MEASURED) >= 10
