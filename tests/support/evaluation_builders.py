"""Builders for evaluations with neutral defaults: requests, the judge's answers, and judgements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from support.builders import START

from audit.evaluation.cases import Case, Plan
from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.questions import EVALUATION
from audit.evaluation.run import Run, ToolCall, ToolResult, Turn
from audit.exchanges.questions import Question
from audit.fingerprints import canonical_json
from schemas.records import CheckOutcome, EvaluationRequest, Judgement

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def published_schema(name: str) -> dict[str, Any]:
    """Return a schema as published in the documentation."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
    assert isinstance(schema, dict)
    return schema


def case(**fields: Any) -> Case:
    """Return a case with one message."""
    values = {
        "case_id": "rotate-key",
        "title": "Rotate a key",
        "input": {"messages": [{"role": "user", "content": "Rotate it."}]},
    }
    return Case.model_validate_json(json.dumps(values | fields))


def plan(model: str = "claude-haiku-4-5", **fields: Any) -> Plan:
    """Return a plan that asks a live judge three times and takes the median."""
    values = {
        "profile_id": "nightly",
        "judge_run_id": "thrice",
        "judge": {"judge_id": "haiku", "model": model},
        "repetitions": 3,
        "method": "median",
        "dimension_policies": {},
        "max_view_characters": 60_000,
        "cost_cap_usd": 1.0,
    }
    return Plan.model_validate_json(json.dumps(values | fields))


def check(check_id: str = "answered", outcome: str = "pass", dimensions: Sequence[str] = ("task",)) -> CheckOutcome:
    """Return the outcome of a check."""
    return CheckOutcome(check_id=check_id, kind="final_response_present", dimensions=tuple(dimensions), outcome=outcome)


def make_request(
    judged_case: Case | None = None,
    evaluation_plan: Plan | None = None,
    checks: Sequence[CheckOutcome] | str = (),
    **fields: Any,
) -> EvaluationRequest:
    """Return a request with these prompts and checks."""
    judged_case, evaluation_plan = judged_case or case(), evaluation_plan or plan()
    values: dict[str, Any] = {
        "request_id": "request 1",
        "connection": "local",
        "project": "ops",
        "session_id": "s1",
        "case_id": judged_case.case_id,
        "case": canonical_json(judged_case.model_dump(mode="json")),
        "profile": canonical_json(evaluation_plan.model_dump(mode="json")),
        "fingerprint": "f" * 64,
        "requested_at": START,
        "evaluation_id": "evaluation 1",
        "judge_run_id": evaluation_plan.judge_run_id,
        "judge_model": evaluation_plan.judge.model,
        "system_prompt": "Judge the run.",
        "user_prompt": '{"evaluation_target":{},"subject_response":{},"execution_evidence":{}}',
        "checks": checks if isinstance(checks, str) else canonical_json(msgspec.to_builtins(tuple(checks))),
    }
    return EvaluationRequest(**(values | fields))


def run(**fields: Any) -> Run:
    """Return a run of one turn that used one tool."""
    values: dict[str, Any] = {
        "connection": "local",
        "project": "ops",
        "session_id": "s1",
        "agent": "keeper",
        "model": "claude-sonnet-4-5",
        "identifiers": frozenset({"s1"}),
        "turns": (Turn("Rotate it.", "The key is rotated.", "answered"),),
        "steps": (ToolCall("rotate", {"key": "main"}), ToolResult("rotate", "done", failed=False)),
        "failures": (),
        "artifacts": (),
        "status": "answered",
        "trust": 90,
        "input_tokens": 1_200,
        "output_tokens": 300,
        "cost_usd": 0.02,
        "started_at": START,
        "ended_at": START + timedelta(seconds=42),
    }
    return Run(**(values | fields))


def answer(overall: float = 7.0, dimensions: Sequence[str] = DIMENSIONS, **scores: float) -> dict[str, Any]:
    """Return an answer of the judge; dimensions without a score of their own get the overall one."""
    scored_dimensions = {
        name: {"evidence": [f"{name} is {scores.get(name, overall)}"], "score": scores.get(name, overall)}
        for name in dimensions
    }
    return {"dimensions": scored_dimensions, "overall": {"evidence": [f"overall is {overall}"], "score": overall}}


def judgement(question: Question, text: str | None, number: int = 1, **fields: Any) -> Judgement:
    """Return a recorded answer to a question, at 0.001 USD, `number` minutes after START."""
    values: dict[str, Any] = {
        "judgement_id": f"judgement {number}",
        "fingerprint": question.fingerprint,
        "connection": "local",
        "project": "ops",
        "session_id": "s1",
        "subject_id": "evaluation 1",
        "purpose": EVALUATION,
        "requested_model": question.model,
        "answering_model": question.model,
        "outcome": "answered",
        "answer": text,
        "stop_reason": "end_turn",
        "attempts": 1,
        "input_tokens": 2_000,
        "output_tokens": 400,
        "cost_usd": 0.001,
        "judged_at": START + timedelta(minutes=number),
    }
    return Judgement(**(values | fields))


def answer_json(value: Mapping[str, Any]) -> str:
    """Return an answer as the text that the judge sends."""
    return json.dumps(value)
