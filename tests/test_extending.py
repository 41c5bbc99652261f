"""The guide to extending Driftline, followed to its end in a copy of the repository."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import httpx2
import pytest
from repository_copy import Copy, changed, copy_repository

pytestmark = pytest.mark.slow

GUIDE = "docs/how-to/extend.md"
STARTED = re.compile(r"http://[\d.:]+")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy in which every step of the guide was done, the reference included."""
    made = copy_repository(tmp_path_factory.mktemp("repository"))
    made.follow(GUIDE)
    made.python("schemas.generate")
    return made


@pytest.fixture(scope="module")
def filled(copy: Copy) -> Path:
    """The copy's folder with a database that the guide's last commands made."""
    driftline(copy, "import", "papertrail", "trail", "--project", "ops")
    return copy.root / "driftline.duckdb"


def driftline(copy: Copy, *words: str) -> str:
    """What a command of the copy prints."""
    return copy.python("service.cli.main", *words)


def test_the_checks_are_content_with_what_the_guide_adds(copy: Copy) -> None:
    """Whoever follows the guide has nothing left to guess before `make lint` passes."""
    copy.python("ruff", "check", "--quiet", "analytics", "audit", "service", "streams", "schemas")
    copy.python("ruff", "format", "--check", "--quiet", "service/http", "service/cli", "service/pages", "streams/sources")
    copy.python("schemas.generate", "--check")


def test_the_cases_of_the_new_query_pass(copy: Copy) -> None:
    """The case file is the query's specification."""
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    copy.python("pytest", *options, "tests/sql/test_queries.py", "-k", "busiest_agents")


def test_the_new_source_and_check_and_command_work(copy: Copy, filled: Path) -> None:
    """A log goes in by the new command, is checked by the new check, and is listed by the other new command."""
    listed = json.loads(driftline(copy, "busiest-agents", "--project", "ops", "--json"))
    with duckdb.connect(filled, read_only=True) as database:
        flags = database.execute("SELECT tier1_flags FROM scores").fetchall()

    assert {"agent": "papertrail", "exchanges": 1} == listed
    assert [(["shouting"],)] == flags


def test_the_new_field_is_a_column(filled: Path) -> None:
    """A schema is a table: nobody writes a migration."""
    with duckdb.connect(filled, read_only=True) as database:
        columns = [name for name, *_ in database.execute("DESCRIBE deployments").fetchall()]

    assert "region" in columns


@pytest.fixture
def server(copy: Copy, filled: Path) -> Iterator[httpx2.Client]:
    """A client of the copy's server, with a token that may see everything."""
    token = driftline(copy, "operators", "add", "root").split()[-1]
    command = [sys.executable, "-m", "service.cli.main", "serve", "--db", str(filled), "--port", "0", "--judge", "none"]
    with subprocess.Popen(
        command, cwd=copy.root, env={"PYTHONPATH": str(copy.root), "PATH": ""}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            started = next(filter(None, map(STARTED.search, process.stdout or ())))
            with httpx2.Client(base_url=started.group(), headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
                yield client
        finally:
            process.terminate()


def test_the_new_endpoint_and_page_answer(server: httpx2.Client) -> None:
    """Both have the same rows, and both refuse a project that is not known."""
    rows = server.get("/api/audit/ops/busiest-agents").raise_for_status().json()
    server.post("/api/audit/sign-in", json={}).raise_for_status()
    with httpx2.Client(base_url=server.base_url, cookies=server.cookies, timeout=60) as browser:
        page = browser.get("/projects/ops/busiest-agents").raise_for_status()

    assert {"agents": [{"agent": "papertrail", "exchanges": 1}]} == rows
    assert "Busiest agents of ops" in page.text
    assert "papertrail" in page.text
    assert 404 == server.get("/api/audit/opps/busiest-agents").status_code


def test_a_change_that_fits_nowhere_is_refused() -> None:
    """Else a guide would go stale in silence."""
    assert "\na\nb\nc\n" == changed("\na\nc\n", " a\n+b\n", "file")
    with pytest.raises(AssertionError, match="file has 0 places"):
        changed("\na\nc\n", " b\n+x\n", "file")
    with pytest.raises(AssertionError, match="file has 2 places"):
        changed("\na\na\n", " a\n+x\n", "file")
