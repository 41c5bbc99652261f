"""Evaluations as files: each repetition has a summary, the prompts and the results as JSON in DIR/JUDGE_RUN/MODEL/CASE.

1. The summary, `evaluation_result_summary_N.md`, is written from the evaluation's record alone.
2. Files are written atomically.
3. Folder names are portable and safe, because the names of models and cases come from agents and may be hostile.
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
from audit.evaluation.results import DimensionResolution, FinalResult, Iteration, JudgeResult
from audit.fingerprints import digest
from audit.prompt_quoting import visible
from schemas.errors import SettingsError
from service.text.formats import fenced, inline

RAW_FOLDER = "raw_outputs"


class WrittenEvaluation(NamedTuple):
    """The files of an evaluation."""

    folder: Path
    number: int
    """The suffix of its files: the repetition, or the run's existing number in the folder."""

    @property
    def summary(self) -> Path:
        """Return the file to read first."""
        return self.folder / f"evaluation_result_summary_{self.number}.md"


def write_files(folder: Path, evaluated: Iterable[Evaluated]) -> list[WrittenEvaluation]:
    """Write the files of every evaluation. Other files in the folder are left alone.

    A run keeps its number in the folder, so that evaluating runs one after another overwrites nothing. Raises SettingsError for a
    path that cannot be written.
    """
    ordered = sorted(
        evaluated, key=lambda item: (item.evaluation.repetition, item.evaluation.session_id, item.evaluation.evaluation_id)
    )
    rows = [(item, row_of(item)) for item in ordered]
    run_folders = folder_names(row.judge_run_id for _, row in rows)
    model_folders = folder_names(row.model for _, row in rows)
    case_folders = folder_names(row.case_id for _, row in rows)
    numbers_by_folder: dict[Path, _RunNumbers] = {}
    written = []
    for item, row in rows:
        case_folder = folder / run_folders[row.judge_run_id] / model_folders[row.model] / case_folders[row.case_id]
        number = numbers_by_folder.setdefault(case_folder, _RunNumbers(case_folder)).assign(row)
        for path, content in _render_files(case_folder, item, row, number):
            write_file(path, content)
        written.append(WrittenEvaluation(case_folder, number))
    return written


def readable_json(document: BaseModel) -> str:
    r"""Return the document as indented JSON; invisible and terminal control characters become `\uXXXX`."""
    lines = json.dumps(document.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False).split("\n")
    return "".join(f"{visible(line)}\n" for line in lines)


def _render_files(folder: Path, evaluated: Evaluated, row: EvaluationRow, number: int) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of an evaluation. The summary comes last, so a folder with a summary is complete."""
    texts: Mapping[Path, str] = {
        folder / f"judge_{number}.prompt.debug.md": _format_prompts(evaluated, row),
        folder / RAW_FOLDER / f"judge_{number}.prompt.user.json": evaluated.user_prompt,
        folder / RAW_FOLDER / f"judge_{number}.json": readable_json(row.result.judge_result),
        folder / RAW_FOLDER / f"final_result_{number}.json": readable_json(row.result.final_result),
        WrittenEvaluation(folder, number).summary: summary_markdown(row, number),
    }
    for path, text in texts.items():
        yield path, text.encode()


def _format_prompts(evaluated: Evaluated, row: EvaluationRow) -> str:
    """Return both prompts as sent, in Markdown."""
    return (
        "# Messages to the judge\n\n"
        f"- **Case:** {inline(row.case_id)}\n"
        f"- **Model:** {inline(row.model or 'not known')}\n"
        f"- **Run:** session {inline(row.run)}\n"
        f"- **Judge:** {inline(row.judge_model)}, judge run {inline(row.judge_run_id)}\n\n"
        "The text between the fences is the exact message. Only the line break before the closing fence is not part of it.\n\n"
        f"## System prompt ({len(evaluated.system_prompt.encode()):,} bytes)\n\n{fenced(evaluated.system_prompt, 'markdown')}\n"
        f"## User message ({len(evaluated.user_prompt.encode()):,} bytes)\n\n{fenced(evaluated.user_prompt, 'json')}"
    )


class _RunNumbers:
    """Assigns numbers to the runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored_runs: dict[int, str] | None = None
        """The runs of the existing files by number; None until they are read."""
        self._assigned: set[int] = set()

    def assign(self, row: EvaluationRow) -> int:
        """Return the run's number: its existing one, else its repetition if free, else the next free one."""
        if self._stored_runs is None:
            self._stored_runs = _read_stored_runs(self._folder)
        number = row.repetition
        for stored_number, run in self._stored_runs.items():
            if run == row.run and stored_number not in self._assigned:
                number = stored_number
                break
        while number in self._assigned or self._stored_runs.get(number, row.run) != row.run:
            number += 1
        self._assigned.add(number)
        return number


def _read_stored_runs(folder: Path) -> dict[int, str]:
    """Return the session ids of the results in a folder by file number. Unreadable files are skipped."""
    session_ids = {}
    for path in folder.joinpath(RAW_FOLDER).glob("final_result_*.json"):
        number = path.stem.removeprefix("final_result_")
        session_id = _read_session_id(path)
        if number.isdecimal() and session_id is not None:
            session_ids[int(number)] = session_id
    return session_ids


def _read_session_id(path: Path) -> str | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    session_id = document.get("session_id") if isinstance(document, dict) else None
    return session_id if isinstance(session_id, str) else None


NOT_AVAILABLE = "n/a"
UNKNOWN = "not known"
NOT_ASKED = "not asked"
_MAX_CELL_LENGTH = 500
"""Maximum characters of a check's finding, and of the reason for an invalid answer, in a table."""
_SOURCES = {
    "judge": "the judge's score alone",
    "deterministic": "the checks alone",
    "missing": "no score",
}
_EXPLANATIONS = (
    "The final score is the judge's own verdict on the whole run, from 0 to 10. It is not a mean of the dimensions.",
    "Deterministic is 10 x passed / mapped checks. A check that could not be decided counts as not passed.",
    "Deterministic is n/a for a dimension without checks.",
    "Judge is the {method} of the valid answers. Final combines both with the weights of the profile, which are below the table.",
    "Failed answers do not count in any score.",
    "The spread is the largest score minus the smallest. The larger it is, the less a single score means.",
    "`judge_{number}.prompt.debug.md` holds the messages to the judge, `raw_outputs/judge_{number}.json` all of its answers.",
    "`raw_outputs/final_result_{number}.json` has this result for programs.",
)


def summary_markdown(row: EvaluationRow, number: int) -> str:
    """Return the summary of an evaluation. Texts of agents and judges are escaped. `number` is the suffix of the evaluation's files."""
    final, judge = row.result.final_result, row.result.judge_result
    sections = [
        ["# Evaluation result", *_note_simulation(row), *_summarize_run(row, judge, number)],
        ["## Overall assessment", *_assess_overall(final)],
        ["## Dimension scores", *_tabulate_dimensions(final), *_explain_sources(final)],
        ["## Deterministic checks", *_tabulate_checks(final)],
        ["## Answers of the judge", *_tabulate_answers(judge)],
        *([["## Evidence by dimension", *_list_evidence(final, judge)]] if final.judge_dimensions else []),
        ["## Warnings", *_bullet_list(row.warnings, "None.")],
        *(
            [["## Attempts to sway the judge or the agent", *_bullet_list(row.anomaly_reasons, "None.")]]
            if row.anomaly_reasons
            else []
        ),
        ["## Time and cost", *_tabulate_costs(row)],
        ["## How to read this", *_explain_scores(judge, number)],
    ]
    return "\n\n".join("\n\n".join(blocks) for blocks in sections) + "\n"


def _note_simulation(row: EvaluationRow) -> list[str]:
    note = "> **Simulated judge.** It rates by simple rules, not by understanding: no score below says anything about the run."
    return [note] if row.simulated else []


def _summarize_run(row: EvaluationRow, judge: JudgeResult, number: int) -> list[str]:
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


def _assess_overall(final: FinalResult) -> list[str]:
    if final.judge_overall is None:
        return ["The judge gave no valid answer, so there is no score and no assessment. The reasons are below."]
    return _bullet_list(final.judge_overall.evidence, "The judge gave no evidence.")


def _tabulate_dimensions(final: FinalResult) -> list[str]:
    rows = [
        [
            name,
            _format_score(resolution.deterministic_score),
            _format_score(resolution.judge_score),
            _format_score(resolution.final_score),
        ]
        for name, resolution in final.dimension_resolutions.items()
    ]
    return [_format_table(["Dimension", "Deterministic", "Judge", "Final"], rows)]


def _explain_sources(final: FinalResult) -> list[str]:
    """Explain the final scores that do not come from the judge alone by the default policy."""
    others = {
        name: resolution
        for name, resolution in final.dimension_resolutions.items()
        if resolution.policy != "judge_only" or resolution.source != "judge"
    }
    if not others:
        return ["Every final score is the judge's."]
    return [
        "\n".join(f"- {name} ({resolution.policy}): {_describe_source(resolution)}." for name, resolution in others.items())
    ]


def _describe_source(resolution: DimensionResolution) -> str:
    if resolution.source == "weighted" and resolution.judge_weight is not None and resolution.deterministic_weight is not None:
        return f"{resolution.judge_weight:.0%} judge and {resolution.deterministic_weight:.0%} checks"
    return _SOURCES[resolution.source]


def _tabulate_checks(final: FinalResult) -> list[str]:
    if not final.checks:
        return ["The case has none."]
    counts = final.summary
    totals = (
        f"{counts.deterministic_passed_checks} passed, {counts.deterministic_failed_checks} failed, "
        f"{counts.deterministic_error_checks} could not be decided."
    )
    rows = [
        [inline(check.check_id), check.outcome.upper(), ", ".join(check.dimensions), inline(check.detail, _MAX_CELL_LENGTH)]
        for check in final.checks
    ]
    return [totals, _format_table(["Check", "Result", "Counts for", "What was found"], rows)]


def _tabulate_answers(judge: JudgeResult) -> list[str]:
    """Return a table with a row for each answer of the judge, and the spread of the valid ones."""
    names = [*judge.aggregate.dimensions] if judge.aggregate else []
    rows = [
        [
            str(iteration.iteration),
            inline(iteration.outcome),
            *_format_answer_scores(iteration, names),
            NOT_ASKED if iteration.cost_usd is None and not iteration.attempts else _format_cost(iteration.cost_usd),
            inline(iteration.reason or "", _MAX_CELL_LENGTH),
        ]
        for iteration in judge.iterations
    ]
    if judge.aggregate and judge.successful_iterations > 1:
        scores = [judge.aggregate.overall, *(judge.aggregate.dimensions[name] for name in names)]
        rows.append(["", "spread", *(_format_score(score.spread) for score in scores), "", ""])
    table = _format_table(["No.", "Outcome", "overall", *names, "Cost", "Why it does not count"], rows)
    reused = [str(iteration.iteration) for iteration in judge.iterations if iteration.taken_over_from is not None]
    if not reused:
        return [table]
    return [table, f"Reused from another evaluation with the same messages, which paid for them: {', '.join(reused)}."]


def _format_answer_scores(iteration: Iteration, names: Sequence[str]) -> list[str]:
    if iteration.scores is None:
        return [NOT_AVAILABLE] * (1 + len(names))
    by_name = {str(name): score for name, score in iteration.scores.dimensions.items()}
    return [_format_score(iteration.scores.overall), *(_format_score(by_name.get(name)) for name in names)]


def _list_evidence(final: FinalResult, judge: JudgeResult) -> Iterator[str]:
    if judge.aggregate and judge.successful_iterations > 1:
        yield f"From answer {judge.aggregate.evidence_iteration}, whose overall score is nearest to the {judge.aggregation_method}."
    for name, dimension in final.judge_dimensions.items():
        yield f"### {name}: {_format_score(dimension.score)} / 10"
        yield from _bullet_list(dimension.evidence, "No evidence was given.")


def _tabulate_costs(row: EvaluationRow) -> list[str]:
    duration = UNKNOWN if row.latency_s is None else f"{row.latency_s:,.1f} s"
    rows = [
        ["Duration of the run", duration],
        ["Input tokens of the run", _format_count(row.input_tokens)],
        ["Output tokens of the run", _format_count(row.output_tokens)],
        ["Cost of the run", _format_cost(row.run_cost_usd)],
        ["Cost of the evaluation", _format_cost(row.evaluation_cost_usd)],
        ["Total cost", _format_cost(row.total_cost_usd)],
    ]
    return [_format_table(["Figure", "Value"], rows), f"Evaluated {row.evaluated_at:%Y-%m-%d %H:%M:%S} UTC."]


def _explain_scores(judge: JudgeResult, number: int) -> list[str]:
    return ["\n".join(f"- {line.format(method=judge.aggregation_method, number=number)}" for line in _EXPLANATIONS)]


def _bullet_list(texts: Sequence[str], fallback: str) -> list[str]:
    return ["\n".join(f"- {inline(text)}" for text in texts) or fallback]


def _format_score(score: float | None) -> str:
    """Format a score with one decimal, or two if needed."""
    if score is None:
        return NOT_AVAILABLE
    return f"{score:.1f}" if f"{score:.2f}".endswith("0") else f"{score:.2f}"


def _format_count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def _format_cost(cost: float | None) -> str:
    return UNKNOWN if cost is None else f"{cost:.6f} USD"


def _format_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are also aligned in the source, except the last, which may be long."""
    lines = [headers, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(headers) - 1)]
    widths.append(max(3, cell_len(headers[-1])))
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (headers, rule, *rows)
    )


_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9._-]")
_RESERVED_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|conin|conout)(\.|$)", re.IGNORECASE)
"""Names that Windows reserves for devices, with any suffix."""
_MAX_NAME_LENGTH = 80
"""Maximum length of a folder's name without its digest."""
_UNKNOWN_NAME = "_unknown"
"""The folder of an unknown name. Any other name that begins with an underscore has a digest."""


def folder_names(names: Iterable[str | None]) -> dict[str | None, str]:
    """Return a folder name for each name; names stay distinct even on case-insensitive systems.

    A slash becomes two hyphens. A name that needs any other change, or that would collide with another, gets a digest of itself:
    `gpt-5+1a2b3c4d5e6f7a8b`.
    """
    candidates = {name: _UNKNOWN_NAME if name is None else _portable_name(name) for name in dict.fromkeys(names)}
    counts = Counter(candidate.casefold() for candidate in candidates.values() if candidate is not None)
    folders = {}
    for name, candidate in candidates.items():
        if candidate is not None and counts[candidate.casefold()] == 1:
            folders[name] = candidate
        else:
            folders[name] = _append_digest(name or "")
    return folders


def make_folder(path: Path) -> None:
    """Create a folder with its parents. Raises SettingsError if it cannot be written to."""
    with _raise_settings_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".driftline-{os.getpid()}"
        probe.touch()
        probe.unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and create its folder. Raises SettingsError if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _raise_settings_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def _portable_name(name: str) -> str | None:
    """Return the name with slashes replaced; None if it needs any other change."""
    candidate = name.replace("/", "--")
    if not candidate or len(candidate) > _MAX_NAME_LENGTH:
        return None
    if _UNSAFE_CHARACTER.search(candidate) or _RESERVED_NAME.match(candidate):
        return None
    if candidate[0] in "._-" or candidate.endswith("."):
        return None
    return candidate


def _append_digest(name: str) -> str:
    stem = _UNSAFE_CHARACTER.sub("-", name.replace("/", "--")).strip("._-")[:_MAX_NAME_LENGTH]
    if _RESERVED_NAME.match(stem):
        stem = f"_{stem}"
    return f"{stem}+{digest(name)}"


@contextlib.contextmanager
def _raise_settings_errors(path: Path) -> Iterator[None]:
    """Convert the system's error about a path into a SettingsError that names it."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror or error}", hint="Check the path, its permissions and the space left."
        ) from error
