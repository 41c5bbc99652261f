"""The context of an incident: its twins, the latest comment, and the failures of its runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

from support.api_server import NOW, Call, Tokens
from support.builders import incident
from support.incident_evidence import RULE, build_count, deployment_evidence
from support.pages import from_page, signed_in
from support.watch_histories import put

from analytics.store.store import Store
from service.text.links import Links

LINKS = Links()
Look = Callable[..., str]
FIRST = NOW - timedelta(days=4)
EVIDENCE = {"rules": {"sequential": RULE}}


def text(page: str) -> str:
    """Return the visible text."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


def test_incidents_of_one_fall_link_to_each_other_and_share_the_cause(look: Look, store: Store) -> None:
    """An incident must not show an unknown cause if a related incident has a known one."""
    fall = incident(
        incident_id="fall", title="Tier 2 fell", cause="agent", first_day=FIRST, checked_at=NOW, metadata=json.dumps(EVIDENCE)
    )
    spike = incident(
        incident_id="spike",
        title="47% have an anomaly",
        type="anomaly_spike",
        tier=None,
        cause=None,
        first_day=FIRST,
        checked_at=NOW,
    )
    put(store, "incidents", [fall, spike])
    page = look(LINKS.incident("ops", "spike"))
    assert "Suspected cause: the agent changed" in text(page)
    assert 'Began on the same days: <a href="/projects/ops/incidents/fall">' in page
    assert "suspected: the agent changed" in text(page)
    other = look(LINKS.incident("ops", "fall"))
    assert 'Began on the same days: <a href="/projects/ops/incidents/spike">' in other
    assert "Suspected cause" not in other


def test_the_latest_comment_is_at_the_top(look: Look, call: Call, tokens: Tokens, store: Store) -> None:
    """The latest comment is the most useful; the history has all of them."""
    put(store, "incidents", [incident(incident_id="i", first_day=FIRST)])
    value = signed_in(call, tokens.root)
    for comment in ("First.", "It is the <b>canary</b>."):
        answer = call("PUT", LINKS.deciding("ops", "i"), headers=from_page(value), json={"comment": comment})
        assert answer.status_code == 200, answer.text
    page = look(LINKS.incident("ops", "i"))
    top = page.split('id="latest-comment"')[1].split("</p>", maxsplit=1)[0]
    assert "It is the &lt;b&gt;canary&lt;/b&gt;." in top
    assert "First." not in top
    assert page.index('id="latest-comment"') < page.index('id="why"')


def test_the_explanation_of_a_tier_names_failures_of_its_runs(look: Look, store: Store) -> None:
    """An endless loop in five of six sessions explains a fall better than the scores do."""
    more = {
        "failures": [
            build_count("infinite_tool_loop", 0, 29, 5, 6, label="failure"),
            build_count("rare", 1, 29, 0, 6, label="failure"),
        ],
        "deployments": [deployment_evidence("7", comment="A canary of 15%")],
    }
    put(
        store,
        "incidents",
        [incident(incident_id="i", tier="tier2", direction="down", metadata=json.dumps({**EVIDENCE, **more}))],
    )
    why = text(look(LINKS.incident("ops", "i")).split('id="why"')[1].split("</section>", maxsplit=1)[0])
    assert "5 of 6 runs, before 0 of 29" in why
    assert "agent_version 7" in why
    assert "2026-10-27 09:00 UTC, by dana" in why
    assert "“A canary of 15%”" in why
