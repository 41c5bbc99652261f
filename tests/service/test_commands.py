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


def test_diagnose_prints_one_diagnosis_per_line_and_creates_no_database(driftline: Command, events_file: Path) -> None:
    """A CI job has files and needs only verdicts."""
    code, out, _ = driftline("diagnose", str(events_file), "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [document["session_id"] for document in documents] == ["looping", "calm"]
    assert [document["readiness_level"] for document in documents] == ["unsafe_for_production", "ready_for_runtime"]
    assert [path.name for path in events_file.parent.iterdir()] == [events_file.name]


def test_diagnose_gives_the_same_document_as_the_database(driftline: Command, events_file: Path) -> None:
    """A stored diagnosis has only references, but the document built from the log must equal that of the file."""
    _, direct, _ = driftline("diagnose", str(events_file), "--json")
    driftline("import", "events", str(events_file))
    for line in direct.splitlines():
        document = json.loads(line)
        _, out, _ = driftline("run", document["session_id"], "--json")
        stored = json.loads(out)
        assert document == stored["diagnosis"]


def test_import_diagnoses_ended_and_idle_sessions(driftline: Command, events_file: Path) -> None:
    """One session ended by itself, and the other was last active long ago."""
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
    """The verdict is shown at once, before the session falls idle."""
    driftline("import", "events", str(events_file), "--as-of", "2026-10-01T09:10:00Z")
    _, runs, _ = driftline("runs", "--json")
    assert [json.loads(line)["sessionId"] for line in runs.splitlines()] == ["calm"]
    code, out, _ = driftline("finalize", "looping")
    assert code == 0
    assert "infinite_tool_loop" in out
    assert "tool_failure_or_no_progress" in out


def test_a_late_record_of_a_closed_session_is_diagnosed_too(driftline: Command, tmp_path: Path) -> None:
    """It is older than the last record, so the session falls idle at a time at which it was already closed."""
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
def test_the_exit_code_of_check_is_the_gate(driftline: Command, events_file: Path, arguments: list[str], expected: int) -> None:
    """0 passes, 1 fails, and 2 is a usage error."""
    driftline("import", "events", str(events_file))
    code, _, _ = driftline("check", *arguments)
    assert code == expected


@pytest.mark.parametrize(("least", "warns"), [("1", True), ("60", True), ("73", True), ("74", False), ("0", False)])
def test_check_warns_of_a_gate_that_never_fails(driftline: Command, events_file: Path, least: str, *, warns: bool) -> None:
    """A build that always passes is worse than one without a gate."""
    _, out, warnings = driftline("check", str(events_file), "--min-trust", least, "--json")
    assert (f"--min-trust {least} never fails a run" in warnings) == warns
    assert json.loads(out)["checked"] == 2


def test_readiness_is_shown_before_trust(driftline: Command, events_file: Path) -> None:
    """An unsafe run may have a trust of 90, and the first word must not suggest that it is fine."""
    driftline("import", "events", str(events_file))
    session = json.loads(driftline("runs", "--json")[1].splitlines()[0])["sessionId"]
    outputs = [driftline("runs")[1], driftline("run", session)[1], driftline("diagnose", str(events_file))[1]]
    gate = driftline("check", "--min-trust", "100", "--min-readiness", "ready_for_runtime")[1]
    for text in (*outputs, gate):
        first = re.search(r"readiness|unsafe_for_production|review_recommended|ready_for_runtime", text)
        trust = text.find("trust")
        assert first is not None
        assert first.start() < trust


def test_an_unsafe_run_passes_no_gate_by_default(driftline: Command, tmp_path: Path) -> None:
    """Nine refunds of one order have a trust of 90, and a user may not think of a gate for that."""
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
    """The absence of events proves nothing."""
    path = write_sessions(tmp_path / "empty.jsonl", {"empty": []})
    code, out, _ = driftline("check", str(path))
    assert code == 1
    assert "no evidence" in out


def test_a_run_is_exported_as_three_files(driftline: Command, events_file: Path, tmp_path: Path) -> None:
    """They are run_001.json, session.json and diagnosis.json, which diagnose reproduces."""
    driftline("import", "events", str(events_file))
    driftline("export-runs", "exported")
    exported_files = sorted(str(path.relative_to(tmp_path / "exported")) for path in (tmp_path / "exported").rglob("*.json"))
    expected = [
        f"runs/{name}"
        for run_id in ("run_001", "run_002")
        for name in (f"{run_id}.json", f"{run_id}/diagnosis.json", f"{run_id}/session.json")
    ]
    assert exported_files == sorted(expected)
    summary = json.loads((tmp_path / "exported/runs/run_001.json").read_text())
    assert summary["run_id"] == "run_001"
    assert summary["session_id"] == "calm"
    assert summary["trust_score"] == 100
    assert summary["tool_calls"] == 1
    _, out, _ = driftline("diagnose", "exported/runs/run_001/session.json", "--json")
    assert json.loads((tmp_path / "exported/runs/run_001/diagnosis.json").read_text()) == json.loads(out)


def test_sql_can_only_read(driftline: Command, events_file: Path) -> None:
    """The user's statement must not change the database."""
    driftline("import", "events", str(events_file))
    code, out, _ = driftline("sql", "SELECT session_id, trust_score FROM diagnoses ORDER BY ALL", "--json")
    assert code == 0
    assert [json.loads(line)["session_id"] for line in out.splitlines()] == ["calm", "looping"]
    code, _, error = driftline("sql", "DELETE FROM log.diagnoses")
    assert code == 2
    assert "error:" in error
    assert driftline("sql", "SELECT 1; SELECT 2")[0] == 2


def test_csv_cells_cannot_be_formulas(driftline: Command, events_file: Path) -> None:
    """A spreadsheet runs a cell that begins with an equals sign."""
    driftline("import", "events", str(events_file))
    _, out, _ = driftline("sql", "SELECT '=1+1' AS cell", "--csv")
    assert out.split() == ["cell", "'=1+1"]


def test_csv_is_the_same_on_the_terminal_and_in_a_file(driftline: Command, events_file: Path, tmp_path: Path) -> None:
    """Formulas are also guarded in headers, after line feeds and with full-width signs, wherever the CSV goes."""
    driftline("import", "events", str(events_file))
    statement = "SELECT '\uff1d1+1' AS \"=header\", chr(10) || '=1+1' AS line_feed, [1, 2] AS numbers, TIMESTAMP '2026-10-10 12:00:00' AS time"
    _, terminal_csv, _ = driftline("sql", statement, "--csv")
    code, _, _ = driftline("sql", statement, "--format", "csv", "-o", str(tmp_path / "rows.csv"))
    assert code == 0
    assert terminal_csv == (tmp_path / "rows.csv").read_text()
    assert terminal_csv.startswith("'=header,line_feed,numbers,time\n'\uff1d1+1,\"'\n=1+1\",")


def test_a_rebuild_gives_the_same_tables(driftline: Command, events_file: Path) -> None:
    """Derived tables are a cache of the sources."""
    driftline("import", "events", str(events_file))
    _, before, _ = driftline("runs", "--json")
    code, out, _ = driftline("rebuild")
    assert code == 0
    assert "2 diagnoses" in out
    assert driftline("runs", "--json")[1] == before


def test_a_rebuild_without_a_file_is_refused(driftline: Command, tmp_path: Path) -> None:
    """Without Kafka the file is the only log, and a new empty one would hide the mistake."""
    code, _, error = driftline("rebuild")
    assert code == 2
    assert "no database at driftline.duckdb" in error
    assert "--kafka" in error
    assert "restore a backup" in error
    assert [*tmp_path.glob("driftline.duckdb*")] == []


def test_policy_check_reports_file_and_line(driftline: Command, tmp_path: Path) -> None:
    """The author of a policy needs the position of the mistake."""
    (tmp_path / "good.yaml").write_text("version: 1\nprojects:\n  ops: {methodology: prawduct}\n")
    (tmp_path / "bad.yaml").write_text("version: 1\ndefaults:\n  sampling:\n    routineInterval: often\n")
    code, out, _ = driftline("policy", "check", "good.yaml")
    assert code == 0
    assert "prawduct" in out
    code, _, error = driftline("policy", "check", "bad.yaml")
    assert code == 2
    assert "bad.yaml:4" in error


def test_doctor_reports_what_is_missing(driftline: Command, events_file: Path) -> None:
    """It works before and after the first import, and a broken policy sets the exit code."""
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


def test_doctor_reports_an_unreadable_judge(driftline: Command, events_file: Path) -> None:
    """Scores are missing without another sign, although calls are made and paid for."""
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
def test_a_mistake_gives_one_error_and_a_hint(driftline: Command, events_file: Path, arguments: list[str]) -> None:
    """There is no traceback, the exit code is 2, and nothing is created."""
    code, out, error = driftline(*arguments)
    assert code == 2
    assert out == ""
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert len(error.splitlines()) > 1, "the error says what to do"
    assert not (events_file.parent / "driftline.duckdb").exists()


def test_hostile_names_are_printed_as_plain_text(driftline: Command, tmp_path: Path) -> None:
    """An escape sequence in a tool's name must neither clear the screen nor change colours, and markup stays text."""
    call = {"event": "tool_call", "tool": "\x1b[2J\u202e[red]exec[/red]", "args": {}}
    path = write_sessions(tmp_path / "hostile.jsonl", {"bad": [call] * 3, "\x1b[31mbad": [call] * 3})
    _, out, err = driftline("diagnose", str(path))
    assert "\x1b" not in out + err
    assert "\u202e" not in out
    assert "[red]" in out


@pytest.mark.parametrize("target", ["demo", "runs-to-a-full-disk"])
def test_a_system_error_is_one_line(driftline: Command, tmp_path: Path, target: str) -> None:
    """A full disk, or a file in place of a folder, gives no traceback and exit code 2."""
    (tmp_path / "file").write_text("not a folder")
    if target == "demo":
        code, _, error = driftline("demo", "--dir", "file")
    else:
        command = [sys.executable, "-m", "service.cli.main", "doctor"]
        with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
            process = subprocess.run(
                command, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE, text=True
            )
        code, error = process.returncode, process.stderr
    assert (code, "Traceback" in error) == (2, False), error
    assert "error: " in error


def test_a_reader_that_stops_early_is_no_error(events_file: Path) -> None:
    """An example is `driftline diagnose … | head -1`."""
    long_file = events_file.with_name("many.jsonl")
    long_file.write_text(events_file.read_text() * 2000)
    command = f"{sys.executable} -m service.cli.main diagnose {long_file} --json | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(
        ["/bin/bash", "-c", command], check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert process.returncode == 0
    assert process.stderr == ""


def test_a_closed_output_is_no_error(events_file: Path) -> None:
    """Some daemons start children with `>&-`."""
    command = f"{sys.executable} -m service.cli.main diagnose {events_file} --json >&-"
    process = subprocess.run(
        ["/bin/bash", "-c", command], check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert process.returncode == 0
    assert process.stderr == ""


@pytest.mark.parametrize("arguments", [["nowhere"], ["events.jsonl", "--project", "ops"], ["events.jsonl", "--session", "x"]])
def test_a_gate_over_files_refuses_unsupported_options(driftline: Command, events_file: Path, arguments: list[str]) -> None:
    """A gate that ignored an option would still be trusted."""
    assert events_file.exists()
    code, _, error = driftline("check", *arguments)
    assert code == 2
    assert error.startswith("error: ")


def test_a_gate_fails_on_an_unreadable_part_of_a_file(driftline: Command, events_file: Path) -> None:
    """Unread events were not checked."""
    events_file.write_text("nonsense\n" + events_file.read_text())
    code, _, error = driftline("check", str(events_file))
    assert code == 1
    assert "events.jsonl:1:" in error


def test_an_import_with_unreadable_lines_exits_1(driftline: Command, events_file: Path) -> None:
    """The rest is imported, and the exit code tells scripts about the faults."""
    events_file.write_text("nonsense\n" + events_file.read_text())
    code, out, _ = driftline("import", "events", str(events_file))
    assert code == 1
    assert "1 record was rejected" in out
    assert driftline("import", "events", str(events_file))[0] == 0, "nothing new is wrong the second time"


def test_the_hint_about_dead_letters_names_the_database(driftline: Command, events_file: Path) -> None:
    """Users paste the command, which would otherwise look into another file."""
    events_file.write_text("nonsense\n" + events_file.read_text())
    _, out, _ = driftline("import", "events", str(events_file), "--db", "a b.duckdb")
    printed = "driftline dead-letters list --db 'a b.duckdb'"
    assert f"{printed}\n" in out
    assert f"→ {printed}\n" in driftline("doctor", "--db", "a b.duckdb")[1]
    assert "could not be read" not in driftline("dead-letters", "list", "--db", "a b.duckdb")[2]
    assert ": driftline dead-letters list\n" in driftline("import", "events", str(events_file))[1]


def test_an_interrupted_rebuild_is_noticed(driftline: Command, events_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are incomplete: `runs` says so, `doctor` reports a problem, and `check` refuses."""
    driftline("import", "events", str(events_file))
    with monkeypatch.context() as patched:
        patched.setattr("streams.engine.embedded.EmbeddedRunner.run", lambda *_: 0)
        driftline("rebuild")
    error = driftline("runs")[2]
    assert "stage diagnosis has read 0 of" in error
    assert "has read" in error
    assert driftline("doctor")[0] == 1
    assert driftline("check")[0] == 2
    driftline("rebuild")
    assert driftline("check")[0] == 1


def test_a_methodology_file_can_be_checked_by_itself(driftline: Command, tmp_path: Path) -> None:
    """Its schemaVersion distinguishes it from a policy."""
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


def test_wrap_ups_are_listed_where_the_policy_asks_for_them(driftline: Command, tmp_path: Path) -> None:
    """To say that there are no exchanges is false if only the policy is missing; sessions of other projects fill no page."""
    for day, project in enumerate(("code", "web"), 1):
        file = tmp_path / f"{project}.csv"
        header = "session_id,exchange_id,occurred_at,user_message,agent_response"
        file.write_text(f"{header}\n{project}-1,{project},2026-10-0{day}T09:00:00Z,wrap up,done\n")
        assert driftline("import", "exchanges", str(file), "--project", project)[0] == 0
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nprojects: {code: {wrapQualityScoring: true}}\n")

    code, out, err = driftline("wrap-quality", "--project", "code")
    assert (code, out) == (0, "")
    assert "wrapQualityScoring" in err
    _, out, _ = driftline("wrap-quality", "--policy", str(policy), "--limit", "1", "--json")
    assert json.loads(out)["sessionId"] == "code-1"
    assert driftline("wrap-quality", "--policy", str(policy), "--until", "2026-10-01")[1] == ""


def test_annotations_survive_a_rebuild(driftline: Command, events_file: Path) -> None:
    """What people know cannot be computed again: a rebuild keeps it, as it was last changed."""
    driftline("import", "events", str(events_file), "--project", "ops")
    code, out, _ = driftline(
        "annotations", "add", "Outage", "--project", "ops", "--at", "2026-10-01T08:00Z", "--by", "ann", "--json"
    )
    assert code == 0
    note = json.loads(out)
    driftline("annotations", "add", "Wrong project", "--project", "ops", "--at", "2026-10-01T09:00Z", "--by", "ann")
    code, _, _ = driftline(
        "annotations", "change", note["id"], "Model outage", "--project", "ops", "--until", "2026-10-01T10:00Z"
    )
    assert code == 0
    _, out, _ = driftline("annotations", "list", "--project", "ops", "--json")
    wrong, changed = map(json.loads, out.splitlines())
    driftline("annotations", "delete", wrong["id"], "--project", "ops")
    assert driftline("rebuild")[0] == 0
    _, out, _ = driftline("annotations", "list", "--project", "ops", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [changed]
    assert (changed["text"], changed["by"], changed["until"]) == ("Model outage", "ann", "2026-10-01T10:00:00Z")
    code, _, err = driftline("annotations", "delete", wrong["id"], "--project", "ops")
    assert code != 0
    assert wrong["id"] in err
