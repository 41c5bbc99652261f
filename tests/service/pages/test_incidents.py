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
from streams.watch.rules import ALL_RULES, RUNS

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


def found(store: Store, **fields: Any) -> str:
    """An incident with evidence; the address of its page."""
    values = {"rule": "sequential", "metadata": json.dumps(EVIDENCE), "detected_at": NOW, "checked_at": NOW} | fields
    made = incident(**values)
    put(store, "incidents", [made])
    return LINKS.incident(made.project, made.incident_id)


def shown(call: Call, token: str, address: str) -> str:
    """The page."""
    answer = call("GET", address, headers=cookie(signed_in(call, token)))
    assert answer.status_code == 200, answer.text
    return answer.text


def words(page: str) -> str:
    """Return the visible text of a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


def many(count: int) -> list[Incident]:
    """Incidents, a minute after each other, every third one resolved."""
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
    """The incidents of a list, in its order."""
    return re.findall(r"Number (\d+)", page)


def following(page: str) -> str | None:
    """The address of the next page of a list."""
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


def test_the_page_names_the_part_that_changed(call: Call, tokens: Tokens, store: Store) -> None:
    """A version, its shares and what it explains; names of senders are text."""
    page = shown(call, tokens.root, found(store, metadata=json.dumps(EVIDENCE | {"slices": SLICES})))
    assert "<script>alert" not in page
    told = words(page)
    assert "agent_version: 2.0 explains 97% of the change" in told
    assert "0% → 50%" in told
    assert "-0.390 (-0.420 to -0.360)" in told


def test_the_page_compares_the_version_that_began_with_it_with_the_one_to_go_back_to(
    call: Call, tokens: Tokens, store: Store
) -> None:
    """Advice to go back to a version that the page does not show cannot be checked."""
    counts = {"exchangesBefore": 271, "exchangesAfter": 1, "meanBefore": 0.9, "meanAfter": 0.88, "explained": -0.01}
    new = SLICES["slices"][0] | {"exchangesBefore": 0, "exchangesAfter": 25}
    usual = new | counts | {"value": "1.0", "standsOut": False, "shareBefore": 1.0, "sameAs": []}
    slices = SLICES | {"slices": [new], "usual": usual}
    told = words(shown(call, tokens.root, found(store, metadata=json.dumps(EVIDENCE | {"slices": slices}))))
    assert "Roll back agent_version from 2.0 to 1.0" in told
    assert "2.0 began with the change" in told
    assert "0.05 over 25 judged turns" in told
    assert "1.0 to go back to 0.90 over 271 judged turns" in told
    assert "0.88 over 1 judged turn" in told
    assert "agent_version: 1.0 to go back to" in told
    assert "driftline deployments add 1.0 --project ops" in told


def test_the_likely_cause_stands_first_and_the_rest_is_folded_under_one_summary(
    call: Call, tokens: Tokens, store: Store
) -> None:
    """The main cause comes first, so that the page can be understood in a minute."""
    page = shown(call, tokens.root, found(store, metadata=json.dumps(EVIDENCE | {"slices": SLICES})))
    section = page[page.index('id="why"') : page.index('id="todo"')]
    lead, fold = re.findall(r'<p class="quoted lead">(.*?)</p>', section, re.DOTALL), section.split("<details")[1:]
    assert [words(one).strip()[:27] for one in lead] == ["agent_version: 2.0 explains"]
    assert len(fold) == 1
    told = words(fold[0])
    assert f"More from the evidence: {fold[0].count('<p ')} observation" in told
    assert "policy is not the same" in told


@pytest.mark.parametrize("slices", [None, [], {"state": "what"}, {"state": "found", "slices": [{"label": 7}]}])
def test_evidence_without_readable_slices_says_so(call: Call, tokens: Tokens, store: Store, slices: Any) -> None:
    """Incidents of before had none, and their page still opens."""
    page = shown(call, tokens.root, found(store, metadata=json.dumps(EVIDENCE | {"slices": slices})))
    assert "did not compare slices" in words(page)


def test_of_many_long_reasons_each_is_short_and_most_are_folded(call: Call, tokens: Tokens, store: Store) -> None:
    """Long reasons are shortened and folded, so that the page can be skimmed."""
    (one,) = EVIDENCE["exchanges"]
    moved = [
        one | {"scoreId": f"m{number}", "reason": "w" * (MAX_REASON_LENGTH + 7)} for number in range(MAX_OPEN_EXCHANGES + 3)
    ]
    page = shown(call, tokens.root, found(store, metadata=json.dumps(EVIDENCE | {"exchanges": moved})))
    before, _, folded = page.partition('id="moved"')[2].partition('<details id="moved-more"><summary>3 more</summary>')
    assert before.count("/exchanges/m") == MAX_OPEN_EXCHANGES
    assert folded.count("/exchanges/m") == 3
    assert "w" * MAX_REASON_LENGTH in page
    assert "w" * (MAX_REASON_LENGTH + 1) not in page
    assert "(and 7 more characters)" in page


def test_whoever_decides_is_told_what_that_did(call: Call, tokens: Tokens, store: Store) -> None:
    """The page must confirm a decision, because the button disappears."""
    page = shown(call, tokens.root, found(store))
    assert re.findall(r'name="status" value="(\w+)" data-done="[^"]+"', page) == [
        "acknowledged",
        "resolved",
        "accepted",
        "dismissed",
    ]


def test_a_project_without_incidents_says_what_that_means(call: Call, tokens: Tokens) -> None:
    """An empty table could be an error."""
    said = shown(call, tokens.root, LIST)
    assert "No incidents" in said
    assert "no scores to check" in said


def test_that_nothing_was_found_is_said_only_once_somebody_looked(call: Call, tokens: Tokens, store: Store) -> None:
    """Before the first check, scores may contain a fall that no rule has read yet."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    before = shown(call, tokens.root, LIST)
    assert "Not checked yet." in before
    assert "driftline check-drift --project ops --as-of 2026-10-02" in before
    assert "nothing found" not in before
    assert "Nothing has drifted" not in before
    assert call("POST", "/api/audit/ops/check", tokens.root).json()["opened"]
    after = shown(call, tokens.root, LIST)
    assert "Checked 2026-10-01 12:00 UTC: 3 findings." in after or "Checked 2026-10-01 12:00 UTC: 2 findings." in after


def test_a_history_shorter_than_a_baseline_says_so(call: Call, tokens: Tokens, store: Store) -> None:
    """A quiet check of nine days is less than one of two weeks: what is normal is not known yet."""
    put(store, "scores", history(steady, 8, end=NOW))
    assert call("POST", "/api/audit/ops/check", tokens.root).json()["exchanges"] == 90
    said = shown(call, tokens.root, LIST)
    assert "9 of 14 days" in said
    assert "Checked 2026-10-01 12:00 UTC: nothing found" in said


def test_a_filter_that_finds_nothing_offers_the_rest(call: Call, tokens: Tokens, store: Store) -> None:
    """A filter without matches must not look like a project without incidents."""
    found(store)
    page = shown(call, tokens.root, LINKS.incidents("ops", status="dismissed"))
    assert "No incident matches the filters." in page
    assert f'href="{LIST}"' in page


def test_the_list_is_read_page_by_page_in_the_order_of_time(call: Call, tokens: Tokens, store: Store) -> None:
    """Pages have every incident once, newest first, for every filter, and each page has an address."""
    made = many(2 * INCIDENTS_PER_PAGE + 7)
    put(store, "incidents", made)
    for asked in ({}, {"status": "resolved"}, {"status": "open", "type": "drift"}):
        wanted = [
            one.title[-3:]
            for one in reversed(made)
            if asked.get("status", one.status) == one.status and asked.get("type", one.type) == one.type
        ]
        read: list[str] = []
        place: str | None = LINKS.incidents("ops", **asked)
        while place:
            page = shown(call, tokens.root, place)
            read += titles(page)
            place = following(page)
        assert read == wanted


@pytest.mark.parametrize("query", ["status=odd", "type=odd", "cursor=odd"])
def test_an_address_that_asks_for_what_there_is_not_is_refused(call: Call, tokens: Tokens, query: str) -> None:
    """An invalid address is an error page, not an empty list."""
    answer = call("GET", f"{LIST}?{query}", headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 400
    assert "text/html" in answer.headers["content-type"]


def test_an_incident_tells_what_since_when_and_how_sure(call: Call, tokens: Tokens, store: Store) -> None:
    """The page must contain everything needed for a decision."""
    read = words(shown(call, tokens.root, found(store, cause="judge")))
    for one in (
        "since 2026-09-26", "Mean before 0.850 280 scores, 28 sessions, 2026-08-29 until the change", "Mean after 0.450 50 scores, 5 sessions",
        "Change -0.400 95 %: -0.450 to -0.350", "First day 2026-09-26 95 %: 2026-09-25 to 2026-09-27", "Sigma 0.030",
        "Evidence 5 400 to 1", "The judge changed", "The anchors changed with it", "Days in a row", "4.2 \u03c3",
        "It strays.", "weight 3", "The policy is not the same before and after.", "aaaa", "bbbb", "SELECT 1 < 2", "tier=null",
    ):  # fmt: skip
        assert one in read, one


def test_an_incident_leads_to_the_exchanges_that_moved_it(call: Call, tokens: Tokens, store: Store) -> None:
    """The exchanges are the evidence."""
    page = shown(call, tokens.root, found(store))
    assert LINKS.exchange("ops", "worst", "2026-09-27T09:00:00Z") in unescape(page)


def test_the_chart_marks_the_days_of_the_change(call: Call, tokens: Tokens, store: Store) -> None:
    """The chart shows the change that the text describes."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(fallen(6), 28, end=end))
    page = shown(call, tokens.root, found(store))
    rows = chart_table(page, "days")
    assert rows[0]["Day"] == "2026-09-03"
    assert rows[-1]["Day"] == "2026-10-01"
    changed = [f"2026-09-{day}" for day in range(26, 31)] + ["2026-10-01"]
    assert changed == [row["Day"] for row in rows if row["Shows the change"]]
    drawn = drawn_charts(page)["days"]
    assert [day[5:] for day in changed] == [drawn["labels"][place] for place in drawn["marked"]]
    assert "began on 2026-09-26" in words(page)


@pytest.mark.parametrize("kind", ["drift", "anomaly_spike"])
@pytest.mark.parametrize("evidence", ["{}", "[]", "nonsense", '{"rules": {"sequential": {}}, "exchanges": null}'])
def test_an_incident_without_evidence_is_still_a_page(
    call: Call, tokens: Tokens, store: Store, kind: str, evidence: str
) -> None:
    """A record of an older version, or of a strange one, must not hide the decision."""
    tier = "tier2" if kind == "drift" else None
    page = shown(call, tokens.root, found(store, type=kind, tier=tier, metadata=evidence))
    assert "The evidence does not record the days." in page
    assert LINKS.deciding("ops", "i1") in page


def of_runs(**changes: Any) -> dict[str, Any]:
    """The evidence of an incident about runs."""
    seen = {
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
        "agent": "scout", "rules": {"runs": seen}, "runs": [moved], "madeWith": {"rule_version": "diagnosis-1"}, "queries": [query], **changes
    }  # fmt: skip


def test_an_incident_of_runs_tells_whose_how_many_and_leads_to_them(call: Call, tokens: Tokens, store: Store) -> None:
    """The page must link the worst run first."""
    put(store, "diagnoses", [ended_run(f"r{day}", NOW - timedelta(days=day), bad=day < 6, agent="scout") for day in range(20)])
    page = shown(
        call,
        tokens.root,
        found(store, metadata=json.dumps(of_runs()), rule="runs", tier="unsafe", direction="up", cause="agent", agent="scout"),
    )
    read = words(page)
    for one in (
        "9 of 10 runs since 2026-09-26, 2 of 20 before", "of Share of unsafe runs, agent scout", "Share of unsafe runs by day", "Evidence over all runs", "Mean before 0.100 20 runs", "Mean after 0.900 10 runs",
        "alarm at 8 760 to 1", "Runs with the largest effect", "run_007", "Unsafe for production", "trust 88", "Cost explosion, odd", "diagnosis-1",
        "Runs with the largest effect", "The agent changed",
    ):  # fmt: skip
        assert one in read, one
    assert LINKS.run("ops", "run_007") in page
    assert "<b>" not in page
    assert "Judged before and after" not in read


@pytest.mark.parametrize(
    ("series", "direction", "levels"),
    [("trust", "down", (99.0, 88.0)), ("unsafe", "up", (0.0, 1.0)), ("failure:cost_explosion", "up", (0.0, 1.0))],
)
def test_the_chart_of_an_incident_of_runs_marks_the_days_of_the_change(
    call: Call, tokens: Tokens, store: Store, *, series: str, direction: str, levels: tuple[float, float]
) -> None:
    """As that of an incident of scores does: a line without a mark leaves it to the reader where the change is."""
    put(store, "diagnoses", [ended_run(f"r{day}", NOW - timedelta(days=day), bad=day < 6, agent="scout") for day in range(20)])
    before, after = levels
    seen = of_runs()["rules"]["runs"] | {"meanBefore": before, "meanAfter": after, "change": after - before, "sigma": 0.3}
    evidence = json.dumps(of_runs(rules={"runs": seen}))
    page = shown(
        call, tokens.root, found(store, metadata=evidence, rule="runs", tier=series, direction=direction, agent="scout")
    )
    changed = [f"{(NOW - timedelta(days=day)).date()}" for day in range(5, 0, -1)]
    rows = chart_table(page, "days")
    assert changed == [row["Day"] for row in rows if row["Shows the change"]]
    drawn = drawn_charts(page)["days"]
    assert [day[5:] for day in changed] == [drawn["labels"][index] for index in drawn["marked"]]


def test_runs_that_were_erased_leave_the_page(call: Call, tokens: Tokens, store: Store) -> None:
    """Erased runs are removed from the evidence and leave a marker."""
    page = shown(
        call,
        tokens.root,
        found(store, metadata=json.dumps(of_runs(runs=[{"erased": True}])), rule="runs", tier="unsafe", direction="up"),
    )
    assert "Runs with the largest effect 0 None recorded." in words(page)


def test_an_incident_of_trust_is_drawn_from_0_to_100(call: Call, tokens: Tokens, store: Store) -> None:
    """Trust ranges from 0 to 100."""
    put(store, "diagnoses", [ended_run(f"r{day}", NOW - timedelta(days=day), bad=day < 6, agent="scout") for day in range(20)])
    page = shown(
        call,
        tokens.root,
        found(store, metadata=json.dumps(of_runs()), rule="runs", tier="trust", direction="down", agent="scout"),
    )
    assert "Trust by day" in words(page)
    assert "88.00" in words(page)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({"words": "Too few rounds since the change, 1 of 2."}, "Cause unknown. Too few rounds since the change, 1 of 2."),
        ({"words": 7}, "Cause unknown. The anchors cannot tell"),
        (None, "Cause unknown. The anchors cannot tell"),
    ],
)
def test_a_cause_that_is_not_known_says_why(call: Call, tokens: Tokens, store: Store, kept: Any, told: str) -> None:
    """The page says what is missing to know the cause; incidents of earlier versions have less."""
    assert told in words(shown(call, tokens.root, found(store, metadata=json.dumps(EVIDENCE | {"cause": kept}))))


def test_a_spike_is_told_by_its_rates(call: Call, tokens: Tokens, store: Store) -> None:
    """It has no tier: its chart is of the share of anomalies."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(lambda _: 0.9, 10, end=end, anomaly=True, anomaly_reasons=("odd",)))
    seen = {
        "since": "2026-09-29", "until": "2026-10-01", "title": "30%", "rate": 0.3, "baselineRate": 0.05, "ratio": 6.0,
        "anomalies": 9, "exchanges": 30, "baselineExchanges": 140, "days": [{"day": "2026-09-29", "anomalies": 3, "count": 10}],
    }  # fmt: skip
    metadata = json.dumps({"rules": {"rate_ratio": seen}})
    page = shown(call, tokens.root, found(store, type="anomaly_spike", tier=None, rule="rate_ratio", metadata=metadata))
    read = words(page)
    assert "Rate now 30.0% 9 of 30 exchanges" in read
    assert "Times as high 6.0" in read
    assert "100.0%" in read


@pytest.fixture
def fell(call: Call, tokens: Tokens, store: Store) -> Incident:
    """The incident that a check makes of a Tier 2 that fell six days ago, under a policy that samples a third of some exchanges."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(fallen(6), 28, end=end))
    put(store, "scores", history(fallen(6), 28, end=end, seed=3, a_day=4, name="third", sampling_probability=1 / 3))
    assert call("POST", "/api/audit/ops/check", tokens.root, json={}).status_code == 200
    return next(one for one in incident_records(store.cursor(), "ops") if one.tier == "tier2")


def asked_again(call: Call, token: str, page: str, title: str) -> list[dict[str, Any]]:
    """Return the answer to the statement linked under a title, with the values of its address."""
    link = re.search(rf">{title}</h3>\s*<p><a[^>]*href=\"([^\"]+)\"", page)
    assert link
    said = dict(parse_qsl(urlsplit(unescape(link[1])).query))
    values = {name.removeprefix("p."): value for name, value in said.items() if name.startswith("p.")}
    answer = call("POST", "/api/audit/query", token, json={"sql": said["q"], "parameters": values})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["rows"])


def test_the_statement_on_its_days_finds_what_the_incident_shows(call: Call, tokens: Tokens, fell: Incident) -> None:
    """The statement must return the number on the page, or users would not trust the alarm."""
    page = shown(call, tokens.root, LINKS.incident("ops", fell.incident_id))
    days = {row["day"]: row for row in asked_again(call, tokens.root, page, "Averages by day")}
    seen = json.loads(fell.metadata)["rules"][fell.rule]["days"]
    assert seen
    for day in seen:
        asked = days[day["day"]]
        assert day["count"] == asked["scores"]
        assert day["average"] == pytest.approx(asked["average"], abs=1e-3)
    told = {row["Day"]: row["Weighted mean"] for row in chart_table(page, "days")}
    assert len(told) > 20
    assert told == {day: f"{days[day]['weighted_average']:.2f}" for day in told}


def test_the_statement_on_its_exchanges_finds_those_that_moved_it(call: Call, tokens: Tokens, fell: Incident) -> None:
    """In the same order, with the same scores, each as often as it counts."""
    page = shown(call, tokens.root, LINKS.incident("ops", fell.incident_id))
    rows = asked_again(call, tokens.root, page, "Exchanges with the largest effect")
    wanted = json.loads(fell.metadata)["exchanges"]
    names = ("scoreId", "score", "weight", "moved", "samplingReason")
    assert len(wanted) > 5
    assert [[row[name] for name in ("score_id", "score", "weight", "moved", "sampling_reason")] for row in rows] == [
        [one[name] for name in names] for one in wanted
    ]


def test_the_statement_on_a_spike_finds_its_days(call: Call, tokens: Tokens, store: Store) -> None:
    """A spike has no tier; what is counted are anomalies."""
    end = datetime(2026, 10, 1, 11, 0, tzinfo=UTC)
    put(store, "scores", history(lambda _: 0.9, 2, end=end, anomaly=True, anomaly_reasons=("odd",)))
    seen = {"since": "2026-09-29", "until": "2026-10-01", "days": [{"day": "2026-09-29", "anomalies": 10, "count": 10}]}
    query = {"name": "anomaly_spikes", "parameters": {"project": "ops", "as_of": "2026-10-01T12:00:00Z"}, "sql": "SELECT 1"}
    metadata = json.dumps({"rules": {"rate_ratio": seen}, "queries": [query]})
    page = shown(call, tokens.root, found(store, type="anomaly_spike", tier=None, rule="rate_ratio", metadata=metadata))
    rows = asked_again(call, tokens.root, page, "Rates that the rule of rates compared")
    assert [(row["day"], row["anomalies"], row["exchanges"]) for row in rows] == [
        ("2026-09-29", 10, 10),
        ("2026-09-30", 10, 10),
        ("2026-10-01", 10, 10),
    ]


def test_the_command_beside_it_is_the_query_of_the_evidence(
    call: Call, tokens: Tokens, fell: Incident, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is pasted into a shell: each value arrives as it was."""
    assert (
        format_command("q", {"a": "b; 'c", "n": None, "p": ["ops"], "days": 36})
        == "driftline sql q --set 'a=b; '\"'\"'c' --set n=null --set 'p=[\"ops\"]' --set days=36"
    )
    page = shown(call, tokens.root, LINKS.incident("ops", fell.incident_id))
    commands = [unescape(one) for one in re.findall(r'<code class="quoted" id="query-\d+">(.*?)</code>', page)]
    assert {query["name"] for query in json.loads(fell.metadata)["queries"]} == {one.split()[2] for one in commands}
    copy_database(store, copy := store.path.with_name("copy.duckdb"))  # type: ignore[union-attr]
    for one in commands:
        assert run([*shlex.split(one)[1:], "--db", str(copy), "--json"]) == 0, one
        lines = capsys.readouterr().out.splitlines()
        if "incident_exchanges" in one:
            assert [row["scoreId"] for row in json.loads(fell.metadata)["exchanges"]] == [
                json.loads(line)["score_id"] for line in lines
            ]


def test_who_may_not_ask_sees_the_command_alone(call: Call, tokens: Tokens, fell: Incident) -> None:
    """A link must not be offered if it would be refused."""
    page = shown(call, tokens.ops_reader, LINKS.incident("ops", fell.incident_id))
    assert "driftline sql daily_averages" in page
    assert "/sql?" not in page


def test_what_an_alert_said_stays_on_the_page(call: Call, tokens: Tokens, store: Store) -> None:
    """Titles follow the numbers, so the page keeps the alert's text for readers who come from it."""
    address = found(store, title="Tier 2 fell to 0.47")
    assert "Title at detection" not in shown(call, tokens.root, address)
    found(store, title="Tier 2 fell to 0.50", revision=1)
    read = words(shown(call, tokens.root, address))
    assert "Title at detection: Tier 2 fell to 0.47" in read
    assert read.count("Tier 2 fell to 0.50") > 0


def test_a_decision_on_the_page_needs_a_reason(call: Call, tokens: Tokens, store: Store) -> None:
    """The page requires a reason for a decision; the API does not, because programs may store their own."""
    page = shown(call, tokens.root, found(store))
    (field,) = re.findall(r'<textarea id="reason"[^>]*>', page)
    assert "required" in field
    assert "reason-help" in field
    assert page.count("data-reason>") == 6
    value = from_page(signed_in(call, tokens.root))
    assert call("PUT", LINKS.deciding("ops", "i1"), json={"status": "accepted"}, headers=value).status_code == 200


def test_no_word_of_an_incident_is_markup(call: Call, tokens: Tokens, store: Store) -> None:
    """Evidence contains untrusted texts and names."""
    exchange = EVIDENCE["exchanges"][0] | dict.fromkeys(("agent", "sessionId", "reason", "samplingReason"), HOSTILE)
    rule = EVIDENCE["rules"]["sequential"]
    evidence = EVIDENCE | {
        "exchanges": [exchange],
        "note": HOSTILE,
        "madeWith": {"judge_model": HOSTILE},
        "rules": {"sequential": rule, "odd": rule | {"title": HOSTILE}},
    }
    address = found(store, title=HOSTILE, description=HOSTILE, metadata=json.dumps(evidence))
    Outbox(store).put([alert(last_error=HOSTILE)])
    for page in (shown(call, tokens.root, address), shown(call, tokens.root, LIST)):
        assert Elements(page).active() == []
        assert not {"\u202e", "\u200b"} & set(page)


def test_a_decision_is_made_told_and_taken_back(call: Call, tokens: Tokens, store: Store) -> None:
    """The page offers what can be decided now, and keeps what was decided before, with its reasons."""
    address, value = found(store), signed_in(call, tokens.root)
    offered = r'name="status" value="(\w+)"'
    assert re.findall(offered, shown(call, tokens.root, address)) == ["acknowledged", "resolved", "accepted", "dismissed"]
    steps = (("dismissed", "A holiday."), ("open", "<b>No holiday.</b>"), ("acknowledged", "We look."))
    for status, reason in steps:
        body = {"status": status, "comment": reason}
        place = LINKS.deciding("ops", "i1")
        assert call("PUT", place, json=body, headers=from_page(value)).status_code == 200
    page = shown(call, tokens.root, address)
    assert re.findall(offered, page) == ["open", "resolved", "accepted", "dismissed"]
    read = words(page)
    assert all(reason in read for reason in ("A holiday.", "<b>No holiday.</b>", "We look.", "Reopened"))
    assert "Acknowledged by root" in read
    assert "Assigned to root since" in read
    assert Elements(page).active() == []


def test_what_is_suspected_is_marked_and_what_moved_is_listed(call: Call, tokens: Tokens, store: Store) -> None:
    """A suspicion must be marked as one, with all series that changed."""
    moved = {
        "tier": "tier3", "agent": None, "direction": "down", "kind": "mean", "leads": False, "severity": "warning",
        "rule": "moved_too", "confirmed": False, "fellToo": True, "interval": ["2026-09-26", "2026-09-26"],
        "series": "tier3", "name": "Tier 3", "from": 4.5, "to": 3.25, "since": "2026-09-26", "until": "2026-10-01",
        "rules": {"moved_too": {"since": "2026-09-26", "until": "2026-10-01", "meanBefore": 4.5, "meanAfter": 3.25, "sigma": 0.1}},
    }  # fmt: skip
    address = found(store, metadata=json.dumps(EVIDENCE | {"moved": [moved]}), confidence="suspected", acknowledged_by=None)
    read = words(shown(call, tokens.root, address))
    assert "Suspected" in read
    assert "What changed" in read
    assert "Tier 3 4.500 3.250 2026-09-26 2026-09-26 to 2026-09-26" in read
    assert "Suspected" in words(shown(call, tokens.root, LIST))


def test_who_may_not_review_is_told_so(call: Call, access: AccessStore, store: Store) -> None:
    """Users without the scope see a reason instead of a form."""
    token = access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
    page = shown(call, token, found(store))
    assert "needs a token with the scope review" in page
    assert "data-send" not in page
    assert "Check now" not in shown(call, token, LIST)


def test_the_page_says_who_was_told(call: Call, tokens: Tokens, store: Store) -> None:
    """After an outage, users want to know who was alerted."""
    address = found(store)
    assert "No alerts sent" in shown(call, tokens.root, address)
    Outbox(store).put([alert(), alert(alert_id="other", subject_id="i2", last_error="not ours")])
    read = words(shown(call, tokens.root, address))
    assert "slack" in read
    assert "Given up" in read
    assert "the answer was 404" in read
    assert "not ours" not in read


def test_a_simulated_judge_is_told_of(call: Call, tokens: Tokens, store: Store) -> None:
    """Incidents of a simulated judge must be marked as such."""
    evidence = EVIDENCE | {"madeWith": {"simulated": True}}
    assert "simulated judge" in shown(call, tokens.root, found(store, metadata=json.dumps(evidence)))
    assert "simulated judge" not in shown(call, tokens.root, found(store, incident_id="i2"))


def test_an_incident_of_another_project_is_not_shown(call: Call, tokens: Tokens, store: Store) -> None:
    """Another project's incident is hidden under any address."""
    found(store, project="web", title="Number 999")
    reader = cookie(signed_in(call, tokens.ops_reader))
    assert call("GET", LINKS.incident("web", "i1"), headers=reader).status_code == 403
    assert call("GET", LINKS.incident("ops", "i1"), headers=reader).status_code == 404
    assert call("GET", LINKS.incidents("web"), headers=reader).status_code == 403
    assert "Number 999" not in shown(call, tokens.ops_reader, LIST)


def test_the_pages_lead_to_the_sign_in(call: Call, store: Store) -> None:
    """Alerts link to pages, which redirect to the sign-in and back."""
    for place in (LIST, found(store)):
        assert call("GET", place).status_code == 303


def test_every_rule_is_explained() -> None:
    """Users can only judge an incident if its rule is explained."""
    assert {*ALL_RULES, RUNS} == set(RULE_EXPLANATIONS) == set(RULE_NAMES)
    assert all(list_figures(rule, Observation(since=NOW.date(), until=NOW.date())) for rule in RULE_NAMES)


@given(st.floats(-1e6, 1e6))
def test_odds_are_short_and_never_fail(log_evidence: float) -> None:
    """Evidence grows beyond what a number can hold."""
    assert len(format_odds(log_evidence)) <= 24


def test_odds_are_rounded_to_what_they_are_worth() -> None:
    """8.6 is known to a tenth, so the ratio is to two digits."""
    assert [format_odds(one) for one in (8.6, 0.0, -9.0, 24.0, 500.0, None)] == [
        "5\u202f400 to 1",
        "1 to 1",
        "0 to 1",
        "10\u00b9\u2070 to 1",
        "over 10\u00b9\u00b2 to 1",
        "\u2013",
    ]


def alert(**fields: object) -> Alert:
    """An undelivered alert on the incident i1."""
    values: dict[str, object] = {
        "alert_id": "a1", "channel": "slack", "kind": "incident", "subject_id": "i1", "project": "ops", "severity": "critical",
        "body": "{}", "created_at": NOW, "not_before": NOW, "attempts": 5, "status": "given_up", "settled_at": NOW,
        "last_error": "the answer was 404",
    }  # fmt: skip
    return Alert(**(values | fields))  # type: ignore[arg-type]
