"""Tables on narrow terminals."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from service.cli import list_views
from service.cli.commands.alerts import ALERT_KEYS
from service.cli.commands.evaluations import EVALUATION_KEYS
from service.cli.commands.projects import PROJECT_KEYS
from service.cli.incident_views import INCIDENT_KEYS
from service.cli.main import run
from service.cli.terminal import ListTable, table
from service.cli.views import RUN_KEYS, SCORE_KEYS, SESSION_KEYS, WRAP_KEYS
from service.read.evaluations import EvaluatedRun
from service.read.incidents import IncidentAnswer
from service.read.project import Project
from service.read.runs import Run
from service.read.scores import Score, WrapUp
from service.read.sessions import ListedSession
from service.read.telemetry import AlertDelivery
from service.text.answers import Answer

HEADERS = ["exchange at", "session", "turn", "tiers", "why"]
ROW = [
    "2026-11-01 12:40",
    "18e83a30-fb39-535d-9b48-ed8bc291d8e7",
    7,
    "1.00 0.95 0.24 4.62",
    "thinking and answer align at 0.24, 0.3 or less is low",
]


def print_table(width: int, rows: list[list[object]]) -> list[str]:
    """Return the lines of a table on a terminal of this width."""
    console = Console(width=width, file=io.StringIO(), highlight=False, emoji=False)
    console.print(table(HEADERS, rows, right=["turn"]))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_row_is_folded_if_its_line_is_too_long() -> None:
    """A table with columns of three letters is unreadable."""
    expected = [
        "exchange at        session                                turn",
        "  tiers",
        "  why",
        "─" * 64,
        "2026-11-01 12:40   18e83a30-fb39-535d-9b48-ed8bc291d8e7      7",
        "  1.00 0.95 0.24 4.62",
        "  thinking and answer align at 0.24, 0.3 or less is low",
    ]

    assert print_table(64, [ROW]) == expected


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_folded_row_keeps_all_of_its_text(width: int) -> None:
    """A truncated id cannot be copied into the next command."""
    lines = print_table(width, [ROW])

    assert all(len(line) <= width for line in lines)
    assert " ".join(map(str, ROW)).split() == " ".join(lines[lines.index("─" * width) + 1 :]).split()


def test_an_empty_line_is_omitted() -> None:
    """Most exchanges have no flags."""
    lines = print_table(64, [[*ROW[:4], ""], ROW])

    assert lines[5:7] == ["  1.00 0.95 0.24 4.62", lines[4]]


@pytest.mark.parametrize("width", [120, 200])
def test_a_row_stays_on_one_line_if_it_fits(width: int) -> None:
    """Readers compare the rows of a column."""
    header, _, first, *_ = print_table(width, [ROW])

    assert " ".join(HEADERS) == " ".join(header.split())
    assert first.startswith("2026-11-01")
    assert "1.00 0.95 0.24 4.62   thinking and" in first


def print_list(width: int, rows: list[list[object]], *, is_terminal: bool) -> list[str]:
    """Return the lines of a list with these rows."""
    console = Console(width=width, file=io.StringIO(), force_terminal=is_terminal, color_system=None, highlight=False)
    listed = ListTable(HEADERS, rows, right=["turn"], whole=["exchange at"], optional=["tiers", "session"])
    console.print(listed, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_row_of_a_list_takes_one_line(width: int) -> None:
    """Readers scan a list by its columns; a text that goes on below the others hides them."""
    lines = print_list(width, [ROW, [*ROW[:-1], "x" * 300]], is_terminal=True)

    assert all(len(line) <= width for line in lines if not line.startswith("left out"))
    assert [line[:10] for line in lines[2:4]] == ["2026-11-01"] * 2
    assert lines[3].endswith("x…")
    assert len(lines) == (4 if width >= 80 else 5)


def test_columns_that_say_nothing_are_left_out_first() -> None:
    """A column with one value in all rows tells them apart least."""
    *_, left_out = print_list(60, [ROW, [ROW[0], "another-session", *ROW[2:]]], is_terminal=True)
    assert left_out.startswith("left out: tiers;")
    *_, left_out = print_list(60, [ROW, [*ROW[:3], "0.50 0.50 0.50 1.00", ROW[4]]], is_terminal=True)
    assert left_out.startswith("left out: session")


def test_a_pipe_gets_whole_texts() -> None:
    """`driftline scores | grep` must find what the database has."""
    *_, line = print_list(20, [[*ROW[:-1], "x" * 150]], is_terminal=False)
    assert line.endswith("x" * 150)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (RUN_KEYS, Run),
        (SCORE_KEYS, Score),
        (SESSION_KEYS, ListedSession),
        (WRAP_KEYS, WrapUp),
        (ALERT_KEYS, AlertDelivery),
        (EVALUATION_KEYS, EvaluatedRun),
        (INCIDENT_KEYS, IncidentAnswer),
        (PROJECT_KEYS, Project),
    ],
)
def test_the_short_json_of_a_list_has_fields_of_the_full_one(keys: tuple[str, ...], kind: type[Answer]) -> None:
    """A script that needs more fields adds `--full` and changes nothing else."""
    assert set(keys) < set(kind.__struct_encode_fields__)


def test_a_watched_list_shows_each_new_row_until_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits for a run must not have to list all of them again and again; a script gets one JSON document per line."""

    def import_session(name: str) -> None:
        event = {"session_id": name, "event": "tool_call", "tool": name, "timestamp": "2026-10-01T09:00:00Z"}
        (tmp_path / "events.jsonl").write_text(json.dumps(event))
        assert run(["import", "events", "events.jsonl", "--json"]) == 0
        capsys.readouterr()

    def next_poll(_: float) -> None:
        printed.append(capsys.readouterr().out.splitlines())
        if not names:
            raise KeyboardInterrupt
        import_session(names.pop())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(list_views, "sleep", next_poll)
    import_session("first")
    for options in (["runs", "--json"], ["runs"], []):
        names, printed = [f"new-{len(options)}"], list[list[str]]()
        assert run(["watch", *options]) == 130
        first, second = printed
        if options == ["runs", "--json"]:
            assert [json.loads(line)["sessionId"] for line in (*first, *second)] == ["first", "new-2"]
        elif options == ["runs"]:
            assert [first[0].split()[0], *("new-1" in line for line in second)] == ["run", True]
        else:
            assert first[0].startswith("project ")


def test_runs_are_filtered_by_agent_failure_and_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown failure is refused, because a list without rows would read as if the agent had none."""
    events = [
        {"session_id": name, "event": "tool_call", "tool": tool, "agent": name, "timestamp": "2026-10-01T09:00:00Z"}
        for name, tool in (("scout", "search"), ("other", "read"))
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    monkeypatch.chdir(tmp_path)
    assert run(["import", "events", "events.jsonl", "--json"]) == 0
    for options, expected in {
        ("--agent", "scout"): ["scout"],
        ("--tool", "read"): ["other"],
        ("--failure", "-", "--until", "2026-10-01T09:00:01Z"): ["other", "scout"],
        ("--failure", "skill_failure"): [],
        ("--until", "2026-10-01"): [],
    }.items():
        capsys.readouterr()
        assert run(["runs", "--json", *options]) == 0
        assert sorted(json.loads(line)["sessionId"] for line in capsys.readouterr().out.splitlines()) == expected
    assert run(["runs", "--failure", "skil_failure"]) == 2
    assert "Did you mean skill_failure?" in capsys.readouterr().err


def test_sessions_are_found_by_agent_and_failed_tool_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All sessions of an agent with a failed call is the first question about it, in whichever project they are."""
    monkeypatch.chdir(tmp_path)
    for project, session, agent, outcome in (
        ("ops", "a", "scout", "error"),
        ("web", "b", "scout", "ok"),
        ("web", "c", "other", "error"),
    ):
        row = {
            "session_id": session,
            "timestamp": "2026-10-01T09:00:00Z",
            "prompt": f"Question {session}?",
            "response": "Yes.",
            "agent": agent,
            "calls": [{"name": "search", "arguments": {}, "outcome": outcome}],
        }
        (tmp_path / f"{session}.jsonl").write_text(json.dumps(row))
        assert (
            run(["import", "exchanges", f"{session}.jsonl", "--set", "tool_calls=calls", "--project", project, "--json"]) == 0
        )
    for options, expected in {
        (): ["a", "b", "c"],
        ("--agent", "scout"): ["a", "b"],
        ("--agent", "scout", "--tool-errors"): ["a"],
        ("--tool", "read"): [],
        ("--tool", "search", "--project", "web", "--until", "2026-10-02"): ["b", "c"],
        ("--since", "2026-10-02"): [],
    }.items():
        capsys.readouterr()
        assert run(["sessions", "list", "--json", *options]) == 0
        sessions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert sorted(session["sessionId"] for session in sessions) == expected
        assert [session["question"] for session in sessions] == [f"Question {session['sessionId']}?" for session in sessions]
