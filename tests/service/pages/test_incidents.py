"""The pages of incidents: the finding, its certainty, and the decision of the person responsible."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_server import NOW, Call, Tokens
from support.builders import START, incident
from support.pages import Elements, chart_table, cookie, drawn_charts, from_page, signed_in
from support.watch_histories import ended_run, fallen, history, put, steady

from analytics.snapshots import copy_database
from analytics.store.store import Outbox, Store
from audit.drift.incident_evidence import Observation
from schemas.records import Alert, Incident
from service.cli.main import run
from service.pages.incident_figures import RULE_EXPLANATIONS, RULE_NAMES, format_odds, list_figures
from service.pages.incidents import INCIDENTS_PER_PAGE, MAX_OPEN_EXCHANGES, MAX_REASON_LENGTH, format_command
from service.read.incidents import incident_records
from service.setup.access import AccessStore, Holder
from service.text.links import Links
from streams.watch.behaviour_rules import BEHAVIOURS
from streams.watch.findings import VERSIONS
from streams.watch.rules import ALL_RULES
from streams.watch.run_rules import RUNS, SESSIONS

LINKS = Links()
LIST = LINKS.incidents("ops")
HOSTILE = "<script>alert(1)</script>\u202e\u200b\" onx='" + "y" * 5000
EVIDENCE: dict[str, Any] = {
    "rules": {
        "sequential": {
            "since": "2026-09-26", "until": "2026-10-01", "title": "Tier 2 fell", "size": 0.4, "severity": "critical",
            "meanBefore": 0.85, "meanAfter": 0.45, "change": -0.4, "changeInterval": [-0.45, -0.35], "sigma": 0.03,
            "scoresBefore": 280, "scoresAfter": 50, "sessionsBefore": 28, "sessionsAfter": 5, "logEvidence": 8.6,
            "comparedSince": "2026-08-29", "firstDay": "2026-09-26", "firstDayInterval": ["2026-09-25", "2026-09-27"],
            "days": [{"day": "2026-09-26", "average": 0.451, "count": 10}],
        },
        "consecutive_days": {
            "since": "2026-09-27", "until": "2026-10-01", "title": "Five days in a row", "mean": 0.85, "stddev": 0.1,
            "baselineScores": 140, "deviation": 4.2, "days": [{"day": "2026-09-27", "average": 0.4, "count": 10}],
        },
    },
    "exchanges": [
        {
            "scoreId": "worst", "exchangeId": "e", "connection": "local", "agent": "scout", "sessionId": "s", "turnNumber": 7,
            "exchangeTimestamp": "2026-09-27T09:00:00Z", "score": 0.1, "weight": 3.0, "moved": 2.25,
            "samplingReason": "routine_sample", "reason": "It strays.",
        }
    ],
    "baseline": {
        "id": "b", "computedAt": "2026-10-01T00:00:00Z", "windowStart": "2026-09-17T00:00:00Z", "exchangeCount": 140,
        "windowEnd": "2026-10-01T00:00:00Z", "anomalyRate": 0.05, "mean": 0.85, "stddev": 0.1, "count": 140,
    },
    "madeWith": {"judge_model": "claude-haiku-4-5", "simulated": False},
    "policies": {"before": ["aaaa"], "after": ["bbbb"]},
    "note": "The policy is not the same before and after.",
    "samplingMix": [{"sampling_reason": "first_turns", "before": 1, "after": 2, "share_before": 0.5, "share_after": 1.0}],
    "queries": [{"name": "daily_averages", "parameters": {"project": "ops", "tier": None}, "sql": "SELECT 1 < 2"}],
}  # fmt: skip


def store_incident(store: Store, **fields: Any) -> str:
    """Store an incident with evidence, and return the address of its page."""
    values = {"rule": "sequential", "metadata": json.dumps(EVIDENCE), "detected_at": NOW, "checked_at": NOW} | fields
    incident_record = incident(**values)
    put(store, "incidents", [incident_record])
    return LINKS.incident(incident_record.project, incident_record.incident_id)


def open_page(call: Call, token: str, address: str) -> str:
    """Return the HTML of a page."""
    answer = call("GET", address, headers=cookie(signed_in(call, token)))
    assert answer.status_code == 200, answer.text
    return answer.text


def visible_text(page: str) -> str:
    """Return the visible text of a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


def build_incidents(count: int) -> list[Incident]:
    """Return incidents that were detected one minute apart; every third one is resolved."""
    return [
        incident(
            incident_id=f"i{number:03}",
            title=f"Number {number:03}",
            detected_at=START + timedelta(minutes=number),
            status="open" if number % 3 else "resolved",
            type="anomaly_spike" if number % 2 else "drift",
        )
        for number in range(count)
    ]


def titles(page: str) -> list[str]:
    """Return the numbers in the titles of the listed incidents, in order."""
    return re.findall(r"Number (\d+)", page)


def next_page(page: str) -> str | None:
    """Return the address of the next page of a list."""
    link = re.search(r'rel="next" href="([^"]+)"', page)
    return link and unescape(link[1])


SLICES: dict[str, Any] = {
    "state": "found", "tried": 4, "unexplained": -0.01, "change": {"amount": -0.4, "low": -0.45, "high": -0.35},
    "slices": [{
        "label": "agent_version", "kind": "value", "value": "2.0", "shareBefore": 0.0, "shareAfter": 0.5, "meanBefore": None,
        "meanAfter": 0.05, "mix": {"amount": -0.39, "low": -0.42, "high": -0.36}, "within": {"amount": 0.0, "low": 0.0, "high": 0.0},
        "explained": 0.97, "standsOut": True, "sameAs": [{"label": "model", "kind": "value", "value": HOSTILE}],
    }],
}  # fmt: skip


def test_the_page_names_the_changed_slice(call: Call, tokens: Tokens, store: Store) -> None:
    """It shows the version, its shares and the explained part; names of senders are escaped."""
    page = open_page(call, tokens.root, store_incident(store, metadata=json.dumps(EVIDENCE | {"slices": SLICES})))
    assert "<script>alert" not in page
    page_text = visible_text(page)
    assert "agent_version: 2.0 explains 97% of the change" in page_text
    assert "0% → 50%" in page_text
    assert "-0.390 (-0.420 to -0.360)" in page_text


def test_the_page_compares_the_new_version_with_the_one_to_roll_back_to(call: Call, tokens: Tokens, store: Store) -> None:
    """Advice to roll back to a version that the page does not show could not be checked."""
    counts = {"exchangesBefore": 271, "exchangesAfter": 1, "meanBefore": 0.9, "meanAfter": 0.88, "explained": -0.01}
    new = SLICES["slices"][0] | {"exchangesBefore": 0, "exchangesAfter": 25}
    usual = new | counts | {"value": "1.0", "standsOut": False, "shareBefore": 1.0, "sameAs": []}
    slices = SLICES | {"slices": [new], "usual": usual}
    page_text = visible_text(
        open_page(call, tokens.root, store_incident(store, metadata=json.dumps(EVIDENCE | {"slices": slices})))
    )
    assert "Roll back agent_version from 2.0 to 1.0" in page_text
    assert "2.0 began with the change" in page_text
    assert "0.05 over 25 judged turns" in page_text
    assert "1.0 previous version 0.90 over 271 judged turns" in page_text
    assert "0.88 over 1 judged turn" in page_text
    assert "agent_version: 1.0 previous version" in page_text
    assert "driftline deployments add 1.0 --project ops" in page_text


def test_the_likely_cause_comes_first_and_other_evidence_is_folded(call: Call, tokens: Tokens, store: Store) -> None:
    """The main cause comes first, so that the page can be understood in a minute."""
    page = open_page(call, tokens.root, store_incident(store, metadata=json.dumps(EVIDENCE | {"slices": SLICES})))
    section = page[page.index('id="why"') : page.index('id="todo"')]
    lead, fold = re.findall(r'<p class="quoted lead">(.*?)</p>', section, re.DOTALL), section.split("<details")[1:]
    assert [visible_text(one).strip()[:27] for one in lead] == ["agent_version: 2.0 explains"]
    assert len(fold) == 1
    folded_text = visible_text(fold[0])
    assert f"More from the evidence: {fold[0].count('<p ')} observation" in folded_text
    assert "policy is not the same" in folded_text


@pytest.mark.parametrize("slices", [None, [], {"state": "what"}, {"state": "found", "slices": [{"label": 7}]}])
def test_evidence_without_readable_slices_says_so(call: Call, tokens: Tokens, store: Store, slices: Any) -> None:
    """Incidents of earlier versions had no slices, and their page must still open."""
    page = open_page(call, tokens.root, store_incident(store, metadata=json.dumps(EVIDENCE | {"slices": slices})))
    assert "did not compare slices" in visible_text(page)


def test_long_reasons_are_shortened_and_mostly_folded(call: Call, tokens: Tokens, store: Store) -> None:
    """Long reasons are shortened and folded, so that the page can be skimmed."""
    (exchange,) = EVIDENCE["exchanges"]
    moved = [
        exchange | {"scoreId": f"m{number}", "reason": "w" * (MAX_REASON_LENGTH + 7)}
        for number in range(MAX_OPEN_EXCHANGES + 3)
    ]
    page = open_page(call, tokens.root, store_incident(store, metadata=json.dumps(EVIDENCE | {"exchanges": moved})))
    before, _, folded = page.partition('id="moved"')[2].partition('<details id="moved-more"><summary>3 more</summary>')
    assert before.count("/exchanges/m") == MAX_OPEN_EXCHANGES
    assert folded.count("/exchanges/m") == 3
    assert "w" * MAX_REASON_LENGTH in page
    assert "w" * (MAX_REASON_LENGTH + 1) not in page
    assert "(and 7 more characters)" in page


def test_a_decision_is_confirmed(call: Call, tokens: Tokens, store: Store) -> None:
    """The page must confirm a decision, because the button disappears."""
    page = open_page(call, tokens.root, store_incident(store))
    assert re.findall(r'name="status" value="(\w+)" data-done="[^"]+"', page) == [
        "acknowledged",
        "resolved",
        "accepted",
        "dismissed",
    ]


def test_a_project_without_incidents_explains_why(call: Call, tokens: Tokens) -> None:
    """An empty table could be an error."""
    page = open_page(call, tokens.root, LIST)
    assert "No incidents" in page
    assert "no scores to check" in page


def test_no_incidents_is_reported_only_after_a_check(call: Call, tokens: Tokens, store: Store) -> None:
    """Before the first check, scores may contain a fall that no rule has read yet."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    before = open_page(call, tokens.root, LIST)
    assert "Not checked yet." in before
    assert "driftline check-drift --project ops --as-of 2026-10-02" in before
    assert "nothing found" not in before
    assert "Nothing has drifted" not in before
    assert call("POST", "/api/audit/ops/check", tokens.root).json()["opened"]
    after = open_page(call, tokens.root, LIST)
    assert "Checked 2026-10-01 12:00 UTC: 3 findings." in after or "Checked 2026-10-01 12:00 UTC: 2 findings." in after


def test_a_history_shorter_than_a_baseline_is_pointed_out(call: Call, tokens: Tokens, store: Store) -> None:
    """A quiet check of nine days means less than one of two weeks, because the normal level is not known yet."""
    put(store, "scores", history(steady, 8, end=NOW))
    assert call("POST", "/api/audit/ops/check", tokens.root).json()["exchanges"] == 90
    page = open_page(call, tokens.root, LIST)
    assert "9 of 14 days" in page
    assert "Checked 2026-10-01 12:00 UTC: nothing found" in page


def test_a_filter_without_matches_links_to_all_incidents(call: Call, tokens: Tokens, store: Store) -> None:
    """A filter without matches must not look like a project without incidents."""
    store_incident(store)
    page = open_page(call, tokens.root, LINKS.incidents("ops", status="dismissed"))
    assert "No incident matches the filters." in page
    assert f'href="{LIST}"' in page


def test_pages_of_incidents_make_up_the_list_in_every_filter(call: Call, tokens: Tokens, store: Store) -> None:
    """Pages have every incident once, newest first, for every filter, and each page has an address."""
    incidents = build_incidents(2 * INCIDENTS_PER_PAGE + 7)
    put(store, "incidents", incidents)
    for filters in ({"status": "any"}, {"status": "resolved"}, {"status": "open", "type": "drift"}):
        expected_titles = [
            one.title[-3:]
            for one in reversed(incidents)
            if filters["status"] in (one.status, "any") and filters.get("type", one.type) == one.type
        ]
        titles_read: list[str] = []
        path: str | None = LINKS.incidents("ops", **filters)
        while path:
            page = open_page(call, tokens.root, path)
            titles_read += titles(page)
            path = next_page(page)
        assert titles_read == expected_titles


@pytest.mark.parametrize("query", ["status=odd", "type=odd", "cursor=odd"])
def test_an_invalid_address_is_refused(call: Call, tokens: Tokens, query: str) -> None:
    """An invalid address is an error page, not an empty list."""
    answer = call("GET", f"{LIST}?{query}", headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 400
    assert "text/html" in answer.headers["content-type"]


def test_an_incident_shows_its_change_start_and_certainty(call: Call, tokens: Tokens, store: Store) -> None:
    """The page must contain everything needed for a decision."""
    page_text = visible_text(open_page(call, tokens.root, store_incident(store, cause="judge")))
    for fragment in (
        "since 2026-09-26", "Mean before 0.850 280 scores, 28 sessions, 2026-08-29 until the change", "Mean after 0.450 50 scores, 5 sessions",
        "Change -0.400 95%: -0.450 to -0.350", "First day 2026-09-26 95%: 2026-09-25 to 2026-09-27", "Sigma 0.030",
        "Evidence 5,400 to 1", "The judge changed", "Days in a row", "4.2 \u03c3",
        "It strays.", "weight 3", "The policy is not the same before and after.", "aaaa", "bbbb", "SELECT 1 < 2", "tier=null",
    ):  # fmt: skip
        assert fragment in page_text, fragment


def test_an_incident_links_to_its_exchanges(call: Call, tokens: Tokens, store: Store) -> None:
    """The exchanges are the evidence."""
    page = open_page(call, tokens.root, store_incident(store))
    assert LINKS.exchange("ops", "worst", "2026-09-27T09:00:00Z") in unescape(page)


def test_the_chart_marks_the_days_of_the_change(call: Call, tokens: Tokens, store: Store) -> None:
    """The chart shows the change that the text describes."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(fallen(6), 28, end=end))
    page = open_page(call, tokens.root, store_incident(store))
    rows = chart_table(page, "days")
    assert rows[0]["Day"] == "2026-09-03"
    assert rows[-1]["Day"] == "2026-10-01"
    changed = [f"2026-09-{day}" for day in range(26, 31)] + ["2026-10-01"]
    assert changed == [row["Day"] for row in rows if row["Shows the change"]]
    data = drawn_charts(page)["days"]
    assert [day[5:] for day in changed] == [data["labels"][place] for place in data["marked"]]
    assert "began on 2026-09-26" in visible_text(page)


@pytest.mark.parametrize("kind", ["drift", "anomaly_spike"])
@pytest.mark.parametrize("evidence", ["{}", "[]", "nonsense", '{"rules": {"sequential": {}}, "exchanges": null}'])
def test_an_incident_without_evidence_still_has_a_page(
    call: Call, tokens: Tokens, store: Store, kind: str, evidence: str
) -> None:
    """Unreadable evidence of an older version must not hide the decision."""
    tier = "tier2" if kind == "drift" else None
    page = open_page(call, tokens.root, store_incident(store, type=kind, tier=tier, metadata=evidence))
    assert "The evidence does not record the days." in page
    assert LINKS.deciding("ops", "i1") in page


def of_runs(**changes: Any) -> dict[str, Any]:
    """Return the evidence of an incident about runs."""
    rule_evidence = {
        "since": "2026-09-26", "until": "2026-10-01", "title": "Share of unsafe runs rose", "size": 0.8, "severity": "critical", "agent": "scout",
        "meanBefore": 0.1, "meanAfter": 0.9, "change": 0.8, "changeInterval": [0.7, 0.9], "sigma": 0.3, "runsBefore": 20, "runsAfter": 10,
        "havingBefore": 2, "havingAfter": 9, "logEvidence": 20.0, "firstDay": "2026-09-26", "firstDayInterval": ["2026-09-26", "2026-09-27"], "series": 3,
        "days": [{"day": "2026-09-26", "average": 1.0, "count": 2}],
    }  # fmt: skip
    moved = {
        "runId": "run_007", "connection": "local", "sessionId": "s<b>", "agent": "scout", "endedAt": "2026-09-27T09:00:00Z", "value": 1.0, "moved": 0.9,
        "trustScore": 88, "readinessLevel": "unsafe_for_production", "primaryFailure": "cost_explosion", "failures": ["cost_explosion", "odd"],
    }  # fmt: skip
    query = {"name": "incident_runs", "parameters": {"project": "ops", "agent": "scout"}, "sql": "SELECT 1"}
    return {
        "agent": "scout", "rules": {"runs": rule_evidence}, "runs": [moved], "madeWith": {"rule_version": "diagnosis-1"}, "queries": [query], **changes
    }  # fmt: skip


def test_an_incident_about_runs_names_the_agent_and_links_to_the_runs(call: Call, tokens: Tokens, store: Store) -> None:
    """The page must link the worst run first."""
    put(store, "diagnoses", [ended_run(f"r{day}", NOW - timedelta(days=day), bad=day < 6, agent="scout") for day in range(20)])
    page = open_page(
        call,
        tokens.root,
        store_incident(
            store, metadata=json.dumps(of_runs()), rule="runs", tier="unsafe", direction="up", cause="agent", agent="scout"
        ),
    )
    page_text = visible_text(page)
    for fragment in (
        "9 of 10 runs since 2026-09-26, 2 of 20 before", "of unsafe runs, agent scout", "Unsafe runs by day", "Evidence over all runs", "Mean before 0.100 20 runs", "Mean after 0.900 10 runs",
        "alarm at 8,760 to 1", "Runs with the largest effect", "run_007", "Unsafe for production", "trust 88", "Cost explosion, odd", "diagnosis-1",
        "Runs with the largest effect", "The agent changed",
    ):  # fmt: skip
        assert fragment in page_text, fragment
    assert LINKS.run("ops", "run_007") in page
    assert "<b>" not in page
    assert "Judged before and after" not in page_text


@pytest.mark.parametrize(
    ("series", "direction", "levels"),
    [("trust", "down", (99.0, 88.0)), ("unsafe", "up", (0.0, 1.0)), ("failure:cost_explosion", "up", (0.0, 1.0))],
)
def test_the_chart_of_an_incident_about_runs_marks_its_days(
    call: Call, tokens: Tokens, store: Store, *, series: str, direction: str, levels: tuple[float, float]
) -> None:
    """Without marks, the reader would have to guess where the change is."""
    put(store, "diagnoses", [ended_run(f"r{day}", NOW - timedelta(days=day), bad=day < 6, agent="scout") for day in range(20)])
    before, after = levels
    rule_evidence = of_runs()["rules"]["runs"] | {
        "meanBefore": before,
        "meanAfter": after,
        "change": after - before,
        "sigma": 0.3,
    }
    evidence = json.dumps(of_runs(rules={"runs": rule_evidence}))
    page = open_page(
        call,
        tokens.root,
        store_incident(store, metadata=evidence, rule="runs", tier=series, direction=direction, agent="scout"),
    )
    changed = [f"{(NOW - timedelta(days=day)).date()}" for day in range(5, 0, -1)]
    rows = chart_table(page, "days")
    assert changed == [row["Day"] for row in rows if row["Shows the change"]]
    data = drawn_charts(page)["days"]
    assert [day[5:] for day in changed] == [data["labels"][index] for index in data["marked"]]


def test_erased_runs_leave_a_marker(call: Call, tokens: Tokens, store: Store) -> None:
    """Erased runs are removed from the evidence and leave a marker."""
    page = open_page(
        call,
        tokens.root,
        store_incident(
            store, metadata=json.dumps(of_runs(runs=[{"erased": True}])), rule="runs", tier="unsafe", direction="up"
        ),
    )
    assert "Runs with the largest effect 0 None recorded." in visible_text(page)


def test_an_incident_about_trust_has_a_chart_from_0_to_100(call: Call, tokens: Tokens, store: Store) -> None:
    """Trust ranges from 0 to 100."""
    put(store, "diagnoses", [ended_run(f"r{day}", NOW - timedelta(days=day), bad=day < 6, agent="scout") for day in range(20)])
    page = open_page(
        call,
        tokens.root,
        store_incident(store, metadata=json.dumps(of_runs()), rule="runs", tier="trust", direction="down", agent="scout"),
    )
    assert "Trust by day" in visible_text(page)
    assert "88.00" in visible_text(page)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({"words": "Too few rounds since the change, 1 of 2."}, "Cause unknown. Too few rounds since the change, 1 of 2."),
        ({"words": 7}, "Cause unknown. The anchors cannot tell"),
        (None, "Cause unknown. The anchors cannot tell"),
    ],
)
def test_an_unknown_cause_has_a_reason(call: Call, tokens: Tokens, store: Store, kept: Any, told: str) -> None:
    """The page says what is missing to know the cause; incidents of earlier versions have less."""
    assert told in visible_text(
        open_page(call, tokens.root, store_incident(store, metadata=json.dumps(EVIDENCE | {"cause": kept})))
    )


def test_a_spike_is_described_by_its_rates(call: Call, tokens: Tokens, store: Store) -> None:
    """It has no tier, so its chart shows the share of anomalies."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(lambda _: 0.9, 10, end=end, anomaly=True, anomaly_reasons=("odd",)))
    rule_evidence = {
        "since": "2026-09-29", "until": "2026-10-01", "title": "30%", "rate": 0.3, "baselineRate": 0.05, "ratio": 6.0,
        "anomalies": 9, "exchanges": 30, "baselineExchanges": 140, "days": [{"day": "2026-09-29", "anomalies": 3, "count": 10}],
    }  # fmt: skip
    metadata = json.dumps({"rules": {"rate_ratio": rule_evidence}})
    page = open_page(
        call, tokens.root, store_incident(store, type="anomaly_spike", tier=None, rule="rate_ratio", metadata=metadata)
    )
    page_text = visible_text(page)
    assert "Rate now 30.0% 9 of 30 exchanges" in page_text
    assert "Times as high 6.0" in page_text
    assert "100.0%" in page_text


@pytest.fixture
def fell(call: Call, tokens: Tokens, store: Store) -> Incident:
    """Return the incident of a Tier 2 that fell six days ago, under a policy that samples a third of some exchanges."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(fallen(6), 28, end=end))
    put(store, "scores", history(fallen(6), 28, end=end, seed=3, a_day=4, name="third", sampling_probability=1 / 3))
    assert call("POST", "/api/audit/ops/check", tokens.root, json={}).status_code == 200
    return next(one for one in incident_records(store.cursor(), "ops") if one.tier == "tier2")


def asked_again(call: Call, token: str, page: str, title: str) -> list[dict[str, Any]]:
    """Return the answer to the statement linked under a title, with the values of its address."""
    link = re.search(rf">{title}</h3>\s*<p><a[^>]*href=\"([^\"]+)\"", page)
    assert link
    query = dict(parse_qsl(urlsplit(unescape(link[1])).query))
    values = {name.removeprefix("p."): value for name, value in query.items() if name.startswith("p.")}
    answer = call("POST", "/api/audit/query", token, json={"sql": query["q"], "parameters": values})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["rows"])


def test_the_linked_statement_returns_the_days_of_the_incident(call: Call, tokens: Tokens, fell: Incident) -> None:
    """The statement must return the number on the page, or users would not trust the alarm."""
    page = open_page(call, tokens.root, LINKS.incident("ops", fell.incident_id))
    days = {row["day"]: row for row in asked_again(call, tokens.root, page, "Averages by day")}
    days_found = json.loads(fell.metadata)["rules"][fell.rule]["days"]
    assert days_found
    for day in days_found:
        point = days[day["day"]]
        assert day["count"] == point["scores"]
        assert day["average"] == pytest.approx(point["average"], abs=1e-3)
    table_means = {row["Day"]: row["Weighted mean"] for row in chart_table(page, "days")}
    assert len(table_means) > 20
    assert table_means == {day: f"{days[day]['weighted_average']:.2f}" for day in table_means}


def test_the_linked_statement_returns_the_exchanges_of_the_incident(call: Call, tokens: Tokens, fell: Incident) -> None:
    """It returns them in the same order, with the same scores and weights."""
    page = open_page(call, tokens.root, LINKS.incident("ops", fell.incident_id))
    rows = asked_again(call, tokens.root, page, "Exchanges with the largest effect")
    expected_exchanges = json.loads(fell.metadata)["exchanges"]
    names = ("scoreId", "score", "weight", "moved", "samplingReason")
    assert len(expected_exchanges) > 5
    assert [[row[name] for name in ("score_id", "score", "weight", "moved", "sampling_reason")] for row in rows] == [
        [one[name] for name in names] for one in expected_exchanges
    ]


def test_the_linked_statement_returns_the_days_of_a_spike(call: Call, tokens: Tokens, store: Store) -> None:
    """A spike has no tier, so the statement counts anomalies."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(lambda _: 0.9, 2, end=end, anomaly=True, anomaly_reasons=("odd",)))
    rule_evidence = {
        "since": "2026-09-29",
        "until": "2026-10-01",
        "days": [{"day": "2026-09-29", "anomalies": 10, "count": 10}],
    }
    query = {"name": "anomaly_spikes", "parameters": {"project": "ops", "as_of": "2026-10-01T12:00:00Z"}, "sql": "SELECT 1"}
    metadata = json.dumps({"rules": {"rate_ratio": rule_evidence}, "queries": [query]})
    page = open_page(
        call, tokens.root, store_incident(store, type="anomaly_spike", tier=None, rule="rate_ratio", metadata=metadata)
    )
    rows = asked_again(call, tokens.root, page, "Rates that the rate rule compared")
    assert [(row["day"], row["anomalies"], row["exchanges"]) for row in rows] == [
        ("2026-09-29", 10, 10),
        ("2026-09-30", 10, 10),
        ("2026-10-01", 10, 10),
    ]


def test_the_shown_command_runs_the_query_of_the_evidence(
    call: Call, tokens: Tokens, fell: Incident, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users paste it into a shell, so each value must be quoted correctly."""
    assert (
        format_command("q", {"a": "b; 'c", "n": None, "p": ["ops"], "days": 36})
        == "driftline sql q --set 'a=b; '\"'\"'c' --set n=null --set 'p=[\"ops\"]' --set days=36"
    )
    page = open_page(call, tokens.root, LINKS.incident("ops", fell.incident_id))
    commands = [unescape(one) for one in re.findall(r'<code class="quoted" id="query-\d+">(.*?)</code>', page)]
    assert {query["name"] for query in json.loads(fell.metadata)["queries"]} == {one.split()[2] for one in commands}
    copy_database(store, copy := store.path.with_name("copy.duckdb"))  # type: ignore[union-attr]
    for command in commands:
        assert run([*shlex.split(command)[1:], "--db", str(copy), "--json"]) == 0, command
        lines = capsys.readouterr().out.splitlines()
        if "incident_exchanges" in command:
            assert [row["scoreId"] for row in json.loads(fell.metadata)["exchanges"]] == [
                json.loads(line)["score_id"] for line in lines
            ]


def test_without_the_right_to_query_only_the_command_is_shown(call: Call, access: AccessStore, fell: Incident) -> None:
    """A link must not be offered if it would be refused."""
    reader = access.add(Holder("operator", "looks", "ops", scopes=frozenset({"read"})))
    page = open_page(call, reader, LINKS.incident("ops", fell.incident_id))
    assert "driftline sql daily_averages" in page
    assert "/sql?" not in page


def test_the_text_of_an_alert_stays_on_the_page(call: Call, tokens: Tokens, store: Store) -> None:
    """Titles follow the numbers, so the page keeps the alert's text for readers who come from it."""
    address = store_incident(store, title="Tier 2 fell to 0.47")
    assert "Title at detection" not in open_page(call, tokens.root, address)
    store_incident(store, title="Tier 2 fell to 0.50", revision=1)
    page_text = visible_text(open_page(call, tokens.root, address))
    assert "Title at detection: Tier 2 fell to 0.47" in page_text
    assert page_text.count("Tier 2 fell to 0.50") > 0


def test_a_decision_on_the_page_needs_a_reason(call: Call, tokens: Tokens, store: Store) -> None:
    """The page requires a reason for a decision; the API does not, because programs may store their own."""
    page = open_page(call, tokens.root, store_incident(store))
    (field,) = re.findall(r'<textarea id="reason"[^>]*>', page)
    assert "required" in field
    assert "reason-help" in field
    assert page.count("data-reason>") == 7
    value = from_page(signed_in(call, tokens.root))
    assert call("PUT", LINKS.deciding("ops", "i1"), json={"status": "accepted"}, headers=value).status_code == 200


def test_no_text_of_an_incident_is_markup(call: Call, tokens: Tokens, store: Store) -> None:
    """Evidence contains untrusted texts and names."""
    exchange = EVIDENCE["exchanges"][0] | dict.fromkeys(("agent", "sessionId", "reason", "samplingReason"), HOSTILE)
    rule = EVIDENCE["rules"]["sequential"]
    evidence = EVIDENCE | {
        "exchanges": [exchange],
        "note": HOSTILE,
        "madeWith": {"judge_model": HOSTILE},
        "rules": {"sequential": rule, "odd": rule | {"title": HOSTILE}},
    }
    address = store_incident(store, title=HOSTILE, description=HOSTILE, metadata=json.dumps(evidence))
    Outbox(store).put([alert(last_error=HOSTILE)])
    for page in (open_page(call, tokens.root, address), open_page(call, tokens.root, LIST)):
        assert Elements(page).active() == []
        assert not {"\u202e", "\u200b"} & set(page)


def test_a_decision_is_made_shown_and_withdrawn(call: Call, tokens: Tokens, store: Store) -> None:
    """The page offers what can be decided now, and keeps what was decided before, with its reasons."""
    address, value = store_incident(store), signed_in(call, tokens.root)
    offered = r'name="status" value="(\w+)"'
    assert re.findall(offered, open_page(call, tokens.root, address)) == ["acknowledged", "resolved", "accepted", "dismissed"]
    steps = (("dismissed", "A holiday."), ("open", "<b>No holiday.</b>"), ("acknowledged", "We look."))
    for status, reason in steps:
        body = {"status": status, "comment": reason}
        form_path = LINKS.deciding("ops", "i1")
        assert call("PUT", form_path, json=body, headers=from_page(value)).status_code == 200
    page = open_page(call, tokens.root, address)
    assert re.findall(offered, page) == ["open", "resolved", "accepted", "dismissed"]
    page_text = visible_text(page)
    assert all(reason in page_text for reason in ("A holiday.", "<b>No holiday.</b>", "We look.", "Reopened"))
    assert "Acknowledged by root" in page_text
    assert "Assigned to root since" in page_text
    assert Elements(page).active() == []


def test_a_suspicion_is_marked_with_every_changed_series(call: Call, tokens: Tokens, store: Store) -> None:
    """A suspicion must be marked as one, with all series that changed."""
    moved = {
        "tier": "tier3", "agent": None, "direction": "down", "kind": "mean", "leads": False, "severity": "warning",
        "rule": "moved_too", "confirmed": False, "fellToo": True, "interval": ["2026-09-26", "2026-09-26"],
        "series": "tier3", "name": "Tier 3", "from": 4.5, "to": 3.25, "since": "2026-09-26", "until": "2026-10-01",
        "rules": {"moved_too": {"since": "2026-09-26", "until": "2026-10-01", "meanBefore": 4.5, "meanAfter": 3.25, "sigma": 0.1}},
    }  # fmt: skip
    address = store_incident(
        store, metadata=json.dumps(EVIDENCE | {"moved": [moved]}), confidence="suspected", acknowledged_by=None
    )
    page_text = visible_text(open_page(call, tokens.root, address))
    assert "Suspected" in page_text
    assert "What changed" in page_text
    assert "Tier 3 4.500 3.250 2026-09-26 2026-09-26 to 2026-09-26" in page_text
    assert "Suspected" in visible_text(open_page(call, tokens.root, LIST))


def test_without_the_right_to_review_the_page_says_so(call: Call, access: AccessStore, store: Store) -> None:
    """Users without the scope see a reason instead of a form."""
    token = access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
    page = open_page(call, token, store_incident(store))
    assert "needs a token with the scope review" in page
    assert "data-send" not in page
    assert "Check now" not in open_page(call, token, LIST)


def test_the_page_shows_who_was_alerted(call: Call, tokens: Tokens, store: Store) -> None:
    """After an outage, users want to know who was alerted."""
    address = store_incident(store)
    assert "No alerts sent" in open_page(call, tokens.root, address)
    Outbox(store).put([alert(), alert(alert_id="other", subject_id="i2", last_error="not ours")])
    page_text = visible_text(open_page(call, tokens.root, address))
    assert "slack" in page_text
    assert "Failed" in page_text
    assert "the answer was 404" in page_text
    assert "not ours" not in page_text


def test_a_simulated_judge_is_marked(call: Call, tokens: Tokens, store: Store) -> None:
    """Incidents of a simulated judge must be marked as such."""
    evidence = EVIDENCE | {"madeWith": {"simulated": True}}
    assert "Simulated judge" in open_page(call, tokens.root, store_incident(store, metadata=json.dumps(evidence)))
    assert "Simulated judge" not in open_page(call, tokens.root, store_incident(store, incident_id="i2"))


def test_an_incident_of_another_project_is_hidden(call: Call, tokens: Tokens, store: Store) -> None:
    """Another project's incident is hidden under any address."""
    store_incident(store, project="web", title="Number 999")
    reader = cookie(signed_in(call, tokens.ops_reader))
    assert call("GET", LINKS.incident("web", "i1"), headers=reader).status_code == 403
    assert call("GET", LINKS.incident("ops", "i1"), headers=reader).status_code == 404
    assert call("GET", LINKS.incidents("web"), headers=reader).status_code == 403
    assert "Number 999" not in open_page(call, tokens.ops_reader, LIST)


def test_the_pages_redirect_to_the_sign_in(call: Call, store: Store) -> None:
    """Alerts link to pages, which redirect to the sign-in and back."""
    for path in (LIST, store_incident(store)):
        assert call("GET", path).status_code == 303


def test_every_rule_is_explained() -> None:
    """Users can only judge an incident if its rule is explained."""
    assert {*ALL_RULES, VERSIONS, RUNS, SESSIONS, BEHAVIOURS} == set(RULE_EXPLANATIONS) == set(RULE_NAMES)
    assert all(list_figures(rule, Observation(since=NOW.date(), until=NOW.date())) for rule in RULE_NAMES)


@given(st.floats(-1e6, 1e6))
def test_odds_are_short_for_any_evidence(log_evidence: float) -> None:
    """Evidence may exceed the range of a float."""
    assert len(format_odds(log_evidence)) <= 24


def test_odds_are_rounded_to_two_digits() -> None:
    """Evidence of 8.6 is known to a tenth only."""
    assert [format_odds(one) for one in (8.6, 0.0, -9.0, 24.0, 500.0, None)] == [
        "5,400 to 1",
        "1 to 1",
        "0 to 1",
        "10\u00b9\u2070 to 1",
        "over 10\u00b9\u00b2 to 1",
        "\u2013",
    ]


def alert(**fields: object) -> Alert:
    """Return an undelivered alert about the incident i1."""
    values: dict[str, object] = {
        "alert_id": "a1", "channel": "slack", "kind": "incident", "subject_id": "i1", "project": "ops", "severity": "critical",
        "body": "{}", "created_at": NOW, "not_before": NOW, "attempts": 5, "status": "given_up", "settled_at": NOW,
        "last_error": "the answer was 404",
    }  # fmt: skip
    return Alert(**(values | fields))  # type: ignore[arg-type]
