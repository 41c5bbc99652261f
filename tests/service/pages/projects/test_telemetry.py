"""The page Telemetry: who is alive, and what people were told, for whom it is."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from fastapi import FastAPI
from support.alerting import pagerduty, slack
from support.api_server import NOW, Call, Tokens
from support.on_call import PagerDuty
from support.pages import cookie, signed_in
from support.receivers import receiving

from analytics.store.store import Outbox, Store
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Alert, Heartbeat
from service.alerts.delivery import Alerts
from service.pages.projects import telemetry as page_module
from service.setup.access import AccessStore, Holder

PAGE = "/telemetry"
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def beat(store: Store, session: str, minutes: float, connection: str = "north", project: str = "ops") -> None:
    """Return a heartbeat of some minutes ago."""
    at = NOW - timedelta(minutes=minutes)
    sign = Heartbeat(connection=connection, project=project, session_id=session, occurred_at=at, ingested_at=at)
    with store.transaction() as transaction:
        transaction.append("heartbeats", [encode(sign)])


def alert(number: int, **said: object) -> Alert:
    """Return an alert about an incident, created some minutes ago."""
    at = NOW - timedelta(minutes=number)
    neutral: dict[str, object] = {
        "alert_id": f"a{number}", "channel": "webhook", "kind": "incident", "subject_id": f"i{number}", "project": "ops",
        "severity": "critical", "body": "{}", "created_at": at, "not_before": at, "attempts": 1, "status": "delivered",
        "settled_at": at,
    }  # fmt: skip
    return Alert(**(neutral | said))  # type: ignore[arg-type]


def open_page(call: Call, token: str, query: str = "") -> str:
    """Return the text of the page."""
    answer = call("GET", PAGE + query, headers=cookie(signed_in(call, token)))
    assert answer.status_code == 200
    return answer.text


def status_rows(page: str) -> list[tuple[str, str]]:
    """Return status and session of each row."""
    return re.findall(
        r'<tr><td>\s*<span class="pill \w+" title="(\w+)">.*?</td><td class="words"><a [^>]*>(.*?)</a></td>', page, re.DOTALL
    )


def figures(page: str) -> list[str]:
    """Return the numbers of red, yellow and green sessions."""
    return re.findall(r"<dd>(\d+)</dd>", page)


def test_the_longest_silence_comes_first_and_all_are_counted(call: Call, tokens: Tokens, store: Store) -> None:
    """The longest silent sessions are the reason to open the page."""
    for session, minutes in (("fresh", 1), ("late", 6), ("gone", 15.1), ("lost", 25)):
        beat(store, session, minutes)
    page = open_page(call, tokens.root)
    assert status_rows(page) == [("red", "lost"), ("red", "gone"), ("yellow", "late"), ("green", "fresh")]
    assert figures(page) == ["2", "1", "1"]
    assert '<a href="/projects/ops">ops</a>' in page


def test_links_filter_the_list(call: Call, tokens: Tokens, store: Store) -> None:
    """Status and project are in the address, and the counts are those of the project."""
    beat(store, "fresh", 1)
    beat(store, "gone", 20)
    beat(store, "other", 20, "south", "web")
    page = open_page(call, tokens.root)
    assert {"/telemetry?status=red", "/telemetry?project=web"} <= set(re.findall(r'href="(/telemetry[^"]*)"', page))
    red = open_page(call, tokens.root, "?project=ops&status=red")
    assert status_rows(red) == [("red", "gone")]
    assert figures(red) == ["1", "0", "1"]
    assert "No open session matches" in open_page(call, tokens.root, "?project=web&status=green")


def test_pages_of_sessions_continue_where_the_previous_one_ended(
    call: Call, tokens: Tokens, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every session is on one page, even if several have the same time."""
    monkeypatch.setattr(page_module, "ROWS_PER_PAGE", 2)
    for number in range(5):
        beat(store, f"s{number}", 1 + number // 3)
    query, listed_sessions = "?project=ops", []
    while query:
        page = open_page(call, tokens.root, query)
        listed_sessions += [session for _, session in status_rows(page)]
        following = re.findall(r'href="/telemetry(\?[^"]*)" rel="next"', page)
        query = html.unescape(following[0]) if following else ""
    assert sorted(listed_sessions) == [f"s{number}" for number in range(5)]
    assert len(listed_sessions) == 5
    assert "Longest silent" in page


def test_an_alert_shows_its_progress_and_its_obstacle(call: Call, tokens: Tokens, store: Store) -> None:
    """Undelivered alerts are listed with the channel's answer."""
    failed = {"status": "waiting", "last_error": "the answer was 503", "settled_at": None, "attempts": 3}
    silence = {"kind": "telemetry", "subject_id": f"north/{HOSTILE}"}
    Outbox(store).put([alert(1), alert(2, **failed), alert(3, status="given_up", **silence)])
    page = open_page(call, tokens.root)
    assert re.findall(r'<tr><td>\s*<span class="pill \w+" title="\w+">(.*?)</span>', page) == [
        "Delivered",
        "Waiting",
        "Failed",
    ]
    assert "the answer was 503" in page
    assert '<a href="/projects/ops/incidents/i1">' in page
    assert "<img src=x" not in page
    waiting = open_page(call, tokens.root, "?alerts=waiting")
    assert "i2" in waiting
    assert "i1" not in waiting


def test_an_alert_about_a_silent_session_links_to_it(call: Call, tokens: Tokens, store: Store) -> None:
    """An alert about one session links to it; an alert about many sessions has no link."""
    silence = {"kind": "telemetry", "subject_id": "north/a/b"}
    Outbox(store).put([alert(1, **silence), alert(2, kind="telemetry", subject_id="ops: many sessions")])
    page = open_page(call, tokens.root)
    assert 'Silence of <a href="/projects/ops/sessions/a%2Fb?connection=north">a/b</a>' in page
    assert "Silence of ops: many sessions" in page


def test_an_operator_of_one_project_sees_that_one_and_no_alerts(call: Call, tokens: Tokens, store: Store) -> None:
    """Alerts may name any project, so they are for operators of all projects."""
    beat(store, "mine", 1)
    beat(store, "theirs", 1, "south", "web")
    Outbox(store).put([alert(1, project="web")])
    page = open_page(call, tokens.ops_reader)
    assert status_rows(page) == [("green", "mine")]
    assert "Only operators of all projects" in page
    assert "i1" not in page
    assert call("GET", f"{PAGE}?project=web", headers=cookie(signed_in(call, tokens.ops_reader))).status_code == 403


def test_an_empty_server_explains_what_is_watched(call: Call, tokens: Tokens) -> None:
    """An empty list is common and needs an explanation."""
    page = open_page(call, tokens.root)
    assert figures(page) == ["0", "0", "0"]
    assert "from its first exchange" in page
    assert "No alerts yet" in page


def test_hostile_ids_are_escaped(call: Call, tokens: Tokens, store: Store) -> None:
    """Session ids are chosen by agents and must be escaped."""
    beat(store, HOSTILE, 1)
    page = open_page(call, tokens.root)
    assert "<img src=x" not in page
    assert '&lt;img src=x onerror=alert(1)&gt;<span class="code-point">U+202E</span>' in page


@pytest.mark.parametrize("query", ["?status=blue", "?cursor=!", "?alertsFrom=!", "?project=%3Cx%3E"])
def test_an_invalid_address_is_an_error_page(call: Call, tokens: Tokens, query: str) -> None:
    """Users edit addresses by hand, so errors must be pages."""
    answer = call("GET", PAGE + query, headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_admins_see_and_test_the_receivers_of_alerts(
    app: FastAPI, call: Call, tokens: Tokens, store: Store, access: AccessStore
) -> None:
    """An address is checked before the first incident, by those who may, and no page shows it."""
    with receiving() as accepting:
        receivers = [pagerduty(accepting, projects=("ops", "web-*")), slack(accepting, alert_from="critical")]
        alerts = Alerts(store, receivers, Redactor(RedactionSettings()), lambda: NOW)
        app.state.context.alert_receivers = [receiver.answer for receiver in alerts.receivers]
        app.state.context.try_receivers = alerts.try_receivers
        service = accepting.api = PagerDuty()
        shown = open_page(call, tokens.root)
        assert "hush" not in shown
        assert shown.count('action="/api/audit/alerts/test"') == 2
        assert 'action="/api/audit/alerts/test"' not in open_page(
            call, access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
        )
        answer = call("POST", "/api/audit/alerts/test", tokens.root, json={"receiver": "pagerduty"})
        assert answer.json() == {"receivers": [{"receiver": "pagerduty", "delivered": True, "error": None}]}
        assert (len(service.opened), service.open) == (1, {})
        assert call("POST", "/api/audit/alerts/test", tokens.root, json={"receiver": "nobody"}).status_code == 404
        refused = call("POST", "/api/audit/alerts/test", tokens.root, json={})
        assert (refused.status_code, refused.json()["code"]) == (502, "not_delivered")
        assert "slack did not get it: the answer was 400" in refused.json()["error"]
        assert "hush" not in refused.text
