"""The judge's view: three parts from an allow-list, without traces of infrastructure, within its size, and reproducible."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import builders
from support import judge_views as views
from support.effort import examples

from audit.diagnosis.events import normalise_session
from audit.evaluation.cases import Case, Criterion, Message, Rubric, ScaleAnchor
from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.run import Artifact, Failure, Run, SessionRecords, ToolCall, ToolResult, Turn, run_of
from audit.evaluation.view import MIN_VIEW_SIZE, subject_view
from schemas.records import CheckOutcome, Exchange

PARTS = {
    "evaluation_target": ["messages", "hard_expectations", "soft_expectations", "dimensions", "rubric"],
    "subject_response": ["final_output", "assistant_messages", "tool_activity"],
    "execution_evidence": ["run_status", "events_recorded", "checks", "steps", "artifacts", "failures"],
}

PLANTS = {
    "a run's id": ("run_20261001_ab12", "run_20261001"),
    "a session's id": ("sess-planted-77", "planted-77"),
    "an exchange's id": ("exch.planted.1", "exch.planted"),
    "a machine's name": ("build-host-07", "build-host"),
    "a UUID": ("3f2a9c1e-1111-2222-3333-444455556666", "3f2a9c1e"),
    "a container's id": ("4f5e6a7b8c9d0011", "4f5e6a7b"),
    "a path": ("/home/alice/secret-project/report.md", "secret-project"),
    "a path of Windows": ("C:\\Users\\alice\\secret-project\\report.md", "secret-project"),
    "a path from home": ("~/secret-project/report.md", "secret-project"),
    "a file's address": ("file:///srv/secret-project/report.md", "secret-project"),
    "an image": ("ghcr.io/acme/agent-runner:1.4.2", "agent-runner"),
    "an image with a tag": ("acme/agent-runner:latest", "agent-runner"),
    "an image's digest": ("acme/agent@sha256:" + "0123456789abcdef" * 4, "0123456789abcdef"),
    "a key": ("sk-ant-api03-Zm9vYmFyYmF6cXV4", "Zm9vYmFy"),
    "a key of a cloud": ("AKIAABCDEFGHIJKLMNOP", "ABCDEFGHIJ"),
    "an id of a call": ("toolu_01AbCdEfGhIjKlMnOpQrStUv", "AbCdEfGh"),
    "an id of a request": ("req_011CSHoEeqs5C35K2UUqR7Fy", "CSHoEeqs"),
    "a line of a log": ("2026-10-01T09:00:00.123Z ERROR worker: cannot reach the broker", "broker"),
    "a line of a container's log": ("2026-10-01T09:00:00.123456789Z stdout F cannot reach the broker", "broker"),
    "a line of the journal": ("Oct 01 09:00:00 node agentd[7]: cannot reach the broker", "broker"),
}
"""Texts that are planted, with the part of each that must not be shown."""
KNOWN_IDS = ("sess-planted-77", "exch.planted.1", "build-host-07")
BEFORE = st.sampled_from(
    ["", " ", "see ", "(", '"', "'", "`", "= ", ": ", "\n", "a\nb ", "。", "é ", "[", "<", "| ", "> ", "\t", "\u200b"]
)
AFTER = st.sampled_from(["", " ", ")", '"', "'", "`", ", ", ". ", "; ", "\n", "\nb", " 。", "]", ">", " |", "\t", " and more"])

TYPES = (
    *(
        "tool_call",
        "tool_output",
        "artifact",
        "error_event",
        "decision",
        "process_end",
        "session_end",
        "process_output",
        "retry_event",
    ),
    *("memory_event", "context_event", "skill_event", "token_usage", "something_new"),
)
FIELDS = (
    *("event_id", "tool", "tool_name", "name", "tool_call_id", "call_id", "result", "output", "content", "text", "response", "data", "stdout"),
    *("stderr", "message", "excerpt", "path", "file_path", "file", "filename", "answer", "final_response", "summary", "decision", "error"),
    *("errorMessage", "reason", "description", "detail", "model", "provider", "agent", "host", "hostname", "container", "image", "pod", "cwd"),
    *("workdir", "run_id", "session_id", "exchange_id", "request_id", "trace_id", "status", "action", "outcome", "config", "command", "log"),
)  # fmt: skip
TEXTS_OF_EXCHANGES = [
    name
    for name, kind in Exchange.__annotations__.items()
    if "str" in str(kind) and name not in {"outcome", "connection", "project", "tags"}
]


def payloads(text: str) -> list[dict[str, Any]]:
    """Return events of every type with the text in every field, plain and nested, as a value and as a name."""
    raw = []
    for kind in TYPES:
        raw += [{"event": kind, name: text} for name in FIELDS]
        nested = {"deep": [{"er": text, text: 1}], "coded": json.dumps({"a": json.dumps([text])})}
        raw += [{"event": kind, "tool": "bash", name: nested} for name in ("args", "output", "content", "error", "message")]
        raw.append({"event": kind, "path": "report.md", "content": f"# Report\n{text}\n", "tool": text, "args": {"cmd": text}})
    return [event.payload for event in normalise_session(raw)]


def planted_run(text: str) -> Run:
    """Return a run folded from a session with the text in every field."""
    values = dict.fromkeys(TEXTS_OF_EXCHANGES, text)
    exchanges = [builders.exchange("sess-planted-77", number, **values, tags=(text,)) for number in (1, 2)]
    # As in a real session, some ids are known.
    ids = [{"event": "process_output", "event_id": known, "host": known} for known in KNOWN_IDS]
    records = SessionRecords(
        connection="local", project="ops", session_id="sess-planted-77", exchanges=exchanges, events=[*ids, *payloads(text)]
    )
    run = run_of(records, {})
    # Without this, the planted text would become a known id, and the patterns would not be tested.
    return replace(run, identifiers=run.identifiers & set(KNOWN_IDS))


def strings(value: Any) -> Iterator[str]:
    """Yield every text and name of a document."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from (name, *strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("kind", PLANTS)
@settings(max_examples=6, deadline=None)
@given(before=BEFORE, after=AFTER)
def test_no_trace_of_the_infrastructure_is_in_the_view(kind: str, before: str, after: str) -> None:
    """A judge that knows where a run took place is biased, and the prompt is sent to an external provider."""
    text, needle = PLANTS[kind]
    view = subject_view(views.CASE, planted_run(f"{before}{text}{after}"), (), 400_000)
    assert needle not in view.text
    assert [item for item in strings(json.loads(view.text)) if needle.lower() in item.lower()] == []


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("place", views.PLACES)
def test_no_text_of_a_run_reveals_the_infrastructure(kind: str, place: str) -> None:
    """The same holds for each text of the view, however the run was folded."""
    text, needle = PLANTS[kind]
    run = views.run_with(place, f"x {text}\nThe end.")
    view = views.view(
        views.run(
            **{name: getattr(run, name) for name in ("turns", "steps", "failures", "artifacts")},
            identifiers=frozenset(KNOWN_IDS),
        )
    )
    assert needle.lower() not in view.text.lower()


def test_other_text_is_in_the_view() -> None:
    """An empty view would pass the tests above."""
    view = subject_view(views.CASE, planted_run("a telling word"), (), 400_000)
    assert view.text.count("a telling word") > 20


def test_names_of_models_agents_connections_and_times_are_hidden() -> None:
    """Metadata of the provider would let a judge recognize its own kind."""
    time = datetime(2031, 7, 9, tzinfo=UTC)
    run = views.run(
        connection="conn-x",
        project="proj-x",
        agent="agent-x",
        model="model-x",
        cost_usd=7.77,
        started_at=time,
        ended_at=time,
        trust=83,
    )
    text = views.view(run).text
    assert [
        word for word in ("conn-x", "proj-x", "agent-x", "model-x", "7.77", "2031", "83", "weekly-report") if word in text
    ] == []


def test_the_document_has_exactly_three_parts() -> None:
    """The system prompt explains exactly these members."""
    document = json.loads(views.view(views.run()).text)
    assert {part: list(members) for part, members in document.items()} == PARTS
    mark = next(iter(document["subject_response"]["final_output"]))

    def text(nonblank_texts: str) -> dict[str, str]:
        return {mark: nonblank_texts}

    assert document["subject_response"] == {
        "final_output": text("The report is written."),
        "assistant_messages": [text("I begin.")],
        "tool_activity": {"calls": 1, "failed_results": 0, "tools": [{"tool": text("write_file"), "calls": 1}]},
    }
    assert document["execution_evidence"] == {
        "run_status": "answered",
        "events_recorded": True,
        "checks": {
            "passed": 0,
            "failed": 1,
            "error": 0,
            "not_passed": [{"check_id": "has-total", "kind": "artifact_contains", "outcome": "fail", "dimensions": ["task"]}],
        },
        "steps": [
            {"call": {"tool": text("write_file"), "arguments": text('{"path":"report.md"}')}},
            {"result": {"tool": text("write_file"), "failed": False, "output": text("ok")}},
        ],
        "artifacts": [{"path": text("report.md"), "excerpt": text("# Totals\n1, 2, 3\n")}],
        "failures": [{"kind": text("error_event"), "words": text("The first upload was refused.")}],
    }
    assert list(document["evaluation_target"]["dimensions"]) == list(DIMENSIONS)


def test_an_empty_run_has_a_view() -> None:
    """Some runs end without an answer and events, which the judge must see."""
    run = views.run(turns=(), steps=(), failures=(), artifacts=(), status="no_response", has_events=False)
    document = json.loads(views.view(run, ()).text)
    assert document["subject_response"] == {
        "final_output": None,
        "assistant_messages": [],
        "tool_activity": {"calls": 0, "failed_results": 0, "tools": []},
    }
    assert document["execution_evidence"]["run_status"] == "no_response"
    assert not document["execution_evidence"]["events_recorded"]


def test_the_rubric_is_shown_unchanged() -> None:
    """Braces and quotation marks are ordinary text there, and nothing is scrubbed."""
    rubric = Rubric(
        scale_anchors=(ScaleAnchor(score=7.5, meaning="good {} /home/x/y"),),
        criteria=(Criterion(name="tone", dimension="closeness", good='"kind"', bad="{0}"),),
        scoring_instructions="Be strict.",
    )
    case = views.CASE.model_copy(update={"rubric": rubric})
    document = json.loads(subject_view(case, views.run(), (), 60_000).text)
    assert document["evaluation_target"]["rubric"] == json.loads(rubric.model_dump_json())


def test_equal_content_gives_equal_bytes_and_other_content_another_mark() -> None:
    """Answers are found again by the exact prompt, but a constant mark could be copied."""
    view, repeated_view = views.view(views.run()), views.view(views.run())
    assert view == repeated_view
    other_view = views.view(views.run_with("final answer", "The report is written!"))
    assert len({next(iter(json.loads(item.text)["subject_response"]["final_output"])) for item in (view, other_view)}) == 2


def test_a_limit_that_is_too_small_is_refused() -> None:
    """Profiles have the same limit."""
    with pytest.raises(ValueError, match=f"at least {MIN_VIEW_SIZE}"):
        views.view(views.run(), most=MIN_VIEW_SIZE - 1)


texts = st.builds(
    lambda piece, times: piece * times,
    st.sampled_from(["x", "word ", '"', "\\", "\x00", "é", "\ud800", "\U0001f600", "\U000e0041", "/a/b ", "2026-10-01 09:00:00 INFO x\n", "{}", "<", '{"a":1}'])
    | st.text(max_size=8),
    st.integers(0, 40) | st.integers(300, 3000),
)  # fmt: skip
arguments = st.none() | texts | st.dictionaries(texts, texts, max_size=2) | st.lists(st.integers(), max_size=3)
calls = st.builds(ToolCall, st.none() | texts, arguments)
results = st.builds(ToolResult, st.none() | texts, arguments, st.booleans())
runs = st.builds(
    lambda said, steps, times, failures, artifacts: views.run(
        turns=tuple(Turn("q", item, "answered") for item in said),
        steps=tuple(steps) * times,
        failures=tuple(failures),
        artifacts=tuple(artifacts),
    ),
    st.lists(texts, max_size=6),
    st.lists(calls | results, max_size=6),
    st.sampled_from([0, 1, 3, 50]),
    st.lists(st.builds(Failure, texts, texts), max_size=5),
    st.lists(st.builds(Artifact, texts, texts), max_size=5),
)
nonblank_texts = texts.filter(lambda text: bool(text.strip())).map(lambda text: text[:4_000])
rubrics = st.builds(
    lambda anchors, criteria, instructions: Rubric.model_construct(
        scale_anchors=tuple(ScaleAnchor.model_construct(score=1.0, meaning=item) for item in anchors),
        criteria=tuple(Criterion.model_construct(name=item[:500], dimension="task", good=item, bad=item) for item in criteria),
        scoring_instructions=instructions,
    ),
    st.lists(nonblank_texts, max_size=3),
    st.lists(nonblank_texts, max_size=3),
    nonblank_texts,
)


def case_of(messages: list[str], hard: list[str], rubric: Rubric | None) -> Case:
    """Return a case with these texts."""
    expectations = views.CASE.expectations.model_copy(
        update={"hard_expectations": tuple(views.Expectation.model_construct(text=item) for item in hard)}
    )
    case_input = views.CaseInput.model_construct(
        messages=tuple(Message.model_construct(role="user", content=item) for item in messages)
    )
    return views.CASE.model_copy(update={"input": case_input, "expectations": expectations, "rubric": rubric})


@settings(max_examples=examples(120), deadline=None)
@given(
    case=st.builds(
        case_of, st.lists(nonblank_texts, min_size=1, max_size=4), st.lists(nonblank_texts, max_size=4), st.none() | rubrics
    ),
    run=runs,
    checks=st.integers(0, 100),
    max_characters=st.sampled_from([MIN_VIEW_SIZE, MIN_VIEW_SIZE + 1, 6_000, 20_000, 60_000]),
)
def test_no_run_or_case_exceeds_the_size_of_a_view(case: Case, run: Run, checks: int, max_characters: int) -> None:
    """The size of the prompt determines its cost, and a record has no room for more."""
    outcomes = [
        CheckOutcome(check_id=f"check-{number:050d}", kind="response_contains", dimensions=DIMENSIONS, outcome="error")
        for number in range(checks)
    ]
    text = subject_view(case, run, outcomes, max_characters).text
    assert len(text) <= max_characters
    document = json.loads(text)
    assert {part: list(members) for part, members in document.items()} == PARTS
    steps = document["execution_evidence"]["steps"]
    left_out = [item["left_out"] for item in steps if "left_out" in item]
    counted_steps = sum(item.get("calls", 0) + item.get("results", 0) for item in left_out) + sum(
        "left_out" not in item for item in steps
    )
    assert len(run.steps) == counted_steps


def test_a_long_answer_keeps_head_and_tail_with_a_note() -> None:
    """The beginning and the end of an answer are the most important; the omission cannot be imitated by the agent."""
    answer = "BEGIN " + "word " * 40_000 + "END"
    view = views.view(views.run_with("final answer", answer))
    head, gap, tail = json.loads(view.text)["subject_response"]["final_output"]
    (head,), (tail,) = head.values(), tail.values()
    assert answer[: len(head)] == head
    assert answer[-len(tail) :] == tail
    assert len(head) > len(tail) > 10_000
    assert gap == {"left_out": {"characters": len(answer) - len(head) - len(tail)}}
    (warning,) = view.warnings
    assert "part of the final answer" in warning
    assert "60000 characters" in warning


def test_of_many_steps_the_ends_and_failures_are_kept() -> None:
    """Failures, and how a run began and ended, are the most important; the omission states what is missing."""
    steps: list[ToolCall | ToolResult] = []
    for number in range(300):
        steps += [
            ToolCall("bash", {"command": f"step {number} " + "x" * 900}),
            ToolResult("bash", f"output {number} " + "y" * 900, failed=number == 150),
        ]
    steps_shown = json.loads(views.view(views.run(steps=tuple(steps)), most=20_000).text)["execution_evidence"]["steps"]
    rendered_steps = json.dumps(steps_shown)
    assert all(
        f"{word} " in rendered_steps for word in ("step 0", "output 0", "step 299", "output 299", "step 150", "output 150")
    )
    gaps = [item["left_out"] for item in steps_shown if "left_out" in item]
    assert len(gaps) == 2
    assert sum(gap["calls"] for gap in gaps) + sum("call" in item for item in steps_shown) == 300
    assert not any("failed_results" in gap for gap in gaps)


def test_a_short_answer_is_complete_beside_any_amount_of_evidence() -> None:
    """Evidence must not displace the answer that is judged."""
    run = views.run(
        steps=tuple(ToolResult("bash", "z" * 100_000, failed=True) for _ in range(100)),
        artifacts=tuple(Artifact(f"file{number}.md", "w" * 100_000) for number in range(20)),
        turns=(Turn("q", "a" * 50_000, "answered"), Turn("q", "done " * 200, "answered")),
    )
    view = views.view(run, most=20_000)
    document = json.loads(view.text)
    assert list(document["subject_response"]["final_output"].values()) == ["done " * 200]
    assert document["evaluation_target"]["hard_expectations"] == ["report.md holds the three totals"]
    # A person should review a high score of a run of which the judge saw only a part.
    evidence = ("tool calls and results", "artifacts")
    assert (
        tuple(f"The judge saw only part of the {part}: the view is limited to 20000 characters." for part in evidence)
        == view.warnings
    )
    assert all(document["execution_evidence"][name] for name in ("steps", "artifacts", "failures"))


def test_checked_artifacts_come_first() -> None:
    """Checks show which artifacts matter for the task."""
    case = Case.model_validate(
        json.loads(views.CASE.model_dump_json())
        | {"deterministic_checks": [{"check_id": "c", "kind": "artifact_present", "path": "key.md"}]},
        strict=False,
    )
    artifacts = tuple(Artifact(f"/srv/{name}.md", "w" * 3_000) for name in (*"abcdefgh", "key", *"ijklmnop"))
    artifacts_shown = json.loads(subject_view(case, views.run(artifacts=artifacts), (), MIN_VIEW_SIZE + 500).text)[
        "execution_evidence"
    ]["artifacts"]
    assert "[path]/key.md" in json.dumps(artifacts_shown)
    assert any("left_out" in item for item in artifacts_shown)


def test_five_megabytes_take_a_moment() -> None:
    """Hundreds of runs are prepared at once."""
    text = ('ran src/app.py; 12 passed, see {"a": 1} in /home/a/b for details.\n' * 2_000)[:100_000]
    steps = tuple(
        step
        for number in range(25)
        for step in (ToolCall("bash", {"cmd": text, "n": number}), ToolResult("bash", text + str(number), failed=False))
    )
    started = time.process_time()
    views.view(views.run(steps=steps))
    assert time.process_time() - started < 5
