"""Agent health and runs: who is trusted how far, run by run, and whether the same failure comes again."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from support.api_server import NOW
from support.builders import closing, exchange, score
from support.pages import drawn_charts
from support.stored_sessions import filled
from support.watch_histories import JUDGED, put

from analytics.store.store import Store
from schemas.records import CostAnalysis, Diagnosis, DimensionScores, Label
from service.pages.rendering import NOTHING

Looks = Callable[..., str]
LOOP = "infinite_tool_loop"


def run(number: int, trust: int | None, agent: str | None = "scout", **fields: object) -> Diagnosis:
    """Return the `number`-th run, one hour after the previous one."""
    at = NOW - timedelta(days=9) + timedelta(hours=number)
    values = {
        "connection": "local", "project": "ops", "agent": agent, "session_id": f"s{number}", "revision": 0, "ended_at": at, "closed_at": at,
        "closed_reason": "explicit", "trust_score": trust,
        "readiness_level": "unsafe_for_production" if trust is not None and trust < 60 else "ready_for_runtime",
        "scores": DimensionScores(), "failure_cause_count": 0, "event_count": 3, "event_type_count": 1, "rule_version": "r", "policy_digest": "0" * 16,
        "cost_analysis": CostAnalysis(total_tokens=0, duplicate_calls=0, redundancy_score=0, token_waste=0, cost_efficiency=100),
        "evidence_digest": "0" * 16,
    }  # fmt: skip
    return Diagnosis(**(values | fields))  # type: ignore[arg-type]


@pytest.fixture
def looks(look: Callable[..., str]) -> Looks:
    """Return the text of a page, by default the page of the agents."""

    def page(path: str = "/projects/ops/agents") -> str:
        return look(path)

    return page


def cells(page: str, caption: str) -> list[list[str]]:
    """Return the rows of a table as text."""
    body = page.split(f">{caption}")[1].split("<tbody>")[1].split("</tbody>", maxsplit=1)[0]
    rows = re.findall(r"<tr[ >].*?</tr>", body, re.DOTALL)
    return [
        [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)] for row in rows
    ]


def test_without_runs_the_page_says_when_there_will_be_some(looks: Looks) -> None:
    """An empty table would look like an error."""
    assert "once its sessions end" in looks()


def test_the_agent_with_the_most_unsafe_runs_comes_first(looks: Looks, store: Store) -> None:
    """The bad one of fifty agents must be visible at once, and even a run with a trust of 90 may be unsafe."""
    unsafe = {"readiness_level": "unsafe_for_production"}
    put(store, "diagnoses", [run(1, 90), run(2, 95), run(3, 96, "rogue", **unsafe), run(4, 70, None)])
    page = looks()
    assert cells(page, "Agents with their runs") == [
        ["rogue", "Unsafe for production", "1", "1", "96", NOTHING, "", "96.0", "96", "0"],
        ["(no name)", "Ready for runtime", "0", "1", "70", NOTHING, "", "70.0", "70", "0"],
        ["scout", "Ready for runtime", "0", "2", "95", "▲ 5", "", "92.5", "90", "0"],
    ]
    assert "is at most 100 and at least 73" in page


def test_a_run_is_shown_beside_the_previous_one(looks: Looks, store: Store) -> None:
    """A run is compared with the previous one: better or worse, and whether a failure repeats."""
    failing = {"primary_failure_type": LOOP}
    put(store, "diagnoses", [run(1, 90), run(2, 50, **failing), run(3, 55, **failing)])
    rows = cells(looks(), "Runs compared with the agent's previous run")
    assert [[*row[:7], "again" if "again" in row[7] else ""] for row in rows] == [
        ["run_003", "Unsafe for production", "55", "▲ 5", "65.0", "scout", "2026-09-22 15:00", "again"],
        ["run_002", "Unsafe for production", "50", "▼ 40", "70.0", "scout", "2026-09-22 14:00", ""],
        ["run_001", "Ready for runtime", "90", NOTHING, "90.0", "scout", "2026-09-22 13:00", ""],
    ]
    assert looks().count('href="/projects/ops/runs/run_003"') == 2, "in the list, and in the chart's table"


def test_a_run_without_evidence_is_listed_but_not_charted(looks: Looks, store: Store) -> None:
    """Its trust is unknown, not zero, so its neighbours are compared with each other."""
    put(store, "diagnoses", [run(1, 90), run(2, None, readiness_level="insufficient_evidence"), run(3, 80)])
    page = looks()
    rows = cells(page, "Runs compared with the agent's previous run")
    assert [row[2:4] for row in rows] == [["80", "▼ 10"], [NOTHING, NOTHING], ["90", NOTHING]]
    assert "No runtime events" in rows[1][7]
    assert drawn_charts(page)["trust-0"]["series"] == [[90, 80]]


def test_the_page_of_an_agent_has_an_address(looks: Looks, store: Store) -> None:
    """The address of an agent's page can be shared."""
    put(store, "diagnoses", [run(1, 90, "a&b"), run(2, 95, "other"), run(3, 20, "")])
    page = looks()
    assert 'href="/projects/ops/agents?agent=a%26b"' in page
    one = looks("/projects/ops/agents?agent=a%26b")
    assert [row[0] for row in cells(one, "Runs compared with the agent's previous run")] == ["run_001"]
    assert one.count(' data-chart="') == 1
    assert [row[0] for row in cells(looks("/projects/ops/agents?agent="), "Runs compared with the agent's previous run")] == [
        "run_003"
    ]
    assert "None of these runs" in looks("/projects/ops/agents?agent=nobody")


def test_many_agents_and_runs_fit_on_a_page(looks: Looks, store: Store) -> None:
    """The page reports omitted agents and runs."""
    put(store, "diagnoses", [run(number, 90, f"agent-{number % 40:02d}") for number in range(1, 201)])
    page = looks("/projects/ops/agents")
    assert page.count(' data-chart="') == 12
    assert "28 more agents" in page
    assert "150 older runs are not listed" in page
    assert len(page) < 300_000


def test_the_project_shows_its_newest_runs(looks: Looks, store: Store) -> None:
    """Runs are linked from the page of the project."""
    put(store, "diagnoses", [run(1, 90), run(2, 50, primary_failure_type=LOOP)])
    rows = cells(looks("/projects/ops/details"), "Newest runs with their verdict")
    assert rows[0][:3] == ["run_002", "Unsafe for production", "50"]
    assert rows[1] == ["run_001", "Ready for runtime", "90", "none", "scout", "2026-09-22 13:00"]
    assert 'href="/projects/ops/runs/run_002"' in looks("/projects/ops/details")


def test_a_project_with_only_runs_shows_only_those(looks: Looks, store: Store) -> None:
    """Without exchanges, their charts and costs are not shown."""
    put(store, "diagnoses", [run(1, 97)])
    page_text = " ".join(re.sub(r"<[^>]+>", " ", looks("/projects/ops/details")).split())
    assert "run_001 Ready for runtime 97" in page_text
    for heading in ("No records yet", "Cost of judging", "· Tier 1", "Not sampled", "Newest sessions"):
        assert heading not in page_text


def test_an_ended_session_is_not_called_unfinished(looks: Looks, store: Store) -> None:
    """A session has a run once its end is diagnosed, and is open again if it continues."""
    ended = closing("s", 1)
    filled(
        store,
        ("exchanges", exchange("s", 1)),
        ("exchanges", ended),
        ("exchanges", exchange("on", 1, occurred_at=ended.closed_at + timedelta(minutes=1))),
        ("exchanges", closing("on", 1)),
        ("exchanges", exchange("open", 1)),
    )
    page = looks("/projects/ops/wrap-quality")
    state = {name: re.search(rf">{name}</bdi></a></td>.*?>(ended|not finished)<", page)[1] for name in ("s", "on", "open")}  # type: ignore[index]
    assert state == {"s": "ended", "on": "not finished", "open": "not finished"}


def test_sessions_link_to_their_runs(looks: Looks, store: Store) -> None:
    """Sessions link to their runs, because users want to see how they ended."""
    filled(store, ("exchanges", exchange("s", 1)), ("exchanges", exchange("t/u", 2)))
    put(store, "diagnoses", [run(1, 97, session_id="t/u")])
    page = looks("/projects/ops/wrap-quality")
    assert re.findall(r'href="([^"]*/runs/[^"]*)"', page) == ["/projects/ops/runs/run_001"]
    assert page.count("not finished") == 1
    one = looks("/projects/ops/wrap-quality?limit=1")
    assert one.split("<tbody>")[1].count("<tr>") == 1
    assert 'href="/projects/ops/wrap-quality?limit=1&amp;cursor=' in one


def test_the_page_compares_an_agents_last_two_versions(looks: Looks, store: Store) -> None:
    """The page answers whether the newest version is better, with both versions, the date, the numbers and a link."""
    for number in range(1, 9):
        version, mean = ("6", 0.9) if number < 5 else ("7", 0.4)
        versioned = exchange(f"s{number}", number, agent="scout", labels=[Label(name="agent_version", value=version)])
        score_fields = {**JUDGED, "tier2_score": mean + number / 1000, "agent": "scout", "exchange_at": versioned.occurred_at}
        filled(store, ("exchanges", versioned), ("scores", score(f"s{number}", number, **score_fields)))
    put(store, "diagnoses", [run(number, 50 if number > 4 else 90) for number in range(1, 9)])
    said_of = " ".join(re.sub(r"<[^>]+>", " ", looks().split('id="versions"')[1].split('id="agents"')[0]).split())
    assert "Worse scout since 2026-" in said_of
    assert "Version 7 is worse than 6" in said_of
    assert "0.406, before 0.902 (\u22120.496, 95%: \u2212" in said_of
    assert "4 of 4 runs unsafe, before 0 of 4 (95%: +" in said_of
    assert 'href="/projects/ops/exchanges?agent=scout&amp;label=agent_version%3D7&amp;window=90d"' in looks()
    assert "agent_version 7 since" in cells(looks(), "Agents with their runs")[0][0]


def test_without_known_versions_the_page_says_what_is_missing(looks: Looks, store: Store) -> None:
    """Otherwise a missing comparison would look like no difference."""
    put(store, "diagnoses", [run(1, 90)])
    page = looks()
    assert "No version is known" in page
    assert "<code>agent_version</code>" in page
