"""Runs and cases for tests of the judge's view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from audit.evaluation.cases import Case, CaseInput, Expectation, Expectations, Message
from audit.evaluation.run import Artifact, Failure, Run, ToolCall, ToolResult, Turn
from audit.evaluation.view import View, subject_view
from schemas.records import CheckOutcome

CASE = Case(
    case_id="weekly-report",
    title="Writes the weekly report",
    input=CaseInput(messages=(Message(role="user", content="Write the weekly report into report.md."),)),
    expectations=Expectations(
        hard_expectations=(Expectation(text="report.md holds the three totals"),),
        soft_expectations=(Expectation(text="The answer is short"),),
    ),
)
FAILED = CheckOutcome(check_id="has-total", kind="artifact_contains", dimensions=("task",), outcome="fail")


def run(**fields: object) -> Run:
    """Return a run that went well, with other fields if given."""
    values: dict[str, object] = {
        "connection": "local",
        "project": "ops",
        "session_id": "sess-42",
        "agent": "reporter",
        "model": "claude-haiku-5-5",
        "identifiers": frozenset({"sess-42"}),
        "turns": (Turn("Write it.", "I begin.", "answered"), Turn("Go on.", "The report is written.", "answered")),
        "steps": (ToolCall("write_file", {"path": "report.md"}), ToolResult("write_file", "ok", failed=False)),
        "failures": (Failure("error_event", "The first upload was refused."),),
        "artifacts": (Artifact("report.md", "# Totals\n1, 2, 3\n"),),
        "status": "answered",
        "trust": 90,
        "input_tokens": 100,
        "output_tokens": 50,
        "cost_usd": 0.01,
        "started_at": None,
        "ended_at": None,
    }
    return Run(**(values | fields))  # type: ignore[arg-type]


PLACES: dict[str, Callable[[str], dict[str, object]]] = {
    "final answer": lambda text: {"turns": (Turn("q", "I begin.", "answered"), Turn("q", text, "answered"))},
    "earlier answer": lambda text: {"turns": (Turn("q", text, "answered"), Turn("q", "Done.", "answered"))},
    "tool name": lambda text: {"steps": (ToolCall(text, {"path": "a.md"}),)},
    "tool arguments": lambda text: {"steps": (ToolCall("bash", {"deep": [{"er": text}]}),)},
    "tool output": lambda text: {"steps": (ToolResult("bash", text, failed=False),)},
    "file name": lambda text: {"artifacts": (Artifact(text, "x"),)},
    "artifact": lambda text: {"artifacts": (Artifact("a.md", text),)},
    "failure": lambda text: {"failures": (Failure("error_event", text),)},
}
"""The places of texts in a run, as the reasons name them."""


def run_with(field: str, text: str) -> Run:
    """Return a run with a text in one field."""
    return run(**PLACES[field](text))


def view(subject: Run, checks: Sequence[CheckOutcome] = (FAILED,), most: int = 60_000, case: Case = CASE) -> View:
    """Return the judge's view of a run."""
    return subject_view(case, subject, checks, most)
