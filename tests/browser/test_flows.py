"""What people do on the pages, done as they do it: signing in, deciding, scoring, asking, narrowing, and waiting for news."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect
from support.browser_windows import PHONE, Window, open_context
from support.clocks import NOW
from support.pages import SENTENCES
from support.sites import DRIFTED, LINKS, QUIET, WORKING, Site, iso

A_FEW_LINES = 100
"""Pixels."""
_WHERE = "[document.activeElement.getAttribute('href'), document.activeElement.getBoundingClientRect().top]"


def test_a_deep_link_leads_through_the_sign_in_to_its_page(signed_out_window: Window, site: Site) -> None:
    """Alerts carry links, and whoever follows one at night has to land there: with a wrong token told why, with the right one there."""
    there = LINKS.incident(DRIFTED, site.incident)
    page = signed_out_window.open(there)
    expect(page.locator("h1")).to_have_text("Sign in")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type("dl_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("token")
    assert [words.split()[1] for words in signed_out_window.problems if words.startswith("refused")] == ["401"]
    page.get_by_label("Token").fill(f" {site.operator}\n")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(site.url + there)
    expect(page.locator("h1")).to_contain_text("Tier 2")
    assert site.operator not in page.content()
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    page.goto(site.url + LINKS.fleet)
    expect(page.locator("h1")).to_have_text("Sign in")
    assert page.context.cookies() == []


def test_a_decision_is_made_by_keys_and_seen_by_everybody_who_looks(
    window: Window, open_window: Callable[[], Window], site: Site
) -> None:
    """Two people on call must not both look into the same incident: who decided what, and why, appears without a reload, and is taken back."""
    here, elsewhere = window, open_window()
    for one in (here, elsewhere):
        one.open(LINKS.incident(DRIFTED, site.incident))
        one.page.evaluate("window.stayed = true")
    fleet = open_window()
    fleet.open(LINKS.fleet)
    expect(fleet.page.locator("main")).to_contain_text("1 open incident")
    keys, main = here.page.keyboard, here.page.locator("main")

    def decide(words: str, button: str) -> None:
        here.tab_to(here.page.locator("#reason"))
        keys.insert_text(words)
        here.tab_to(here.page.get_by_role("button", name=button))
        keys.press("Enter")

    here.tab_to(here.page.get_by_role("button", name="New normal"))
    keys.press("Enter")
    expect(here.page.locator("#reason")).to_be_focused()
    expect(main).to_contain_text("No decision yet.")
    reason = "A new prompt went live; it is being <b>rolled back</b>."
    decide(reason, "New normal")
    expect(main).to_contain_text("Resolved: new normal")
    elsewhere.refresh()
    expect(elsewhere.page.locator("main")).to_contain_text(reason)
    expect(elsewhere.page.locator("main")).to_contain_text("ada")
    fleet.refresh()
    expect(fleet.page.locator("main")).not_to_contain_text("1 open incident")
    decide("Not so.", "Dismiss")
    expect(main).to_contain_text("Dismissed")
    decide("It came back.", "Reopen")
    expect(here.page.get_by_role("button", name="Acknowledge")).to_be_visible()
    elsewhere.refresh()
    expect(elsewhere.page.locator("#decisions")).to_contain_text("It came back.")
    expect(elsewhere.page.get_by_role("button", name="Acknowledge")).to_be_visible()
    assert [one.page.evaluate("window.stayed") for one in (here, elsewhere)] == [True, True]
    assert here.problems + elsewhere.problems + fleet.problems == []


def test_an_error_that_comes_after_the_page_is_a_sentence_like_one_that_comes_with_it(window: Window) -> None:
    """The script and the templates write the same error in the same way."""
    page = window.open(LINKS.fleet)
    assert {error: page.evaluate("(error) => toSentence(error)", error) for error in SENTENCES} == SENTENCES


def test_a_card_that_is_filled_from_another_page_is_never_emptied(window: Window) -> None:
    """A wide comparison, a page that breaks, one without the part: the card says what there is, or the way there."""
    page = window.open(f"{LINKS.project(DRIFTED)}?window=7d&until={(NOW - timedelta(days=300)).date()}&compare=before")
    card = page.locator('[data-take="sessions"]')
    expect(card).to_contain_text("No sessions")

    page = window.open(f"{LINKS.project(DRIFTED)}?compare=before")
    expect(card.locator("tbody tr")).not_to_have_count(0)
    rows = card.locator("tbody tr").count()
    for status in (200, 500):
        answer = functools.partial(Route.fulfill, status=status, content_type="text/html", body="<p>Nothing of the kind</p>")
        page.route("**/wrap-quality?*", lambda route, _, answer=answer: answer(route))
        page.evaluate("refresh(true)")
        expect(card.locator("[data-unloaded] a")).to_have_attribute("href", re.compile("/wrap-quality"))
        expect(card.locator("tbody tr")).to_have_count(rows)
        page.unroute("**/wrap-quality?*")
        page.evaluate("refresh()")
        expect(card.locator("[data-unloaded]")).to_have_count(0)


def test_many_incidents_are_changed_at_once_and_news_leave_the_selection(window: Window, site: Site) -> None:
    """Who is on call selects, says why once, and sees what became of it; a reload sends nothing again."""
    page = window.open(LINKS.inbox(project=DRIFTED))
    page.get_by_label("Select all on this page").check()
    site.post(f"{DRIFTED}/incidents/{site.incident}", site.operator, {"assignee": "me"}, method="PUT")
    window.refresh()
    picks = page.locator('input[name="incident"]')
    assert picks.count() == page.locator('input[name="incident"]:checked').count()
    page.get_by_text(re.compile(r"Change \d+ selected")).click()
    page.get_by_role("textbox", name="Reason").fill("We are looking into it.")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("#result")).to_contain_text("acknowledged.")
    expect(page.locator("#result")).to_be_focused()
    page.reload()
    expect(page.locator("#result")).to_have_count(0)
    expect(page.locator("tbody")).to_contain_text("Acknowledged")
    page.get_by_label("Select all on this page").check()
    page.get_by_text(re.compile(r"Change \d+ selected")).click()
    page.get_by_role("textbox", name="Reason").fill("Not ours.")
    page.get_by_role("button", name="Reopen").click()
    expect(page.locator("#result")).to_contain_text("open again.")
    assert window.problems == []


def test_a_comment_decides_nothing(window: Window, site: Site) -> None:
    """The button beside the decisions sends the words alone, and the incident stays as it is."""
    page = window.open(LINKS.incident(DRIFTED, site.incident))
    before = page.locator("#verdict").inner_text()
    page.locator("#reason").fill("Looks like the prompt.")
    page.get_by_role("button", name="Comment", exact=True).click()
    expect(page.locator("#decisions")).to_contain_text("Looks like the prompt.")
    assert page.locator("#verdict").inner_text() == before
    expect(page.get_by_role("button", name="Acknowledge")).to_be_visible()
    assert window.problems == []


def test_the_review_queue_goes_by_keys(window: Window, site: Site) -> None:
    """Who scores fifty exchanges does not want to reach for the mouse: a key scores, or Tab and Enter; the next one comes, the counts move."""
    page = window.open(LINKS.review(DRIFTED))
    item = page.locator("[data-item]")
    agreement = page.locator("[data-load]")
    seen = []
    for key in "12345":
        now = str(item.get_attribute("data-item"))
        assert now not in seen
        seen.append(now)
        if key == "2":
            page.keyboard.press("c")
            expect(page.get_by_label("Comment")).to_be_focused()
            page.keyboard.type("It 1 does not answer 5.")
            page.keyboard.press("Escape")
        if key == "4":
            window.tab_to(page.locator('button[value="4"]'))
            page.keyboard.press("Enter")
        else:
            page.keyboard.press(key)
        expect(item).not_to_have_attribute("data-item", now)
    page.keyboard.press("s")
    expect(page).to_have_url(re.compile("skip="))
    expect(page.locator("tfoot")).to_contain_text("5")
    expect(agreement).to_contain_text("5")
    given = [site.get(f"{DRIFTED}/scores/{one}/human")["humanScores"][-1] for one in seen]
    assert [one["score"] for one in given] == [1, 2, 3, 4, 5]
    assert given[1]["comment"] == "It 1 does not answer 5."
    page.keyboard.press("b")
    expect(page).to_have_url(re.compile("blind=true"))
    expect(page.locator("main")).to_contain_text("verdict is hidden")
    assert window.problems == []


def test_sql_runs_is_refused_drawn_shared_and_downloaded(
    window: Window, open_window: Callable[[], Window], tmp_path: Path
) -> None:
    """A question is asked until it is right, then sent to somebody, then taken elsewhere."""
    page = window.open(LINKS.sql)
    page.locator("#statement").fill("SELECT project,\n  count(*) AS exchanges\nFROM nowhere\nGROUP BY project")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("LINE 3")
    assert page.evaluate("getSelection().toString()") == "FROM nowhere"
    window.problems.clear()  # a refusal is an answer of 400, which browsers write into the console
    statement = (
        "SELECT exchange_at::DATE AS day, count(*) AS scored FROM scores WHERE project = 'support' GROUP BY day ORDER BY day"
    )
    page.locator("#statement").fill(statement)
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-table] tbody tr")).to_have_count(25)
    expect(page.locator("[data-chart] canvas")).to_be_visible()
    with page.expect_download() as caught:
        page.get_by_role("button", name="CSV").click()
    file = tmp_path / "rows.csv"
    caught.value.save_as(file)
    assert ((lines := file.read_text("utf-8").splitlines())[0], len(lines)) == ("day,scored", 26)
    page.get_by_label("as", exact=True).select_option("bar")
    shared = open_window()
    shared.page.goto(page.url)
    expect(shared.page.locator("#statement")).to_have_value(statement)
    shared.page.get_by_role("button", name="Run").click()
    expect(shared.page.get_by_label("as", exact=True)).to_have_value("bar")
    assert window.problems + shared.problems == []


def test_a_session_in_an_answer_leads_to_its_page(window: Window) -> None:
    """Whoever found a session by SQL reads it next; other columns stay text."""
    page = window.open(LINKS.sql)
    page.locator("#statement").fill(
        "SELECT session_id, agent FROM scores WHERE project = 'support' ORDER BY exchange_at LIMIT 1"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-table] tbody a")).to_have_count(1)
    session = page.locator("[data-table] tbody a").text_content()
    page.locator("[data-table] tbody a").click()
    expect(page.locator("h1")).to_have_text(f"Session {session}")
    assert window.problems == []


def test_the_phone_shows_what_a_page_is_about_at_once(window: Window, site: Site) -> None:
    """Whoever is called at night looks at a phone: the first project, incident or run is in its first screen."""
    window.resize(PHONE)
    for path, first in (
        (LINKS.fleet, "#cards > li"),
        (LINKS.inbox(), "tbody tr"),
        (LINKS.project(DRIFTED), "#incidents"),
        (LINKS.exchanges(DRIFTED), "tbody tr"),
        (LINKS.runs(WORKING), "tbody tr"),
        (LINKS.incident(DRIFTED, site.incident), "#why"),
    ):
        box = window.open(path).locator(first).first.bounding_box()
        assert box is not None, path
        assert box["y"] < PHONE[1] * 0.75, path


def test_what_is_typed_to_find_a_project_shows_that_it_is_being_looked_for(window: Window) -> None:
    """A list that stays as it was while one waits looks like one without what one looks for."""
    page = window.open(LINKS.fleet)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/?q=*", hold)
    with page.expect_request(lambda request: "q=" in request.url):
        page.get_by_label("Find a project").fill(DRIFTED)
    form, list_of = page.locator("form[data-filters]"), page.locator("#projects")
    expect(form).to_have_attribute("aria-busy", "true")
    expect(list_of).to_have_attribute("aria-busy", "true")
    ring = "getComputedStyle(document.querySelector('.find'), '::after')"
    assert page.evaluate(f"{ring}.animationName") == "turning"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(f"[{ring}.animationName, {ring}.borderTopLeftRadius]") == ["none", "50%"]
    page.emulate_media(reduced_motion="no-preference")
    with page.expect_response(lambda answer: "q=" in answer.url):
        held[-1].continue_()
    expect(form).not_to_have_attribute("aria-busy", "true")
    expect(list_of).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#cards > *")).to_have_count(1)
    page.unroute("**/?q=*")
    assert window.problems == []


@pytest.mark.parametrize("path", [LINKS.fleet, LINKS.project(DRIFTED), LINKS.runs(WORKING), LINKS.sql])
def test_nothing_jumps_while_a_page_loads(window: Window, path: str) -> None:
    """Whoever aims at a tile that moves away hits another one: 0.1 is what the Core Web Vitals call good, and pages stay far below."""
    page = window.open(path)
    seen = """() => new Promise((done) => new PerformanceObserver((list) => done(list.getEntries().reduce((sum, one) => sum + one.value, 0)))
        .observe({ type: "layout-shift", buffered: true }) || setTimeout(() => done(0), 500))"""
    assert page.evaluate(seen) < 0.03


def test_the_sql_page_says_how_old_its_snapshot_is(window: Window) -> None:
    """Who waits for an answer sees what for, and of what time the answer will be."""
    page = window.open(LINKS.sql)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#result")).to_be_visible()
    expect(page.locator("#snapshot")).to_contain_text(re.compile(r"Snapshot of [-\d]+ [:\d]+, .+ old\."))
    assert window.problems == []


def test_parameters_of_a_statement_are_fields_that_can_be_shared(window: Window, open_window: Callable[[], Window]) -> None:
    """A worked example is tried with one's own values; what only looks like a parameter is none."""
    page = window.open(LINKS.sql)
    expect(page.get_by_role("group", name="Parameters")).to_be_hidden()
    page.get_by_text("What does judging a drifting agent cost?").click()
    page.locator("details[open] [data-use]").click()
    expect(page.get_by_label("$agent", exact=True)).to_have_value("%")
    texts = "SELECT '$a' AS a, $$ $b $$ AS b, $C::INT + $c::INT AS sum, $name AS name -- $d\n/* $e */"
    page.locator("#statement").fill(texts)
    fields = page.locator("[data-parameters] input")
    assert [one.get_attribute("name") for one in fields.all()] == ["p.C", "p.name"]
    fields.first.fill("4")
    page.keyboard.press("Enter")
    expect(page.locator("[data-table] tbody td")).to_have_text(["$a", " $b ", "8", "NULL"])
    page.locator("#statement").fill(
        "SELECT count(*) FILTER (session_id = $C) AS sessions, count(*) FILTER (turn_number < $C) > 0 AS early FROM turns"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-table] tbody td")).to_have_text(["0", "true"])
    assert window.problems == []
    page.locator("#statement").fill("SELECT $C + 1 AS sum")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-table] tbody td")).to_have_text(["5"])
    window.problems.clear()  # a sum takes no text, which a browser notes as a 400 before the number is sent
    page.locator("#statement").fill(texts)
    shared = open_window()
    shared.page.goto(page.url)
    expect(shared.page.get_by_label("$C", exact=True)).to_have_value("4")
    assert window.problems + shared.problems == []


def test_what_is_copied_is_said(window: Window) -> None:
    """A button that does nothing to see is pressed again and again."""
    page = window.open(LINKS.run(WORKING, "run_002"))
    button = page.get_by_role("button", name="Copy the fix")
    button.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    expect(button).to_be_visible()
    assert window.problems == []


def test_how_the_fleet_is_narrowed_is_in_the_address(window: Window) -> None:
    """What one looks at can be sent to somebody, and is still there after going on and back."""
    page = window.open(LINKS.fleet)
    page.keyboard.press("/")
    page.keyboard.type("sup")
    cards = page.locator("#cards > *")
    expect(cards).to_have_count(1)
    expect(page.get_by_label("Find")).to_be_focused()
    page.get_by_label("Order").select_option("name")
    expect(page).to_have_url(re.compile(r"/\?q=sup&sort=name$"))
    table = page.get_by_role("link", name="Table")
    expect(table).to_have_attribute("href", "/?q=sup&sort=name&view=table")
    table.click()
    expect(page).to_have_url(re.compile(r"/\?q=sup&sort=name&view=table$"))
    expect(page.locator("tbody > tr")).to_have_count(1)
    page.locator("tbody th a").click()
    page.go_back()
    expect(page.locator("tbody > tr")).to_have_count(1)
    expect(page.get_by_label("Find")).to_have_value("sup")
    page.go_back()
    expect(cards).to_have_count(1)
    expect(page.get_by_label("Find")).to_have_value("sup")
    assert window.problems == []


def test_the_fleet_is_narrowed_while_one_types(window: Window, site: Site) -> None:
    """Nobody waits for a page: the list follows the keys, the caret stays, and what is shown is what is kept fresh."""
    page = window.open(LINKS.fleet)
    page.evaluate("window.stayed = true")
    find, count = page.get_by_label("Find"), page.locator("#count")
    whole = count.inner_text()
    find.press_sequentially("nigt")
    expect(page.get_by_role("heading", name="No projects match")).to_be_visible()
    expect(count).to_contain_text("0 of")
    find.press("ArrowLeft")
    page.keyboard.type("h")
    expect(page.locator("#cards > *")).to_have_count(1)
    assert find.evaluate("(one) => [one.selectionStart, one.selectionEnd]") == [4, 4]
    assert "changed" not in (page.locator("#projects").get_attribute("class") or ""), "what was asked for is no news"
    before = page.locator("#totals").inner_text()
    site.say(QUIET, "while-typing", 1, "Are you there?", "I am.")
    window.refresh()
    expect(page.locator("#totals")).not_to_have_text(before)
    expect(page.locator("#cards > *")).to_have_count(1)
    expect(find).to_have_value("night")
    find.fill("")
    expect(count).to_have_text(whole)
    expect(page).to_have_url(site.url + LINKS.fleet)
    assert page.evaluate("window.stayed")
    assert window.problems == []


def test_an_order_is_turned_round_by_its_heading(window: Window) -> None:
    """A field that says another order than the one that is shown would be believed."""
    page = window.open(LINKS.fleet_of(view="table", sort="name"))
    names = page.locator("tbody th").all_inner_texts()
    page.locator("thead a", has_text="Project").click()
    expect(page.locator("tbody th")).to_have_text(names[::-1])
    expect(page.locator("#sort option:checked")).to_have_text("By name, backwards")
    page.get_by_label("Find").fill("s")
    expect(page).to_have_url(re.compile("q=s"))
    assert "down=true" in page.url
    page.get_by_label("Order").select_option("exchanges")
    expect(page.locator("#sort option:checked")).to_have_text("Most exchanges")
    expect(page).to_have_url(re.compile("sort=exchanges"))
    assert "down" not in page.url
    assert "q=s" in page.url
    assert window.problems == []


def test_on_a_phone_every_page_of_the_navigation_is_in_sight(window: Window) -> None:
    """A link beyond the edge is not found: nothing shows that the row goes on there."""
    page = window.open(LINKS.project(DRIFTED))
    window.resize(PHONE)
    for name in ("Pages", f"Pages of {DRIFTED}"):
        links = page.get_by_role("navigation", name=name, exact=True).get_by_role("link").all()
        boxes = [one.bounding_box() for one in links]
        assert len(boxes) > 5
        assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= PHONE[0] for box in boxes), name


@pytest.mark.parametrize(
    ("rows", "limit", "told"),
    [
        (1, 100, "1 row ·"),
        (100, 100, "all 100 rows ·"),
        (101, 100, "the first 100 rows; there are more ·"),
        (1001, 10_000, "all 1\u202f001 rows, first 1\u202f000 shown ·"),
    ],
)
def test_a_result_says_whether_it_is_all_of_it(window: Window, rows: int, limit: int, told: str) -> None:
    """Whoever adds up a thousand rows has to know that there were more."""
    page = window.open(f"/sql?q=SELECT+i+FROM+range({rows})+AS+r(i)&rows={limit}")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[data-summary]")).to_contain_text(re.compile(f"^{re.escape(told)}"))


def test_what_is_typed_while_the_page_still_loads_narrows_the_fleet(window: Window, site: Site) -> None:
    """On a slow line the fields are there before the script that reads them."""
    page = window.page
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    for fill in (
        lambda: page.get_by_label("Find").fill(QUIET),
        lambda: page.get_by_label("Health").select_option("Critical"),
        lambda: page.get_by_label("Order").select_option("By name"),
    ):
        page.route("**/lists.*", hold)
        with page.expect_request("**/lists.*"):
            page.goto(site.url + LINKS.fleet, wait_until="commit")
        fill()
        held.pop().continue_()
        page.unroute("**/lists.*")
        expect(page).to_have_url(re.compile("q=|health=|sort="))
    assert window.problems == []


def test_the_fleet_is_narrowed_without_a_script(chromium: Browser, site: Site, cookie: str) -> None:
    """The form asks the same address by itself."""
    with open_context(chromium, site, cookie, has_scripts=False) as context:
        page = context.new_page()
        page.goto(site.url + LINKS.fleet_of(view="table"))
        page.get_by_label("Find").fill("sup")
        page.get_by_label("Order").select_option("name")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url(f"{site.url}/?q=sup&health=&sort=name&view=table")
        expect(page.locator("tbody > tr")).to_have_count(1)
        expect(page.get_by_label("Find")).to_have_value("sup")


@pytest.mark.parametrize("path", [LINKS.fleet, LINKS.project(QUIET)])
def test_what_an_agent_says_appears_without_a_reload(window: Window, site: Site, path: str) -> None:
    """The page on the wall is alive: what came in while one looked is there, and one is where one was."""
    window.resize(PHONE)
    page = window.open(path)
    page.evaluate("window.stayed = true")
    before = page.locator("main").inner_text()
    link = page.locator("main [data-part] a[href]").last
    link.focus()
    place = page.evaluate(_WHERE)
    site.say(QUIET, f"live-{len(path)}", 1, "Are you there?", "I am.")
    window.refresh()
    expect(page.locator("main")).not_to_have_text(before)
    # Lines may have come above it; it stays in sight.
    address, top = page.evaluate(_WHERE)
    assert place[0] == address
    assert abs(place[1] - top) < A_FEW_LINES
    assert page.evaluate("window.stayed")
    assert window.problems == []


def test_an_agent_is_connected_on_one_page(window: Window, site: Site) -> None:
    """Whoever tries Driftline for the first time copies some lines and must see that they work, or gives up."""
    page = window.open(LINKS.connect("langgraph"))
    page.evaluate("window.stayed = true")
    page.get_by_label("Connection", exact=True).fill("newcomer")
    page.get_by_label("Project").fill(QUIET)
    page.get_by_role("button", name="Create a token").click()
    expect(page.locator("#came")).to_contain_text("Waiting for the first trace of newcomer")
    token = page.locator("#made").inner_text()
    page.get_by_role("link", name="OpenTelemetry Collector").click()
    expect(page.locator("#lines")).to_contain_text(f"Bearer {token}")
    page.get_by_role("link", name="Pydantic AI").click()
    expect(page.locator("#install")).to_contain_text(f"Bearer%20{token}")
    said = {
        "id": "n:1",
        "timestamp": iso(NOW),
        "user_message": {"content": "<b>Hello?</b>"},
        "agent_response": {"content": "Hi."},
    }
    site.post("ingest", token, {"session_id": "n", "exchange": said})
    expect(page.locator("#came")).to_contain_text("Connected. 1 exchange")
    expect(page.locator("#came")).to_contain_text("<b>Hello?</b>")
    assert page.evaluate("window.stayed")
    assert token not in page.url
    page.reload()
    expect(page.locator("#install")).to_contain_text("dl_…")
    expect(page.locator("#came")).to_contain_text("Connected.")
    assert window.problems == []


def test_news_take_nothing_out_of_ones_hands(window: Window, site: Site) -> None:
    """Whoever is writing why, or narrowing a list, goes on doing so while the page changes around it; what was unfolded stays so."""
    page = window.open(LINKS.incident(DRIFTED, site.incident))
    page.locator("#reason").fill("Because")
    page.keyboard.press("ArrowLeft")
    page.locator("#sure summary").first.press("Enter")
    page.locator("#reason").focus()
    site.post(f"{DRIFTED}/incidents/{site.incident}", site.operator, {"status": "accepted", "comment": "Mine."}, method="PUT")
    window.refresh()
    expect(page.locator("#decisions")).to_contain_text("Mine.")
    page.keyboard.type("d ")
    expect(page.locator("#reason")).to_have_value("Becausd e")
    assert page.locator("#sure details").first.evaluate("(one) => one.open")
    site.post(f"{DRIFTED}/incidents/{site.incident}", site.operator, {"status": "open"}, method="PUT")
    page = window.open(LINKS.fleet)
    page.get_by_label("Find").press_sequentially("nig")
    expect(page).to_have_url(re.compile("q=nig$"))
    before = page.locator("#totals").inner_text()
    site.say(QUIET, "while-narrowed", 1, "Are you there?", "I am.")
    window.refresh()
    expect(page.locator("#totals")).not_to_have_text(before)
    page.keyboard.type("ht")
    expect(page.get_by_label("Find")).to_have_value("night")
    expect(page.locator("#cards > *")).to_have_count(1)
    assert window.problems == []
