"""What admins do on the pages, done as they do it: giving access, changing the policy, erasing, and what others see of that."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect
from support.browser_windows import Window
from support.sites import LINKS, QUIET, Site

MINUTE = 60
"""Seconds that giving access may take somebody who has never done it; a browser without a person needs a few."""
FIRST_LINE = "bidirectionalScoring: true"
"""What the policy of the site says."""


def signed_in(window: Window, token: str) -> None:
    """Sign in with a token."""
    page = window.open(LINKS.fleet)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("Fleet")


def test_a_new_colleague_has_read_access_within_a_minute(window: Window, signed_out_window: Window, site: Site) -> None:
    """By what is written on the page alone: four clicks and a name. What was given is enough to read, and no more."""
    began = time.monotonic()
    page = window.open(LINKS.fleet)
    page.get_by_role("link", name="Administration").click()
    page.get_by_role("link", name="Give someone access").click()
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("new-colleague")
    expect(page.get_by_label("Read View all pages")).to_be_checked()
    page.get_by_role("button", name="Give access").click()
    expect(
        page.get_by_role("heading", name=re.compile(r"^new-colleague may read every project until \d{4}-\d\d-\d\d$"))
    ).to_be_visible()
    token = page.locator("#made").inner_text()
    assert time.monotonic() - began < MINUTE
    expect(page.locator("main")).to_contain_text(site.url)
    expect(page.locator("[data-issue]")).to_be_hidden()
    signed_in(signed_out_window, token)
    expect(signed_out_window.page.get_by_role("link", name="Administration")).to_have_count(0)
    closed = signed_out_window.open(LINKS.admin)
    expect(closed.locator("main")).to_contain_text("Administration needs the scope admin for every project")
    expect(closed.locator("main")).to_contain_text("Ask ada")
    assert [one.split()[1] for one in signed_out_window.problems if one.startswith("refused")] == ["403"]
    page.get_by_role("link", name="Everyone with access").click()
    expect(page.locator("#people")).to_contain_text("new-colleague")
    assert token not in page.content()
    page.get_by_role("link", name="new-colleague").click()
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator("#tokens")).to_contain_text("revoked")
    signed_out_window.open(LINKS.fleet)
    expect(signed_out_window.page.locator("h1")).to_have_text("Sign in")
    assert window.problems == []


def test_a_project_is_found_among_many_by_a_part_of_its_name(window: Window) -> None:
    """A list of a thousand names is not searched by eye; access to a misspelt one would be access to nothing."""
    page = window.open(LINKS.give)
    field = page.get_by_role("combobox", name="Project")
    names = [one.get_attribute("value") for one in page.locator("#projects option").all()]
    assert QUIET in names
    assert field.get_attribute("list") == "projects"
    page.get_by_label("Name").fill("misspelt")
    field.fill(f"{QUIET}x")
    page.get_by_role("button", name="Give access").click()
    assert "No such project" in field.evaluate("field => field.validationMessage")
    expect(page.locator("[data-issue]")).to_be_visible()
    field.fill(QUIET.upper())
    assert field.evaluate("field => field.validationMessage") == ""
    field.fill("")
    assert field.evaluate("field => field.validationMessage") == ""


def test_access_to_one_project_is_chosen(window: Window, signed_out_window: Window) -> None:
    """The title names the project and the end, and the token signs in."""
    page = window.open(LINKS.give)
    page.get_by_label("Name").fill("narrow")
    page.get_by_role("combobox", name="Project").fill(QUIET)
    page.get_by_label("Admin Everything").check()
    page.get_by_role("combobox", name="Access ends").select_option(label="In a week")
    page.get_by_role("button", name="Give access").click()
    token = page.locator("#made")
    expect(token).to_contain_text("dl_")
    expect(page.locator("#made-title")).to_contain_text(f"project {QUIET} until")
    signed_in(signed_out_window, token.inner_text())
    expect(signed_out_window.page.get_by_role("link", name="Administration")).to_have_count(0)
    expect(signed_out_window.open(LINKS.admin).locator("main")).to_contain_text(
        f"narrow has read, review, query, admin for the project {QUIET}"
    )
    page = window.open(LINKS.person("narrow"))
    expect(page.locator("#tokens")).to_contain_text("2026-11-08")
    page.get_by_role("button", name="End all sign-ins").click()
    expect(page.locator("#signed")).to_contain_text("Not signed in.")
    page.get_by_role("button", name="Create a new token").click()
    expect(page.locator("#made")).to_contain_text("dl_")
    expect(page.locator("#tokens tbody tr")).to_have_count(2)
    signed_out_window.open(LINKS.fleet)
    expect(signed_out_window.page.locator("h1")).to_have_text("Sign in")
    assert window.problems == []


def test_the_policy_is_checked_saved_and_taken_back(window: Window, open_window: Callable[[], Window], tmp_path: Path) -> None:
    """A wrong line is led to, what would change is seen before it is saved, a save that comes too late changes nothing."""
    page, late = window.open(LINKS.policy()), open_window()
    late.open(LINKS.policy())
    text = page.locator("#text")
    before = text.input_value()
    assert FIRST_LINE in before
    text.fill(before.replace(FIRST_LINE, "bidirectionalScorin: true"))
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#trial")).to_contain_text("did you mean bidirectionalScoring?")
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    page.get_by_role("button", name=re.compile("^Line")).click()
    assert page.evaluate("text.value.slice(text.selectionStart, text.selectionEnd)") == "  bidirectionalScorin: true"
    after = before.replace(FIRST_LINE, f"{FIRST_LINE}\n  retentionDays: 30 # <b>agreed</b>")
    for one in (page, late.page):
        one.locator("#text").fill(after)
        one.get_by_role("button", name="Check").click()
        expect(one.get_by_role("table", name="Changes")).to_contain_text("all other projects")
    expect(page.locator(".diff .added")).to_contain_text("retentionDays: 30 # <b>agreed</b>")
    with page.expect_download() as caught:
        page.get_by_role("button", name="Download").click()
    caught.value.save_as(file := tmp_path / "policy.yaml")
    assert after == file.read_text("utf-8")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Saved, not yet in force")).to_be_visible()
    late.page.get_by_role("button", name="Save").click()
    expect(late.page.get_by_role("alert")).to_contain_text("changed in the meantime")
    late.problems.clear()
    expect(page.locator("#text")).to_have_value(after)
    page.get_by_label("Upload a file").set_input_files(file)
    expect(page.locator("#text")).to_have_value(after)
    page.get_by_role("button", name="Undo the last save").click()
    expect(page.locator("#text")).to_have_value(before)
    expect(page.get_by_role("heading", name="Saved, not yet in force")).to_have_count(0)
    assert window.problems + late.problems == []


def test_a_session_is_erased_after_its_name_was_typed(window: Window, site: Site) -> None:
    """What goes is seen first, nothing goes by a slip, and the page says who asked for it and why."""
    site.say(QUIET, "to-erase", 1, "Forget me.", "I shall.")
    page = window.open(LINKS.deletion())
    page.get_by_role("combobox", name="Connection").fill(QUIET)
    page.get_by_role("textbox", name="Session").fill("to-erase")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("table", name="Rows to be deleted")).to_contain_text("exchanges")
    button = page.get_by_role("button", name="Erase for good")
    page.get_by_label("Type to-erase to confirm").fill("to-eras")
    expect(button).to_be_disabled()
    page.get_by_role("textbox", name="Why").fill("asked for by the user")
    page.get_by_label("Type to-erase to confirm").fill("to-erase")
    button.click()
    listed = page.get_by_role("table", name="Erasures, newest first")
    expect(listed).to_contain_text("session to-erase of night")
    expect(listed).to_contain_text("asked for by the user")
    expect(page.locator("button.danger:enabled")).to_have_count(0)
    expect(page.locator("#plan")).to_be_visible()
    page = window.open(LINKS.audit_log(name="ada"))
    expect(page.locator("#lines")).to_contain_text("night/to-erase")
    assert window.problems == []
