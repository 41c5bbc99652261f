"""The commands as a user types them: what they print, what they leave behind, and how they exit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.builders import judgement
from support.watch_histories import put

from analytics.store.store import Store
from streams.judges.rate_limits import MAX_UNREADABLE

ROOT = Path(__file__).parents[2]
LOOP = [{"event": "tool_call", "tool": "exec", "args": {"command": "ls"}}] * 6
CALM = [{"event": "tool_call", "tool": "read", "args": {"path": "a"}}, {"event": "session_end"}]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def events_file(tmp_path: Path) -> Path:
    """Two sessions: one that loops, one that is calm and ends."""
    return write_sessions(tmp_path / "events.jsonl", {"looping": LOOP, "calm": CALM})


def write_sessions(path: Path, sessions: dict[str, Sequence[dict[str, Any]]]) -> Path:
    """A file with one session a line, times a minute apart."""
    lines = []
    for session, events in sessions.items():
        timed = [{"timestamp": f"2026-10-01T09:{number:02}:00Z", **event} for number, event in enumerate(events)]
        lines.append(json.dumps({"session_id": session, "events": timed}))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_diagnose_prints_one_diagnosis_a_line_in_input_order_and_leaves_no_database(
    driftline: Command, events_file: Path
) -> None:
    """A CI job has files and wants verdicts, nothing else."""
    code, out, _ = driftline("diagnose", str(events_file), "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [document["session_id"] for document in documents] == ["looping", "calm"]
    assert [document["readiness_level"] for document in documents] == ["unsafe_for_production", "ready_for_runtime"]
    assert [path.name for path in events_file.parent.iterdir()] == [events_file.name]


def test_diagnose_is_the_same_document_the_database_gives(driftline: Command, events_file: Path) -> None:
    """A diagnosis has references only; the full document made from the log must be that of the file."""
    _, direct, _ = driftline("diagnose", str(events_file), "--json")
    driftline("import", "events", str(events_file))
    for line in direct.splitlines():
        document = json.loads(line)
        _, out, _ = driftline("run", document["session_id"], "--json")
        stored = json.loads(out)
        assert document == stored["diagnosis"]


def test_import_diagnoses_what_ended_and_what_fell_idle(driftline: Command, events_file: Path) -> None:
    """The calm session ended by itself, the other one was last heard of long ago."""
    code, out, _ = driftline("import", "events", str(events_file), "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["events"] == 8
    assert summary["sessions"] == 2
    assert summary["faults"] == 0
    _, out, _ = driftline("runs", "--json")
    trust = {row["sessionId"]: row["trustScore"] for row in map(json.loads, out.splitlines())}
    assert trust == {"calm": 100, "looping": 90}


def test_importing_twice_changes_nothing(driftline: Command, events_file: Path) -> None:
    """Every record has an identity."""
    driftline("import", "events", str(events_file))
    _, before, _ = driftline("runs", "--json")
    _, out, _ = driftline("import", "events", str(events_file), "--json")
    assert json.loads(out)["events"] == 0
    assert json.loads(out)["known"] == 8
    _, after, _ = driftline("runs", "--json")
    assert after == before


def test_a_session_can_be_finalized_by_hand(driftline: Command, events_file: Path) -> None:
    """Before it falls idle; the verdict is shown at once."""
    driftline("import", "events", str(events_file), "--as-of", "2026-10-01T09:10:00Z")
    _, runs, _ = driftline("runs", "--json")
    assert [json.loads(line)["sessionId"] for line in runs.splitlines()] == ["calm"]
    code, out, _ = driftline("finalize", "looping")
    assert code == 0
    assert "infinite_tool_loop" in out
    assert "tool_failure_or_no_progress" in out


def test_a_late_record_of_a_closed_session_is_diagnosed_too(driftline: Command, tmp_path: Path) -> None:
    """It is older than the last one, so the session falls idle at a time at which it was closed before."""
    for number, minute in enumerate((30, 10)):
        event = {"session_id": "s1", "event": "memory_event", "action": "miss", "event_id": f"e{number}"}
        path = tmp_path / f"events_{number}.jsonl"
        path.write_text(json.dumps(event | {"timestamp": f"2026-10-01T09:{minute}:00Z"}) + "\n")
        _, out, _ = driftline("import", "events", str(path), "--json")
        assert json.loads(out)["sessions_closed"] == 1
    _, out, _ = driftline("sql", "SELECT revision, event_count FROM diagnoses", "--json")
    assert json.loads(out) == {"revision": 1, "event_count": 2}
    _, out, _ = driftline("import", "events", str(path), "--json")
    assert json.loads(out)["sessions_closed"] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--min-trust", "95"], 1),
        ([], 1),
        (["--session", "calm"], 0),
        (["--min-readiness", "unsafe_for_production"], 0),
        (["--min-readiness", "unsafe_for_production", "--min-trust", "91"], 1),
        (["--min-readiness", "ready_for_runtime"], 1),
        (["--min-readiness", "ready_for_runtime", "--session", "calm"], 0),
        (["--session", "nobody"], 2),
        (["--min-readiness", "perfect"], 2),
    ],
)
def test_check_exits_by_the_gate(driftline: Command, events_file: Path, arguments: list[str], expected: int) -> None:
    """0 passes, 1 fails, 2 is a mistake in the call."""
    driftline("import", "events", str(events_file))
    code, _, _ = driftline("check", *arguments)
    assert code == expected


@pytest.mark.parametrize(("least", "warns"), [("1", True), ("60", True), ("73", True), ("74", False), ("0", False)])
def test_check_warns_of_a_gate_that_never_fails_a_run(
    driftline: Command, events_file: Path, least: str, *, warns: bool
) -> None:
    """A build that passes whatever the agent did is worse than one without a gate."""
    _, out, warnings = driftline("check", str(events_file), "--min-trust", least, "--json")
    assert (f"--min-trust {least} never fails a run" in warnings) == warns
    assert json.loads(out)["checked"] == 2


def test_readiness_comes_before_trust_wherever_a_run_is_shown(driftline: Command, events_file: Path) -> None:
    """An unsafe run may have a trust of 90: whoever reads the first word must not take it for fine."""
    driftline("import", "events", str(events_file))
    session = json.loads(driftline("runs", "--json")[1].splitlines()[0])["sessionId"]
    shown = [driftline("runs")[1], driftline("run", session)[1], driftline("diagnose", str(events_file))[1]]
    gate = driftline("check", "--min-trust", "100", "--min-readiness", "ready_for_runtime")[1]
    for words in (*shown, gate):
        first = re.search(r"readiness|unsafe_for_production|review_recommended|ready_for_runtime", words)
        trust = words.find("trust")
        assert first is not None
        assert first.start() < trust


def test_a_run_that_is_unsafe_passes_no_gate_by_default(driftline: Command, tmp_path: Path) -> None:
    """A build gates on what nobody remembered to ask for: nine refunds of one order have a trust of 90."""
    refunds = [{"event": "tool_call", "tool": "refund", "args": {"order": 17}}] * 9
    path = write_sessions(tmp_path / "loop.jsonl", {"loop": refunds})
    code, out, _ = driftline("check", str(path))

    assert code == 1
    assert "infinite_tool_loop" in out
    assert "trust of 60 or more" in out
    assert json.loads(driftline("check", str(path), "--json")[1])["checked"] == 1
    assert driftline("import", "events", str(path))[0] == 0
    assert driftline("check")[0] == 1

    code, _, warning = driftline("check", str(path), "--min-readiness", "unsafe_for_production")
    assert code == 0
    assert "fails no run" in warning


def test_check_reads_files_without_a_database(driftline: Command, events_file: Path) -> None:
    """A build has the session's file, not the fleet's database."""
    code, out, _ = driftline("check", str(events_file), "--min-readiness", "ready_for_runtime", "--json")
    verdict = json.loads(out)
    assert code == 1
    assert [failed["session_id"] for failed in verdict["failed"]] == ["looping"]
    assert not (events_file.parent / "driftline.duckdb").exists()


def test_a_session_without_evidence_passes_no_gate(driftline: Command, tmp_path: Path) -> None:
    """No events is no proof of good behaviour."""
    path = write_sessions(tmp_path / "empty.jsonl", {"empty": []})
    code, out, _ = driftline("check", str(path))
    assert code == 1
    assert "no evidence" in out


def test_runs_are_exported_as_three_files_each(driftline: Command, events_file: Path, tmp_path: Path) -> None:
    """run_001.json, its session.json and its diagnosis.json, which diagnose gives again."""
    driftline("import", "events", str(events_file))
    driftline("export-runs", "exported")
    found = sorted(str(path.relative_to(tmp_path / "exported")) for path in (tmp_path / "exported").rglob("*.json"))
    expected = [
        f"runs/{name}"
        for run_id in ("run_001", "run_002")
        for name in (f"{run_id}.json", f"{run_id}/diagnosis.json", f"{run_id}/session.json")
    ]
    assert found == sorted(expected)
    summary = json.loads((tmp_path / "exported/runs/run_001.json").read_text())
    assert summary["run_id"] == "run_001"
    assert summary["session_id"] == "calm"
    assert summary["trust_score"] == 100
    assert summary["tool_calls"] == 1
    _, out, _ = driftline("diagnose", "exported/runs/run_001/session.json", "--json")
    assert json.loads((tmp_path / "exported/runs/run_001/diagnosis.json").read_text()) == json.loads(out)


def test_sql_reads_and_nothing_else(driftline: Command, events_file: Path) -> None:
    """The statement is the user's; the database stays as it is."""
    driftline("import", "events", str(events_file))
    code, out, _ = driftline("sql", "SELECT session_id, trust_score FROM diagnoses ORDER BY ALL", "--json")
    assert code == 0
    assert [json.loads(line)["session_id"] for line in out.splitlines()] == ["calm", "looping"]
    code, _, error = driftline("sql", "DELETE FROM log.diagnoses")
    assert code == 2
    assert "error:" in error
    assert driftline("sql", "SELECT 1; SELECT 2")[0] == 2


def test_csv_cells_cannot_become_formulas(driftline: Command, events_file: Path) -> None:
    """A spreadsheet runs what begins with an equals sign."""
    driftline("import", "events", str(events_file))
    _, out, _ = driftline("sql", "SELECT '=1+1' AS cell", "--csv")
    assert out.split() == ["cell", "'=1+1"]


def test_rebuild_gives_the_same_again(driftline: Command, events_file: Path) -> None:
    """Derived tables are a cache of the sources."""
    driftline("import", "events", str(events_file))
    _, before, _ = driftline("runs", "--json")
    code, out, _ = driftline("rebuild")
    assert code == 0
    assert "2 diagnoses" in out
    assert driftline("runs", "--json")[1] == before


def test_a_rebuild_without_a_file_says_where_one_comes_from(driftline: Command, tmp_path: Path) -> None:
    """The file is the log of an installation without Kafka: nothing else has its records, and an empty one would hide that."""
    code, _, error = driftline("rebuild")
    assert code == 2
    assert "no database at driftline.duckdb" in error
    assert "--kafka" in error
    assert "restore a backup" in error
    assert [*tmp_path.glob("driftline.duckdb*")] == []


def test_policy_check_names_file_and_line_of_a_mistake(driftline: Command, tmp_path: Path) -> None:
    """Who writes a policy sees where it is wrong."""
    (tmp_path / "good.yaml").write_text("version: 1\nprojects:\n  ops: {methodology: prawduct}\n")
    (tmp_path / "bad.yaml").write_text("version: 1\ndefaults:\n  sampling:\n    routineInterval: often\n")
    code, out, _ = driftline("policy", "check", "good.yaml")
    assert code == 0
    assert "prawduct" in out
    code, _, error = driftline("policy", "check", "bad.yaml")
    assert code == 2
    assert "bad.yaml:4" in error


def test_doctor_says_what_is_missing(driftline: Command, events_file: Path) -> None:
    """Before and after the first import; a broken policy is a problem and the exit code says so."""
    code, out, _ = driftline("doctor")
    assert code == 0
    assert "none yet at driftline.duckdb" in out
    assert "driftline serve" in out
    driftline("import", "events", str(events_file))
    _, out, _ = driftline("doctor", "--json")
    findings = {finding["subject"]: finding for finding in json.loads(out)}
    assert "8 agent_events" in findings["database"]["detail"]
    code, out, _ = driftline("doctor", "--policy", "nowhere.yaml")
    assert code == 1
    assert "problem" in out


def test_doctor_says_that_a_judge_cannot_be_read(driftline: Command, events_file: Path) -> None:
    """Scores do not come, and nothing else says why: the calls are made, answered and paid for."""
    driftline("import", "events", str(events_file))
    now = datetime.now(UTC)
    bad = [judgement("s", number, outcome="invalid", error="no JSON", judged_at=now) for number in range(MAX_UNREADABLE)]
    with Store(Path("driftline.duckdb")) as store:
        put(store, "judgements", bad)
    code, out, _ = driftline("doctor")
    assert code == 1
    assert "claude-haiku-4-5" in out
    assert "no JSON" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["run", "s1"],
        ["scores"],
        ["sql", "SELECT 1"],
        ["finalize", "s1"],
        ["check"],
        ["import", "openclaw", "nowhere"],
        ["import", "events", "nowhere"],
        ["diagnose", "nowhere"],
        ["policy", "check", "nowhere"],
        ["import", "events", "events.jsonl", "--project", "No/Project"],
        ["import", "events", "events.jsonl", "--as-of", "yesterday"],
    ],
)
def test_a_mistake_gives_one_clear_error_and_a_hint(driftline: Command, events_file: Path, arguments: list[str]) -> None:
    """No traceback, exit code 2, and nothing is made by the way."""
    code, out, error = driftline(*arguments)
    assert code == 2
    assert out == ""
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert len(error.splitlines()) > 1, "the error says what to do"
    assert not (events_file.parent / "driftline.duckdb").exists()


def test_hostile_names_reach_the_terminal_as_plain_text(driftline: Command, tmp_path: Path) -> None:
    """A tool called by an escape sequence neither clears the screen nor changes the colour; markup stays text."""
    call = {"event": "tool_call", "tool": "\x1b[2J\u202e[red]exec[/red]", "args": {}}
    path = write_sessions(tmp_path / "hostile.jsonl", {"bad": [call] * 3, "\x1b[31mbad": [call] * 3})
    _, out, err = driftline("diagnose", str(path))
    assert "\x1b" not in out + err
    assert "\u202e" not in out
    assert "[red]" in out


@pytest.mark.parametrize("target", ["demo", "runs-to-a-full-disk"])
def test_what_the_machine_refuses_is_an_error_and_no_fault(driftline: Command, tmp_path: Path, target: str) -> None:
    """A file where a folder should be, a disk that is full: one line, no traceback, exit code 2."""
    (tmp_path / "file").write_text("not a folder")
    if target == "demo":
        code, _, error = driftline("demo", "--dir", "file")
    else:
        command = [sys.executable, "-m", "service.cli.main", "doctor"]
        with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
            done = subprocess.run(
                command, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE, text=True
            )
        code, error = done.returncode, done.stderr
    assert (code, "Traceback" in error) == (2, False), error
    assert "error: " in error


def test_a_reader_that_wants_no_more_is_no_error(events_file: Path) -> None:
    """`driftline diagnose … | head -1`."""
    many = events_file.with_name("many.jsonl")
    many.write_text(events_file.read_text() * 2000)
    command = f"{sys.executable} -m service.cli.main diagnose {many} --json | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["/bin/bash", "-c", command], check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_an_output_that_was_closed_before_is_no_fault(events_file: Path) -> None:
    """`driftline … >&-`, as some daemons start their children."""
    command = f"{sys.executable} -m service.cli.main diagnose {events_file} --json >&-"
    done = subprocess.run(
        ["/bin/bash", "-c", command], check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["nowhere"], ["events.jsonl", "--project", "ops"], ["events.jsonl", "--session", "x"]])
def test_a_gate_over_files_refuses_what_it_cannot_do(driftline: Command, events_file: Path, arguments: list[str]) -> None:
    """A gate that ignored an option, or failed as if a run were bad, would be believed."""
    assert events_file.exists()
    code, _, error = driftline("check", *arguments)
    assert code == 2
    assert error.startswith("error: ")


def test_a_gate_fails_when_part_of_a_file_cannot_be_read(driftline: Command, events_file: Path) -> None:
    """What was not read was not checked."""
    events_file.write_text("nonsense\n" + events_file.read_text())
    code, _, error = driftline("check", str(events_file))
    assert code == 1
    assert "events.jsonl:1:" in error


def test_an_import_with_unreadable_lines_exits_1(driftline: Command, events_file: Path) -> None:
    """The rest is taken in; a script sees that something was not."""
    events_file.write_text("nonsense\n" + events_file.read_text())
    code, out, _ = driftline("import", "events", str(events_file))
    assert code == 1
    assert "1 record was rejected" in out
    assert driftline("import", "events", str(events_file))[0] == 0, "nothing new is wrong the second time"


def test_the_command_that_shows_what_was_set_aside_asks_the_database_that_has_it(driftline: Command, events_file: Path) -> None:
    """It is pasted as it stands: without the name it would look into another file, and find nothing."""
    events_file.write_text("nonsense\n" + events_file.read_text())
    _, out, _ = driftline("import", "events", str(events_file), "--db", "a b.duckdb")
    printed = "driftline dead-letters list --db 'a b.duckdb'"
    assert f"{printed}\n" in out
    assert f"→ {printed}\n" in driftline("doctor", "--db", "a b.duckdb")[1]
    assert "could not be read" not in driftline("dead-letters", "list", "--db", "a b.duckdb")[2]
    assert ": driftline dead-letters list\n" in driftline("import", "events", str(events_file))[1]


def test_a_rebuild_that_was_cut_short_is_noticed(
    driftline: Command, events_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is shown is then not all there is: `runs` says so, `doctor` calls it a problem, `check` refuses."""
    driftline("import", "events", str(events_file))
    with monkeypatch.context() as patched:
        patched.setattr("streams.engine.embedded.EmbeddedRunner.run", lambda *_: 0)
        driftline("rebuild")
    error = driftline("runs")[2]
    assert "stage diagnosis has read 0 of" in error
    assert "stopped with work left" in error
    assert driftline("doctor")[0] == 1
    assert driftline("check")[0] == 2
    driftline("rebuild")
    assert driftline("check")[0] == 1


def test_a_methodology_file_can_be_checked_by_itself(driftline: Command, tmp_path: Path) -> None:
    """It is told from a policy by its schemaVersion."""
    (tmp_path / "house.yaml").write_text("schemaVersion: '3'\nname: house\n")
    code, out, _ = driftline("policy", "check", "house.yaml", "--json")
    assert code == 0
    assert json.loads(out)["methodology"] == "house"
    assert json.loads(out)["version"] == "3"


def test_an_export_does_not_overwrite_another_project(driftline: Command, events_file: Path) -> None:
    """Both projects have a run_001."""
    driftline("import", "events", str(events_file), "--project", "alpha")
    driftline("import", "events", str(events_file), "--project", "beta", "--connection", "other")
    assert driftline("export-runs", "out", "--project", "alpha")[0] == 0
    code, _, error = driftline("export-runs", "out", "--project", "beta")
    assert code == 2
    assert "another project" in error
