"""The guide to extending Driftline, followed to its end in a copy of the repository."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import httpx2
import pytest
from support.receivers import receiving
from support.repository_copy import ROOT, Copy, changed, copy_repository
from support.servers import until
from support.watch_histories import END, fallen, history, put

from analytics.store.store import Store
from service.cli.main import run

pytestmark = pytest.mark.slow

GUIDE = "docs/how-to/extend.md"
COUNTED = {
    "A command": 5,
    "An endpoint": 5,
    "A page": 5,
    "A column of a list": 3,
    "A Tier 1 check": 3,
    "A sampling reason": 6,
    "A field of an incident": 5,
}
"""Sections, each with the maximum number of files that a person writes or changes, including the test."""
STARTED = re.compile(r"http://[\d.:]+")
WROTE = re.compile(r"^wrote (\S+)$", re.MULTILINE)
PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")


@dataclass(frozen=True)
class Step:
    """The files of one section of the guide: those that it has the reader write or change, and those that are then generated."""

    by_hand: set[str]
    generated: set[str]


@dataclass(frozen=True)
class Followed:
    """A copy in which every section of the guide was done."""

    copy: Copy
    steps: Mapping[str, Step]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The copy; generated files are brought up to date after each section that is counted, and once before them."""
    copy = copy_repository(tmp_path_factory.mktemp("repository"))
    (copy.root / ".venv").symlink_to(sys.prefix)
    texts = {text.partition("\n")[0]: text for text in (ROOT / GUIDE).read_text("utf-8").split("\n## ")}
    for heading, text in texts.items():
        if heading not in COUNTED:
            copy.follow(text)
    generated(copy)
    return Followed(copy, {heading: Step(copy.follow(texts[heading]), generated(copy)) for heading in COUNTED})


def generated(copy: Copy) -> set[str]:
    """The files that `make generate` writes now."""
    return set(WROTE.findall(copy.run("make", "--silent", "generate")))


@pytest.fixture(scope="module")
def copy(followed: Followed) -> Copy:
    """The copy."""
    return followed.copy


@pytest.fixture(scope="module")
def filled(copy: Copy) -> Path:
    """The copy's folder with a database that the guide's last commands made."""
    driftline(copy, "import", "papertrail", "trail", "--project", "ops")
    return copy.root / "driftline.duckdb"


def driftline(copy: Copy, *words: str) -> str:
    """What a command of the copy prints."""
    return copy.python("service.cli.main", *words)


@contextmanager
def serving(copy: Copy, database: Path, **settings: str) -> Iterator[httpx2.Client]:
    """A client of the copy's server over a database, with a token that may see everything."""
    token = driftline(copy, "operators", "add", "root", "--db", str(database)).split()[-1]
    command = [sys.executable, "-m", "service.cli.main", "serve", "--db", str(database), "--port", "0", "--judge", "none"]
    environment = {"PYTHONPATH": str(copy.root), "PATH": "", **settings}
    with subprocess.Popen(
        [*command, "--as-of", END.isoformat()], cwd=copy.root, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            started = next(filter(None, map(STARTED.search, process.stdout or ())))
            with httpx2.Client(base_url=started.group(), headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
                yield client
        finally:
            process.terminate()


def page_of(client: httpx2.Client, path: str) -> str:
    """The text of a page, as somebody sees it who has signed in with the client's token."""
    client.post("/api/audit/sign-in", json={}).raise_for_status()
    with httpx2.Client(base_url=client.base_url, cookies=client.cookies, timeout=60) as browser:
        return browser.get(path).raise_for_status().text


@pytest.mark.parametrize("heading", COUNTED)
def test_what_is_added_most_often_takes_few_files(followed: Followed, heading: str) -> None:
    """Whoever adds something finds all of its places, and the guide names those that are generated."""
    step = followed.steps[heading]
    (row,) = re.findall(
        rf"^\| \[{re.escape(heading[:1].lower() + heading[1:])}\]\(.*$", (ROOT / GUIDE).read_text("utf-8"), re.MULTILINE
    )
    written = {file.partition("/Incident/")[0] for file in step.generated} - {"docs/reference/packages.md"}

    assert len(step.by_hand) <= COUNTED[heading]
    assert f"| {len(step.by_hand)}: " in row
    assert any(file.startswith("tests/") for file in step.by_hand)
    assert set(re.findall(r"`([a-z_]+/[^`]+)`", row)) == written


def test_the_checks_are_content_with_what_the_guide_adds(copy: Copy) -> None:
    """Whoever follows the guide has nothing left to guess before `make lint` passes."""
    copy.python("ruff", "check", "--quiet")
    copy.python("ruff", "format", "--check", "--quiet")
    copy.run(".venv/bin/lint-imports", "--no-cache")


def test_the_tests_that_the_guide_adds_pass(copy: Copy) -> None:
    """Cases of the queries, tests of command, check, reason and field, a row of the endpoints; and tests that go over all of a kind."""
    copy.python("pytest", *PYTEST, "tests/sql/test_queries.py", "-k", "busiest_agents or list_exchanges or session_sample")
    rules = [f"tests/audit/exchanges/test_{name}.py" for name in ("tier1", "sampling", "anomalies")]
    copy.python("pytest", *PYTEST, *rules, "tests/service/text/test_words.py", "tests/service/write/policies/test_effect.py")
    copy.python("pytest", *PYTEST, "tests/service/pages/lists/test_lists.py")
    own = ("tests/service/test_busiest_agents.py", "tests/streams/watch/incidents/test_alarms.py")
    copy.python("pytest", *PYTEST, *own, "tests/service/http/test_endpoints.py")
    alike = [f"tests/service/cli/test_{name}.py" for name in ("completion", "options_alike", "start")]
    copy.python(
        "pytest",
        *PYTEST,
        *alike,
        "tests/service/read/test_known_projects.py",
        "tests/test_docs.py::test_the_handbook_names_every_command",
    )


def test_the_new_page_is_walked_in_a_browser(copy: Copy) -> None:
    """Its row in the table of pages is the test of the page; where no browser is installed, that it has one is."""
    copy.python("pytest", *PYTEST, "tests/browser/test_walk.py", "-k", "busiest or in_the_table")


def test_the_new_source_and_check_and_command_work(copy: Copy, filled: Path) -> None:
    """A log goes in by the new command, is checked by the new check, and is listed by the other new command."""
    listed = json.loads(driftline(copy, "busiest-agents", "--project", "ops", "--json"))
    with duckdb.connect(filled, read_only=True) as database:
        flags = database.execute("SELECT tier1_flags FROM scores").fetchall()

    assert listed == {"agent": "papertrail", "exchanges": 1}
    assert flags == [(["shouting"],)]


def test_the_new_command_is_in_help_completion_and_reference(copy: Copy) -> None:
    """People find it wherever they look for commands."""
    reference = (copy.root / "docs/reference/commands-see-what-agents-did.md").read_text("utf-8")

    assert "busiest-agents" in driftline(copy, "--help")
    assert "--project" in driftline(copy, "busiest-agents", "--help")
    assert "busiest-agents" in driftline(copy, "_complete", "busi")
    assert "--project" in driftline(copy, "_complete", "busiest-agents", "--p")
    assert "## driftline busiest-agents\n" in reference


def test_the_new_field_of_a_record_is_a_column(filled: Path) -> None:
    """A schema is a table: nobody writes a migration."""
    with duckdb.connect(filled, read_only=True) as database:
        columns = [name for name, *_ in database.execute("DESCRIBE deployments").fetchall()]

    assert "region" in columns


def test_the_new_endpoint_and_page_answer(copy: Copy, filled: Path) -> None:
    """Both have the same rows, both refuse a project that is not known, and both are found: in OpenAPI, and among the tabs."""
    with serving(copy, filled) as client:
        rows = client.get("/api/audit/ops/busiest-agents").raise_for_status().json()
        refused = client.get("/api/audit/opps/busiest-agents").status_code
        operation = client.get("/openapi.json").json()["paths"]["/api/audit/{project}/busiest-agents"]["get"]
        page, overview = page_of(client, "/projects/ops/busiest-agents"), page_of(client, "/projects/ops")

    assert rows == {"agents": [{"agent": "papertrail", "exchanges": 1}]}
    assert refused == 404
    assert operation["security"] == [{"operatorToken": ["read"]}]
    assert "Busiest agents of ops" in page
    assert "papertrail" in page
    assert re.search(r'<a href="/projects/ops/busiest-agents" aria-current="page">Busiest agents</a>', page)
    assert 'href="/projects/ops/busiest-agents' in overview


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A database of the version before the guide, with an incident in one project and the makings of one in another."""
    database = tmp_path / "older.duckdb"
    with contextlib.closing(Store(database)) as store:
        for project in ("before", "after"):
            put(store, "scores", history(fallen(6), 40, project=project))
    assert run(["check-drift", "--project", "before", "--as-of", END.isoformat(), "--db", str(database)]) == 0
    return database


def test_the_new_field_of_an_incident_is_wherever_incidents_are(copy: Copy, older: Path) -> None:
    """From the watch to table, API, OpenAPI, page, alert and command; an incident of the version before has none."""
    with receiving() as receiver, serving(copy, older, DRIFTLINE_ALERT_WEBHOOK=receiver.url, NO_PROXY="127.0.0.1") as client:
        (found,) = client.post("/api/audit/after/check").raise_for_status().json()["incidents"]
        (known,) = client.get("/api/audit/before/incidents").raise_for_status().json()["incidents"]
        fields = client.get("/openapi.json").json()["components"]["schemas"]["IncidentAnswer"]["properties"]
        page = page_of(client, f"/projects/after/incidents/{found['id']}")
        # The incident of the version before is told of first.
        until(lambda: len(receiver.posts) == 2, "both alerts")
    shown = json.loads(driftline(copy, "incidents", "show", found["id"], "--json", "--db", str(older)))
    with duckdb.connect(older, read_only=True) as database:
        rows = database.execute("SELECT project, alarms FROM incidents ORDER BY project").fetchall()

    assert found["alarms"] == 1
    assert known["alarms"] is None
    assert rows == [("after", 1), ("before", None)]
    assert fields["alarms"]["description"]
    assert "<dt>Alarms</dt><dd>1</dd>" in page
    alerts = {alert["subject"]: alert["details"]["alarms"] for alert in (post.document for post in receiver.posts)}
    assert alerts == {found["id"]: 1, known["id"]: None}
    assert shown["incident"]["alarms"] == 1


def test_a_change_that_fits_nowhere_is_refused() -> None:
    """Else a guide would go stale in silence."""
    assert changed("\na\nc\n", " a\n+b\n", "file") == "\na\nb\nc\n"
    with pytest.raises(AssertionError, match="file has 0 places"):
        changed("\na\nc\n", " b\n+x\n", "file")
    with pytest.raises(AssertionError, match="file has 2 places"):
        changed("\na\na\n", " a\n+x\n", "file")
