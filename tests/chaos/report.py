"""The table of a run in a page of the documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from chaos.run import Outcome

BEGIN, END = "<!-- written by make chaos: begin -->", "<!-- written by make chaos: end -->"


def write(page: Path, outcome: Outcome) -> None:
    """Put the run's table between the page's markers, or into a new page; ValueError when the page has no markers."""
    text = page.read_text("utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} does not have the lines {BEGIN} and {END}")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{BEGIN}\n{table(outcome)}\n{END}{after}", "utf-8")


def table(outcome: Outcome) -> str:
    """The run in Markdown: what was done to it, and what there was at the end."""
    day = datetime.now(UTC).date()
    said = f"{outcome.rounds} rounds with seed {outcome.seed} on {day:%d %B %Y}, {outcome.seconds / 60:.0f} minutes."
    harm = [f"| {name or 'a fault that found nothing to harm'} | {count} |" for name, count in sorted(outcome.happened.items())]
    found = [f"| {name} | {count:,} |" for name, count in outcome.counted.items()]
    head = ["| what happened | times |", "| --- | ---: |"]
    counted = ["| what there was | count |", "| --- | ---: |"]
    return "\n".join([said, "", *head, *harm, "", *counted, *found])
