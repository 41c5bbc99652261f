"""Drift from the command line: found in a database that no server has, shown, and decided on."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

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
    """A database with a project that fell, and one that did not."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        put(store, "scores", [*history(fallen(6), 40), *history(steady, 40, project="web")])
    return path


DECIDED = (
    ("acknowledge", "acknowledged", "acknowledged by ann"),
    ("resolve", "resolved", "resolved (fixed) by ann"),
    ("new-normal", "new_normal", "resolved (new normal) by ann"),
    ("reopen", "open", "open"),
    ("accept", "new_normal", "resolved (new normal) by ann"),
    ("dismiss", "dismissed", "dismissed by ann"),
)
"""Commands of decisions, in an order in which each changes something, with the decision they make and how the incident is then."""


def test_incidents_can_be_filtered_by_states_and_confidence(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One call lists the confirmed incidents that are not over."""
    of = ["--db", str(database)]
    run(["check-drift", "--as-of", AS_OF, *of])
    capsys.readouterr()
    for options, count in (
        (["--status", "open", "--status", "acknowledged"], 1),
        (["--status", "resolved"], 0),
        (["--confirmed"], 1),
        (["--suspected"], 0),
    ):
        assert run(["incidents", "list", *options, "--json", *of]) == 0
        assert count == len(capsys.readouterr().out.splitlines()), options


def test_a_check_prints_its_findings_and_decisions_are_stored(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The test covers the steps from the finding to the decision."""
    of = ["--db", str(database)]
    assert run(["check-drift", "--as-of", AS_OF, *of]) == 0
    check_output = capsys.readouterr().out
    assert "Tier 2 fell to 0.45 from 0.85 on 2026-10-27" in check_output
    assert "2 projects checked" in check_output
    assert "1 new incident" in check_output
    assert run(["check-drift", "--as-of", AS_OF, *of]) == 0
    assert "0 new incidents" in capsys.readouterr().out
    assert run(["incidents", "list", "--status", "open", "--json", *of]) == 0
    (listed,) = map(json.loads, capsys.readouterr().out.splitlines())
    short = listed["id"][:8]
    assert run(["incidents", "show", short, *of]) == 0
    show_output = capsys.readouterr().out
    for expected in (
        "2026-10-27",
        "Why",
        "What to do",
        "1. Read these ",
        "driftline scores --project ops --session ops-",
        "sequential: Tier 2 fell",
        "consecutive_days: ",
        "first_turns",
        "ops-1-1",
        "daily_averages",
    ):
        assert expected in show_output
    for command, status, message in DECIDED:
        assert run(["incidents", command, short, "--by", "ann", "--reason", f"to be {status}", *of]) == 0
        assert f"is {message}: Tier 2 fell" in capsys.readouterr().out
    assert run(["incidents", "show", short, "--json", *of]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["incident"]["status"] == "dismissed"
    assert document["incident"]["resolvedBy"] == "ann"
    assert [one["status"] for one in document["decisions"]] == [one[1] for one in DECIDED]
    assert [one["comment"] for one in document["decisions"]] == [f"to be {one[1]}" for one in DECIDED]


def test_an_incident_can_be_assigned_and_commented(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Assignee and comments are independent of decisions, and a list can be filtered by assignee."""
    of = ["--db", str(database)]
    with AccessStore(access_file(database), lambda: END) as access:
        access.add(Holder("operator", "bob", "ops"))
        access.add(Holder("operator", "web-only", "web"))
    run(["check-drift", "--as-of", AS_OF, *of])
    capsys.readouterr()
    run(["incidents", "list", "--json", *of])
    short = json.loads(capsys.readouterr().out)["id"][:8]
    for command, message in (
        (["assign", short, "bob", "--by", "ann", "--reason", "yours"], "is assigned to bob: Tier 2 fell"),
        (["comment", short, "--by", "ann", "--comment", "the prompt?"], "has your comment: Tier 2 fell"),
        (["acknowledge", short, "--by", "ann", "--reason", "I look"], "is acknowledged by ann"),
    ):
        assert run(["incidents", *command, *of]) == 0
        assert message in capsys.readouterr().out
    for options, count in (
        (["--assignee", "bob"], 1),
        (["--assignee", "nobody"], 0),
        (["--severity", "critical", "--type", "drift", "--text", "FELL", "--sort", "worst", "--since", "2026-11-01"], 1),
        (["--severity", "warning"], 0),
        (["--since", "2026-11-02"], 0),
    ):
        assert run(["incidents", "list", "--json", *options, *of]) == 0
        assert count == len(capsys.readouterr().out.splitlines()), options
    assert run(["incidents", "assign", short, "me", "--by", "carl", *of]) == 0
    assert run(["incidents", "show", short, *of]) == 0
    output = capsys.readouterr().out
    assert "assigned to carl" in output
    assert "assigned to bob by ann: yours" in output
    assert "comment by ann: the prompt?" in output
    assert run(["incidents", "assign", short, "web-only", *of]) == ExitCode.ERROR
    assert "project ops; there are bob" in capsys.readouterr().err
    assert run(["incidents", "assign", short, "nobody", "--json", *of]) == 0
    assert None is json.loads(capsys.readouterr().out)["assignee"]
    assert run(["incidents", "list", "--assignee", "bob", *of]) == 0
    assert "no incident that matches." in capsys.readouterr().err


def test_a_check_can_be_printed_as_json(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read one document per project."""
    assert run(["check-drift", "--project", "ops", "--as-of", AS_OF, "--json", "--db", str(database)]) == 0
    (document,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert document["project"] == "ops"
    assert document["asOf"] == AS_OF
    assert document["baseline"]["exchangeCount"] == 140
    assert len(document["opened"]) == 1


def test_an_empty_list_of_incidents_says_so(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty output would look like an error."""
    assert run(["incidents", "list", "--project", "web", "--db", str(database)]) == 0
    assert "project web. Not checked yet." in capsys.readouterr().err
    assert run(["incidents", "list", "--db", str(database)]) == 0
    error = capsys.readouterr().err
    assert "0 projects checked" in error
    assert "ops: Not checked yet. web: Not checked yet." in error
    assert run(["check-drift", "--project", "web", "--as-of", AS_OF, "--db", str(database)]) == 0
    capsys.readouterr()
    assert run(["incidents", "list", "--project", "web", "--db", str(database)]) == 0
    assert "project web. Checked 2026-11-01 12:00 UTC" in capsys.readouterr().err


def test_a_check_without_recent_data_does_not_report_health(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A year later there are no recent exchanges, so nothing could be found."""
    assert run(["check-drift", "--as-of", "2027-11-01T12:00:00Z", "--db", str(database)]) == 0
    out = capsys.readouterr().out
    assert "No project was checked" in out
    assert "7 days before 2027-11-01 12:00 UTC" in out
    assert run(["check-drift", "--project", "ops", "--as-of", "2027-11-01T12:00:00Z", "--db", str(database)]) == 0
    output = capsys.readouterr().out
    assert "0 projects checked" in output
    assert "0 new incidents" in output
    assert re.search(r"Not checked \(.*\): ops", output)
    assert run(["incidents", "list", "--project", "ops", "--db", str(database)]) == 0
    assert "Not checked yet." in capsys.readouterr().err


def test_a_check_names_projects_with_little_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No finding in nine days means less than none in two weeks."""
    path = tmp_path / "fleet.duckdb"
    with Store(path) as store:
        put(store, "scores", history(steady, 8))
    assert run(["check-drift", "--as-of", AS_OF, "--db", str(path)]) == 0
    assert "No full baseline yet: ops (9 of 14 days)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["incidents", "show", "1a2b"], "no incident id begins with '1a2b'"),
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
    database: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """The exit code is 2, and the message says what to do instead."""
    assert run([*arguments, "--db", str(database)]) == 2
    assert words in capsys.readouterr().err


def test_an_incident_is_not_reopened_beside_an_equal_one(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only one of a kind may be open."""
    of = ["--db", str(database)]
    run(["check-drift", "--as-of", AS_OF, *of])
    run(["incidents", "list", "--json", *of])
    first = json.loads(capsys.readouterr().out.splitlines()[-1])["id"]
    run(["incidents", "dismiss", first, "--reason", "known", "--as-of", AS_OF, *of])
    with Store(database) as store:
        (incident,) = query_records(store.cursor(), "incident_by_id", Incident, {"project": None, "incident": first})
        put(store, "incidents", [msgspec.structs.replace(incident, incident_id="another", revision=0, status="open")])
    assert run(["incidents", "reopen", first, "--reason", "it is back", *of]) == 2
    assert "another live incident" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["acknowledge", "resolve", "new-normal", "accept", "dismiss", "reopen"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "--reason: is missing"),
        (["--reason", "  "], "--reason: is blank"),
        (["--reason", "x" * (MAX_COMMENT + 1)], f"--reason: has {MAX_COMMENT + 1} characters; the maximum is {MAX_COMMENT}"),
    ],
)
def test_a_decision_needs_a_reason(
    database: Path, capsys: pytest.CaptureFixture[str], command: str, given: list[str], words: str
) -> None:
    """As on the page, the next reader of the same change needs to know the reason."""
    assert run(["incidents", command, "1a2b", *given, "--db", str(database)]) == 2
    assert f"error: {words}\n       Give the reason" in capsys.readouterr().err


class Terminal(StringIO):
    """A standard input at which somebody types."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_on_a_terminal_the_reason_is_prompted_for(
    database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored as typed, and the earlier name of the option still works."""
    of = ["--db", str(database)]
    run(["check-drift", "--as-of", AS_OF, *of])
    run(["incidents", "list", "--json", *of])
    incident = json.loads(capsys.readouterr().out.splitlines()[-1])["id"]
    monkeypatch.setattr("sys.stdin", Terminal("a new prompt\n"))
    assert run(["incidents", "accept", incident, *of]) == 0
    assert run(["incidents", "dismiss", incident, "--comment", "as planned", *of]) == 0
    run(["incidents", "show", incident, "--json", *of])
    decisions = json.loads(capsys.readouterr().out.splitlines()[-1])["decisions"]
    assert [one["comment"] for one in decisions] == ["a new prompt", "as planned"]


def test_an_incident_about_runs_is_shown_with_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A database with only transcripts is watched, too."""
    path = tmp_path / "runs.duckdb"
    with Store(path) as store:
        put(store, "diagnoses", runs(worse_since(8)))
    assert run(["check-drift", "--as-of", AS_OF, "--db", str(path)]) == 0
    assert "Share of unsafe runs of desk rose" in " ".join(capsys.readouterr().out.split())
    assert run(["incidents", "list", "--db", str(path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (incident,) = rows
    assert run(["incidents", "show", incident["id"], "--db", str(path)]) == 0
    output = capsys.readouterr().out
    assert "Runs with the largest effect" in output
    assert "cost_explosion" in output
    assert "run_days, watched_runs, incident_runs" in " ".join(output.split())


def test_a_check_fails_on_the_selected_incidents(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A build stops while an incident waits for a decision, whichever check found it."""
    check = ["check-drift", "--as-of", AS_OF, "--db", str(database)]
    assert run(check) == 0
    assert run([*check, "--fail-on", "open"]) == 1
    errors = capsys.readouterr().err
    assert "FAIL ops " in errors
    assert "1 incident is open" in errors
    assert "driftline incidents show ID" in errors
    for kind, code in (("live", 1), ("confirmed", 1), ("critical", 1)):
        assert code == run([*check, "--fail-on", kind]), kind
    assert run([*check, "--fail-on", "open", "--project", "web"]) == 0
    assert run([*check, "--fail-on", "open", "--fail-on", "live", "--json"]) == 1
    capsys.readouterr()

    assert run(["incidents", "list", "--json", "--db", str(database)]) == 0
    name = json.loads(capsys.readouterr().out)["id"]
    decide = ["--reason", "known", "--by", "ann", "--db", str(database)]
    assert run(["incidents", "acknowledge", name, *decide]) == 0
    assert run([*check, "--fail-on", "open"]) == 0
    assert run([*check, "--fail-on", "live"]) == 1
    assert run(["incidents", "resolve", name, *decide, "--json"]) == 0
    assert run([*check, "--fail-on", "live", "--fail-on", "confirmed", "--fail-on", "critical"]) == 0
