"""The demo from its first line to its last: what it shows is so, what it suggests works, and nothing is left running."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import duckdb
import httpx2
import pytest
from support.demo_pages import PICTURED_PAGES, headings_of, serving_demo
from support.servers import Child, Home, nursery, until
from support.typed_guides import Terminal, is_shown, typed_in

from analytics.adhoc import fetch_limited, fetch_rows, open_snapshot
from analytics.queries import query_rows
from analytics.snapshots import build_snapshot, copy_database
from analytics.store.store import Store
from audit.anchors import anchor_project
from audit.drift.incident_evidence import evidence_of
from audit.drift.watched_series import TIERS, format_date
from driftline_trial.demo import judge_change, shop
from driftline_trial.demo.command import MARKER, QUERIES
from driftline_trial.demo.conversations import (
    AGENT,
    FIRST,
    PROJECTS,
    WORSE_AGENT,
    WORSE_VERSION,
    dialogues,
    releases_until,
    worse_since,
)
from driftline_trial.demo.fleet import SECRETS
from driftline_trial.demo.judge_change import JudgeSchedule
from driftline_trial.demo.script import SCRIPT_END, present_of
from service.cli.main import run as run_command
from service.pages.sql import worked_examples
from service.read.incidents import incident_records
from service.read.judges import project_anchors
from service.read.why import why
from streams.upkeep.anchors import changes
from streams.upkeep.annotations import deployments

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
ON_CALL = (ROOT / "docs" / "how-to" / "on-call.md").read_text(encoding="utf-8")
COST = (ROOT / "docs" / "explanations" / "cost.md").read_text(encoding="utf-8")
COMMAND = [sys.executable, "-m", "service.cli.main"]
PATIENCE = 1200
SINCE = worse_since(SCRIPT_END)
SCHEDULE = JudgeSchedule(SCRIPT_END)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
"""With the address of a judge that is not there: the demo has its own."""
pytestmark = pytest.mark.slow


@dataclass
class Shown:
    """A demo that was run."""

    folder: Path
    out: str
    err: str
    code: int

    @property
    def database(self) -> Path:
        """Where it keeps its records."""
        return self.folder / "demo.duckdb"

    def part(self, begins: str) -> list[str]:
        """The lines of the part of the report whose heading begins so."""
        lines = [*self.out.splitlines(), ""]
        (start,) = (place for place, line in enumerate(lines) if line.startswith(begins))
        return [line for line in lines[start + 1 : lines.index("", start)] if line.strip(" ─")]


@pytest.fixture
def shown(ran: Shown) -> Iterator[Shown]:
    """The demo, for one test at a time: each may open its database, which belongs to one process."""
    with (ran.folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield ran


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The demo, run once, whichever worker of the test run comes first; where one ran before, so that it has to make room."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    home = shared / "demo-home"
    home.mkdir(exist_ok=True)
    folder = home / "demo-data"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "code").exists():
            folder.mkdir()
            for name in (MARKER, "demo.duckdb", "demo.access", "server.log", "of-an-earlier-run"):
                (folder / name).write_text("old")
            done = subprocess.run(
                [*COMMAND, "demo", "--dir", str(folder), "--last-day", f"{SCRIPT_END}"],
                check=False,
                cwd=ROOT,
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            (home / "out").write_text(done.stdout)
            (home / "err").write_text(done.stderr)
            (home / "code").write_text(str(done.returncode))
    return Shown(folder, (home / "out").read_text(), (home / "err").read_text(), int((home / "code").read_text()))


def test_the_demo_runs_to_its_end_and_leaves_nothing_undone(shown: Shown) -> None:
    """Every exchange that was delivered has its score, each that was sampled a verdict, and the server ended as it should."""
    assert shown.code == 0, shown.err
    assert "Traceback" not in shown.err
    with Store(shown.database) as store:
        rows = [
            row
            for row in query_rows(store.cursor(), "project_summary", {"project": None})
            if row["project"] in PROJECTS.values()
        ]
    assert {row["project"] for row in rows} == set(PROJECTS.values())
    assert sum(len(one.payloads) for one in dialogues(SCRIPT_END)) == sum(row["exchanges"] for row in rows)
    for row in rows:
        assert row["pending"] == 0
        assert row["unscored"] == 0
        assert row["skipped_cost_cap"] == 0
        assert row["simulated"] == row["scored"] > 0
    for name in ("server.log", "stricter-server.log"):
        assert "Finished server process" in (shown.folder / name).read_text()


def test_an_earlier_demo_leaves_no_trace(shown: Shown) -> None:
    """It makes everything anew."""
    assert not (shown.folder / "of-an-earlier-run").exists()
    logs = {"judge.log", "server.log", "stricter-judge.log", "stricter-server.log"}
    assert {path.name for path in shown.folder.iterdir()} == {
        "demo.duckdb",
        "demo.duckdb.lock",
        "demo.access",
        "openclaw",
        "policy.yaml",
        shop.TABLE,
        MARKER,
        *logs,
    }


def test_whatever_rests_on_the_simulated_judge_says_so(shown: Shown) -> None:
    """Nobody may take it for a verdict on anything."""
    assert "synthetic" in shown.out.splitlines()[0]
    assert "simulated judge" in shown.out.splitlines()[1]
    for begins in (
        "Tiers per agent",
        "Before ",
        "Anomalies: ",
        "Worst exchanges",
        "Attempts to",
        "Judging costs",
        "Drift and",
        "In short",
    ):
        (heading,) = (line for line in shown.out.splitlines() if line.startswith(begins))
        assert "simulated judge" in heading


def test_the_report_names_the_agent_that_got_worse_and_no_other(shown: Shown) -> None:
    """Is it behaving, is it getting worse, why, and since when."""
    rows = shown.part("Before ")
    worse = [line.split()[0] for line in rows if line.rstrip().endswith(" worse")]
    assert worse == [WORSE_AGENT]
    assert rows[-1].strip().startswith(f"{WORSE_AGENT} got worse on {SINCE:%m-%d}")
    # An exchange with an attempt to sway the judge may be among the worst of any agent: nothing of it is left to judge.
    worst = [line for line in shown.part("Worst exchanges")[1:] if line[:1].isdigit() and "judge_tampering" not in line]
    assert {line.split()[2] for line in worst} == {WORSE_AGENT}


def test_the_drift_is_found_on_its_first_day_and_in_no_other_project(shown: Shown) -> None:
    """Nobody told the watch when, where or whether something happened."""
    found = [line.split() for line in shown.part("Drift and anomaly spikes")[1:-1]]
    rows = [row for row in found if row[0] in PROJECTS.values()]
    since = {PROJECTS[WORSE_AGENT]: SINCE, judge_change.PROJECT: SCHEDULE.since}
    assert set(since) == {row[0] for row in rows}
    falls = [row for row in rows if "sequential" in row]
    for project, day in since.items():
        of = [" ".join(row) for row in falls if row[0] == project]
        assert len(of) >= 2
        assert all(f"since {format_date(day)}" in fall for fall in of)


def test_the_last_words_are_what_was_found(shown: Shown) -> None:
    """Two hundred lines scroll by; what stays on the screen is the end."""
    *lines, rest, mix = shown.part("In short")
    project, other = PROJECTS[WORSE_AGENT], judge_change.PROJECT
    fell, roll_back, judge, check, *others = lines
    since = f"since {format_date(SINCE)}, with version 7; also thinking quality and 8 more"
    assert fell == f"{project}, {WORSE_AGENT}: answer quality halved (0.90 → 0.47) {since}"
    assert roll_back == "    → Roll back agent_version from 7 to 6"
    assert judge.startswith(
        f"{other}: the judge changed, so answer quality fell (0.91 → 0.83) since {format_date(SCHEDULE.since)}; "
    )
    assert check == "    → Check the judge before the agent"
    assert rest == f"{len(PROJECTS) - 2} of {len(PROJECTS) + 2} projects: checked, nothing found"
    assert mix.startswith("shop: ")
    assert {line.partition(", ")[0] for line in others if not line.startswith("    →")} == {"demo", "shop"}


def test_the_mix_of_the_shop_is_noticed_and_its_two_faults_are_incidents(shown: Shown) -> None:
    """The mean falls with the mix, which is no fault, and would hide the faults of a small agent and of a canary."""
    mix_since, victim_since, canary_since = (
        SCRIPT_END - timedelta(days=days - 1) for days in (shop.MIX_DAYS, shop.VICTIM_DAYS, shop.CANARY_DAYS)
    )
    lines = shown.part("In short")
    victim, version = (line for line in lines if line.startswith("shop, "))
    mix = lines[-1]
    assert lines[lines.index(version) + 1] == f"    → Roll back agent_version {shop.CANARY}"
    since = f"since {format_date(victim_since)}; the other 2 agents as before"
    assert victim == f"shop, {shop.VICTIM}: answer structure fell (1.00 → 0.67) {since}"
    assert version.startswith(f"shop, search: answer structure is lower with version {shop.CANARY} than ")
    assert mix.startswith(f"shop: The mix of agents changed on {mix_since}: {shop.WEAKER} 24% → 56%, ")
    with Store(shown.database) as store:
        records = incident_records(store.cursor(), shop.PROJECT)
    assert {(record.rule, record.confidence, evidence_of(record).moved[0].since) for record in records} == {
        ("sequential", "confirmed", victim_since),
        ("versions", "confirmed", canary_since),
    }


def test_the_worse_agent_has_one_incident_of_all_tiers_and_its_runs(shown: Shown) -> None:
    """Nine alarms about one change would be nine people who look for the same cause."""
    with Store(shown.database) as store:
        rows = (
            store.cursor()
            .execute("SELECT metadata, description FROM log.incidents WHERE project = 'support' AND type = 'drift'")
            .fetchall()
        )
        (found,) = incident_records(store.cursor(), "support", kind="drift")
    ((metadata, description),) = rows
    moved = {one["series"] for one in json.loads(metadata)["moved"]}
    assert {*TIERS, f"trust of {WORSE_AGENT}", f"unsafe of {WORSE_AGENT}", "anomaly_spike"} <= moved
    told = why(found).summary
    assert told.startswith("15 of 47 exchanges ")
    assert "before 0 of 271: 11 unexplained refusals, 4 empty answers" in told
    assert f"“{told}”" in " ".join(ON_CALL.split())
    assert f"most likely {SINCE}" in description


def test_the_incident_names_the_version_its_deployment_and_what_to_roll_back(shown: Shown) -> None:
    """Since when is not enough at night: what changed, and what to undo."""
    with Store(shown.database) as store:
        (found,) = incident_records(store.cursor(), PROJECTS[WORSE_AGENT], kind="drift")
    evidence = evidence_of(found)
    which = evidence.slices
    assert which is not None
    assert which.found is not None
    assert which.found.label == AGENT
    assert which.found.value == WORSE_VERSION
    assert [(one.label, one.version, one.agent) for one in evidence.deployments] == [(AGENT, WORSE_VERSION, WORSE_AGENT)]
    (undo,) = (one for one in why(found).actions if one.id == "roll_back")
    assert undo.title == f"Roll back {AGENT} from {WORSE_VERSION} to {FIRST[WORSE_AGENT][AGENT]}"


def test_a_deployment_alone_is_no_fault(shown: Shown) -> None:
    """Five releases are recorded; four of them changed nothing, so their projects have no incident."""
    harmless = {PROJECTS[one.agent] for one in releases_until(SCRIPT_END) if one.agent != WORSE_AGENT}
    with Store(shown.database) as store:
        rows = [row for project in PROJECTS.values() for row in deployments(store.cursor(), project)]
        opened = {project for project in harmless if incident_records(store.cursor(), project)}
    kept = {(row["project"], row["label"], row["version"], row["occurred_at"]) for row in rows}
    assert kept == {(PROJECTS[one.agent], one.label, one.version, one.at) for one in releases_until(SCRIPT_END)}
    assert len(harmless) == 4
    assert opened == set()


def test_the_change_of_the_judge_is_told_from_one_of_the_agent(shown: Shown) -> None:
    """Nobody rolls back an agent because its judge became stricter; there is nothing that was deployed, either."""
    with Store(shown.database) as store:
        (found,) = incident_records(store.cursor(), judge_change.PROJECT)
        anchors = project_anchors(store.cursor(), judge_change.PROJECT)
        judged = changes(store.cursor(), judge_change.PROJECT)
    assert found.cause == "judge"
    assert found.severity == "notice"
    assert found.type == "drift"
    evidence = evidence_of(found)
    assert found.title.endswith("; also thinking quality and behavior quality")
    assert evidence.deployments == []
    actions = [one.id for one in why(found).actions]
    assert "check_judge" in actions
    assert "roll_back" not in actions
    assert [(judge_change.ANCHORS,) * 2] * len(SCHEDULE.rounds) == [(each.anchors, each.scored) for each in anchors.rounds]
    first = min(at for at in SCHEDULE.rounds if at.date() >= SCHEDULE.since)
    for change in judged.values():
        assert change.changed is True
        assert change.direction == "down"
        assert change.since == first
        assert change.size == pytest.approx(-judge_change.STRICTNESS, abs=0.01)


def test_the_imported_transcripts_are_checked_as_everything_else(shown: Shown) -> None:
    """Their agent gets worse, too: a page that says of it that nothing was found would not be true."""
    assert any(line.startswith("demo, ") and "answer structure" in line for line in shown.part("In short"))
    with Store(shown.database) as store:
        kept = store.cursor().execute("SELECT project, checked_at::VARCHAR, days FROM log.project_checks").fetchall()
    assert sorted(
        (project, f"{present_of(SCRIPT_END):%Y-%m-%d %H:%M:%S}", 14) for project in (*PROJECTS.values(), "demo", shop.PROJECT)
    ) == sorted(kept)


def test_the_agent_whose_runs_became_unsafe_is_found_on_the_day_it_did(shown: Shown) -> None:
    """From 1 of 42 to 15 of 17: nobody was told before runs were watched. The other five agents are as they were."""
    unsafe, tokens = (line for line in shown.part("In short") if line.startswith("demo, "))
    since = "since 24 October 2026; also answer structure and 5 more"
    assert unsafe == f"demo, support-desk: unsafe runs rose (2.4% → 88%) {since}"
    assert tokens.startswith("demo, support-desk: input tokens per turn doubled (305 → 662) since 27 October 2026; ")


def test_every_attempt_to_sway_the_judge_is_shown(shown: Shown) -> None:
    """Four were planted."""
    rows = [line for line in shown.part("Attempts to") if "judge_tampering" in line]
    assert len(rows) == 4
    assert not any(" - " in line for line in rows), "each was judged, too"


def test_the_bill_is_that_of_the_ledger_and_each_saving_saves(shown: Shown) -> None:
    """What it would have cost is worth reading only if what it did cost is right."""
    rows = shown.part("Cost without each saving")
    with Store(shown.database) as store:
        kept = query_rows(store.cursor(), "judge_costs", {"by": "project", "project": None, "from": None, "to": None})
    assert {row["project"] for row in kept} == {*PROJECTS.values(), anchor_project(judge_change.PROJECT)}
    of_agents = [row for row in kept if row["project"] in PROJECTS.values()]
    ledger = {name: sum(row[name] for row in of_agents) for name in ("calls", "judgements")}
    calls = {line[:24].strip(): int(line[24:].split()[0].replace(",", "")) for line in rows[1:-1]}
    assert calls["as configured"] == ledger["judgements"]
    # A call that broke off is made again, and both are in the ledger; nothing else may differ.
    again = ledger["calls"] - ledger["judgements"]
    agreed = f"{again} of them were made again." if again else "the bill as configured agrees with it, to the token."
    assert rows[-1].strip().endswith(agreed)
    assert calls["as configured"] == calls["without the cache"] < calls["without gates"] < calls["without any of them"]
    configured, waiting, combined, both, *others = [float(re.findall(r"\$([0-9.]+)", line)[0]) for line in rows[1:-1]]
    assert waiting < 0.6 * configured, "batches cost half, but for urgent turns"
    assert both < waiting < combined < configured < min(others)
    assert len(set(others)) == 4


def test_the_costs_of_a_million_exchanges_in_the_documents_are_those_of_the_demo(shown: Shown) -> None:
    """The table answers what a reader asks first; prices and prompts change."""
    told = re.findall(r"^\| `(\S+)` \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", COST, re.MULTILINE)
    rows = [tuple(line.split()) for line in shown.part("Cost of a million")[1:] if "$" in line]

    assert rows
    assert rows == told


def test_the_output_the_readme_shows_is_what_the_demo_prints(shown: Shown) -> None:
    """The first screen must be real; `…` stands for what is left out."""
    lines = {line.rstrip() for line in shown.out.splitlines()}
    [block] = re.findall(rf"```console\n\$ \S+ demo --last-day {SCRIPT_END}\n(.*?)```", README, re.DOTALL)
    assert [line for line in block.splitlines() if line not in lines | {"…"}] == []


@pytest.mark.parametrize("guide", [TUTORIAL, ON_CALL], ids=["tutorial", "on-call"])
def test_the_commands_of_a_guide_to_the_demo_show_what_it_says(
    guide: str, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has never seen it types them, and looks for the same lines."""
    assert all(f"demo-data/{name}" in TUTORIAL for name in ("demo.duckdb", "policy.yaml"))
    monkeypatch.setenv("DRIFTLINE_DATABASE", str(shown.database))
    monkeypatch.setenv("DRIFTLINE_POLICY", str(shown.folder / "policy.yaml"))
    monkeypatch.setenv("COLUMNS", "200")
    terminal = Terminal(shown.folder)
    for typed in typed_in(guide):
        printed = terminal.type(typed.command)
        assert is_shown(typed.shown, printed), f"$ {typed.command}\n{printed}"


def test_the_commands_it_suggests_have_something_to_show(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    """They are the first thing that a newcomer types."""
    steps = [line for line in shown.part("Look closer") if not line.startswith("#")]
    token, serve = (line for line in shown.part("See it in a browser") if not line.startswith("#"))
    assert len(steps) > 10
    for step in [*steps, token]:
        words = shlex.split(step)
        arguments = words[words.index("service.cli.main") + 1 :] if "service.cli.main" in words else words[1:]
        assert run_command(arguments) == 0, step
        assert capsys.readouterr().out, step
    assert " serve " in serve
    assert shown.out.rstrip().endswith(serve)


def test_the_server_it_suggests_serves_and_stops(shown: Shown, tmp_path: Path) -> None:
    """With the policy and the tokens of the demo."""
    (step,) = (line for line in shown.part("See it in a browser") if " serve " in line)
    with nursery() as children:
        arguments = shlex.split(step.partition(" serve ")[2])
        server = children.start(Home(tmp_path), "serve", *arguments, "--port", "0", "--judge", "none")
        assert server.serving().startswith("http://127.0.0.1:")
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def test_the_pictures_in_the_documents_are_of_pages_as_they_are(shown: Shown) -> None:
    """A reader looks for what a picture shows. If a page has other headings by now, `make pictures` takes the pictures again."""
    pictured = json.loads(PICTURED_PAGES.read_text("utf-8"))
    with serving_demo(shown.folder) as (url, token), httpx2.Client(base_url=url, headers={"accept": "text/html"}) as client:
        client.post("/api/audit/sign-in", headers={"authorization": f"Bearer {token}"}, json={}).raise_for_status()
        shown_headings = {name: headings_of(client.get(page["path"]).text) for name, page in pictured.items()}
    assert shown_headings == {name: page["headings"] for name, page in pictured.items()}


def test_no_secret_that_was_planted_is_kept(shown: Shown) -> None:
    """Neither in a table nor in a log; the transcripts hold them, or this would prove nothing."""
    assert any(secret in str(one.payloads) for one in dialogues(SCRIPT_END) for secret in SECRETS)
    kept = b"".join(path.read_bytes() for path in shown.folder.iterdir() if path.is_file())
    with duckdb.connect(str(shown.database), read_only=True) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'log'").fetchall()
        # Pages may be compressed, so the rows are looked at, too.
        kept += b"".join(str(connection.execute(f'FROM log."{name}"').fetchall()).encode() for (name,) in tables)
    assert b"[SECRET:" in kept
    assert [secret for secret in SECRETS if secret.encode() in kept] == []


def test_the_questions_it_suggests_can_be_asked_of_any_database(tmp_path: Path) -> None:
    """Each has an answer, and none holds what a shell would read."""
    database = tmp_path / "empty.duckdb"
    Store(database).close()
    assert all(fetch_rows(database, query, 10)[1] == [] for _, query in QUERIES)
    assert not re.search(r'["$`\\!]', "".join(query for _, query in QUERIES))


def test_every_worked_example_of_sql_finds_something_in_the_demo(shown: Shown, tmp_path: Path) -> None:
    """Whoever tries the SQL page on the demo would take an empty answer for a fault; nothing in the demo is evaluated."""
    with Store(shown.database) as store:
        copy_database(store, tmp_path / "copy.duckdb")
    build_snapshot(tmp_path / "copy.duckdb", tmp_path / "snapshot.duckdb", tmp_path / "spill")
    with open_snapshot(str(tmp_path / "snapshot.duckdb"), memory=512 * 1024 * 1024, seconds=60) as connection:
        empty = [one for one in worked_examples() if not fetch_limited(connection, one.sql, one.parameters, 1000).frame.height]
    assert all("test cases" in " ".join(one.words.split()) for one in empty)
    assert len(empty) == 2


def test_a_folder_that_is_not_its_own_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It empties what it finds."""
    (tmp_path / "thesis.txt").write_text("years of work")
    assert run_command(["demo", "--dir", str(tmp_path)]) == 2
    assert "no earlier demo made it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


SMALL_FLEET = """
    import functools, driftline_trial.demo.command as demo

    demo.write_fleet = functools.partial(demo.write_fleet, agents=1, weeks=1)
"""
"""Has a demo import few transcripts before it starts its server."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Child]:
    """A demo that is under way."""
    with nursery() as children:
        home = Home(tmp_path, ANTHROPIC_BASE_URL="http://127.0.0.1:1")
        yield children.start(home, "demo", "--dir", str(tmp_path / "demo-data"), before=textwrap.dedent(SMALL_FLEET))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_runs_on_when_it_is_interrupted(started: Child, tmp_path: Path, number: signal.Signals) -> None:
    """Its server and its judge belong to it."""
    log = tmp_path / "demo-data" / "server.log"
    until(lambda: started.ended or (log.exists() and '"POST"' in log.read_text()), "the demo's server to take records")
    assert not started.ended, started.logged
    children = [int(pid) for pid in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()]
    assert len(children) == 2
    started.send(number)
    assert started.wait() > 0
    assert "Traceback" not in started.logged
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
