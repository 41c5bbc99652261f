"""Users at work on the pages: signing in, deciding, scoring, querying, filtering, and watching updates."""

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

from service.text.zone import ZONE_COOKIE

MAX_SCROLL_SHIFT = 100
"""Pixels that the focused element may move on an update; a few lines of text."""
MAX_LAYOUT_SHIFT = 0.03
_FOCUS_POSITION = "[document.activeElement.getAttribute('href'), document.activeElement.getBoundingClientRect().top]"


def test_a_deep_link_leads_through_the_sign_in_to_its_page(signed_out_window: Window, site: Site) -> None:
    """Alerts contain links, and a user who follows one must reach the incident after the sign-in."""
    incident_path = LINKS.incident(DRIFTED, site.incident)
    page = signed_out_window.open(incident_path)
    expect(page.locator("h1")).to_have_text("Sign in")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type("dl_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("token")
    assert [problem.split()[1] for problem in signed_out_window.problems if problem.startswith("refused")] == ["401"]
    page.get_by_label("Token").fill(f" {site.operator}\n")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(site.url + incident_path)
    expect(page.locator("h1")).to_contain_text("answer quality")
    assert site.operator not in page.content()
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    page.goto(site.url + LINKS.fleet)
    expect(page.locator("h1")).to_have_text("Sign in")
    assert {entry["name"] for entry in page.context.cookies()} == {ZONE_COOKIE}, "only the time zone stays"


def test_a_link_signs_in_and_the_palette_leads_to_a_project(signed_out_window: Window, site: Site) -> None:
    """A new user opens a link instead of pasting a secret, and the code must not stay in the browser's history."""
    code = site.access.sign_ins.create_link(site.operator)
    page = signed_out_window.open(f"{LINKS.sign_in}#{code}")
    expect(page.locator("h1")).to_have_text("Fleet")
    assert "#" not in page.url
    page.wait_for_load_state("load")
    page.keyboard.press("Control+k")
    page.get_by_label("Page or project").fill(QUIET)
    expect(page.get_by_role("dialog").get_by_role("link", name=QUIET)).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url(site.url + LINKS.project(QUIET))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Next or previous incident")
    page.keyboard.press("Escape")
    page.go_back()
    assert code not in page.url
    page.goto(f"{site.url}{LINKS.sign_in}#{code}")
    expect(page.get_by_role("alert")).to_contain_text("The link was used or has expired")
    assert [problem.split()[1] for problem in signed_out_window.problems if problem.startswith("refused")] == ["401"]


def test_a_decision_made_by_keyboard_appears_in_other_windows(
    window: Window, open_window: Callable[[], Window], site: Site
) -> None:
    """Two people on call must not investigate the same incident, so decisions appear without a reload."""
    colleague = open_window()
    for incident_window in (window, colleague):
        incident_window.open(LINKS.incident(DRIFTED, site.incident))
        incident_window.page.evaluate("window.stayed = true")
    fleet = open_window()
    fleet.open(LINKS.fleet)
    expect(fleet.page.locator("main")).to_contain_text("1 open incident")
    keyboard = window.page.keyboard
    main = window.page.locator("main")

    def decide(reason: str, button: str) -> None:
        window.tab_to(window.page.locator("#reason"))
        keyboard.insert_text(reason)
        window.tab_to(window.page.get_by_role("button", name=button))
        keyboard.press("Enter")

    window.tab_to(window.page.get_by_role("button", name="New normal"))
    keyboard.press("Enter")
    expect(window.page.locator("#reason")).to_be_focused()
    expect(main).to_contain_text("No decision yet.")
    reason = "A new prompt went live; it is being <b>rolled back</b>."
    decide(reason, "New normal")
    expect(main).to_contain_text("Resolved: new normal")
    colleague.refresh()
    expect(colleague.page.locator("main")).to_contain_text(reason)
    expect(colleague.page.locator("main")).to_contain_text("ada")
    fleet.refresh()
    expect(fleet.page.locator("main")).not_to_contain_text("1 open incident")
    decide("Not so.", "Dismiss")
    expect(main).to_contain_text("Dismissed")
    decide("It came back.", "Reopen")
    expect(window.page.get_by_role("button", name="Acknowledge")).to_be_visible()
    colleague.refresh()
    expect(colleague.page.locator("#decisions")).to_contain_text("It came back.")
    expect(colleague.page.get_by_role("button", name="Acknowledge")).to_be_visible()
    assert window.page.evaluate("window.stayed")
    assert colleague.page.evaluate("window.stayed")
    assert window.problems + colleague.problems + fleet.problems == []


def test_script_and_templates_format_errors_alike(window: Window) -> None:
    """An error is the same sentence whether it comes with the page or later."""
    page = window.open(LINKS.fleet)
    assert {error: page.evaluate("(error) => toSentence(error)", error) for error in SENTENCES} == SENTENCES


def test_a_card_filled_from_another_page_keeps_its_rows_on_failure(window: Window) -> None:
    """If the other page fails or lacks the part, the card keeps its content and links to the page."""
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


def test_updates_keep_the_selection_for_a_bulk_change(window: Window, site: Site) -> None:
    """A user selects incidents, gives one reason and sees the result. A reload does not repeat the change."""
    page = window.open(LINKS.inbox(project=DRIFTED))
    page.get_by_label("All", exact=True).check()
    site.post(f"{DRIFTED}/incidents/{site.incident}", site.operator, {"assignee": "me"}, method="PUT")
    window.refresh()
    checkboxes = page.locator('input[name="incident"]')
    assert checkboxes.count() == page.locator('input[name="incident"]:checked').count()
    expect(page.locator("#bulk")).to_contain_text(re.compile(r"\d selected"))
    page.get_by_role("textbox", name="Reason").fill("We are looking into it.")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("#result")).to_contain_text("acknowledged.")
    expect(page.locator("#result")).to_be_focused()
    page.reload()
    expect(page.locator("#result")).to_have_count(0)
    expect(page.locator("tbody")).to_contain_text("Acknowledged")
    page.get_by_label("All", exact=True).check()
    expect(page.locator("#bulk")).to_contain_text(re.compile(r"\d selected"))
    page.get_by_role("textbox", name="Reason").fill("Not ours.")
    page.get_by_role("button", name="Reopen").click()
    expect(page.locator("#result")).to_contain_text("open again.")
    assert window.problems == []


def test_a_comment_keeps_the_status(window: Window, site: Site) -> None:
    """The button beside the decisions only stores the text."""
    page = window.open(LINKS.incident(DRIFTED, site.incident))
    before = page.locator("#verdict").inner_text()
    page.locator("#reason").fill("Looks like the prompt.")
    page.get_by_role("button", name="Comment", exact=True).click()
    expect(page.locator("#decisions")).to_contain_text("Looks like the prompt.")
    assert page.locator("#verdict").inner_text() == before
    expect(page.get_by_role("button", name="Acknowledge")).to_be_visible()
    assert window.problems == []


def test_the_review_queue_works_by_keyboard(window: Window, site: Site) -> None:
    """A rater who scores fifty exchanges keeps the hands on the keyboard: a digit scores, and so do Tab and Enter."""
    page = window.open(LINKS.review(DRIFTED))
    item = page.locator("[data-item]")
    score_ids: list[str] = []
    for key in "12345":
        score_id = str(item.get_attribute("data-item"))
        assert score_id not in score_ids
        score_ids.append(score_id)
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
        expect(item).not_to_have_attribute("data-item", score_id)
    page.keyboard.press("s")
    expect(page).to_have_url(re.compile("skip="))
    expect(page.locator("tfoot")).to_contain_text("5")
    human_scores = [site.get(f"{DRIFTED}/scores/{score_id}/human")["humanScores"][-1] for score_id in score_ids]
    assert [human_score["score"] for human_score in human_scores] == [1, 2, 3, 4, 5]
    assert human_scores[1]["comment"] == "It 1 does not answer 5."
    page.keyboard.press("b")
    expect(page).to_have_url(re.compile("blind=true"))
    expect(page.locator("main")).to_contain_text("verdict is hidden")
    assert window.problems == []


def test_a_queue_is_created_filled_from_a_list_and_reviewed_by_keyboard(window: Window, site: Site) -> None:
    """A task of a team is a queue: its lead describes it, picks exchanges while reading, and reviewers see what came before."""
    page = window.open(LINKS.review_queues(DRIFTED, reason="left out", anomaly="yes"))
    expect(page.get_by_label("Anomaly reason or flag")).to_have_value("left out")
    page.get_by_label("Name", exact=True).fill("refunds")
    page.get_by_label("Rubric").fill("Does it follow the policy?")
    page.get_by_label("Transparency").check()
    page.locator('input[name="rule"]').uncheck()
    page.get_by_role("button", name="Create queue").click()
    expect(page.locator("#queues")).to_contain_text("By hand")
    window.open(LINKS.exchanges(DRIFTED))
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-queue-bar]")).to_contain_text("1 selected")
    page.get_by_role("button", name="Add to queue").click()
    expect(page.get_by_role("status").filter(has_text="added")).to_have_text("1 exchange added to refunds.")
    window.open(LINKS.review(DRIFTED, "refunds"))
    expect(page.locator(".rubric")).to_have_text("Does it follow the policy?")
    score_id = str(page.locator("[data-item]").get_attribute("data-item"))
    page.locator('[data-dimension="transparency"][value="4"]').check()
    page.keyboard.press("2")
    expect(page.locator("#queue")).to_contain_text("Nothing waits for you")
    [human_score] = site.get(f"{DRIFTED}/scores/{score_id}/human")["humanScores"]
    assert (human_score["score"], human_score["queue"], human_score["dimensions"]) == (2, "refunds", {"transparency": 4})
    window.open(LINKS.review_queues(DRIFTED, edit="refunds"))
    page.get_by_role("button", name="Close the queue").click()
    expect(page.locator("#queues")).to_contain_text("No queues yet")
    assert window.problems == []


def test_a_statement_is_corrected_charted_downloaded_and_shared(
    window: Window, open_window: Callable[[], Window], tmp_path: Path
) -> None:
    """An analyst fixes a statement with the marked error, then downloads the rows and sends the address to a colleague."""
    page = window.open(LINKS.sql)
    page.locator("#statement").fill("SELECT project,\n  count(*) AS exchanges\nFROM nowhere\nGROUP BY project")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("LINE 3")
    assert page.evaluate("getSelection().toString()") == "FROM nowhere"
    window.problems.clear()  # browsers log the status 400 of a refused statement
    statement = (
        "SELECT exchange_at::DATE AS day, count(*) AS scored FROM scores WHERE project = 'support' GROUP BY day ORDER BY day"
    )
    page.locator("#statement").fill(statement)
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-table] tbody tr")).to_have_count(25)
    expect(page.locator("[data-chart] canvas")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    file = tmp_path / "rows.csv"
    download.value.save_as(file)
    header, *rows = file.read_text("utf-8").splitlines()
    assert header == "day,scored"
    assert len(rows) == 25
    page.get_by_label("as", exact=True).select_option("bar")
    shared = open_window()
    shared.page.goto(page.url)
    expect(shared.page.locator("#statement")).to_have_value(statement)
    shared.page.get_by_role("button", name="Run").click()
    expect(shared.page.get_by_label("as", exact=True)).to_have_value("bar")
    assert window.problems + shared.problems == []


def test_session_ids_in_a_result_are_links(window: Window) -> None:
    """An analyst who found a session by SQL reads it next; other columns stay text."""
    page = window.open(LINKS.sql)
    page.locator("#statement").fill(
        "SELECT session_id, agent FROM scores WHERE project = 'support' ORDER BY exchange_at LIMIT 1"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-table] tbody a")).to_have_count(1)
    session = page.locator("[data-table] tbody a").text_content()
    page.locator("[data-table] tbody a").click()
    expect(page.locator("h1 small.id")).to_have_text(f"Session {session}")
    assert window.problems == []


def test_the_first_screen_on_a_phone_has_the_main_content(window: Window, site: Site) -> None:
    """Somebody on call looks at a phone, and must see the first project, incident or run without scrolling."""
    window.resize(PHONE)
    for path, main_element in (
        (LINKS.fleet, "#cards > li"),
        (LINKS.inbox(), "tbody tr"),
        (LINKS.project(DRIFTED), "#incidents"),
        (LINKS.exchanges(DRIFTED), "tbody tr"),
        (LINKS.runs(WORKING), "tbody tr"),
        (LINKS.incident(DRIFTED, site.incident), "#why"),
    ):
        box = window.open(path).locator(main_element).first.bounding_box()
        assert box is not None, path
        assert box["y"] < PHONE[1] * 0.75, path


def test_the_list_is_marked_busy_during_a_search(window: Window) -> None:
    """Until the answer arrives, an unmarked list would look as if the project did not exist."""
    page = window.open(LINKS.fleet)
    held_requests: list[Route] = []

    def hold(route: Route) -> None:
        held_requests.append(route)

    page.route("**/?q=*", hold)
    with page.expect_request(lambda request: "q=" in request.url):
        page.get_by_label("Find a project").fill(DRIFTED)
    form = page.locator("form[data-filters]")
    projects = page.locator("#projects")
    expect(form).to_have_attribute("aria-busy", "true")
    expect(projects).to_have_attribute("aria-busy", "true")
    spinner_style = "getComputedStyle(document.querySelector('.find'), '::after')"
    assert page.evaluate(f"{spinner_style}.animationName") == "turning"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(f"[{spinner_style}.animationName, {spinner_style}.borderTopLeftRadius]") == ["none", "50%"]
    page.emulate_media(reduced_motion="no-preference")
    with page.expect_response(lambda response: "q=" in response.url):
        held_requests[-1].continue_()
    expect(form).not_to_have_attribute("aria-busy", "true")
    expect(projects).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#cards > *")).to_have_count(1)
    page.unroute("**/?q=*")
    assert window.problems == []


@pytest.mark.parametrize("path", [LINKS.fleet, LINKS.project(DRIFTED), LINKS.runs(WORKING), LINKS.sql])
def test_the_layout_is_stable_while_a_page_loads(window: Window, path: str) -> None:
    """A user who aims at a moving tile hits another one. The Core Web Vitals rate a layout shift of up to 0.1 as good."""
    page = window.open(path)
    layout_shift = """() => new Promise((done) => new PerformanceObserver((list) => done(list.getEntries().reduce((sum, entry) => sum + entry.value, 0)))
        .observe({ type: "layout-shift", buffered: true }) || setTimeout(() => done(0), 500))"""
    assert page.evaluate(layout_shift) < MAX_LAYOUT_SHIFT


def test_the_sql_page_says_how_old_its_snapshot_is(window: Window) -> None:
    """A result is only as current as the snapshot it was read from."""
    page = window.open(LINKS.sql)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#result")).to_be_visible()
    expect(page.locator("#snapshot")).to_contain_text(re.compile(r"Snapshot of [-\d]+ [:\d]+, .+ old\."))
    assert window.problems == []


def test_parameters_of_a_statement_are_fields_that_can_be_shared(window: Window, open_window: Callable[[], Window]) -> None:
    """Users try an example with their own values. Text and comments that look like parameters get no field."""
    page = window.open(LINKS.sql)
    expect(page.get_by_role("group", name="Parameters")).to_be_hidden()
    page.get_by_text("What does judging a drifting agent cost?").click()
    page.locator(".example:has(details[open]) [data-use]").click()
    expect(page.get_by_label("$agent", exact=True)).to_have_value("%")
    statement = "SELECT '$a' AS a, $$ $b $$ AS b, $C::INT + $c::INT AS sum, $name AS name -- $d\n/* $e */"
    page.locator("#statement").fill(statement)
    fields = page.locator("[data-parameters] input")
    assert [field.get_attribute("name") for field in fields.all()] == ["p.C", "p.name"]
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
    window.problems.clear()  # browsers log the status 400 of the sum with a text, sent before the number
    page.locator("#statement").fill(statement)
    shared = open_window()
    shared.page.goto(page.url)
    expect(shared.page.get_by_label("$C", exact=True)).to_have_value("4")
    assert window.problems + shared.problems == []


def test_a_copy_button_confirms_the_copy(window: Window) -> None:
    """A button without visible effect is pressed again and again."""
    page = window.open(LINKS.run(WORKING, "run_002"))
    button = page.get_by_role("button", name="Copy the fix")
    button.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    expect(button).to_be_visible()
    assert window.problems == []


def test_everyday_questions_take_few_clicks(window: Window, site: Site) -> None:
    """Somebody on call has seconds: one click from the fleet to what got worst, two to its evidence, four to yesterday's failures."""
    page = window.open(LINKS.fleet)
    page.locator("li.card", has=page.get_by_role("link", name=DRIFTED, exact=True)).get_by_role(
        "link", name=re.compile("^since ")
    ).click()
    page.wait_for_url(site.url + LINKS.incident(DRIFTED, site.incident))
    expect(page.get_by_role("heading", name="Why")).to_be_visible()
    expect(page.get_by_role("heading", name="What to do")).to_be_visible()
    page.locator("main").get_by_role("link", name=re.compile("^Answer quality 0")).first.click()
    page.wait_for_url("**/sessions/**")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.url == page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("link", name="Sessions", exact=True).first.click()
    page.get_by_role("link", name="Yesterday").click()
    page.get_by_role("link", name="With a failed tool call").click()
    page.wait_for_url(re.compile(r"since=(\d{4}-\d\d-\d\d)&until=\1&tool_error=yes"))


def test_the_filters_of_the_fleet_are_in_the_address(window: Window) -> None:
    """A filtered list can be sent to a colleague, and the back button restores it."""
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


def test_the_fleet_is_filtered_during_typing(window: Window, site: Site) -> None:
    """The list follows each key without a page load, keeps the caret, and updates only the filtered projects."""
    page = window.open(LINKS.fleet)
    page.evaluate("window.stayed = true")
    find = page.get_by_label("Find")
    count = page.locator("#count")
    unfiltered_count = count.inner_text()
    find.press_sequentially("nigt")
    expect(page.get_by_role("heading", name="No projects match")).to_be_visible()
    expect(count).to_contain_text("0 of")
    find.press("ArrowLeft")
    page.keyboard.type("h")
    expect(page.locator("#cards > *")).to_have_count(1)
    assert find.evaluate("(input) => [input.selectionStart, input.selectionEnd]") == [4, 4]
    assert "changed" not in (page.locator("#projects").get_attribute("class") or ""), "a filtered list is not marked as changed"
    before = page.locator("#totals").inner_text()
    site.say(QUIET, "while-typing", 1, "Are you there?", "I am.")
    window.refresh()
    expect(page.locator("#totals")).not_to_have_text(before)
    expect(page.locator("#cards > *")).to_have_count(1)
    expect(find).to_have_value("night")
    find.fill("")
    expect(count).to_have_text(unfiltered_count)
    expect(page).to_have_url(site.url + LINKS.fleet)
    assert page.evaluate("window.stayed")
    assert window.problems == []


def test_a_heading_reverses_the_order(window: Window) -> None:
    """The field for the order must agree with the list, because users believe it."""
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


def test_a_phone_shows_every_navigation_link(window: Window) -> None:
    """Users do not find links beyond the edge, because nothing shows that the row continues."""
    page = window.open(LINKS.project(DRIFTED))
    window.resize(PHONE)
    for name in ("Pages", f"Pages of {DRIFTED}"):
        links = page.get_by_role("navigation", name=name, exact=True).get_by_role("link").all()
        boxes = [link.bounding_box() for link in links]
        assert len(boxes) > 5
        assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= PHONE[0] for box in boxes), name


@pytest.mark.parametrize(
    ("rows", "limit", "summary"),
    [
        (1, 100, "1 row ·"),
        (100, 100, "all 100 rows ·"),
        (101, 100, "the first 100 rows; there are more ·"),
        (1001, 10_000, "all 1,001 rows, first 1,000 shown ·"),
    ],
)
def test_a_result_says_whether_it_is_complete(window: Window, rows: int, limit: int, summary: str) -> None:
    """An analyst who adds up a thousand rows must know that there were more."""
    page = window.open(f"/sql?q=SELECT+i+FROM+range({rows})+AS+r(i)&rows={limit}")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[data-summary]")).to_contain_text(re.compile(f"^{re.escape(summary)}"))


def test_input_during_loading_filters_the_fleet(window: Window, site: Site) -> None:
    """On a slow connection the fields appear before the script that reads them."""
    page = window.page
    held_requests: list[Route] = []

    def hold(route: Route) -> None:
        held_requests.append(route)

    for fill in (
        lambda: page.get_by_label("Find").fill(QUIET),
        lambda: page.get_by_label("Health").select_option("Critical"),
        lambda: page.get_by_label("Order").select_option("By name"),
    ):
        page.route("**/lists.*", hold)
        with page.expect_request("**/lists.*"):
            page.goto(site.url + LINKS.fleet, wait_until="commit")
        fill()
        held_requests.pop().continue_()
        page.unroute("**/lists.*")
        expect(page).to_have_url(re.compile("q=|health=|sort="))
    assert window.problems == []


def test_the_fleet_is_filtered_without_scripts(chromium: Browser, site: Site, cookie: str) -> None:
    """The form submits to the same address by itself."""
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
def test_a_new_exchange_appears_without_a_reload(window: Window, site: Site, path: str) -> None:
    """A page on a wall display stays current, and keeps the focus and the scroll position."""
    window.resize(PHONE)
    page = window.open(path)
    page.evaluate("window.stayed = true")
    before = page.locator("main").inner_text()
    link = page.locator("main [data-part] a[href]").last
    link.focus()
    href_before, top_before = page.evaluate(_FOCUS_POSITION)
    site.say(QUIET, f"live-{len(path)}", 1, "Are you there?", "I am.")
    window.refresh()
    expect(page.locator("main")).not_to_have_text(before)
    # New lines may appear above the focused link, which stays in view.
    href, top = page.evaluate(_FOCUS_POSITION)
    assert href == href_before
    assert abs(top - top_before) < MAX_SCROLL_SHIFT
    assert page.evaluate("window.stayed")
    assert window.problems == []


def test_an_agent_is_connected_on_one_page(window: Window, site: Site) -> None:
    """A first-time user copies some lines and must see that they work."""
    page = window.open(LINKS.connect("langgraph"))
    page.evaluate("window.stayed = true")
    page.get_by_label("Connection", exact=True).fill("newcomer")
    page.get_by_label("Project").fill(QUIET)
    page.get_by_role("button", name="Create a token").click()
    expect(page.locator("#came")).to_contain_text("Waiting for the first trace of newcomer")
    token = page.locator("#made").inner_text()
    page.locator("#stacks > summary").click()
    page.get_by_role("link", name="OpenTelemetry Collector").click()
    expect(page.locator("#lines")).to_contain_text(f"Bearer {token}")
    page.locator("#stacks > summary").click()
    page.get_by_role("link", name="Pydantic AI").click()
    expect(page.locator("#install")).to_contain_text(f"Bearer%20{token}")
    exchange = {
        "id": "n:1",
        "timestamp": iso(NOW),
        "user_message": {"content": "<b>Hello?</b>"},
        "agent_response": {"content": "Hi."},
    }
    site.post("ingest", token, {"session_id": "n", "exchange": exchange})
    expect(page.locator("#came")).to_contain_text("Connected. 1 exchange")
    expect(page.locator("#came")).to_contain_text("<b>Hello?</b>")
    assert page.evaluate("window.stayed")
    assert token not in page.url
    page.reload()
    expect(page.locator("#install")).to_contain_text("dl_…")
    expect(page.locator("#came")).to_contain_text("Connected.")
    assert window.problems == []


def test_updates_keep_typed_text_and_opened_details(window: Window, site: Site) -> None:
    """A user who is typing a reason or a filter is not interrupted when the page updates."""
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
    assert page.locator("#sure details").first.evaluate("(details) => details.open")
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
