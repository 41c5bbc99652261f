"""The fleet: every project, the worst first."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape

import msgspec
import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import incident, score
from support.pages import cards_of, cookie, projects_of, signed_in
from support.pages import text_of as text
from support.stored_sessions import diagnosed, filled
from support.watch_histories import JUDGED, fallen, history, put, steady

from analytics.store.store import Store
from service.read.project import ENOUGH
from service.setup.access import AccessStore, Holder


def test_an_empty_server_says_what_to_do_first(call: Call, access: AccessStore) -> None:
    """The fleet is the first page of a new installation."""
    token = access.add(Holder("operator", "root", None))
    assert '<a href="/connect">Connect an agent</a>' in call("GET", "/", headers=cookie(signed_in(call, token))).text


def test_the_worst_project_comes_first(call: Call, tokens: Tokens, store: Store) -> None:
    """The worst project must be visible at once, even among a thousand."""
    put(store, "incidents", [incident()])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    names = projects_of(page)
    assert names[0] == "ops"
    assert sorted(names[1:]) == names[1:]
    assert set(names) == {"capped", "dark", "ops", "web"}
    assert re.search(r"1 open incident\b", page)


def test_an_unaudited_project_is_marked(call: Call, tokens: Tokens) -> None:
    """A project without audit must not look healthy."""
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    cards = {project: re.findall(">(Not audited|Audited)<", card) for project, card in cards_of(page).items()}
    assert cards["dark"] == ["Not audited"]
    assert cards["ops"] == ["Audited"]


def test_the_last_days_end_today(call: Call, tokens: Tokens, store: Store) -> None:
    """A project that fell silent a month ago has no figures, but shows when it was last heard."""
    put(store, "scores", history(fallen(0), 3, end=NOW - timedelta(days=30)))
    page_text = text(call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text)
    assert "newest record arrived 30 days ago" in page_text
    assert "Answer quality 0.8" not in page_text
    assert "30 days ago, 2026-09-01 00:00" in page_text
    put(store, "scores", history(fallen(0), 3, project="web", end=NOW))
    page_text = text(call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text)
    assert "the newest of any project" not in page_text
    assert "newest record arrived 30 days ago" in page_text
    assert "Answer quality 0.8" in page_text


def test_without_a_judge_tier_1_is_shown_instead_of_dashes(call: Call, tokens: Tokens, store: Store) -> None:
    """Without a judge, Tier 1 is shown instead of empty values."""
    put(store, "scores", [score("s", 1, exchange_at=NOW, scored_at=NOW)])
    page_text = text(call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text)
    assert "Answer structure 1.00 in 7 days Set up a judge" in page_text
    assert "Exchanges 1 before 0 Anomalous 0.0%" in page_text
    assert "Answer quality" not in page_text


def test_a_simulated_judge_is_marked_on_the_first_page(call: Call, tokens: Tokens, store: Store) -> None:
    """Scores of a simulated judge must not pass for real ones."""
    value = signed_in(call, tokens.root)
    put(store, "scores", history(fallen(0), 2, end=NOW))
    assert "Simulated judge" not in call("GET", "/", headers=cookie(value)).text
    put(store, "scores", history(fallen(0), 2, project="web", end=NOW, simulated=True))
    assert "Simulated judge" in call("GET", "/", headers=cookie(value)).text


def test_the_card_of_a_project_gives_the_reason_for_its_health(call: Call, tokens: Tokens, store: Store) -> None:
    """The card must give the reason, because the person on call may read nothing else."""
    filled(
        store,
        ("scores", score("s", 1, project="web", exchange_at=NOW, scored_at=NOW)),
        ("diagnoses", diagnosed("r", project="capped", closed_at=NOW, readiness_level="unsafe_for_production")),
    )
    put(store, "diagnoses", [diagnosed(f"q{number}", project="ops", closed_at=NOW) for number in range(ENOUGH)])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    cards = {project: text(card) for project, card in cards_of(page).items()}
    assert "Not known yet Answer structure 1.00 in 7 days Set up a judge" in cards["web"]
    assert "Warning" in cards["capped"]
    assert "Unsafe runs 1 of 1" in cards["capped"]
    assert "Healthy" in cards["ops"]


def test_a_project_with_little_data_is_not_called_healthy(call: Call, tokens: Tokens, store: Store) -> None:
    """A single exchange or run is too little to call a project healthy."""
    filled(
        store,
        ("scores", score("s", 1, project="web", exchange_at=NOW, scored_at=NOW, **JUDGED)),
        ("diagnoses", diagnosed("q", project="capped", closed_at=NOW)),
    )
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    cards = {project: text(card) for project, card in cards_of(page).items()}
    assert "Not known yet" in cards["web"]
    assert "1 of 20 exchanges" in cards["web"]
    assert "Not checked yet" in cards["web"]
    assert "Not known yet" in cards["capped"]
    assert "1 of 20 runs" in cards["capped"]
    assert "Healthy" not in cards["web"] + cards["capped"]


def test_a_project_is_healthy_only_once_it_was_checked(call: Call, tokens: Tokens, store: Store) -> None:
    """Before the first check, the health of an imported history is unknown."""
    put(store, "scores", history(steady, 20, end=NOW))
    value = signed_in(call, tokens.root)

    def card() -> str:
        return text(cards_of(call("GET", "/", headers=cookie(value)).text)["ops"])

    assert re.search(r"Not known yet Answer quality .* in 7 days Not checked yet\.", card())
    assert call("POST", "/api/audit/ops/check", tokens.root).status_code == 200
    assert "Healthy" in card()


def test_the_table_has_the_same_order_as_the_cards(call: Call, tokens: Tokens, store: Store) -> None:
    """Cards and rows show the same projects in the same order."""
    put(store, "incidents", [incident()])
    put(store, "scores", history(fallen(0), 2, end=NOW))
    value = signed_in(call, tokens.root)
    cards, table = (call("GET", path, headers=cookie(value)).text for path in ("/", "/?view=table"))
    assert projects_of(cards) == projects_of(table)
    row = re.search(r'<tr class="critical".*?</tr>', table, re.DOTALL)
    assert row
    assert "ops Critical 1" in text(row[0])
    assert "1 Oct 0" in text(row[0])
    assert "dark No data yet Not audited" in text(table)
    assert call("GET", "/?view=heap", headers=cookie(value)).status_code == 400


def test_a_large_fleet_has_an_overview_of_squares(call: Call, tokens: Tokens, store: Store) -> None:
    """Each project is a square, the worst first; with few projects the cards suffice."""
    value = signed_in(call, tokens.root)
    put(store, "incidents", [incident(project="team-07")])
    assert 'class="glance"' not in call("GET", "/", headers=cookie(value)).text
    put(
        store,
        "scores",
        [score(f"s{place}", 1, project=f"team-{place:02}", exchange_at=NOW, scored_at=NOW) for place in range(30)],
    )
    page = call("GET", "/", headers=cookie(value)).text
    glance = page.split('class="glance"')[1].split("</p>")[0]
    assert "One square per project, worst first: critical, not known yet, no data yet" in text(page)
    assert "<table" in page
    assert "<table" not in call("GET", "/?view=cards", headers=cookie(value)).text
    assert glance.count("<a ") >= 33
    remark = "Set up a judge to score answers; the rules of Tier 1 and the diagnosis of runs need none"
    assert re.findall(r'title="[^"]*"', glance)[0] == f'title="team-07: Critical, 1 open; {remark}"'


def test_a_card_names_the_fall_and_its_start(call: Call, tokens: Tokens, store: Store) -> None:
    """The card answers what got worse, by how much and since when, and links to the details."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    value = signed_in(call, tokens.root)
    (incident,) = call("POST", "/api/audit/ops/check", tokens.root).json()["incidents"]
    card = cards_of(call("GET", "/", headers=cookie(value)).text)["ops"]
    before, after = incident["moved"][0]["from"], incident["moved"][0]["to"]
    assert f"Answer quality {before:.2f} → {after:.2f} since 26 Sep" in text(card)
    assert f'href="/projects/ops/incidents/{incident["id"]}"' in card
    levels = json.loads(unescape(re.search(r'data-spark="([^"]*)"', card)[1]))  # type: ignore[index]
    assert len(levels) == 28
    assert levels[0] - levels[-1] > 0.3
    assert 'aria-label="Answer quality · Tier 2 by day, 28 days to 2026-10-01' in card


def test_figures_of_the_last_days_are_shown_beside_the_previous_ones(call: Call, tokens: Tokens, store: Store) -> None:
    """A mean over the whole period would hide changes of the last week."""
    put(store, "scores", history(fallen(7, to=0.5, before=0.9), 40, a_day=3, end=NOW))
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    card = text(cards_of(page)["ops"])
    assert re.search(r"Answer quality 0\.9\d → 0\.5\d in 7 days", card)
    assert "123" not in text(page)
    # What did not change is not said twice.
    assert "Exchanges 21 Anomalous 0.0%" in card
    assert "Exchanges in 7 days 21" in text(page)
    assert "Anomalies in 7 days 0 of 21" in text(page)


def test_an_increase_is_shown_with_its_previous_value_and_its_base(call: Call, tokens: Tokens, store: Store) -> None:
    """14 anomalies are many of 20 exchanges and few of 20,000, and no news if there were 14 in the previous week."""
    scores = history(steady, 40, a_day=3, end=NOW)
    put(store, "scores", [*scores[:-1], msgspec.structs.replace(scores[-1], anomaly=True, anomaly_reasons=("odd",))])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    card = text(cards_of(page)["ops"])
    assert "Exchanges 21 Anomalous 4.8% before 0.0%" in card
    assert "1 of 21, before 0 of 21" in text(page)


def test_an_acknowledged_incident_stays_red(call: Call, tokens: Tokens, store: Store) -> None:
    """Acknowledging an incident does not improve the agent."""
    put(store, "incidents", [incident(), incident(revision=1, status="acknowledged", acknowledged_by="ann")])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    assert cards_of(page)["ops"].startswith('<li class="card critical">')
    assert (
        '<a class="pill critical" href="/incidents?project=ops&amp;confirmed=true">1 open incident, 1 acknowledged</a>' in page
    )


def test_a_change_of_the_judge_leaves_a_project_healthy(call: Call, tokens: Tokens, store: Store) -> None:
    """Nobody looks for a fault of an agent that is as before; the notice is linked beside the health."""
    put(store, "incidents", [incident(severity="notice", cause="judge")])
    put(store, "diagnoses", [diagnosed(f"q{number}", project="ops", closed_at=NOW) for number in range(ENOUGH)])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    (card,) = (text(card) for project, card in cards_of(page).items() if project == "ops")
    assert "Healthy 1 notice" in card
    assert "open incident" not in card


def test_the_number_of_open_incidents_links_to_their_list(call: Call, tokens: Tokens, store: Store) -> None:
    """The number of open incidents links to their list."""
    put(store, "incidents", [incident()])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    assert '<a href="/incidents">Open incidents</a></dt><dd>1' in page


def test_of_two_critical_projects_the_larger_fall_comes_first(call: Call, tokens: Tokens, store: Store) -> None:
    """Projects are ordered by the size of the change, not by name."""
    for project, after in (("a", 0.8), ("b", 0.4), ("c", 0.6)):
        levels = json.dumps({"moved": [{"name": "Answer quality", "from": 0.9, "to": after}]})
        put(store, "incidents", [incident(incident_id=project, project=project, metadata=levels)])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    assert projects_of(page)[:3] == ["b", "c", "a"]


def test_the_name_of_a_series_is_escaped(call: Call, tokens: Tokens, store: Store) -> None:
    """The name of a series contains the agent's name, which is an untrusted text."""
    levels = json.dumps({"moved": [{"name": "Trust (<b>\u202e)", "from": 99.7, "to": 91.5}]})
    put(store, "incidents", [incident(metadata=levels, tier="trust", agent="<b>\u202e")])
    page = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    assert "&lt;b&gt;" in page
    assert "\u202e" not in page
    assert "99.7 → 91.5" in page


def test_the_api_returns_the_same_change(call: Call, tokens: Tokens, store: Store) -> None:
    """The API returns the page's figures, with levels by day."""
    put(store, "scores", history(fallen(6), 40, end=NOW))
    (incident,) = call("POST", "/api/audit/ops/check", tokens.root).json()["incidents"]
    projects = {one["project"]: one for one in call("GET", "/api/audit/projects", tokens.root).json()["projects"]}
    change = projects["ops"]["change"]
    assert change["series"] == "tier2"
    assert change["name"] == "Answer quality"
    assert change["incident"] == incident["id"]
    assert change["since"] == "2026-09-26"
    assert incident["moved"][0]["from"] == change["before"]
    assert incident["moved"][0]["to"] == change["after"]
    assert len(change["levels"]) == 28
    assert projects["ops"]["before"]["scores"] == 70
    assert None is projects["web"]["change"]


def test_the_headline_of_an_old_incident_shows_the_current_level(call: Call, tokens: Tokens, store: Store) -> None:
    """After a fall a month ago, the first question is whether the tier is still low, which the stored sums answer."""
    put(store, "scores", history(fallen(20), 40, end=NOW))
    metadata = json.dumps({"moved": [{"name": "Answer quality", "from": 0.85, "to": 0.5}]})
    put(store, "incidents", [incident(tier="tier2", metadata=metadata, first_day=NOW - timedelta(days=20))])
    page_text = text(call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text)
    day = NOW - timedelta(days=20)
    assert f"0.85 → 0.50 since {day.day} {day:%b} , 0.45 now" in page_text
    projects = call("GET", "/api/audit/projects", tokens.root).json()["projects"]
    assert [one["change"]["now"] for one in projects if one["change"]] == pytest.approx([0.45], abs=0.01)


def test_tiers_link_to_their_explanation(call: Call, tokens: Tokens, store: Store) -> None:
    """New users need a link to the meaning of a tier."""
    put(store, "scores", history(steady, 20, end=NOW))
    value = cookie(signed_in(call, tokens.root))
    for path in ("/", "/?view=table"):
        page = call("GET", path, headers=value).text
        assert 'href="/help#tier2"' in page
