"""Writes the table of a run into a page of the documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from chaos.run import Outcome

BEGIN, END = "<!-- written by make chaos: begin -->", "<!-- written by make chaos: end -->"


def write(page: Path, outcome: Outcome) -> None:
    """Write the table of a run between the markers of a page, or into a new page; raise ValueError if markers are missing."""
    text = page.read_text("utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, after_begin = text.partition(BEGIN)
    _, end_marker, after = after_begin.partition(END)
    if not end_marker:
        raise ValueError(f"{page} must have the lines {BEGIN} and {END}")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{BEGIN}\n{table(outcome)}\n{END}{after}", "utf-8")


def table(outcome: Outcome) -> str:
    """Return the faults and the final counts of a run as Markdown."""
    day = datetime.now(UTC).date()
    summary = f"{outcome.rounds} rounds with seed {outcome.seed} on {day:%d %B %Y}, {outcome.seconds / 60:.0f} minutes."
    fault_rows = [
        f"| {name or 'a fault that found nothing to harm'} | {count} |" for name, count in sorted(outcome.happened.items())
    ]
    count_rows = [f"| {name} | {count:,} |" for name, count in outcome.counted.items()]
    fault_header = ["| what happened | times |", "| --- | ---: |"]
    count_header = ["| what there was | count |", "| --- | ---: |"]
    return "\n".join([summary, "", *fault_header, *fault_rows, "", *count_header, *count_rows])
