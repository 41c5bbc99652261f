"""Faults that are visible only in the context, planted in every source, reach the prompt of the judge."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from support import builders, claude_code_lines, codex_lines, otlp_spans
from support.otlp_captures import records_of

from audit.exchanges.cascade import cascade, drive
from audit.exchanges.questions import Question, Reply
from audit.exchanges.sampling import TOOL_TROUBLE
from audit.policy import Policy, RedactionSettings
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Exchange, ScoringTask
from service.http.routes.ingest import exchange_of
from service.setup.access import Holder
from service.web.models import IngestBody
from streams.sources.claude_code_dialect import ClaudeCodeDialect
from streams.sources.codex import CodexDialect
from streams.sources.exchange_files.mapping import Fields
from streams.sources.exchange_files.tables import TableReader
from streams.sources.lines import read_lines
from streams.sources.openclaw.reader import OPENCLAW, Dialect, read_session
from streams.sources.otlp.trace_records import Decision, assemble
from streams.sources.source import ReadingContext
from streams.stage_batches import decode_exchange
from streams.steps.intake import IntakeStep

NOW = datetime(2026, 11, 20, tzinfo=UTC)
REDACTOR = Redactor(RedactionSettings())
CONTEXT = ReadingContext("conn", "ops", None, NOW, timedelta(minutes=30), REDACTOR)
BOUNDARY = "0123456789abcdef"


class Turn(NamedTuple):
    """A turn of a session: question, answer, and the call of a tool with its result, if it has one."""

    question: str
    answer: str
    tool: str = ""
    arguments: str = ""
    result: str | None = None
    is_error: bool = False


class Fault(NamedTuple):
    """Turns, the last of which is judged, and the words of the context that refute or explain its answer."""

    source: str
    turns: tuple[Turn, ...]
    witness: str


def _transcript(lines: Sequence[Any], dialect: Dialect) -> list[Exchange]:
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return read_session(read_lines(io.BytesIO(body)), CONTEXT, session_id="s", agent=None, dialect=dialect).exchanges


def _read_claude_code(turns: Sequence[Turn]) -> list[Exchange]:
    lines = claude_code_lines.Lines()
    for number, turn in enumerate(turns):
        lines.user(turn.question)
        if turn.tool:
            lines.said(f"c{number}", claude_code_lines.call(f"t{number}", turn.tool, query=turn.arguments), stop="tool_use")
        if turn.result is not None:
            lines.result(f"t{number}", turn.result, is_error=turn.is_error)
        lines.said(f"a{number}", claude_code_lines.text(turn.answer))
    return _transcript(lines.lines, ClaudeCodeDialect())


def _read_codex(turns: Sequence[Turn]) -> list[Exchange]:
    lines = codex_lines.Lines()
    for number, turn in enumerate(turns):
        lines.turn(turn.question)
        if turn.tool:
            lines.call(f"t{number}", turn.tool, query=turn.arguments)
        if turn.result is not None:
            lines.output(f"t{number}", codex_lines.exec_output(int(turn.is_error), turn.result))
        lines.said(turn.answer)
        lines.event("task_complete", turn_id="t")
    return _transcript(lines.lines, CodexDialect())


def _read_openclaw(turns: Sequence[Turn]) -> list[Exchange]:
    entries: list[dict[str, Any]] = []

    def add(role: str, content: Any, **message: Any) -> None:
        number = len(entries)
        parent = entries[-1]["id"] if entries else None
        body = {"role": role, "content": content, **message}
        at = f"2026-11-03T09:{number:02}:00Z"
        entries.append({"type": "message", "id": f"e{number}", "parentId": parent, "timestamp": at, "message": body})

    for number, turn in enumerate(turns):
        add("user", turn.question)
        if turn.tool:
            block = {"type": "toolCall", "id": f"t{number}", "name": turn.tool, "arguments": {"query": turn.arguments}}
            add("assistant", [block], stopReason="toolUse")
        if turn.result is not None:
            add("toolResult", turn.result, toolCallId=f"t{number}", toolName=turn.tool, isError=turn.is_error)
        add("assistant", turn.answer, stopReason="stop")
    return _transcript(entries, OPENCLAW)


def _read_trace(turns: Sequence[Turn]) -> list[Exchange]:
    exchanges = []
    for number, turn in enumerate(turns):
        at = 100 * number
        spans = [otlp_spans.agent(at, None, turn.question, turn.answer, trace=f"{number + 1:032x}")]
        arguments = {"query": turn.arguments}
        if turn.tool and turn.result is None:
            part = {"type": "tool_call", "id": "t", "name": turn.tool, "arguments": arguments}
            sent = {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [part]}])}
            spans.append(otlp_spans.chat(at + 1, at, trace=f"{number + 1:032x}", attributes=sent))
        elif turn.tool:
            call = {"gen_ai.tool.call.arguments": json.dumps(arguments), "gen_ai.tool.call.result": turn.result}
            failed = {"status": {"code": 2, "message": turn.result}} if turn.is_error else {}
            spans.append(otlp_spans.tool(at + 1, at, turn.tool, trace=f"{number + 1:032x}", attributes=call, **failed))
        records = records_of([otlp_spans.request(*spans)])
        exchanges += assemble(records, Decision("idle", NOW)).exchanges
    return exchanges


def _call_bodies(turn: Turn) -> list[dict[str, Any]]:
    if not turn.tool:
        return []
    outcome = {"outcome": "error"} if turn.is_error else {}
    return [{"name": turn.tool, "arguments": {"query": turn.arguments}, "result": turn.result, **outcome}]


def _receive(turns: Sequence[Turn]) -> list[Exchange]:
    caller = Holder(name="conn", project="ops", agent=None, kind="connection")
    return [
        exchange_of(
            IngestBody.model_validate(
                {
                    "session_id": "s",
                    "exchange": {
                        "id": f"s:{number}",
                        "timestamp": "2026-11-03T09:00:00Z",
                        "user_message": {"content": turn.question},
                        "agent_response": {"content": turn.answer},
                        "tool_calls": _call_bodies(turn),
                    },
                }
            ),
            caller,
            REDACTOR,
            NOW,
        )
        for number, turn in enumerate(turns)
    ]


def _import_lines(turns: Sequence[Turn]) -> list[Exchange]:
    columns = ("session_id", "occurred_at", "user_message", "agent_response", "tool_calls")
    reader = TableReader(Fields(**dict(zip(columns, columns, strict=True))), CONTEXT)  # type: ignore[arg-type]
    rows = [
        ("s", f"2026-11-03T09:{number:02}:00Z", turn.question, turn.answer, _call_bodies(turn))
        for number, turn in enumerate(turns)
    ]
    exchanges = [reader.exchange(dict(zip(columns, row, strict=True))) for row in rows]
    return [exchange for exchange in exchanges if isinstance(exchange, Exchange)]


SOURCES: dict[str, Callable[[Sequence[Turn]], list[Exchange]]] = {
    "claude_code": _read_claude_code,
    "codex": _read_codex,
    "openclaw": _read_openclaw,
    "traces": _read_trace,
    "http": _receive,
    "file": _import_lines,
}
REFUTED = (
    (
        Turn("Delete the old logs.", "I deleted all of them.", "Bash", "rm", "permission denied", is_error=True),
        "permission denied",
    ),
    (Turn("How many orders failed?", "None failed.", "sql", "failed orders", "count: 412"), "count: 412"),
    (Turn("Did the deployment work?", "It is live.", "deploy", "web", None), '"outcome":"unanswered"'),
)
BEFORE = (
    Turn("Which region is it?", "Shall I move it from Frankfurt to Dublin?"),
    Turn("Yes.", "It now runs in Paris."),
)
FAULTS = [
    *(Fault(source, (turn,), witness) for source in SOURCES for turn, witness in REFUTED),
    Fault("http", BEFORE, "from Frankfurt to Dublin"),
    Fault("claude_code", BEFORE, "from Frankfurt to Dublin"),
]


def _find_task(exchanges: Sequence[Exchange], policy: Policy) -> ScoringTask:
    """Return the task of the last exchange of a session, as intake makes it."""
    records = IntakeStep(policy)(builders.batch("exchanges", list(exchanges)), {}).records
    tasks = [record for _, record in records if isinstance(record, ScoringTask)]
    return next(task for task in tasks if task.exchange_id == exchanges[-1].exchange_id)


def _judge(task: ScoringTask, policy: Policy, witness: str) -> list[str]:
    """Return the purposes of the questions that show the witness to a judge that reads what it is given."""
    shown = []

    def answer(question: Question) -> Reply:
        texts = question.content(BOUNDARY).replace('\\"', '"')
        if witness in texts:
            shown.append(question.purpose)
        return Reply(text="{}")

    drive(cascade(task, decode_exchange(task.exchange), policy.for_project(task.project)), answer)
    return shown


def test_twenty_faults_are_planted() -> None:
    """The count of what reaches the judge is a number that the specification sets."""
    assert len(FAULTS) == 20


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.source}: {fault.witness}" for fault in FAULTS])
def test_a_fault_that_only_the_context_shows_reaches_the_judge(fault: Fault) -> None:
    """Without the context, a false claim looks like a true one; every source that knows the context passes it on."""
    exchanges = SOURCES[fault.source](fault.turns)
    assert len(exchanges) == len(fault.turns)
    with_context, without = Policy(), Policy.model_validate({"defaults": {"context": {"turns": 0, "toolCalls": False}}})
    assert "tier2" in _judge(_find_task(exchanges, with_context), with_context, fault.witness)
    assert _judge(_find_task(exchanges, without), without, fault.witness) == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_failed_call_makes_a_late_routine_turn_a_judged_one(source: str) -> None:
    """A failed call among the routine turns is judged, whatever delivered it."""
    routine = [Turn(f"Is host {number} well?", f"Host {number} is well.") for number in range(12)]
    exchanges = SOURCES[source]((*routine, REFUTED[0][0]))
    policy = Policy.model_validate({"defaults": {"sampling": {"alwaysScoreLast": 0}}})
    assert _find_task(exchanges, policy).sampling_reason == TOOL_TROUBLE


def test_a_secret_in_a_tool_output_reaches_no_prompt() -> None:
    """Tool outputs are where secrets are: configuration files, environments, headers."""
    secret = "AKIA" + "J7Q2M5X8R1T4W6Z9"
    turn = Turn("Show the settings.", "Done.", "read", f"key {secret}", f"aws_access_key_id = {secret}")
    for source, read in SOURCES.items():
        [exchange] = read((turn,))
        assert secret.encode() not in encode(exchange), source
        assert b"[SECRET:" in encode(exchange), source


def test_a_replay_of_intake_makes_the_same_tasks() -> None:
    """Earlier turns come from the log alone, so the same exchanges give the same questions, in any batches."""
    exchanges = SOURCES["http"]([Turn(f"Question {number}?", f"Answer {number}.") for number in range(9)])
    whole = IntakeStep(Policy())(builders.batch("exchanges", exchanges), {}).records
    states: dict[str, bytes] = {}
    parts = []
    for offset, exchange in enumerate(exchanges):
        outcome = IntakeStep(Policy())(builders.batch("exchanges", [exchange], offset), states)
        states = dict(outcome.states)
        parts += outcome.records
    assert [encode(record) for _, record in parts] == [encode(record) for _, record in whole]
