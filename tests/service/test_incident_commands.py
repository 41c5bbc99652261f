"""Drift on the command line: checks of a database without a server, and the incidents that they open."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from support.watch_histories import END, fallen, history, put, runs, steady, worse_since

from analytics.queries import query_records
from analytics.store.store import Store
from schemas.records import Incident
from service.cli.exit_codes import ExitCode
from service.cli.main import run
from service.setup.access import AccessStore, Holder, access_file
from streams.upkeep.annotations import MAX_COMMENT

AS_OF = "2026-11-01T12:00:00Z"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a database with one project whose scores fell and one whose scores are steady."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        put(store, "scores", [*history(fallen(6), 40), *history(steady, 40, project="web")])
    return path


class Decision(NamedTuple):
    """A command that decides on an incident."""

    command: str
    recorded_status: str
    message: str
    """How the command describes the incident afterwards."""


DECISIONS = (
    Decision("acknowledge", "acknowledged", "acknowledged by ann"),
    Decision("resolve", "resolved", "resolved (fixed) by ann"),
    Decision("new-normal", "new_normal", "resolved (new normal) by ann"),
    Decision("reopen", "open", "open"),
    Decision("accept", "new_normal", "resolved (new normal) by ann"),
    Decision("dismiss", "dismissed", "dismissed by ann"),
)
"""Decisions in an order in which each changes the incident."""


def check_drift(database: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Check all projects for drift, and return the output."""
    assert run(["check-drift", "--as-of", AS_OF, "--db", str(database)]) == ExitCode.DONE
    return capsys.readouterr().out


def list_incidents(database: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    """Return the listed incidents, as JSON objects."""
    capsys.readouterr()
    assert run(["incidents", "list", *options, "--json", "--db", str(database)]) == ExitCode.DONE
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def find_incident(database: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Check for drift, and return the id of the only incident."""
    check_drift(database, capsys)
    (incident,) = list_incidents(database, capsys)
    return str(incident["id"])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--status", "open", "--status", "acknowledged"], 1),
        (["--status", "resolved"], 0),
        (["--confirmed"], 1),
        (["--suspected"], 0),
        (["--severity", "critical", "--type", "drift", "--text", "FELL", "--sort", "worst", "--since", "2026-11-01"], 1),
        (["--severity", "warning"], 0),
        (["--since", "2026-11-02"], 0),
    ],
)
def test_incidents_can_be_filtered(database: Path, capsys: pytest.CaptureFixture[str], options: list[str], count: int) -> None:
    """One command lists, for example, the confirmed incidents that are not resolved."""
    check_drift(database, capsys)
    assert len(list_incidents(database, capsys, *options)) == count


def test_a_check_prints_its_findings(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output counts the new incidents, so a repeated check reports none."""
    check_output = check_drift(database, capsys)
    assert "ops: answer quality halved (0.85 → 0.45) since 27" in check_output
    assert "2 projects checked" in check_output
    assert "1 new incident" in check_output
    assert "0 new incidents" in check_drift(database, capsys)


def test_an_incident_is_shown_by_the_start_of_its_id(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The terminal explains the incident without the web page."""
    short_id = find_incident(database, capsys)[:8]
    assert run(["incidents", "show", short_id, "--db", str(database)]) == ExitCode.DONE
    output = capsys.readouterr().out
    for fragment in (
        "2026-10-27",
        "Why",
        "What to do",
        "1. Read these ",
        "driftline scores --project ops --session ops-",
        "sequential: ops: answer quality halved",
        "consecutive_days: ",
        "first_turns",
        "ops-1-1",
        "daily_averages",
    ):
        assert fragment in output


def test_every_decision_is_stored_with_its_reason(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The history of an incident must show every decision, not only the last."""
    short_id = find_incident(database, capsys)[:8]
    db_option = ["--db", str(database)]
    for decision in DECISIONS:
        reason = f"to be {decision.recorded_status}"
        assert run(["incidents", decision.command, short_id, "--by", "ann", "--reason", reason, *db_option]) == ExitCode.DONE
        assert f"is {decision.message}: ops: answer quality halved" in capsys.readouterr().out
    assert run(["incidents", "show", short_id, "--json", *db_option]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["incident"]["status"] == "dismissed"
    assert document["incident"]["resolvedBy"] == "ann"
    assert [stored["status"] for stored in document["decisions"]] == [decision.recorded_status for decision in DECISIONS]
    assert [stored["comment"] for stored in document["decisions"]] == [
        f"to be {decision.recorded_status}" for decision in DECISIONS
    ]


@pytest.fixture
def operators(database: Path) -> None:
    """Add an operator of the project with the incident, and one of another project."""
    with AccessStore(access_file(database), lambda: END) as access:
        access.add(Holder("operator", "bob", "ops"))
        access.add(Holder("operator", "web-only", "web"))


@pytest.mark.usefixtures("operators")
def test_an_assignment_and_a_comment_are_in_the_history(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are independent of decisions, so a later decision keeps them."""
    short_id = find_incident(database, capsys)[:8]
    db_option = ["--db", str(database)]
    for arguments, message in (
        (["assign", short_id, "bob", "--by", "ann", "--reason", "yours"], "is assigned to bob: ops: answer quality halved"),
        (["comment", short_id, "--by", "ann", "--comment", "the prompt?"], "has your comment: ops: answer quality halved"),
        (["acknowledge", short_id, "--by", "ann", "--reason", "I look"], "is acknowledged by ann"),
        (["assign", short_id, "me", "--by", "carl"], "is assigned to carl"),
    ):
        assert run(["incidents", *arguments, *db_option]) == ExitCode.DONE
        assert message in capsys.readouterr().out
    assert run(["incidents", "show", short_id, *db_option]) == ExitCode.DONE
    output = capsys.readouterr().out
    assert "assigned to carl" in output
    assert "assigned to bob by ann: yours" in output
    assert "comment by ann: the prompt?" in output


@pytest.mark.usefixtures("operators")
def test_incidents_are_listed_by_assignee(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The assignee `nobody` stands for unassigned incidents, in the filter as in the command."""
    incident_id = find_incident(database, capsys)
    db_option = ["--db", str(database)]
    assert run(["incidents", "assign", incident_id, "bob", *db_option]) == ExitCode.DONE
    assert len(list_incidents(database, capsys, "--assignee", "bob")) == 1
    assert len(list_incidents(database, capsys, "--assignee", "nobody")) == ExitCode.DONE
    assert run(["incidents", "assign", incident_id, "nobody", "--json", *db_option]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["assignee"] is None
    assert run(["incidents", "list", "--assignee", "bob", *db_option]) == ExitCode.DONE
    assert "no incident matches" in capsys.readouterr().err


@pytest.mark.usefixtures("operators")
def test_an_incident_is_not_assigned_to_an_operator_of_another_project(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That operator could not open the incident. The error lists the operators who can."""
    incident_id = find_incident(database, capsys)
    assert run(["incidents", "assign", incident_id, "web-only", "--db", str(database)]) == ExitCode.ERROR
    assert "project ops; there are bob" in capsys.readouterr().err


def test_a_check_can_be_printed_as_json(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read one document per project."""
    assert run(["check-drift", "--project", "ops", "--as-of", AS_OF, "--json", "--db", str(database)]) == ExitCode.DONE
    (document,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert document["project"] == "ops"
    assert document["asOf"] == AS_OF
    assert document["baseline"]["exchangeCount"] == 140
    assert len(document["opened"]) == 1


def test_an_empty_list_of_incidents_says_so(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty output would look like an error."""
    assert run(["incidents", "list", "--project", "web", "--db", str(database)]) == ExitCode.DONE
    assert "project web. Not checked yet." in capsys.readouterr().err
    assert run(["incidents", "list", "--db", str(database)]) == ExitCode.DONE
    error = capsys.readouterr().err
    assert "0 projects checked" in error
    assert "ops: Not checked yet. web: Not checked yet." in error
    assert run(["check-drift", "--project", "web", "--as-of", AS_OF, "--db", str(database)]) == ExitCode.DONE
    capsys.readouterr()
    assert run(["incidents", "list", "--project", "web", "--db", str(database)]) == ExitCode.DONE
    assert "project web. Checked 2026-11-01 12:00 UTC" in capsys.readouterr().err


def test_a_check_without_recent_data_does_not_report_health(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without recent exchanges, no finding is no evidence of health."""
    assert run(["check-drift", "--as-of", "2027-11-01T12:00:00Z", "--db", str(database)]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "No project was checked" in out
    assert "7 days before 2027-11-01 12:00 UTC" in out
    assert run(["check-drift", "--project", "ops", "--as-of", "2027-11-01T12:00:00Z", "--db", str(database)]) == ExitCode.DONE
    output = capsys.readouterr().out
    assert "0 projects checked" in output
    assert "0 new incidents" in output
    assert re.search(r"Not checked \(.*\): ops", output)
    assert run(["incidents", "list", "--project", "ops", "--db", str(database)]) == ExitCode.DONE
    assert "Not checked yet." in capsys.readouterr().err


def test_a_check_names_projects_with_little_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No finding in nine days means less than none in two weeks."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        put(store, "scores", history(steady, 8))
    assert "No full baseline yet: ops (9 of 14 days)" in check_drift(path, capsys)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["incidents", "show", "1a2b"], "no incident id begins with '1a2b'"),
        (["incidents", "show", ""], "the incident's id is empty"),
        (["incidents", "accept", "1a2b", "--reason", "known"], "no incident id begins with '1a2b'"),
        (["incidents", "list", "--status", "closed"], "--status closed is not a state"),
        (["incidents", "list", "--sort", "up"], "--sort: unknown value up"),
        (["incidents", "list", "--severity", "bad"], "--severity: unknown value bad"),
        (["incidents", "list", "--type", "odd"], "--type: unknown value odd"),
        (["incidents", "assign", "1a2b", "bob"], "no incident id begins with '1a2b'"),
        (["incidents", "comment", "1a2b", "--comment", " "], "--reason: is blank"),
        (["check-drift", "--as-of", "soon"], "--as-of: "),
        (["check-drift", "--project", "nobody"], "--project: there is no project 'nobody'"),
    ],
)
def test_an_impossible_command_is_refused(
    database: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    """The message names the option or the id that is wrong."""
    assert run([*arguments, "--db", str(database)]) == ExitCode.ERROR
    assert error in capsys.readouterr().err


def test_an_incident_is_not_reopened_if_a_similar_one_is_open(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change has at most one live incident."""
    first_id = find_incident(database, capsys)
    db_option = ["--db", str(database)]
    run(["incidents", "dismiss", first_id, "--reason", "known", "--as-of", AS_OF, *db_option])
    with Store(database) as store:
        (incident,) = query_records(store.cursor(), "incident_by_id", Incident, {"project": None, "incident": first_id})
        put(store, "incidents", [msgspec.structs.replace(incident, incident_id="another", revision=0, status="open")])
    assert run(["incidents", "reopen", first_id, "--reason", "it is back", *db_option]) == ExitCode.ERROR
    assert "another live incident" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["acknowledge", "resolve", "new-normal", "accept", "dismiss", "reopen"])
@pytest.mark.parametrize(
    ("reason_options", "error"),
    [
        ([], "--reason: is missing"),
        (["--reason", "  "], "--reason: is blank"),
        (["--reason", "x" * (MAX_COMMENT + 1)], f"--reason: has {MAX_COMMENT + 1} characters; the maximum is {MAX_COMMENT}"),
    ],
)
def test_a_decision_needs_a_reason(
    database: Path, capsys: pytest.CaptureFixture[str], command: str, reason_options: list[str], error: str
) -> None:
    """The next reader of the same change needs to know why it was decided so."""
    assert run(["incidents", command, "1a2b", *reason_options, "--db", str(database)]) == ExitCode.ERROR
    assert f"error: {error}\n       Give the reason" in capsys.readouterr().err


class Terminal(StringIO):
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        """Return True, like a terminal."""
        return True


def test_on_a_terminal_the_reason_is_prompted_for(
    database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts give an option, also under its earlier name `--comment`; people are prompted."""
    incident_id = find_incident(database, capsys)
    db_option = ["--db", str(database)]
    monkeypatch.setattr("sys.stdin", Terminal("a new prompt\n"))
    assert run(["incidents", "accept", incident_id, *db_option]) == ExitCode.DONE
    assert run(["incidents", "dismiss", incident_id, "--comment", "as planned", *db_option]) == ExitCode.DONE
    run(["incidents", "show", incident_id, "--json", *db_option])
    decisions = json.loads(capsys.readouterr().out.splitlines()[-1])["decisions"]
    assert [decision["comment"] for decision in decisions] == ["a new prompt", "as planned"]


def test_an_incident_about_runs_is_shown_with_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A database may contain imported transcripts and no scored exchanges."""
    path = tmp_path / "runs.duckdb"
    with Store(path) as store:
        put(store, "diagnoses", runs(worse_since(8)))
    assert "desk: unsafe runs rose (" in " ".join(check_drift(path, capsys).split())
    (incident,) = list_incidents(path, capsys)
    assert run(["incidents", "show", incident["id"], "--db", str(path)]) == ExitCode.DONE
    output = capsys.readouterr().out
    assert "Runs with the largest effect" in output
    assert "cost_explosion" in output
    assert "run_days, watched_runs, incident_runs" in " ".join(output.split())


def test_a_check_fails_on_the_selected_incidents(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A build stops while an incident waits for a decision, whichever check found it."""
    check = ["check-drift", "--as-of", AS_OF, "--db", str(database)]
    assert run(check) == ExitCode.DONE
    assert run([*check, "--fail-on", "open"]) == ExitCode.FAILED
    errors = capsys.readouterr().err
    assert "FAIL ops " in errors
    assert "1 incident is open" in errors
    assert "driftline incidents show ID" in errors
    for selection in ("live", "confirmed", "critical"):
        assert run([*check, "--fail-on", selection]) == ExitCode.FAILED, selection
    assert run([*check, "--fail-on", "open", "--project", "web"]) == ExitCode.DONE
    assert run([*check, "--fail-on", "open", "--fail-on", "live", "--json"]) == ExitCode.FAILED


def test_a_check_passes_once_the_incident_is_decided(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An acknowledged incident is live but not open, and a resolved one is neither."""
    incident_id = find_incident(database, capsys)
    check = ["check-drift", "--as-of", AS_OF, "--db", str(database)]
    decision_options = ["--reason", "known", "--by", "ann", "--db", str(database)]
    assert run(["incidents", "acknowledge", incident_id, *decision_options]) == ExitCode.DONE
    assert run([*check, "--fail-on", "open"]) == ExitCode.DONE
    assert run([*check, "--fail-on", "live"]) == ExitCode.FAILED
    assert run(["incidents", "resolve", incident_id, *decision_options, "--json"]) == ExitCode.DONE
    assert run([*check, "--fail-on", "live", "--fail-on", "confirmed", "--fail-on", "critical"]) == ExitCode.DONE
