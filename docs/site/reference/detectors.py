"""The failure detectors, from what is registered."""

from __future__ import annotations

import re

from audit.detectors.detectors import DETECTORS, FINDERS, Detector
from audit.detectors.thresholds import EVENTS, TRANSCRIPTS, Thresholds
from audit.diagnosis.diagnosis import __doc__ as SCORING  # noqa: N812 - a text, and the module's own
from reference.markdown import code, first_paragraph, page, table, words


def detectors() -> str:
    """Return the page."""
    scoring = re.split(r"^\d\. ", SCORING or "", flags=re.MULTILINE)[1]
    return page(
        "Detectors",
        "Each reads the folded events of a finished session and says what went wrong, or nothing; `driftline diagnose FILE` runs them on a "
        "file. Below, n is the number of events that match, r the number of retry events in the session, d the number of duplicate calls. "
        "How to write one: [Write a detector](../how-to/detector.md).",
        "## Thresholds",
        "Each figure below is the default of a field of the [policy](policy.md#detectors-events), for sessions that are delivered as events. A "
        "session that was read from a transcript (OpenClaw, Claude Code, Codex) has the profile `transcripts`: calls are repeated within one "
        "exchange, with no other call in between; retries, duplicates and tokens count by exchange; of tokens only those count that the "
        "request before did not have. These defaults differ:",
        _differences(),
        "A diagnosis says which profile it was made with, and what the policy changed. `driftline tune` holds them against an agent's own "
        "runs: [Tune](../how-to/tune.md#detectors-by-an-agents-own-history).",
        "## Trust and readiness",
        words(scoring),
        *(part for one in DETECTORS for part in _detector(one)),
        "## Findings",
        "Off unless the [policy](policy.md#detectors-events) sets their threshold, or a [rule for tools](../how-to/tools.md). They are listed with the causes, with an impact of 0: no trust score "
        "depends on them. One of high severity makes a run review_recommended, like any cause. `rule_version` of a diagnosis names those that were looked for. A session that had begun before the "
        "policy changed goes on as it began; `driftline rebuild` looks again. Other tools call `alternating_calls` ping-pong and `near_duplicate_calls` fuzzy or similar repeats.",
        *(part for one in FINDERS for part in _finder(one)),
    )


def _finder(one: Detector) -> list[str]:
    finding = one.failure
    rows = [
        ("fires when", words(one.rule.fires)),
        ("severity", words(one.rule.severity)),
        ("penalty", code(one.rule.penalty)),
        ("causal chain", " → ".join(map(code, finding.causal_chain))),
        ("what to do", words(finding.remediation)),
        ("version", str(one.version)),
    ]
    return [f"### {one.failure_type}", first_paragraph(one.detect.__doc__), table(("", ""), rows)]


def _differences() -> str:
    """Return the defaults that the profile of transcripts has otherwise."""
    named = [
        (str(field.alias), getattr(EVENTS, name), getattr(TRANSCRIPTS, name)) for name, field in Thresholds.model_fields.items()
    ]
    rows = [(code(alias), _value(events), _value(transcripts)) for alias, events, transcripts in named if events != transcripts]
    return table(("threshold", "events", "transcripts"), rows)


def _value(value: object) -> str:
    return "off" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _detector(one: Detector) -> list[str]:
    failure = one.failure
    rows = [
        ("fires when", words(one.rule.fires)),
        ("severity", words(one.rule.severity)),
        ("penalty", code(one.rule.penalty)),
        ("dimension", f"{code(failure.dimension)}, {failure.weight} % of the trust score"),
        ("causal chain", " → ".join(map(code, failure.causal_chain))),
        ("what to do", words(failure.remediation)),
        ("version", str(one.version)),
    ]
    return [f"## {one.failure_type}", first_paragraph(one.detect.__doc__), table(("", ""), rows)]
