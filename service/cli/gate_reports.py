"""The outcome of a gate as a table, as Markdown for a pull request, and as JUnit XML.

Texts of a candidate come from whoever opened the pull request, so they are shown on one line, escaped, and never decide a form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from rich.console import Group, RenderableType
from rich.text import Text

from audit.evaluation.cases import FrozenCases
from audit.evaluation.freezing import ANOMALIES, TOKENS
from audit.evaluation.gate import ERROR, LOW, Comparison, GateResult
from service.cli.terminal import table
from service.text.formats import counted, inline, plain
from service.text.words import TERMS

HEADERS = ("what", "answers", "before", "build", "change", "by chance", "verdict")
MAX_WORST = 10
"""Answers that are named."""
_LEAST_CHANCE = 0.0001


def gate_view(result: GateResult, frozen: FrozenCases) -> RenderableType:
    """Return the table of a gate: what got worse, then the scores and whatever else changed."""
    rows = [_format_row(comparison) for comparison in _select_shown(result)]
    parts: list[RenderableType] = [table(HEADERS, rows, right=HEADERS[1:6]), Text()]
    if result.worse:
        parts += [table(("worst answers", "why"), list_worst(result)), Text()]
    return Group(*parts, *(Text(line) for line in summarize(result, frozen)))


def list_worst(result: GateResult) -> list[tuple[str, str]]:
    """Return the answers with most that blocks the build, each with what that is."""
    return [(case_id, plain("; ".join(details))) for case_id, details in list(result.worst_answers.items())[:MAX_WORST]]


def summarize(result: GateResult, frozen: FrozenCases) -> list[str]:
    """Return the outcome in sentences."""
    quiet = len(result.comparisons) - len(_select_shown(result))
    lines = []
    if quiet:
        lines.append(f"{counted(quiet, 'more check')} failed neither before nor now.")
    if result.unjudged:
        lines.append(f"{counted(result.unjudged, 'answer')} of {result.answers} without the judge's scores.")
    title = plain(frozen.source.title)
    if result.worse:
        names = ", ".join(name_comparison(comparison.name) for comparison in result.worse)
        lines.append(f"The build is worse than before the incident “{title}” in {names}.")
    else:
        lines.append(f"Nothing is worse than before the incident “{title}”.")
    return lines


def gate_markdown(result: GateResult, frozen: FrozenCases) -> str:
    """Return the outcome as Markdown, for the summary of a job or a comment on a pull request."""
    verdict = "blocked" if result.worse else "passed"
    rows = [[inline(name), *numbers] for name, *numbers in map(_format_row, _select_shown(result))]
    lines = [
        f"## Driftline gate: {verdict}",
        "",
        *(inline(line) for line in summarize(result, frozen)),
        "",
        f"| {' | '.join(HEADERS)} |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    if result.worse:
        lines += ["The worst answers:", "", *(f"- {inline(case_id)}: {inline(why)}" for case_id, why in list_worst(result)), ""]
    lines.append(
        "By chance: how probable such a change is in a build that is as good as before, corrected for the number of comparisons. "
        f"At {ERROR:.0%} or less the build is blocked."
    )
    return "\n".join(lines) + "\n"


def gate_junit(result: GateResult, frozen: FrozenCases) -> str:
    """Return the outcome as JUnit XML: a test for each comparison, failed if the build is worse in it."""
    suite = ET.Element(
        "testsuite",
        name=f"driftline gate: {_one_line(frozen.source.title)}",
        tests=str(len(result.comparisons)),
        failures=str(len(result.worse)),
        errors="0",
        skipped="0",
    )
    for comparison in result.comparisons:
        test = ET.SubElement(suite, "testcase", classname="driftline.gate", name=_one_line(name_comparison(comparison.name)))
        _, _, before, build, change, chance, _ = _format_row(comparison)
        numbers = f"{build}, before {before}; change {change}; by chance {chance}"
        if comparison.is_worse:
            failure = ET.SubElement(test, "failure", type="worse", message=_one_line(numbers))
            failure.text = "\n".join(_one_line(f"{worst.case_id}: {worst.detail}") for worst in comparison.worst[:MAX_WORST])
        else:
            ET.SubElement(test, "system-out").text = _one_line(numbers)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _one_line(text: str) -> str:
    """Return the text without characters that XML does not allow."""
    return plain(text, 1_000)


def name_comparison(name: str) -> str:
    """Return the displayed name of a comparison, such as `Answer quality · Tier 2: scope compliance`."""
    if name.startswith(LOW):
        series = name.removeprefix(LOW)
        return "very many tokens" if series == TOKENS else f"{name_comparison(series)}: low answers"
    if name == TOKENS:
        return "tokens"
    tier, _, dimension = name.partition(".")
    if dimension:
        return f"{TERMS.get(tier, tier)}: {dimension.replace('_', ' ')}"
    return "anomalies" if name == ANOMALIES else TERMS.get(name, name)


def _select_shown(result: GateResult) -> list[Comparison]:
    return [comparison for comparison in result.comparisons if not comparison.is_quiet]


def _format_row(comparison: Comparison) -> Sequence[str]:
    return [
        name_comparison(comparison.name),
        str(comparison.answers),
        *_format_levels(comparison),
        *_format_verdict(comparison),
    ]


def _format_levels(comparison: Comparison) -> Iterator[str]:
    """Yield the level before, that of the build, and the change with its interval."""
    if comparison.counts is not None:
        for failed, total in comparison.counts:
            yield f"{failed} of {total}"
        yield f"{comparison.after - comparison.before:+.1%}"
    elif comparison.kind == "tokens":
        yield f"{comparison.before:,.0f}"
        yield f"{comparison.after:,.0f}"
        yield f"{comparison.after / comparison.before - 1:+.0%}"
    else:
        interval = comparison.interval
        yield f"{comparison.before:.2f}"
        yield f"{comparison.after:.2f}"
        bounds = f" ({interval.low:+.2f} to {interval.high:+.2f})" if interval else ""
        yield f"{comparison.after - comparison.before:+.2f}{bounds}"


def _format_verdict(comparison: Comparison) -> Iterator[str]:
    probability = comparison.probability
    yield (
        f"<{_LEAST_CHANCE}"
        if probability < _LEAST_CHANCE
        else f"{probability:.4f}"
        if probability < ERROR
        else f"{probability:.2f}"
    )
    yield "worse" if comparison.is_worse else "as before"
