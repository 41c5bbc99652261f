"""Claude Code transcripts as exchanges and events."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.claude_code_lines import SESSION, Lines, call, everything, text, thinking

from streams.sources.claude_code_dialect import ClaudeCodeDialect
from streams.sources.claude_code_files import NOTHING_COPIED, find_claude_code, find_copied_ids, read_claude_code
from streams.sources.lines import read_lines
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext

Read = Callable[[Sequence[Any]], Reading]
Line = dict[str, Any]


@pytest.fixture
def read_claude(context: ReadingContext) -> Read:
    """Read lines as one transcript."""

    def reader(lines: Sequence[Any]) -> Reading:
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        return read_session(read_lines(io.BytesIO(body)), context, session_id="file", agent=None, dialect=ClaudeCodeDialect())

    return reader


def _payloads(reading: Reading, event: str) -> list[dict[str, Any]]:
    return [json.loads(record.payload) for record in reading.events if record.event == event]


def _answers(reading: Reading) -> list[tuple[str, str, str]]:
    return [(exchange.user_message, exchange.agent_response, exchange.outcome) for exchange in reading.exchanges]


def test_a_transcript_gives_these_exchanges(read_claude: Read) -> None:
    """Each question has its answer, whatever the program wrote in between."""
    reading = read_claude(everything())
    assert reading.session_ids == [SESSION]
    assert reading.faults == []
    assert _answers(reading) == [
        ("Is the backup healthy?", "No: \nthe disk is full.", "answered"),
        ("And db3?", "It is fine.", "answered"),
        ("<task-notification>done</task-notification>", "The task is done.", "answered"),
        ("Stop.", "", "aborted"),
        ("Again?", "", "error"),
    ]
    assert [exchange.tags for exchange in reading.exchanges] == [(), (), ("internal",), (), ()]
    assert reading.exchanges[0].agent_thinking == "Look at the log."
    assert [exchange.agent_model for exchange in reading.exchanges[:2]] == ["claude-x", "claude-y"]
    assert [reading.exchanges[index].stop_reason for index in (0, 3, 4)] == ["end_turn", "aborted", "error"]


def test_every_event_names_its_source_and_its_exchange(read_claude: Read) -> None:
    """Thresholds depend on the source, and costs on the exchange."""
    reading = read_claude(everything())
    ids = {exchange.exchange_id for exchange in reading.exchanges}
    payloads = [json.loads(event.payload) for event in reading.events]
    assert {payload["source"] for payload in payloads} == {"claude-code"}
    assert ids >= {payload["exchange_id"] for payload in payloads}
    assert len(payloads) == len({event.event_id for event in reading.events})


def test_a_message_of_several_lines_counts_its_tokens_once(read_claude: Read) -> None:
    """The program repeats the usage of a message on each of its lines."""
    reading = read_claude(everything())
    first = reading.exchanges[0]
    assert first.input_tokens == 2 * 117
    assert first.output_tokens == 2 * 5
    assert [payload["usage"]["total"] for payload in _payloads(reading, "token_usage")] == [122] * 4


def test_a_growing_usage_counts_by_its_last_value(read_claude: Read) -> None:
    """Older versions wrote a line before the message was finished."""
    lines = Lines()
    lines.user("Well?")
    lines.said("m1", thinking("Hm."), stop=None, usage={"input_tokens": 10, "output_tokens": 1})
    lines.said("m1", text("Yes."), stop=None, usage={"input_tokens": 10, "output_tokens": 9})
    reading = read_claude(lines.lines)
    assert reading.exchanges[0].input_tokens == 10
    assert reading.exchanges[0].output_tokens == 9
    assert reading.exchanges[0].agent_response == "Yes."


def test_results_of_parallel_calls_leave_one_answer(read_claude: Read) -> None:
    """The program makes each result a child of its call, and the next message a child of the last result."""
    reading = read_claude(everything())
    outputs = _payloads(reading, "tool_output")
    assert [(output["tool"], output["is_error"], output.get("exit_code")) for output in outputs] == [
        ("Read", True, None),
        ("Bash", True, 3),
    ]
    assert outputs[1]["duration_ms"] == 84
    assert sum(exchange.user_message == "Is the backup healthy?" for exchange in reading.exchanges) == 1


def test_a_failed_request_is_an_error_and_the_next_one_a_retry(read_claude: Read) -> None:
    """The program records each request that it retries."""
    reading = read_claude(everything())
    assert [payload["message"] for payload in _payloads(reading, "error_event")] == [
        "529 overloaded",
        "[Request interrupted by user]",
        "API Error: 400",
    ]
    assert len(_payloads(reading, "retry_event")) == 1


def test_compactions_and_model_changes_are_events(read_claude: Read) -> None:
    """The first model is an event as well, because a diagnosis needs to know it."""
    reading = read_claude(everything())
    assert [
        {name: payload[name] for name in ("action", "tokens_before")} for payload in _payloads(reading, "context_event")
    ] == [{"action": "compaction", "tokens_before": 900}]
    assert [payload["model"] for payload in _payloads(reading, "state_transition")] == ["claude-x", "claude-y"]


def test_an_answer_that_ends_with_a_call_has_no_text(read_claude: Read) -> None:
    """Text before a call is not an answer."""
    lines = Lines()
    lines.user("Well?")
    lines.said("m1", text("Let me look."), stop="tool_use")
    lines.said("m1", call("t1", "Bash"), stop="tool_use")
    assert _answers(read_claude(lines.lines)) == [("Well?", "", "no_response")]


def test_a_slash_command_is_a_question_only_if_the_agent_answers_it(read_claude: Read) -> None:
    """The program answers some commands itself; the text of a command that the agent runs is meta."""
    lines = Lines()
    lines.user("<command-name>/clear</command-name>")
    lines.user("<command-message>review</command-message>\n<command-name>/review</command-name>")
    lines.user("Review the change …", isMeta=True)
    lines.said("m1", text("It is good."))
    reading = read_claude(lines.lines)
    assert [(exchange.user_message, exchange.agent_response) for exchange in reading.exchanges] == [
        ("<command-message>review</command-message>\n<command-name>/review</command-name>", "It is good.")
    ]
    assert reading.exchanges[0].tags == ()


def test_program_texts_within_an_answer_belong_to_it(read_claude: Read) -> None:
    """A skill's text or a compaction summary must not split an exchange."""
    lines = Lines()
    lines.user("Well?")
    lines.said("m1", call("t1", "Skill"), stop="tool_use")
    lines.result("t1", "ok")
    lines.user("Base directory for this skill: …", isMeta=True)
    lines.said("m2", text("Done."))
    lines.user("Hook says: go on", isMeta=True)
    lines.said("m3", text("More."))
    assert [answer[:2] for answer in _answers(read_claude(lines.lines))] == [("Well?", "Done."), ("Hook says: go on", "More.")]


@pytest.mark.parametrize("prompt", ["And db4, please.", [{"type": "text", "text": "And db4, please."}]])
def test_a_message_sent_while_the_agent_works_joins_the_question(read_claude: Read, prompt: Any) -> None:
    """The program stores it as an attachment. Previously it was lost, and its answer belonged to the first question."""
    lines = Lines()
    lines.user("Is db3 well?")
    lines.said("m1", call("t1", "Bash", command="check db3"), stop="tool_use")
    lines.result("t1", "well")
    lines.add("attachment", attachment={"type": "queued_command", "commandMode": "prompt", "prompt": prompt})
    lines.said("m2", call("t2", "Bash", command="check db4"), stop="tool_use")
    lines.result("t2", "down")
    lines.said("m3", text("db3 is well, db4 is down."))
    reading = read_claude(lines.lines)
    assert reading.faults == []
    assert _answers(reading) == [("Is db3 well?\n\nAnd db4, please.", "db3 is well, db4 is down.", "answered")]
    assert [exchange.tags for exchange in reading.exchanges] == [()]


def test_a_message_sent_after_an_answer_is_a_new_question(read_claude: Read) -> None:
    """It was queued until the answer was finished."""
    lines = Lines()
    lines.user("Is db3 well?")
    lines.said("m1", text("Yes."))
    lines.add("attachment", attachment={"type": "queued_command", "commandMode": "prompt", "prompt": "And db4?"})
    lines.said("m2", text("No."))
    assert [answer[:2] for answer in _answers(read_claude(lines.lines))] == [("Is db3 well?", "Yes."), ("And db4?", "No.")]


def test_a_queued_notification_is_not_a_question(read_claude: Read) -> None:
    """A finished background command reports in the same way, although nobody asked."""
    lines = Lines()
    lines.user("Start the build.")
    lines.said("m1", call("t1", "Bash", command="make"), stop="tool_use")
    lines.result("t1", "started")
    notice = {
        "type": "queued_command",
        "commandMode": "task-notification",
        "prompt": "<task-notification>done</task-notification>",
    }
    lines.add("attachment", attachment=notice)
    lines.said("m2", text("It passed."))
    assert _answers(read_claude(lines.lines)) == [("Start the build.", "It passed.", "answered")]


@pytest.mark.parametrize("has_file", [True, False])
def test_a_subagents_work_counts_in_its_own_file(tmp_path: Path, context: ReadingContext, *, has_file: bool) -> None:
    """Some versions also write it into the session's file, so its tokens counted twice. Without its own file it counts there."""
    lines = Lines()
    lines.user("Find the fault.")
    task = lines.said("m1", call("t1", "Task", prompt="Look around."), stop="tool_use")
    subagents = Lines(prefix="s", minute=1, isSidechain=True, agentId="ab1")
    subagents.user("Look around.")
    subagents.said("msg_s1", call("t2", "Read", file_path="/x"), stop="tool_use")
    subagents.result("t2", "1/0")
    subagents.said("msg_s2", text("A division."))
    lines.lines += subagents.lines
    lines.result("t1", "A division.", parent=task)
    lines.said("m2", text("It is a division."))
    path = tmp_path / "projects" / "w" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    _write(path, lines.lines)
    files = [path]
    if has_file:
        files.append(path.parent / SESSION / "subagents" / "agent-ab1.jsonl")
        files[-1].parent.mkdir(parents=True)
        _write(files[-1], subagents.lines)
    readings = [read_claude_code(file, context) for file in files]
    exchanges = [exchange for reading in readings for exchange in reading.exchanges]
    assert [exchange.user_message for exchange in exchanges] == ["Find the fault.", "Look around."]
    events = [event.event for reading in readings for event in reading.events]
    assert tuple(map(events.count, ("tool_call", "tool_output", "token_usage"))) == (2, 2, 4)
    assert sum(exchange.input_tokens or 0 for exchange in exchanges) == 4 * 117


def test_a_sidechain_in_its_sessions_file_is_tagged_and_changes_nothing_else(read_claude: Read) -> None:
    """Older versions wrote a subagent's lines between those of the session."""
    lines = Lines()
    question = lines.user("Well?")
    lines.user("Look around.", parent=None, isSidechain=True)
    lines.said("s1", text("Nothing."), isSidechain=True)
    lines.said("m1", text("Done."), parent=question)
    reading = read_claude(lines.lines)
    assert [(exchange.user_message, exchange.tags) for exchange in reading.exchanges] == [
        ("Well?", ()),
        ("Look around.", ("subagent",)),
    ]


def test_a_subagents_file_is_its_own_session(read_claude: Read) -> None:
    """It names the session that started it, so two subagents would otherwise become one session."""
    lines = Lines(isSidechain=True, agentId="ab1")
    lines.user("Look around.")
    lines.said("s1", text("Nothing."))
    reading = read_claude(lines.lines)
    assert reading.session_ids == [f"{SESSION}.agent-ab1"]
    assert [exchange.tags for exchange in reading.exchanges] == [("subagent",)]


def test_a_child_of_a_damaged_line_takes_its_position(read_claude: Read) -> None:
    """The fault uses the program's name of the field."""
    lines: list[Any] = everything()
    lines[1] = {"type": "user", "message": "?", "uuid": 5}
    reading = read_claude(lines)
    assert [(fault.line, fault.reason) for fault in reading.faults] == [(2, "wrong_type"), (4, "unknown_parent")]
    assert reading.faults[1].detail.startswith("parentUuid: ")
    assert reading.exchanges[0].user_message == "And db3?"


def _write(path: Path, lines: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _snapshot(line: Line) -> Line:
    """Return the file snapshot that the program writes with each prompt of a person."""
    return {"type": "file-history-snapshot", "messageId": line["uuid"], "snapshot": {"timestamp": line["timestamp"]}}


def _with_head(session: str, head: str, own: Sequence[Line], copies: Sequence[Line] = ()) -> list[Line]:
    """Return the lines preceded by a queued prompt, by snapshots, or by nothing that gives the start time."""
    copied = [{**line, "sessionId": session, "promptId": "p"} for line in copies if "uuid" in line]
    prompts = [line for line in [*copied, *own] if line["type"] == "user"]
    heads = {
        "queued": [{"type": "queue-operation", "timestamp": own[0]["timestamp"], "sessionId": session}],
        "snapshots": [_snapshot(line) for line in prompts],
    }
    return [{"type": "mode", "sessionId": session}, *heads[head], *copied, *own]


@pytest.mark.parametrize("head", ["queued", "snapshots"])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("begins_at", [0, 2])
def test_a_fork_counts_only_its_additions(
    tmp_path: Path, context: ReadingContext, names: tuple[str, str], head: str, begins_at: int
) -> None:
    """Copied lines keep their uuids and have no other mark; file names do not tell the age.

    A fork of a compacted session starts in the middle of it.
    """
    first = Lines(names[0])
    first.user("One?")
    first.said("m1", text("One."))
    first.user("Two?")
    first.said("m2", text("Two."))
    fork = Lines(names[1], prefix="f", minute=10)
    fork.last = first.last
    fork.user("Three?")
    fork.said("m3", text("Three."))
    copies = list(first.lines)[begins_at:]
    first.user("Four?")
    folder = tmp_path / "projects" / "-srv"
    _write(folder / f"{names[0]}.jsonl", _with_head(names[0], head, first.lines))
    _write(folder / f"{names[1]}.jsonl", _with_head(names[1], head, fork.lines, copies))
    readings = [read_claude_code(path, context) for path in find_claude_code(tmp_path)]
    exchanges = [(exchange.user_message, exchange.session_id) for reading in readings for exchange in reading.exchanges]
    assert sorted([("One?", names[0]), ("Two?", names[0]), ("Three?", names[1]), ("Four?", names[0])]) == sorted(exchanges)
    assert sum(event.event == "token_usage" for reading in readings for event in reading.events) == 3


def test_unrelated_sessions_of_a_folder_are_not_compared(tmp_path: Path, context: ReadingContext) -> None:
    """A folder may have hundreds of sessions, and comparing each with all others would take too long."""
    folder = tmp_path / "projects" / "-srv"
    for number in range(3):
        lines = Lines(f"s{number}", prefix=f"s{number}-", minute=number)
        lines.user("One?")
        lines.said("m1", text("One."))
        _write(folder / f"s{number}.jsonl", _with_head(f"s{number}", "snapshots", lines.lines))
    assert [find_copied_ids(path) for path in find_claude_code(tmp_path)] == [NOTHING_COPIED] * 3
    assert [len(read_claude_code(path, context).exchanges) for path in find_claude_code(tmp_path)] == [1, 1, 1]


def test_transcripts_are_found_by_path_or_content(tmp_path: Path) -> None:
    """The folder has other JSON lines files as well."""
    projects = tmp_path / "projects"
    _write(projects / "-srv" / "a.jsonl", everything())
    _write(projects / "-srv" / "a" / "subagents" / "agent-1.jsonl", everything())
    _write(projects / "-srv" / "a" / "workflows" / "journal.jsonl", [{"type": "step"}])
    _write(tmp_path / "history.jsonl", [{"display": "hello", "sessionId": "a"}])
    _write(tmp_path / "copied" / "b.jsonl", everything())
    _write(projects / "-srv" / ".hidden.jsonl", everything())
    (projects / "-srv" / "link.jsonl").symlink_to(projects / "-srv" / "a.jsonl")
    names = [str(path.relative_to(tmp_path)) for path in find_claude_code(tmp_path)]
    assert names == ["copied/b.jsonl", "projects/-srv/a/subagents/agent-1.jsonl", "projects/-srv/a.jsonl"]


@pytest.mark.parametrize(
    ("blocks", "question"),
    [
        ([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}], "[image]"),
        ([{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}], "[file]"),
        ([{"type": "image", "source": {"type": "file", "file_id": "f"}}, {"type": "text", "text": "And this?"}], "And this?"),
    ],
)
def test_a_turn_without_text_has_a_placeholder(read_claude: Read, blocks: list[Line], question: str) -> None:
    """An empty question would look like a lost one."""
    lines = Lines()
    lines.add("user", message={"role": "user", "content": blocks})
    lines.said("m", text("I see."), stop="end_turn")
    assert [exchange.user_message for exchange in read_claude(lines.lines).exchanges] == [question]
