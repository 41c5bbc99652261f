"""Evaluations as files: DIR/JUDGE_RUN/MODEL/CASE with summary, prompts and results as JSON for each repetition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from audit.evaluation.report import Evaluated, EvaluationRow, row_of
from audit.prompt_quoting import visible
from service.cli.evaluations.summary import summary_markdown
from service.cli.reports.result_files import folder_names, write_file
from service.text.plain import fenced, inline

RAW = "raw_outputs"


class Written(NamedTuple):
    """The files of an evaluation."""

    folder: Path
    number: int
    """The suffix of its files: the repetition, or the run's existing number in the folder."""

    @property
    def summary(self) -> Path:
        """Return the file to read first."""
        return self.folder / f"evaluation_result_summary_{self.number}.md"


def write_files(folder: Path, evaluated: Iterable[Evaluated]) -> list[Written]:
    """Write the files of every evaluation; other files in the folder are left alone. SettingsError names a path that cannot be written.

    A run keeps its number in the folder, so that evaluating runs one after another overwrites nothing.
    """
    found = sorted(
        evaluated, key=lambda one: (one.evaluation.repetition, one.evaluation.session_id, one.evaluation.evaluation_id)
    )
    rows = [(one, row_of(one)) for one in found]
    runs = folder_names(row.judge_run_id for _, row in rows)
    models = folder_names(row.model for _, row in rows)
    cases = folder_names(row.case_id for _, row in rows)
    numbers: dict[Path, _Numbers] = {}
    written = []
    for one, row in rows:
        place = folder / runs[row.judge_run_id] / models[row.model] / cases[row.case_id]
        number = numbers.setdefault(place, _Numbers(place)).of(row)
        for path, content in _files(place, one, row, number):
            write_file(path, content)
        written.append(Written(place, number))
    return written


def readable_json(document: BaseModel) -> str:
    r"""Return the document as indented JSON; invisible and terminal control characters become `\uXXXX`."""
    lines = json.dumps(document.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False).split("\n")
    return "".join(f"{visible(line)}\n" for line in lines)


def _files(place: Path, one: Evaluated, row: EvaluationRow, number: int) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of an evaluation; the file that marks a complete result comes last."""
    texts: Mapping[Path, str] = {
        place / f"judge_{number}.prompt.debug.md": _prompts(one, row),
        place / RAW / f"judge_{number}.prompt.user.json": one.user_prompt,
        place / RAW / f"judge_{number}.json": readable_json(row.result.judge_result),
        place / RAW / f"final_result_{number}.json": readable_json(row.result.final_result),
        Written(place, number).summary: summary_markdown(row, number),
    }
    for path, text in texts.items():
        yield path, text.encode()


def _prompts(one: Evaluated, row: EvaluationRow) -> str:
    """Return both prompts as sent."""
    return (
        "# What the judge was sent\n\n"
        f"- **Case:** {inline(row.case_id)}\n"
        f"- **Model:** {inline(row.model or 'not known')}\n"
        f"- **Run:** session {inline(row.run)}\n"
        f"- **Judge:** {inline(row.judge_model)}, judge run {inline(row.judge_run_id)}\n\n"
        "What stands between the lines of a fence is the message byte by byte; only the line break before the second is not of it.\n\n"
        f"## System prompt ({len(one.system_prompt.encode()):,} bytes)\n\n{fenced(one.system_prompt, 'markdown')}\n"
        f"## User message ({len(one.user_prompt.encode()):,} bytes)\n\n{fenced(one.user_prompt, 'json')}"
    )


class _Numbers:
    """The numbers of runs in a folder. Unreadable files belong to no session."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._runs: dict[int, str] | None = None
        self._given: set[int] = set()

    def of(self, row: EvaluationRow) -> int:
        """Return the run's number: its existing one, else its repetition if free, else the next free one."""
        if self._runs is None:
            self._runs = _runs_in(self._place)
        there = (number for number, run in self._runs.items() if run == row.run and number not in self._given)
        number = next(there, row.repetition)
        while number in self._given or self._runs.get(number, row.run) != row.run:
            number += 1
        self._given.add(number)
        return number


def _runs_in(place: Path) -> dict[int, str]:
    """Return the sessions of the results in a folder, by the number of their files; unreadable files belong to none."""
    found = {}
    for path in place.joinpath(RAW).glob("final_result_*.json"):
        number = path.stem.removeprefix("final_result_")
        session = _session(path)
        if number.isdecimal() and session is not None:
            found[int(number)] = session
    return found


def _session(path: Path) -> str | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    session = document.get("session_id") if isinstance(document, dict) else None
    return session if isinstance(session, str) else None
