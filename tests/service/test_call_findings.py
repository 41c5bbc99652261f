"""Findings about calls from a policy to what people see: the import, the run, its events, and tuning."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from analytics.queries import query_records
from analytics.store.store import Store
from schemas.records import Diagnosis
from service.cli.main import run as run_command
from service.pages.run_view import read_events
from service.read.sessions import finding_events

QUESTION = "Where is the parcel of the customer Miller, order 4711"
CALLS = [
    *[{"event": "tool_call", "tool": tool, "args": {"path": "a"}} for tool in ("read", "edit") * 2],
    *[{"event": "tool_call", "tool": "search", "args": {"q": wording}} for wording in (QUESTION, QUESTION.upper())],
]
POLICY = "version: 1\ndefaults:\n  detectors:\n    events:\n      alternatingRounds: 2\n      nearDuplicateCalls: 1\n"
FOUND = {"alternating_calls": [0, 1, 2, 3], "near_duplicate_calls": [5]}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy that has both looked for."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, "utf-8")
    return path


def imported(tmp_path: Path, *options: str) -> Path:
    """A database with a session that has both."""
    events, database = tmp_path / "events.jsonl", tmp_path / "a.duckdb"
    timed = [{**one, "timestamp": f"2026-10-01T09:00:{place:02}Z"} for place, one in enumerate(CALLS)]
    ended = {"event": "session_end", "timestamp": "2026-10-01T09:01:00Z"}
    session = {"session_id": "s1", "agent": "scout", "project": "ops", "events": [*timed, ended]}
    events.write_text(json.dumps(session) + "\n", "utf-8")
    assert run_command(["import", "events", str(events), "--db", str(database), "--project", "ops", *options]) == 0
    return database


def diagnosis_in(store: Store) -> Diagnosis:
    """The one diagnosis."""
    with closing(store.cursor()) as cursor:
        rows = cursor.execute("SELECT connection FROM log.diagnoses").fetchall()
        sessions = [{"connection": connection, "session_id": "s1"} for (connection,) in rows]
        (diagnosis,) = query_records(cursor, "session_diagnoses", Diagnosis, {"sessions": sessions})
    return diagnosis


def test_an_import_records_the_findings_enabled_by_its_policy(tmp_path: Path, policy: Path) -> None:
    """The record names findings, rules and thresholds, so that the page can mark the same events."""
    with Store(imported(tmp_path, "--policy", str(policy))) as store:
        diagnosis = diagnosis_in(store)
        assert {cause.type: [one.seq for one in cause.evidence] for cause in diagnosis.failure_causes} == FOUND
        assert {cause.impact_score for cause in diagnosis.failure_causes} == {0}
        assert diagnosis.trust_score == 100
        assert diagnosis.readiness_level == "ready_for_runtime"
        assert diagnosis.rule_version.endswith("+alternating_calls-1+near_duplicate_calls-1")
        assert diagnosis.threshold_changes == '{"alternatingRounds":2,"nearDuplicateCalls":1}'
        with closing(store.cursor()) as cursor:
            events = read_events(cursor, diagnosis, finding_events(cursor, diagnosis))
        assert events.evidence == {place: (name,) for name, places in FOUND.items() for place in places}


def test_without_a_policy_the_findings_are_off(tmp_path: Path) -> None:
    """The diagnosis by the published rules is unchanged."""
    with Store(imported(tmp_path)) as store:
        diagnosis = diagnosis_in(store)
        assert diagnosis.failure_causes == ()
        assert "+" not in diagnosis.rule_version


def test_the_findings_are_shown_and_can_be_tuned(tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run names them, and tuning gives the number of affected runs."""
    database = ("--db", str(imported(tmp_path, "--policy", str(policy))))
    capsys.readouterr()
    assert run_command(["run", "s1", *database]) == 0
    output = capsys.readouterr().out
    assert "alternated for 2 rounds" in output
    assert "Tools: read, edit." in output
    assert "1 tool call nearly repeated" in output
    assert "First tool: search." in output
    arguments = ["tune", "--project", "ops", "--as-of", "2026-10-02T00:00:00Z", "--json", "--policy", str(policy), *database]
    assert run_command(arguments) == 0
    rows = {row["threshold"]: row for row in json.loads(capsys.readouterr().out)["thresholds"]}
    assert tuple(rows["alternating_rounds"][name] for name in ("value", "most", "runs")) == (2, 2, [1])
    assert tuple(rows["near_duplicate_calls"][name] for name in ("value", "most", "runs")) == (1, 1, [1])
