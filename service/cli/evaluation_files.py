"""Evaluations as files: DIR/JUDGE_RUN/MODEL/CASE with a summary for people, prompts, and results as JSON for each repetition.

1. The summary, `evaluation_result_summary_N.md`, is made from the evaluation's record alone.
2. Files are written atomically, and folder names are portable: they come from agents and may be hostile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel
from rich.cells import cell_len

from audit.evaluation.report import Evaluated, EvaluationRow, row_of
from audit.evaluation.results import AggregateScore, DimensionResolution, FinalResult, Iteration, JudgeResult
from audit.fingerprints import digest
from audit.prompt_quoting import visible
from schemas.errors import SettingsError
from service.text.formats import fenced, inline

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
    ordered = sorted(
        evaluated, key=lambda item: (item.evaluation.repetition, item.evaluation.session_id, item.evaluation.evaluation_id)
    )
    rows = [(item, row_of(item)) for item in ordered]
    runs = folder_names(row.judge_run_id for _, row in rows)
    models = folder_names(row.model for _, row in rows)
    cases = folder_names(row.case_id for _, row in rows)
    numbers: dict[Path, _Numbers] = {}
    written = []
    for item, row in rows:
        folder_of_case = folder / runs[row.judge_run_id] / models[row.model] / cases[row.case_id]
        number = numbers.setdefault(folder_of_case, _Numbers(folder_of_case)).of(row)
        for path, content in _files(folder_of_case, item, row, number):
            write_file(path, content)
        written.append(Written(folder_of_case, number))
    return written


def readable_json(document: BaseModel) -> str:
    r"""Return the document as indented JSON; invisible and terminal control characters become `\uXXXX`."""
    lines = json.dumps(document.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False).split("\n")
    return "".join(f"{visible(line)}\n" for line in lines)


def _files(folder: Path, evaluated: Evaluated, row: EvaluationRow, number: int) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of an evaluation; the file that marks a complete result comes last."""
    texts: Mapping[Path, str] = {
        folder / f"judge_{number}.prompt.debug.md": _prompts(evaluated, row),
        folder / RAW / f"judge_{number}.prompt.user.json": evaluated.user_prompt,
        folder / RAW / f"judge_{number}.json": readable_json(row.result.judge_result),
        folder / RAW / f"final_result_{number}.json": readable_json(row.result.final_result),
        Written(folder, number).summary: summary_markdown(row, number),
    }
    for path, text in texts.items():
        yield path, text.encode()


def _prompts(evaluated: Evaluated, row: EvaluationRow) -> str:
    """Return both prompts as sent."""
    return (
        "# Messages to the judge\n\n"
        f"- **Case:** {inline(row.case_id)}\n"
        f"- **Model:** {inline(row.model or 'not known')}\n"
        f"- **Run:** session {inline(row.run)}\n"
        f"- **Judge:** {inline(row.judge_model)}, judge run {inline(row.judge_run_id)}\n\n"
        "What stands between the lines of a fence is the message byte by byte; only the line break before the second is not of it.\n\n"
        f"## System prompt ({len(evaluated.system_prompt.encode()):,} bytes)\n\n{fenced(evaluated.system_prompt, 'markdown')}\n"
        f"## User message ({len(evaluated.user_prompt.encode()):,} bytes)\n\n{fenced(evaluated.user_prompt, 'json')}"
    )


class _Numbers:
    """The numbers of runs in a folder. Unreadable files belong to no session."""

    def __init__(self, folder: Path) -> None:
        self._place = folder
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


def _runs_in(folder: Path) -> dict[int, str]:
    """Return the sessions of the results in a folder, by the number of their files; unreadable files belong to none."""
    sessions = {}
    for path in folder.joinpath(RAW).glob("final_result_*.json"):
        number = path.stem.removeprefix("final_result_")
        session = _session(path)
        if number.isdecimal() and session is not None:
            sessions[int(number)] = session
    return sessions


def _session(path: Path) -> str | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    session = document.get("session_id") if isinstance(document, dict) else None
    return session if isinstance(session, str) else None


NOT_AVAILABLE = "n/a"
UNKNOWN = "not known"
NOT_ASKED = "not asked"
_FOUND = 500
"""Characters of a check's finding and of the reason for an invalid iteration."""
_MADE_OF = {
    "judge": "the judge's score alone",
    "deterministic": "the checks alone",
    "missing": "nothing: it has no score",
}
_HOW_TO_READ = (
    "The final score is the judge's own verdict on the whole run, from 0 to 10. It is not a mean of the dimensions.",
    "Deterministic is 10 x passed / mapped checks; a check that could not be decided counts as not passed.",
    "n/a under Deterministic: no check counts for the dimension.",
    "Judge is the {method} of the valid answers. Final combines both as the profile says; the weights are below the table.",
    "Failed answers count in no score. The spread is the largest score minus the smallest: the larger it is, the less a single score means.",
    "`judge_{number}.prompt.debug.md` holds the messages to the judge, `raw_outputs/judge_{number}.json` all of its answers.",
    "`raw_outputs/final_result_{number}.json` has this result for programs.",
)


def summary_markdown(row: EvaluationRow, number: int) -> str:
    """Return the content of the file, with agents' and judges' words as plain text; `number` is the number of the evaluation's files."""
    final, judge = row.result.final_result, row.result.judge_result
    parts = [
        ["# Evaluation result", *_simulated(row), *_head(row, judge, number)],
        ["## Overall assessment", *_overall(final)],
        ["## Dimension scores", *_dimensions(final), *_sources(final)],
        ["## Deterministic checks", *_checks(final)],
        ["## Answers of the judge", *_iterations(judge)],
        *([["## Evidence by dimension", *_evidence(final, judge)]] if final.judge_dimensions else []),
        ["## Warnings", *_listed(row.warnings, "None.")],
        *([["## Attempts to sway the judge", *_listed(row.anomaly_reasons, "None.")]] if row.anomaly_reasons else []),
        ["## Time and cost", *_costs(row)],
        ["## How to read this", *_explained(judge, number)],
    ]
    return "\n\n".join("\n\n".join(blocks) for blocks in parts) + "\n"


def _simulated(row: EvaluationRow) -> list[str]:
    note = "> **Simulated judge.** It rates by simple rules, not by understanding: no score below says anything about the run."
    return [note] if row.simulated else []


def _head(row: EvaluationRow, judge: JudgeResult, number: int) -> list[str]:
    model = UNKNOWN if row.model is None else inline(row.model)
    score = "none: the evaluation failed" if row.score is None else f"{row.score:.2f} / 10"
    agent = "" if row.agent is None else f", agent {inline(row.agent)}"
    run = f"session {inline(row.run)}, repetition {number}, connection {inline(row.connection)}, project {inline(row.project)}"
    count = f"{judge.successful_iterations} of {judge.configured_repetitions} answers count"
    lines = [
        f"- **Case:** {inline(row.case_id)}: {inline(row.case_title)}",
        f"- **Model:** {model}",
        f"- **Final score:** {score}",
        f"- **Run:** {run}{agent}",
        f"- **Judge:** {inline(row.judge_model)}, judge run {inline(row.judge_run_id)}, {count}, {judge.aggregation_method}",
    ]
    return ["\n".join(lines)]


def _overall(final: FinalResult) -> list[str]:
    if final.judge_overall is None:
        return ["The judge gave no valid answer, so there is no score and no assessment. The reasons are below."]
    return _listed(final.judge_overall.evidence, "The judge gave no evidence.")


def _dimensions(final: FinalResult) -> list[str]:
    rows = [
        [name, _shown(resolution.deterministic_score), _shown(resolution.judge_score), _shown(resolution.final_score)]
        for name, resolution in final.dimension_resolutions.items()
    ]
    return [_markdown_table(["Dimension", "Deterministic", "Judge", "Final"], rows)]


def _sources(final: FinalResult) -> list[str]:
    """Explain the final scores that do not come from the judge alone under the default policy."""
    others = {
        name: resolution
        for name, resolution in final.dimension_resolutions.items()
        if resolution.policy != "judge_only" or resolution.source != "judge"
    }
    if not others:
        return ["Every final score is the judge's."]
    return [
        "\n".join(f"- {name} ({resolution.policy}) is made of {_made_of(resolution)}." for name, resolution in others.items())
    ]


def _made_of(resolution: DimensionResolution) -> str:
    if resolution.source == "weighted" and resolution.judge_weight is not None and resolution.deterministic_weight is not None:
        return f"{resolution.judge_weight:.0%} judge and {resolution.deterministic_weight:.0%} checks"
    return _MADE_OF[resolution.source]


def _checks(final: FinalResult) -> list[str]:
    if not final.checks:
        return ["The case has none."]
    counts = final.summary
    totals = (
        f"{counts.deterministic_passed_checks} passed, {counts.deterministic_failed_checks} failed, "
        f"{counts.deterministic_error_checks} could not be decided."
    )
    rows = [
        [inline(check.check_id), check.outcome.upper(), ", ".join(check.dimensions), inline(check.detail, _FOUND)]
        for check in final.checks
    ]
    return [totals, _markdown_table(["Check", "Result", "Counts for", "What was found"], rows)]


def _iterations(judge: JudgeResult) -> list[str]:
    """Return a line for each call of the judge, and the spread of the valid ones."""
    names = [*judge.aggregate.dimensions] if judge.aggregate else []
    rows = [
        [
            str(iteration.iteration),
            inline(iteration.outcome),
            *_iteration_scores(iteration, names),
            NOT_ASKED if iteration.cost_usd is None and not iteration.attempts else _usd(iteration.cost_usd),
            inline(iteration.reason or "", _FOUND),
        ]
        for iteration in judge.iterations
    ]
    if judge.aggregate and judge.successful_iterations > 1:
        spread = [judge.aggregate.overall, *(judge.aggregate.dimensions[name] for name in names)]
        rows.append(["", "spread", *(_shown(iteration.spread) for iteration in spread), "", ""])
    table = _markdown_table(["No.", "Outcome", "overall", *names, "Cost", "Why it does not count"], rows)
    taken_over = [str(iteration.iteration) for iteration in judge.iterations if iteration.taken_over_from is not None]
    which = f"answer{'s' if len(taken_over) > 1 else ''} {', '.join(taken_over)}"
    note = f"Given before, to another evaluation that asked the same, and paid for there: {which}."
    return [table, note] if taken_over else [table]


def _iteration_scores(iteration: Iteration, names: Sequence[str]) -> list[str]:
    if iteration.scores is None:
        return [NOT_AVAILABLE] * (1 + len(names))
    by_name = {str(name): score for name, score in iteration.scores.dimensions.items()}
    return [_shown(iteration.scores.overall), *(_shown(by_name.get(name)) for name in names)]


def _evidence(final: FinalResult, judge: JudgeResult) -> Iterator[str]:
    if judge.aggregate and judge.successful_iterations > 1:
        yield f"From answer {judge.aggregate.evidence_iteration}, whose overall score is nearest to the {judge.aggregation_method}."
    for name, dimension in final.judge_dimensions.items():
        yield f"### {name}: {_of_judge(dimension)}"
        yield from _listed(dimension.evidence, "No evidence was given.")


def _of_judge(dimension: AggregateScore) -> str:
    return f"{_shown(dimension.score)} / 10"


def _costs(row: EvaluationRow) -> list[str]:
    tokens = [UNKNOWN if count is None else f"{count:,}" for count in (row.input_tokens, row.output_tokens)]
    seconds = UNKNOWN if row.latency_s is None else f"{row.latency_s:,.1f} s"
    lines = [
        ["Time of the run", seconds],
        ["Tokens the run read", tokens[0]],
        ["Tokens the run wrote", tokens[1]],
        ["Cost of the run", _usd(row.run_cost_usd)],
        ["Cost of the evaluation", _usd(row.evaluation_cost_usd)],
        ["Both together", _usd(row.total_cost_usd)],
    ]
    return [_markdown_table(["What", "How much"], lines), f"Evaluated {row.evaluated_at:%Y-%m-%d %H:%M:%S} UTC."]


def _explained(judge: JudgeResult, number: int) -> list[str]:
    return ["\n".join(f"- {line.format(method=judge.aggregation_method, number=number)}" for line in _HOW_TO_READ)]


def _listed(texts: Sequence[str], none: str) -> list[str]:
    return ["\n".join(f"- {inline(text)}" for text in texts) or none]


def _shown(score: float | None) -> str:
    """Format a score with one decimal, or two if needed."""
    if score is None:
        return NOT_AVAILABLE
    return f"{score:.1f}" if f"{score:.2f}".endswith("0") else f"{score:.2f}"


def _usd(cost: float | None) -> str:
    return UNKNOWN if cost is None else f"{cost:.6f} USD"


def _markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are also aligned in the source, except the last, which may be long."""
    lines = [headers, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(headers) - 1)]
    widths.append(max(3, cell_len(headers[-1])))
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (headers, rule, *rows)
    )


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|conin|conout)(\.|$)", re.IGNORECASE)
"""Names that Windows reserves for devices, with any suffix."""
_LONGEST = 80
"""Maximum length of a kept name."""
_NAMELESS = "_unknown"
"""Stands for an unknown name; no other name begins with an underscore and carries no digest."""


def folder_names(names: Iterable[str | None]) -> dict[str | None, str]:
    """Return a folder name for each name; names stay distinct even on case-insensitive systems.

    A slash becomes two hyphens. A name that needs any other change, or that would collide with another, gets a digest of itself:
    `gpt-5+1a2b3c4d5e6f7a8b`.
    """
    wanted = list(dict.fromkeys(names))
    plain = {name: _NAMELESS if name is None else _plain(name) for name in wanted}
    times = Counter(made.casefold() for made in plain.values() if made is not None)
    return {
        name: made if made is not None and times[made.casefold()] == 1 else _with_digest(name or "")
        for name, made in plain.items()
    }


def make_folder(path: Path) -> None:
    """Create a folder with its parents and test that it is writable; SettingsError names it if not."""
    with _naming(path):
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".driftline-{os.getpid()}"
        probe.touch()
        probe.unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, creating its folder. SettingsError names the path."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise


def _plain(name: str) -> str | None:
    """Return the name with slashes replaced; None if it needs any other change."""
    made = name.replace("/", "--")
    is_fit = made and len(made) <= _LONGEST and not _UNSAFE.search(made) and made[0] not in "._-" and not made.endswith(".")
    return made if is_fit and not _RESERVED.match(made) else None


def _with_digest(name: str) -> str:
    kept = _UNSAFE.sub("-", name.replace("/", "--")).strip("._-")[:_LONGEST]
    return f"{'_' if _RESERVED.match(kept) else ''}{kept}+{digest(name)}"


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Convert the system's error about a path into a SettingsError that names it."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror or error}", hint="Check the path, its permissions and the space left."
        ) from error
