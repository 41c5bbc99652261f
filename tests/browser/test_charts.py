"""Charts in a browser: what a mouse, a finger and keys get out of one, and what is there without a script."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.browser_windows import PHONE, Window, open_context
from support.clocks import NOW
from support.sites import DRIFTED, LINKS, Site

TIER = "#trend-tier2-chart"
LIGHT, DARK = "light", "dark"


def at(plot: Locator, share: float) -> tuple[float, float]:
    """A place within a plot, so far from its left."""
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def pointed(page: Page, chart: str, share: float = 0.96) -> Locator:
    """The tooltip of a chart where the mouse points."""
    page.mouse.move(*at(page.locator(f"{chart} .u-over"), share))
    return page.locator(f"{chart} .tip")


def drag_over(page: Page, chart: str, start: float, end: float) -> None:
    """Drag the mouse over a part of a chart."""
    over = page.locator(f"{chart} .u-over")
    page.mouse.move(*at(over, start))
    page.mouse.down()
    for share in ((start + end) / 2, end):
        page.mouse.move(*at(over, share))
    page.mouse.up()


@pytest.fixture
def project(window: Window) -> Page:
    """The page of a project that drifted, with the period before."""
    page = window.open(f"{LINKS.project(DRIFTED)}?compare=before")
    expect(page.locator(f"{TIER} canvas")).to_be_visible()
    return page


def test_a_tooltip_says_what_the_row_of_the_table_says(project: Page) -> None:
    """The number, of how many it is, how sure it is, what it was before: what the line alone cannot say."""
    tip = pointed(project, TIER)
    expect(tip).to_be_visible()
    cells = project.locator(f"{TIER} tbody tr").last.locator("th, td").all_text_contents()
    heads = project.locator(f"{TIER} thead th").all_text_contents()
    assert {"Weighted mean", "Scores", "95% interval", "Period before"} <= set(heads)
    for cell in filter(None, cells):
        expect(tip).to_contain_text(cell)
    project.mouse.move(1, 1)
    expect(tip).to_be_hidden()


def test_the_crosshair_stands_in_every_chart_of_the_page(project: Page) -> None:
    """What else happened on that day is seen at once; one tooltip is enough."""
    pointed(project, TIER)
    for chart in (TIER, "#trend-tier1-chart", "#exchanges-chart"):
        expect(project.locator(f"{chart} .u-cursor-x")).not_to_have_class("u-cursor-x u-off")
    expect(project.locator(".tip:visible")).to_have_count(1)


def test_a_click_on_a_day_shows_its_hours(project: Page) -> None:
    """The next question is when on that day; the comparison stays."""
    day = project.locator(f"{TIER} tbody th").last.text_content()
    project.mouse.click(*at(project.locator(f"{TIER} .u-over"), 0.98))
    project.wait_for_url(f"**{LINKS.project(DRIFTED)}?window=24h&until={day}&compare=before")
    expect(project.locator(f"{TIER} tbody tr")).to_have_count(24)


def test_dragging_over_days_shows_only_these_until_the_zoom_is_reset(project: Page) -> None:
    """The range is that of the whole page and of its links, as if it had been typed into the fields."""
    days = project.locator(f"{TIER} tbody th").all_text_contents()
    drag_over(project, TIER, 0.5, 0.99)
    project.wait_for_url(f"**{LINKS.project(DRIFTED)}?compare=before&since=*")
    shown = project.locator(f"{TIER} tbody th")
    expect(shown.last).to_have_text(days[-1])
    first, count = shown.first.text_content(), shown.count()
    assert first in days[4:-4]
    assert count == len(days) - days.index(str(first))
    expect(project.locator("nav.tabs a", has_text="Sessions")).to_have_attribute(
        "href", re.compile(f"since={first}&until={days[-1]}")
    )
    expect(project.locator("input[name=since]")).to_have_value(str(first))
    project.locator(f"{TIER} .reset-zoom").click()
    expect(shown).to_have_count(len(days))


def test_a_chart_of_fixed_days_zooms_in_place(window: Window, site: Site) -> None:
    """The days of an incident are its evidence, so its page has no period of its own."""
    page = window.open(LINKS.incident(DRIFTED, site.incident))
    expect(page.locator("#days-chart canvas")).to_be_visible()
    address = page.url
    drag_over(page, "#days-chart", 0.3, 0.6)
    page.locator("#days-chart .reset-zoom").click()
    expect(page.locator("#days-chart .reset-zoom")).to_have_count(0)
    assert page.url == address


def test_times_are_those_of_the_browser_until_the_reader_chooses_a_zone(chromium: Browser, site: Site, cookie: str) -> None:
    """UTC is one look away: on hover, or chosen at the foot for all pages."""
    with open_context(chromium, site, cookie, zone="Asia/Tokyo") as context:
        page = context.new_page()
        page.goto(site.url + LINKS.exchanges(DRIFTED))
        expect(page.locator("[data-zones]")).to_have_value("Asia/Tokyo")
        time = page.locator("#rows time").first
        utc = datetime.fromisoformat(str(time.get_attribute("datetime")))
        expect(time).to_have_text(f"{utc + timedelta(hours=9):%Y-%m-%d %H:%M}")
        time.hover()
        expect(time).to_have_attribute(
            "title", f"{utc:%Y-%m-%d %H:%M:%S} UTC\n{utc + timedelta(hours=9):%Y-%m-%d %H:%M:%S} Asia/Tokyo"
        )
        page.locator("[data-zones]").select_option("UTC")
        expect(page.locator("#rows time").first).to_have_text(f"{utc:%Y-%m-%d %H:%M}")
        page.goto(site.url + LINKS.sessions(DRIFTED))
        expect(page.locator("[data-zones]")).to_have_value("UTC")


def test_arrow_keys_go_from_point_to_point_and_are_read_out(project: Page) -> None:
    """Whoever cannot use a mouse, or see, gets the same, and comes to the same page."""
    project.locator(f"{TIER} .plot").focus()
    project.keyboard.press("End")
    rows = project.locator(f"{TIER} tbody th").all_text_contents()
    said = project.locator(f"{TIER} .said")
    expect(said).to_contain_text(rows[-1])
    for _ in range(3):
        project.keyboard.press("ArrowLeft")
    expect(said).to_contain_text(f"{rows[-4]}, Weighted mean")
    project.keyboard.press("Home")
    expect(said).to_contain_text(rows[0])
    project.keyboard.press("Escape")
    expect(said).to_have_text("")
    project.keyboard.press("End")
    project.keyboard.press("Enter")
    project.wait_for_url(f"**window=24h&until={rows[-1]}**")


def test_a_finger_sees_the_numbers_first_and_then_a_link(chromium: Browser, site: Site, cookie: str) -> None:
    """A tap that left the page at once would never show a number."""
    with open_context(chromium, site, cookie, has_touch=True) as context:
        page = Window(context, site).open(LINKS.project(DRIFTED))
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        expect(page.locator(f"{TIER} canvas")).to_be_visible()
        page.touchscreen.tap(*at(page.locator(f"{TIER} .u-over"), 0.9))
        expect(page.locator(f"{TIER} .tip")).to_contain_text("Zoom in")
        assert page.url.endswith(LINKS.project(DRIFTED))
        page.locator(f"{TIER} .tip a").tap()
        page.wait_for_url("**window=24h**")


def test_a_chart_follows_the_size_and_the_colours_of_the_page(project: Page) -> None:
    """A telephone is turned, evening comes."""
    plot = project.locator(f"{TIER} .uplot")
    project.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    expect(plot).to_have_js_property("offsetWidth", project.locator(f"{TIER} .plot").evaluate("(one) => one.clientWidth"))
    picture = "(one) => one.toDataURL()"
    project.emulate_media(color_scheme=LIGHT)  # type: ignore[arg-type]
    light = project.locator(f"{TIER} canvas").evaluate(picture)
    project.emulate_media(color_scheme=DARK)  # type: ignore[arg-type]
    project.wait_for_function("(light) => document.querySelector('#trend-tier2-chart canvas').toDataURL() !== light", arg=light)
    project.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert light == project.locator(f"{TIER} canvas").evaluate(picture), "paper is light"


def test_without_a_script_a_chart_is_its_table(chromium: Browser, site: Site, cookie: str) -> None:
    """What is told does not depend on what a browser may run."""
    with open_context(chromium, site, cookie, has_scripts=False) as context:
        page = context.new_page()
        page.goto(f"{site.url}{LINKS.project(DRIFTED)}")
        expect(page.locator(f"{TIER} tbody tr").last).to_be_visible()
        expect(page.locator(".plot")).to_have_count(0)


def test_a_thousand_small_lines_are_drawn_as_they_come_into_view(window: Window) -> None:
    """A fleet has as many projects: drawing all at once would hold the page."""
    page = window.open(LINKS.project(DRIFTED))
    values = json.dumps([0.9, 0.8, None, 0.85])
    page.evaluate(
        """(values) => document.querySelector("main").append(...Array.from({ length: 1000 }, () => {
            const line = document.createElement("p");
            line.innerHTML = `<span class="spark" data-spark='${values}' role="img" aria-label="falling"></span>`;
            return line;
        }))""",
        values,
    )
    page.locator(".spark").first.scroll_into_view_if_needed()
    expect(page.locator(".spark canvas").first).to_be_visible()
    assert page.locator(".spark canvas").count() < 200
    page.locator(".spark").last.scroll_into_view_if_needed()
    expect(page.locator(".spark").last.locator("canvas")).to_be_visible()


def test_what_is_exchanged_on_a_live_page_is_drawn_again(project: Page) -> None:
    """Pages replace their parts as news come; what was drawn before is let go."""
    project.evaluate("""() => {
        const part = document.querySelector("#days");
        const copy = new DOMParser().parseFromString(part.dataset.seen, "text/html");
        part.replaceChildren(...copy.body.childNodes);
    }""")
    expect(project.locator(f"{TIER} canvas")).to_be_visible()
    expect(pointed(project, TIER)).to_be_visible()


RANGE = "(figure) => { const { min, max } = drawn.get(figure).plot.scales.y; return [min, max]; }"


def test_a_part_is_hidden_by_its_legend_and_stays_hidden(project: Page) -> None:
    """A wide band or a second line can cover what is looked for; nobody hides it again after every reload."""
    band = project.locator(f"{TIER} .legend button").filter(has_text="Baseline")
    before = project.locator(f"{TIER} canvas").evaluate("(canvas) => canvas.toDataURL()")
    band.focus()
    project.keyboard.press("Enter")
    expect(band).to_have_attribute("aria-pressed", "false")
    assert project.locator(f"{TIER} canvas").evaluate("(canvas) => canvas.toDataURL()") != before
    project.reload()
    expect(band).to_have_attribute("aria-pressed", "false")
    expect(project.locator("#trend-tier1-chart .legend button").first).to_have_attribute("aria-pressed", "true")
    band.click(modifiers=["Shift"])
    expect(project.locator(f"{TIER} .legend button[aria-pressed=true]")).to_have_count(1)


def test_the_scale_of_all_charts_is_fitted_common_or_whole(project: Page) -> None:
    """Fitted axes make a hundredth look like a fall; on a common one two measures can be compared."""
    tiers = [project.locator(f"#trend-{tier}-chart") for tier in ("tier1", "tier2")]

    def ranges(name: str) -> list[list[float]]:
        project.locator(".scales label").filter(has_text=name).click()
        return [tier.evaluate(RANGE) for tier in tiers]

    fitted, common = ranges("Fit"), ranges("Common")
    assert ranges("Full range") == [[0, 1], [0, 1]]
    assert fitted[0] != fitted[1]
    assert common[0] == common[1] == [min(low for low, _ in fitted), max(high for _, high in fitted)]
    project.reload()
    expect(project.get_by_role("radio", name="Full range")).to_be_checked()


def test_a_chart_at_full_size_has_an_address_and_its_table(project: Page) -> None:
    """A colleague is sent one chart with its numbers, not a page of eight."""
    project.locator(TIER).get_by_role("button", name="Full size").click()
    dialog = project.locator("dialog.full")
    expect(dialog.locator("tbody tr").last).to_be_visible()
    expect(dialog.locator(".legend")).to_contain_text("95% interval")
    assert dialog.locator(".plot").evaluate("(plot) => plot.clientHeight") > 2 * project.locator(f"{TIER} .plot").evaluate(
        "(plot) => plot.clientHeight"
    )
    address = project.url
    project.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert "#" not in project.url
    project.goto(address)
    project.reload()
    expect(dialog.locator("canvas")).to_be_visible()


def test_a_saved_picture_says_what_it_shows(project: Page, site: Site) -> None:
    """A picture in a report is alone: it needs its project, title, range, marks and legend, and runs nothing of what agents wrote."""
    version = "<script>alert(1)</script>&"
    at = (NOW - timedelta(days=6)).isoformat()
    site.post(f"{DRIFTED}/deployments", site.operator, {"version": version, "at": at})
    project.reload()
    rows = project.locator(f"{TIER} tbody th").all_text_contents()
    project.locator(TIER).get_by_role("button", name="Full size").click()
    files = {}
    for kind in ("SVG", "PNG", "CSV"):
        with project.expect_download() as download:
            project.locator("dialog.full").get_by_role("button", name=kind).click()
        files[kind] = Path(download.value.path()).read_bytes()
    svg = ET.fromstring(files["SVG"])  # noqa: S314 - made by the page under test
    text = " ".join(svg.itertext())
    for part in (DRIFTED, "Tier 2", f"{rows[0]} to {rows[-1]}", "Baseline ± one sigma", f"version {version}"):
        assert part in text
    assert not list(svg.iter("{http://www.w3.org/2000/svg}script"))
    assert files["PNG"].startswith(b"\x89PNG")
    assert [line.split(",")[0] for line in files["CSV"].decode().splitlines()[1:]] == [f'"{row}"' for row in rows]


def test_a_click_on_a_chart_annotates_every_chart(project: Page) -> None:
    """Whoever sees the step and knows its reason says so there, and changes or withdraws it in the list below."""
    text = "<img src=x onerror=alert(1)> switched the prompt"
    project.locator(TIER).get_by_role("button", name="Annotate").click()
    plot = project.locator(f"{TIER} .u-over")
    project.mouse.move(*at(plot, 0.5))
    project.mouse.down()
    project.mouse.move(*at(plot, 0.7), steps=3)
    project.mouse.up()
    form = project.get_by_role("dialog", name="Annotate")
    start, end = (form.locator(f"input[name={name}]").input_value() for name in ("at", "until"))
    assert start < end
    form.get_by_label("What happened").fill(text)
    form.get_by_role("button", name="Annotate").click()
    note = project.locator(".notes li").filter(has_text=text)
    expect(note).to_be_visible()
    assert project.url.endswith("compare=before"), "the click did not zoom in"
    for chart in (TIER, "#exchanges-chart"):
        expect(project.locator(f"{chart} .legend")).to_contain_text("Annotation")
        expect(project.locator(f"{chart} tbody")).to_contain_text(text)
    assert not project.locator("img[src=x]").count()
    note.locator("summary").click()
    note.get_by_label("What happened").fill("Prompt 4")
    note.get_by_role("button", name="Save").click()
    changed = project.locator(".notes li").filter(has_text="Prompt 4")
    expect(changed.locator("strong")).to_have_text("Prompt 4")
    changed.get_by_role("button", name="Delete").click()
    expect(project.locator(".notes li").filter(has_text="Prompt 4")).to_have_count(0)
