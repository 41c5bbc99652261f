"""One rule for time: a period counts back from now on every page, in the API and on the command line.

Where traffic had paused, some tabs showed the last days with data and others the last days: one click led from 22 anomalies to none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from support.api_server import NOW, Call, Tokens
from support.pages import cookie, signed_in
from support.paused_projects import DAYS_AGO, LIVE, PAUSED, count_within, put_paused

from analytics.store.store import Store
from service.cli.main import run
from service.setup.workspace import utc_now

Look = Callable[[str], str]
TABS = {
    "": "exchanges-table",
    "/exchanges": "rows",
    "/sessions": "rows",
    "/costs": "costs",
    "/anomalies": "anomalies",
    "/incidents": "incidents",
    "/runs": "runs",
    "/agents": "agents",
    "/wrap-quality": "wraps",
    "/evaluations": "list",
}
"""The pages of a project that show a time, and the part of each that has its records."""
LENGTHS = {"7d": 7, "14d": 14, "30d": 30, "90d": 90}


@pytest.fixture
def look(call: Call, tokens: Tokens, store: Store) -> Look:
    """Return the text of a page of a server with both projects."""
    put_paused(store, NOW)
    value = signed_in(call, tokens.root)

    def read_page(path: str) -> str:
        answer = call("GET", path, headers=cookie(value))
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    return read_page


def address_of(project: str, tab: str, **params: object) -> str:
    """Return the address of a tab that shows all of its records: closed incidents, too, which are not listed by default."""
    query = urlencode(({"status": "any"} if tab == "/incidents" else {}) | params)
    return f"/projects/{project}{tab}" + (f"?{query}" if query else "")


def count_on(page: str, tab: str) -> int:
    """Return the number of records on a tab: its rows, or the sum of a column if a row stands for several."""
    part = page.partition(f'id="{TABS[tab]}"')[2]
    body = part.partition("<tbody")[2].partition("</tbody>")[0]
    if tab == "":
        cells = re.findall(r"<td[^>]*>(?:<a [^>]*>)?(\d+)<", body)
        return sum(map(int, cells))
    if tab == "/agents":
        return sum(map(int, re.findall(r'data-label="Runs">(\d+)<', body)))
    return len(re.findall(r"<tr[ >]", body))


def offered_by(page: str) -> str | None:
    """Return the address that a page offers for an empty period, or None without an offer."""
    (part,) = re.findall(r'<div id="last-period" data-part>(.*?)</div>', page, re.DOTALL)
    links = re.findall(r'href="([^"]+)"', part)
    return unescape(links[0]) if links else None


@pytest.mark.parametrize("project", [PAUSED, LIVE])
@pytest.mark.parametrize("tab", TABS)
def test_every_tab_counts_the_same_records_of_a_period(look: Look, project: str, tab: str) -> None:
    """A longer period never has fewer records, and a page without a period shows the default one."""
    counts = {length: count_on(look(address_of(project, tab, window=length)), tab) for length in LENGTHS}

    assert counts == {length: count_within(project, days) for length, days in LENGTHS.items()}
    assert count_on(look(address_of(project, tab)), tab) == counts["14d"]


@pytest.mark.parametrize("tab", TABS)
def test_an_empty_period_links_to_the_last_one_with_data(look: Look, tab: str) -> None:
    """After a pause, the page says that the period is empty and links to the last one with data."""
    empty = look(address_of(PAUSED, tab, window="7d"))
    address = offered_by(empty)

    assert address == address_of(PAUSED, tab, window="7d", until=(NOW - timedelta(days=20)).date())
    page = look(address)
    assert count_on(page, tab) == 2, "of the two days of the last week that had some"
    assert offered_by(page) is None
    assert offered_by(look(address_of(LIVE, tab, window="7d"))) is None


@pytest.mark.parametrize("tab", [tab for tab in TABS if tab])
def test_a_project_without_older_records_offers_nothing(look: Look, tab: str) -> None:
    """A period without data must not be offered."""
    assert offered_by(look(f"/projects/ops{tab}?window=7d")) is None


@pytest.mark.parametrize("tab", ["/anomalies", "/runs", "/incidents", "/agents", "/wrap-quality", "/evaluations"])
def test_all_time_is_shown_only_if_the_address_says_so(look: Look, tab: str) -> None:
    """All time is never the default, and pages that show a period do not keep it."""
    page = look(address_of(PAUSED, tab, window="all"))

    assert count_on(page, tab) == len(DAYS_AGO[PAUSED])
    assert f'href="/projects/{PAUSED}/exchanges"' in page
    assert f'href="/projects/{PAUSED}/runs?window=all"' in page


@pytest.mark.parametrize("project", [PAUSED, LIVE])
def test_the_api_counts_the_same_records_as_the_pages(look: Look, call: Call, tokens: Tokens, project: str) -> None:
    """Fleet, trends and lists of the API cover the same days as the tabs."""
    assert look("/")

    def ask(path: str) -> dict[str, object]:
        answer = call("GET", f"/api/audit{path}", tokens.root)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    newest = (NOW - timedelta(days=DAYS_AGO[project][0])).date()
    trends = {length: ask(f"/{project}/trends?window={length}") for length in ("7d", "14d", "30d")}
    assert {length: sum(day["exchangeCount"] for day in one["dataPoints"]) for length, one in trends.items()} == {  # type: ignore[attr-defined]
        length: count_within(project, LENGTHS[length]) for length in trends
    }
    assert trends["7d"]["lastUntil"] == (f"{newest}" if project == PAUSED else None)
    (row,) = [one for one in ask("/projects")["projects"] if one["project"] == project]  # type: ignore[attr-defined]
    recent = row["recent"]
    assert [count_within(project, 7)] * 3 == [recent["scores"], recent["anomalies"], recent["runs"]]
    assert recent["until"] == f"{NOW.date()}"
    assert recent["lastUntil"] == (f"{newest}" if project == PAUSED else None)
    assert row["before"]["scores"] == count_within(project, 14) - count_within(project, 7)


def test_the_period_offered_by_the_api_has_data(look: Look, call: Call, tokens: Tokens) -> None:
    """`last_until` is a valid value of `until`."""
    assert look("/")
    until = (NOW - timedelta(days=20)).date()
    fleet = call("GET", f"/api/audit/projects?until={until}", tokens.root).json()["projects"]
    (recent,) = [one["recent"] for one in fleet if one["project"] == PAUSED]
    trends = call("GET", f"/api/audit/{PAUSED}/trends?window=7d&until={until}", tokens.root).json()

    assert recent["scores"] == 2
    assert recent["until"] == f"{until}"
    assert recent["lastUntil"] is None
    assert len(trends["dataPoints"]) == 2
    assert trends["until"] == f"{until}"


def test_the_card_of_a_silent_project_has_no_old_figures(look: Look) -> None:
    """Its figures cover the last days and are empty; the card names the last record and links to it."""
    cards = {card.partition("</a>")[0].rpartition(">")[2]: card for card in look("/").split('<li class="card ')[1:]}

    assert "No exchange in 7 days" in cards[PAUSED]
    assert "20 days ago" in cards[PAUSED]
    assert f'href="/projects/{PAUSED}?window=7d&amp;until={(NOW - timedelta(days=20)).date()}"' in cards[PAUSED]
    assert "No exchange in 7 days" not in cards[LIVE]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a database file with both projects, relative to the present, and use a policy that asks for wrap-ups."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {wrapQualityScoring: true}\n")
    monkeypatch.setenv("DRIFTLINE_POLICY", str(policy))
    path = tmp_path / "paused.duckdb"
    with Store(path) as store:
        put_paused(store, utc_now())
    return path


def run_as_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[dict[str, object]], str]:
    """Return the rows that a command prints as JSON, and its error output."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    output = capsys.readouterr()
    return [json.loads(line) for line in output.out.splitlines()], " ".join(output.err.split())


@pytest.mark.parametrize("project", [PAUSED, LIVE])
@pytest.mark.parametrize("command", ["runs", "scores", "wrap-quality", "evaluations"])
def test_the_command_line_counts_the_same_records_as_the_pages(
    database: Path, capsys: pytest.CaptureFixture[str], project: str, command: str
) -> None:
    """`--since 7d` means the seven days of the pages, and an empty list names the last period with data."""
    of_project = ("--project", project, "--db", str(database))
    rows = {length: run_as_json(capsys, command, "--since", length, *of_project) for length in LENGTHS}

    assert {length: len(found) for length, (found, _) in rows.items()} == {
        length: count_within(project, days) for length, days in LENGTHS.items()
    }
    offers = [re.findall(r"--since (\d{4}-\d\d-\d\d)", told) for _, told in rows.values()]
    assert [bool(offer) for offer in offers] == [not count_within(project, days) for days in LENGTHS.values()]
    if project == PAUSED:
        offered_rows, _ = run_as_json(capsys, command, "--since", offers[0][0], *of_project)
        assert len(offered_rows) == 2


def test_the_fleet_on_the_command_line_marks_silent_projects_and_their_last_days(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures are those of the page and the API, and the offer is an option of the command."""
    projects, _ = run_as_json(capsys, "projects", "--db", str(database))
    assert {one["project"]: one["recent"]["scores"] for one in projects} == {PAUSED: 0, LIVE: count_within(LIVE, 7)}  # type: ignore[index]
    capsys.readouterr()
    assert run(["projects", "--db", str(database)]) == 0
    (until,) = re.findall(r"driftline projects --until (\d{4}-\d\d-\d\d)", " ".join(capsys.readouterr().err.split()))
    offered_projects, _ = run_as_json(capsys, "projects", "--until", until, "--db", str(database))
    assert [one["recent"]["scores"] for one in offered_projects if one["project"] == PAUSED] == [2]  # type: ignore[index]


@pytest.mark.parametrize("until", ["yesterday", "1999-01-01", "2026-10-01T12:00Z"])
def test_an_invalid_day_is_refused(call: Call, tokens: Tokens, database: Path, until: str) -> None:
    """Fleet and trends cover whole days."""
    assert run(["projects", "--until", until, "--db", str(database)]) == 2
    assert call("GET", f"/api/audit/projects?until={until}", tokens.root).status_code == 400
