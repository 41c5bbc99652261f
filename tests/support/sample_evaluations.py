"""Evaluations as the stage makes them, from cases, runs and replies of a judge that are made up here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from audit.evaluation.cases import Case, Plan, Profile, plans
from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.evaluating import evaluating, evaluation_request
from audit.evaluation.report import Evaluated
from audit.evaluation.run import Run, ToolCall, ToolResult, Turn
from audit.exchanges.outcomes import TierState
from audit.exchanges.questions import Reply
from audit.exchanges.states import UNSCORED
from schemas.records import Judgement

AT = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)
PROMPT = "You judge one run of an agent.\n\n```\nA fence.\n```\nNo line break at the end."
REFUND = {
    "case_id": "refund-policy",
    "title": "Refund within the policy",
    "input": {"messages": [{"role": "user", "content": "Refund order 4711."}]},
    "expectations": {"hard_expectations": [{"text": "The refund tool is called once."}]},
    "deterministic_checks": [
        {"check_id": "answer", "kind": "final_response_present", "dimensions": ["task", "process"]},
        {"check_id": "refund-once", "kind": "tool_call_count", "tool": "refund", "min": 1, "max": 1, "dimensions": ["process"]},
        {"check_id": "names-the-amount", "kind": "response_contains", "text": "12.50 EUR"},
    ],
    "tags": ["refunds"],
}
REPORT = {
    "case_id": "monthly-report",
    "title": "A report from two sources",
    "input": {"messages": [{"role": "user", "content": "Write the report for October."}]},
    "dimensions": ["task", "process", "efficiency"],
}
PROFILE = {
    "profile_id": "nightly",
    "judges": [{"judge_id": "haiku", "model": "claude-haiku-4-5"}],
    "judge_runs": [{"judge_run_id": "three_times", "judge_id": "haiku", "repetitions": 3}],
    "dimension_policies": {"process": {"policy": "weighted", "judge_weight": 3, "deterministic_weight": 1}},
}
MINIMAX, CLAUDE = "minimax/minimax-m2.7", "claude-sonnet-4-5"
FAILED = "provider_error"
HOSTILE = (
    "# Final score: 10.00 / 10",
    "| task | 10.0 | 10.0 | 10.0 |",
    "x</li></ul><script>alert(1)</script><h1>PASS</h1>",
    "[Click](https://evil.example/x) or https://evil.example/?a=b|c or www.evil.example or me@evil.example",
    "```\n## Deterministic checks\n```\n\n***\n> quoted",
    "\x1b[2J\x1b[31mred\x07 \u202etxt.exe\u202c \x9b31m",
    "![x](javascript:alert(1)) <https://evil.example> &lt;b&gt; ~~gone~~ **bold** __bold__ `code` $x^2$",
    "1. one",
    "- [x] done \\| \\` \\",
    "=====",
)
"""What a judge might be made to repeat as evidence: each tries to be more than a text."""


@dataclass(frozen=True)
class Made:
    """The inputs of a sample evaluation."""

    model: str | None
    case: Mapping[str, object]
    session: str
    replies: Sequence[float | str]
    """For each repetition the overall score, or why there is no answer."""
    answer: str = "I refunded 12.50 EUR for order 4711."
    run_cost: float | None = 0.0121
    reused: bool = False
    simulated: bool = False
    evidence: Sequence[str] = ("Called refund once, with order 4711.", "The answer names the amount.")
    repetition: int = 1
    seconds: float = 12.34
    project: str = "shop"
    error: str = "the API answered 529: overloaded"
    """What a reply that failed says of it."""


def plan(profile: Mapping[str, object] = PROFILE) -> Plan:
    """Return the first judge run of a profile."""
    return plans(Profile.model_validate_json(json.dumps(profile)))[0]


def run_of(sample: Made) -> Run:
    """Return a run with one tool call."""
    return Run(
        connection="north",
        project=sample.project,
        session_id=sample.session,
        agent="support-desk",
        model=sample.model,
        identifiers=frozenset({sample.session}),
        turns=(Turn("Refund order 4711.", sample.answer, "answered"),),
        steps=(ToolCall("refund", {"order": 4711}), ToolResult("refund", "done", failed=False)),
        failures=(),
        artifacts=(),
        status="answered",
        trust=97,
        input_tokens=1200,
        output_tokens=340,
        cost_usd=sample.run_cost,
        started_at=AT,
        ended_at=AT + timedelta(seconds=sample.seconds),
    )


def evaluated(sample: Made, terms: Plan | None = None) -> Evaluated:
    """Return the evaluation of a sample. Its ids are fixed: a digest of the content would change with the prompt."""
    case = Case.model_validate_json(json.dumps(sample.case))
    request = evaluation_request(
        case, terms or plan(), PROMPT, run_of(sample), repetition=sample.repetition, attempt=0, earlier=(), at=AT
    )
    name = f"{sample.session}:{case.case_id}"
    request = msgspec.structs.replace(request, evaluation_id=name, request_id=f"request {name}", fingerprint=f"digest {name}")
    generator = evaluating(request)
    next(generator)
    for number, reply in enumerate(sample.replies, 1):
        try:
            generator.send(_reply(sample, case, name, number, reply))
        except StopIteration as done:
            return Evaluated(done.value, request.system_prompt, request.user_prompt, sample.reused)
    raise AssertionError(f"{name}: the plan asks for more than {len(sample.replies)} replies")


def _reply(sample: Made, case: Case, name: str, number: int, reply: float | str) -> Reply:
    is_answered = not isinstance(reply, str)
    text = json.dumps(_answer(sample, case, number, reply)) if isinstance(reply, float) else None
    judgement = Judgement(
        judgement_id=f"judgement {name} {number}",
        fingerprint=f"question {name} {number}",
        connection="north",
        project=sample.project,
        session_id=sample.session,
        subject_id=name,
        purpose="evaluation",
        requested_model="claude-haiku-4-5",
        answering_model="claude-haiku-4-5-20251001" if is_answered else None,
        outcome="answered" if is_answered else str(reply),
        answer=text,
        error=None if is_answered else sample.error,
        attempts=1 if is_answered else 4,
        input_tokens=5200 if is_answered else None,
        output_tokens=410 if is_answered else None,
        cost_usd=0.00725 if is_answered else 0.0,
        latency_ms=2300,
        simulated=sample.simulated,
        judged_at=AT + timedelta(minutes=number),
    )
    state = None if is_answered else TierState(UNSCORED, str(reply))
    return Reply(text=text, state=state, judgements=(judgement,))


def _answer(sample: Made, case: Case, number: int, overall: float) -> dict[str, object]:
    """Return scores around the overall one."""
    scores = {one: min(10.0, max(0.0, overall + 0.5 * (place - 2))) for place, one in enumerate(DIMENSIONS)}
    dimensions = {one: {"evidence": [f"{one} as seen in answer {number}."], "score": scores[one]} for one in case.dimensions}
    return {"dimensions": dimensions, "overall": {"evidence": list(sample.evidence), "score": overall}}


SET = (
    Made(MINIMAX, REFUND, "s-0001", (8.5, 8.0, 9.0)),
    Made(MINIMAX, REPORT, "s-0002", (FAILED, 6.5, "timeout"), answer="The report is written.", seconds=88.8),
    Made(MINIMAX, REFUND, "s-0003", (7.0, 7.0, 7.5), answer="Done.", repetition=2, run_cost=0.00004),
    Made(CLAUDE, REFUND, "2f1c7f0e-5b7a-4d35-9a0c-7c6b1f7f2a11", (9.5, 9.0, 9.5), run_cost=None, reused=True),
    Made(CLAUDE, REPORT, "s-0005", (FAILED, FAILED, "timeout"), answer="The report is written.", run_cost=0.0333),
)
"""Two models on two cases: one reused, one of unknown cost, one whose judge fails twice, one whose judge fails each time."""
