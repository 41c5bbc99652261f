"""The runs of a project as a list: in which order, of whom, from when, and why there may be none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

from support.api_server import Call, Tokens
from support.builders import START
from support.stored_sessions import diagnosed
from support.watch_histories import put

from analytics.adhoc import fetch_rows
from analytics.snapshots import copy_database
from analytics.store.store import Store
from schemas.bounds import EARLIEST
from service.pages.projects.telemetry import ROWS_PER_PAGE
from service.text.answers import Place, encode_place
from service.text.links import Links

LINKS = Links()
RUNS = LINKS.runs("ops")


def run_ids(page: str) -> list[str]:
    """Return the listed runs, in order."""
    return re.findall(r'<td class="whole"[^>]*><a href="/projects/ops/runs/(run_\d+)[?"]', page)


def test_runs_are_listed_worst_first_in_pages(look: Callable[..., str], store: Store) -> None:
    """Users look for the worst of three hundred runs; ties and runs without a score have a fixed position."""
    trusts = [*(40 + number % 7 for number in range(2 * ROWS_PER_PAGE)), None, 12, None, 99]
    put(store, "diagnoses", (diagnosed(f"s{number}", trust_score=trust) for number, trust in enumerate(trusts)))
    order = [(math.inf if trust is None else trust, -number) for number, trust in enumerate(trusts, 1)]
    listed_runs: list[str] = []
    address: str | None = LINKS.runs("ops", sort="trust")
    while address:
        page = look(address)
        listed_runs += run_ids(page)
        link = re.search(r'rel="next" href="([^"]+)"|href="([^"]+)" rel="next"', page)
        address = unescape(link[1] or link[2]) if link else None
    assert listed_runs == [f"run_{-number:03}" for _, number in sorted(order)]
    assert run_ids(look(RUNS))[0] == f"run_{len(trusts)}"
    look(f"{RUNS}?sort=trust&cursor={encode_place(Place(EARLIEST, 'odd', 3))}", 400)


def test_the_newest_runs_are_those_that_ended_last(look: Callable[..., str], store: Store) -> None:
    """Transcripts are imported file by file, so the last imported session may be weeks old."""
    ends = [datetime(2026, *day, tzinfo=UTC) for day in ((10, 1), (9, 21), (9, 25), (9, 21))]
    put(store, "diagnoses", [diagnosed(f"s{number}", ended_at=at) for number, at in enumerate(ends)])
    newest_first = ["run_001", "run_003", "run_004", "run_002"]
    assert newest_first == run_ids(look(RUNS))
    newest = look(LINKS.details("ops")).split("Newest runs with their verdict</caption>")[1].split("</table>")[0]
    assert newest_first == re.findall(r">(run_\d+)</a>", newest)
    assert re.findall(r'href="(/projects/ops/runs/run_00[14])" rel="(?:prev|next)"', look(LINKS.run("ops", "run_003"))) == [
        LINKS.run("ops", run) for run in ("run_004", "run_001")
    ]


def test_an_unsafe_run_is_worse_than_one_with_less_trust(look: Callable[..., str], store: Store) -> None:
    """Five duplicate refunds leave a trust of 90, so ordering by trust alone would rank them too low."""
    levels = {"a": ("review_recommended", 88), "b": ("unsafe_for_production", 90), "c": ("ready_for_runtime", 86)}
    put(store, "diagnoses", [diagnosed(name, readiness_level=at, trust_score=trust) for name, (at, trust) in levels.items()])
    page = look(LINKS.runs("ops", sort="trust"))
    assert run_ids(page) == ["run_002", "run_001", "run_003"]
    assert re.search(r">Readiness</a></th>.*>Trust</a></th>", page)
    assert "never below 73, so decide by readiness" in look(LINKS.run("ops", "run_002"))


def test_runs_can_be_filtered_by_agents_and_days(look: Callable[..., str], store: Store) -> None:
    """An incident links to the runs of its agents and days; the last day is included."""
    ends = [datetime(2026, 10, day, 23, 59, tzinfo=UTC) for day in (1, 2, 3, 4)]
    diagnoses = [
        diagnosed(f"{agent}{at.day}", agent=agent, ended_at=at, trust_score=100 - at.day)
        for at in ends
        for agent in ("scout", "<b>other")
    ]
    put(store, "diagnoses", diagnoses)
    path = LINKS.runs("ops", agent=["scout"], since="2026-10-02", until="2026-10-03")
    page = look(path)
    assert run_ids(page) == ["run_005", "run_003"]
    assert "Runs of <bdi>scout</bdi>." in page
    assert "2 Oct \u2013 3 Oct 2026" in page
    both = look(LINKS.runs("ops", agent=["scout", "<b>other"], since="2026-10-04"))
    assert run_ids(both) == ["run_008", "run_007"]
    assert "<b>other" not in both
    assert run_ids(look(LINKS.runs("ops", agent=["nobody"]))) == []
    look(f"{RUNS}?since=odd", 400)


def test_sql_uses_the_run_ids_of_the_pages(
    call: Call, tokens: Tokens, look: Callable[..., str], store: Store, tmp_path: Path
) -> None:
    """SQL uses the run ids of the pages, beside a server and over the file."""
    diagnoses = [diagnosed(f"s{number}", trust_score=90 + number) for number in range(3)]
    put(store, "diagnoses", [*diagnoses, diagnosed("s1", trust_score=50, revision=1), diagnosed("w", project="web")])
    assert run_ids(look(RUNS)) == ["run_003", "run_002", "run_001"]
    sql = "SELECT project, run_id, session_id, trust_score, day::VARCHAR AS day FROM runs ORDER BY ALL"
    day = f"{START:%Y-%m-%d}"
    expected_rows = [
        ("ops", "run_001", "s0", 90, day), ("ops", "run_002", "s1", 50, day), ("ops", "run_003", "s2", 92, day), ("web", "run_001", "w", 100, day),
    ]  # fmt: skip
    rows = call("POST", "/api/audit/query", tokens.root, json={"sql": sql}).json()["rows"]
    assert [tuple(row.values()) for row in rows] == expected_rows
    copy_database(store, tmp_path / "copy.duckdb")
    assert fetch_rows(tmp_path / "copy.duckdb", sql, 10)[1] == expected_rows


def test_the_lowest_trust_of_an_agent_links_to_its_run(look: Callable[..., str], store: Store) -> None:
    """Nobody wants to search hundreds of runs for it; of equal ones, the newest is linked."""
    trusts = (90, 61, 61, None, 95)
    put(store, "diagnoses", [diagnosed(f"s{number}", trust_score=trust) for number, trust in enumerate(trusts)])
    (lowest,) = re.findall(r'data-label="Lowest"><a href="([^"]+)">61</a>', look(LINKS.agents("ops")))
    assert LINKS.run("ops", "run_003") == lowest
