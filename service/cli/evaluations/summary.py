"""`evaluation_result_summary_N.md`: an evaluation for people to read, from its record alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from audit.evaluation.report import EvaluationRow
from audit.evaluation.results import AggregateScore, DimensionResolution, FinalResult, Iteration, JudgeResult
from service.text.plain import inline

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
    "The final score is the judge's own verdict on the whole run, from 0 to 10. It is no mean of the dimensions.",
    "Deterministic is 10 x passed / mapped checks; a check that could not be decided counts as not passed.",
    "n/a under Deterministic: no check counts for the dimension.",
    "Judge is the {method} over the answers that count. Final is what the profile makes of both; what it is made of stands below the table.",
    "An answer that failed is in no score. The spread is the largest score less the smallest: the larger, the less one score says.",
    "`judge_{number}.prompt.debug.md` has what the judge was sent, `raw_outputs/judge_{number}.json` all of its answers.",
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
        return ["No answer of the judge counts, so there is no score and no assessment. The reasons are below."]
    return _listed(final.judge_overall.evidence, "The judge gave no evidence.")


def _dimensions(final: FinalResult) -> list[str]:
    rows = [
        [name, _shown(one.deterministic_score), _shown(one.judge_score), _shown(one.final_score)]
        for name, one in final.dimension_resolutions.items()
    ]
    return [_table(["Dimension", "Deterministic", "Judge", "Final"], rows)]


def _sources(final: FinalResult) -> list[str]:
    """Explain the final scores that do not come from the judge alone under the default policy."""
    others = {
        name: one for name, one in final.dimension_resolutions.items() if one.policy != "judge_only" or one.source != "judge"
    }
    if not others:
        return ["Every final score is the judge's."]
    return ["\n".join(f"- {name} ({one.policy}) is made of {_made_of(one)}." for name, one in others.items())]


def _made_of(one: DimensionResolution) -> str:
    if one.source == "weighted" and one.judge_weight is not None and one.deterministic_weight is not None:
        return f"{one.judge_weight:.0%} judge and {one.deterministic_weight:.0%} checks"
    return _MADE_OF[one.source]


def _checks(final: FinalResult) -> list[str]:
    if not final.checks:
        return ["The case has none."]
    counts = final.summary
    told = (
        f"{counts.deterministic_passed_checks} passed, {counts.deterministic_failed_checks} failed, "
        f"{counts.deterministic_error_checks} could not be decided."
    )
    rows = [
        [inline(check.check_id), check.outcome.upper(), ", ".join(check.dimensions), inline(check.detail, _FOUND)]
        for check in final.checks
    ]
    return [told, _table(["Check", "Result", "Counts for", "What was found"], rows)]


def _iterations(judge: JudgeResult) -> list[str]:
    """Return a line for each call of the judge, and the spread of the valid ones."""
    names = [*judge.aggregate.dimensions] if judge.aggregate else []
    rows = [
        [
            str(one.iteration),
            inline(one.outcome),
            *_iteration_scores(one, names),
            NOT_ASKED if one.cost_usd is None and not one.attempts else _usd(one.cost_usd),
            inline(one.reason or "", _FOUND),
        ]
        for one in judge.iterations
    ]
    if judge.aggregate and judge.successful_iterations > 1:
        spread = [judge.aggregate.overall, *(judge.aggregate.dimensions[name] for name in names)]
        rows.append(["", "spread", *(_shown(one.spread) for one in spread), "", ""])
    table = _table(["No.", "Outcome", "overall", *names, "Cost", "Why it does not count"], rows)
    taken_over = [str(one.iteration) for one in judge.iterations if one.taken_over_from is not None]
    which = f"answer{'s' if len(taken_over) > 1 else ''} {', '.join(taken_over)}"
    told = f"Given before, to another evaluation that asked the same, and paid for there: {which}."
    return [table, told] if taken_over else [table]


def _iteration_scores(one: Iteration, names: Sequence[str]) -> list[str]:
    if one.scores is None:
        return [NOT_AVAILABLE] * (1 + len(names))
    by_name = {str(name): score for name, score in one.scores.dimensions.items()}
    return [_shown(one.scores.overall), *(_shown(by_name.get(name)) for name in names)]


def _evidence(final: FinalResult, judge: JudgeResult) -> Iterator[str]:
    if judge.aggregate and judge.successful_iterations > 1:
        yield f"From answer {judge.aggregate.evidence_iteration}, whose overall score is nearest to the {judge.aggregation_method}."
    for name, found in final.judge_dimensions.items():
        yield f"### {name}: {_of_judge(found)}"
        yield from _listed(found.evidence, "No evidence was given.")


def _of_judge(found: AggregateScore) -> str:
    return f"{_shown(found.score)} / 10"


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
    return [_table(["What", "How much"], lines), f"Evaluated {row.evaluated_at:%Y-%m-%d %H:%M:%S} UTC."]


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


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are also aligned in the source, except the last, which may be long."""
    lines = [headers, *rows]
    widths = [max(cell_len(line[place]) for line in lines) for place in range(len(headers) - 1)]
    widths.append(max(3, cell_len(headers[-1])))
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (headers, rule, *rows)
    )
