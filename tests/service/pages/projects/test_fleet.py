"""The fleet: every project, the worst first."""

from __future__ import annotations

import re
from datetime import timedelta

from api_server import NOW, Call, Tokens
from browsers import cookie, signed_in
from builders import incident, score
from finished import diagnosed, filled
from watched import JUDGED, fallen, history, put, steady

from analytics.store.store import Store
from service.access.access import AccessStore, Holder
from service.documents.project_health import ENOUGH
from service.pages.projects.fleet import BEGINNING


def test_an_empty_server_says_what_to_do_first(call: Call, access: AccessStore) -> None:
    """The first page that anybody sees is this one."""
    token = access.add(Holder("operator", "root", None))
    assert '<a href="/connect">Connect an agent</a>' in call("GET", "/", headers=cookie(signed_in(call, token))).text


def test_the_worst_project_comes_first(call: Call, tokens: Tokens, store: Store) -> None:
    """A red project among a thousand green ones must not have to be looked for."""
    put(store, "incidents", [incident()])
    shown = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    names = re.findall(r'data-name="([^"]+)"', shown)
    assert "ops" == names[0]
    assert sorted(names[1:]) == names[1:]
    assert {"capped", "dark", "ops", "web"} == set(names)
    assert re.search(r"1 open incident\b", shown)


def test_a_project_that_is_not_audited_says_so(call: Call, tokens: Tokens) -> None:
    """The green badge is a promise."""
    shown = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    cards = dict(re.findall(r'data-name="([^"]+)".*?(Not audited|>Audit<)', shown, re.DOTALL))
    assert ("Not audited", ">Audit<") == (cards["dark"], cards["ops"])


def text(page: str) -> str:
    """What a page says, without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_last_days_are_those_up_to_the_newest_one(call: Call, tokens: Tokens, store: Store) -> None:
    """A project that fell silent a month ago still tells how it was then, and when that was."""
    put(store, "scores", history(fallen(0), 3, end=NOW - timedelta(days=30)))
    shown = text(call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text)
    assert "In 7 days to 2026-09-01 Tier 2 0.8" in shown
    assert "Anomalous 0.0%" in shown


def test_where_no_judge_was_asked_there_are_no_dashes_in_place_of_its_tiers(call: Call, tokens: Tokens, store: Store) -> None:
    """Tier 1 is known, and said."""
    put(store, "scores", [score("s", 1, exchange_at=NOW, scored_at=NOW)])
    shown = text(call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text)
    assert "Tier 1 1.00 Anomalous 0.0%" in shown
    assert "Tier 2" not in shown


def test_a_simulated_judge_is_told_of_on_the_first_page(call: Call, tokens: Tokens, store: Store) -> None:
    """Nobody may take a demonstration for a finding."""
    value = signed_in(call, tokens.root)
    put(store, "scores", history(fallen(0), 2, end=NOW))
    assert "simulated judge" not in call("GET", "/", headers=cookie(value)).text
    put(store, "scores", history(fallen(0), 2, project="web", end=NOW, simulated=True))
    assert "simulated judge" in call("GET", "/", headers=cookie(value)).text


def test_why_a_project_is_not_healthy_is_on_its_card(call: Call, tokens: Tokens, store: Store) -> None:
    """Whoever asks at night whether the others are fine reads the word healthy, and nothing else."""
    filled(
        store,
        ("scores", score("s", 1, project="web", exchange_at=NOW, scored_at=NOW)),
        ("diagnoses", diagnosed("r", project="capped", closed_at=NOW, readiness_level="unsafe_for_production")),
    )
    put(store, "diagnoses", [diagnosed(f"q{number}", project="ops", closed_at=NOW) for number in range(ENOUGH)])
    shown = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    cards = {card.split('"')[0]: text(f"<{card}") for card in shown.split('data-name="')[1:]}
    assert "Warning 1 of 1 exchanges due to be judged are unscored: this server has no judge" in cards["web"]
    assert "Warning 1 unsafe run in 7 days" in cards["capped"]
    assert "Healthy" in cards["ops"]


def test_little_data_is_not_called_healthy(call: Call, tokens: Tokens, store: Store) -> None:
    """One good exchange says nothing of an agent, and neither does a single run."""
    filled(
        store,
        ("scores", score("s", 1, project="web", exchange_at=NOW, scored_at=NOW, **JUDGED)),
        ("diagnoses", diagnosed("q", project="capped", closed_at=NOW)),
    )
    shown = call("GET", "/", headers=cookie(signed_in(call, tokens.root))).text
    cards = {card.split('"')[0]: text(f"<{card}") for card in shown.split('data-name="')[1:]}
    assert "Not known yet Not enough data: 1 of 20 exchanges in 7 days Not checked yet." in cards["web"]
    assert "Not known yet Not enough data: 1 of 20 runs" in cards["capped"]
    assert "Healthy" not in cards["web"] + cards["capped"]


def test_a_project_is_healthy_only_once_it_was_checked(call: Call, tokens: Tokens, store: Store) -> None:
    """Imported history may have fallen: before the first check nobody knows."""
    put(store, "scores", history(steady, 20, end=NOW))
    value = signed_in(call, tokens.root)

    def card() -> str:
        return text("<" + call("GET", "/", headers=cookie(value)).text.split('data-name="ops"')[1].split("</li>")[0])

    assert "Not known yet Not checked yet." in card()
    assert 200 == call("POST", "/api/audit/ops/check", tokens.root).status_code
    assert "Healthy" in card()
    assert "Checked 2026-10-01 12:00 UTC: nothing found." in card()


def test_the_table_has_the_same_projects_in_the_same_order(call: Call, tokens: Tokens, store: Store) -> None:
    """Rows are narrower than cards, and say the same."""
    put(store, "incidents", [incident()])
    put(store, "scores", history(fallen(0), 2, end=NOW))
    value = signed_in(call, tokens.root)
    cards, table = (call("GET", path, headers=cookie(value)).text for path in ("/", "/?view=table"))
    assert re.findall(r'data-name="[^>]*', cards) == re.findall(r'data-name="[^>]*', table)
    row = re.search(r'<tr class="critical".*?</tr>', table, re.DOTALL)
    assert row
    assert "ops Critical 1" in text(row[0])
    assert "2026-10-01" in text(row[0])
    assert "dark No data yet Not audited" in text(table)
    assert 400 == call("GET", "/?view=heap", headers=cookie(value)).status_code


def test_a_fleet_too_large_to_look_through_is_seen_at_a_glance(call: Call, tokens: Tokens, store: Store) -> None:
    """A square a project, the worst first; with few projects the cards are the glance."""
    value = signed_in(call, tokens.root)
    put(store, "incidents", [incident(project="team-07")])
    assert 'class="glance"' not in call("GET", "/", headers=cookie(value)).text
    put(
        store,
        "scores",
        [score(f"s{place}", 1, project=f"team-{place:02}", exchange_at=NOW, scored_at=NOW) for place in range(30)],
    )
    glance = call("GET", "/", headers=cookie(value)).text.split('class="glance"')[1].split("</p>")[0]
    assert 33 <= glance.count("<a ")
    assert (
        'title="team-07: Critical, 1 open; 1 of 1 exchanges due to be judged are unscored: this server has no judge"'
        == re.findall(r'title="[^"]*"', glance)[0]
    )


def test_of_a_large_fleet_the_worst_come_first_and_all_by_a_link(call: Call, tokens: Tokens, store: Store) -> None:
    """A thousand cards take longer than one waits; sums and squares are of all, and without a script a link leads to the rest."""
    value = signed_in(call, tokens.root)
    put(
        store,
        "scores",
        [score(f"s{place}", 1, project=f"team-{place:02}", exchange_at=NOW, scored_at=NOW) for place in range(BEGINNING)],
    )
    put(store, "incidents", [incident(project="team-59")])
    for view, rest in (("", "/?whole=true"), ("?view=table", "/?view=table&amp;whole=true")):
        first = call("GET", f"/{view}", headers=cookie(value)).text
        assert BEGINNING + 4 == first.split('class="glance"')[1].split("</p>")[0].count("<a ")
        assert f'data-rest="{BEGINNING + 4}"' in first
        assert f'<a href="{rest}">' in first
        whole = call("GET", rest.replace("&amp;", "&"), headers=cookie(value)).text
        assert "data-rest" not in whole
        beginning, everything = (re.findall(r'data-name="[^>]*', shown) for shown in (first, whole))
        assert (BEGINNING, BEGINNING + 4) == (len(beginning), len(everything))
        assert everything[:BEGINNING] == beginning
        assert beginning[0].startswith('data-name="team-59"')
