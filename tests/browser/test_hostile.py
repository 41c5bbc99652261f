"""Texts that try to be more than texts: on every page that shows one it is read, as it is, and does nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect
from support.browser_windows import DESKTOP, PHONE, Window
from support.hostile_texts import WILD, Bundle, bundles, corpus, events
from support.servers import until
from support.sites import LINKS, QUIET, Site

from schemas.bounds import NAME

BUNDLES = bundles()
EVERYTHING = [seen for one in BUNDLES for seen in one.seen]
_NO_ROOM = frozenset({"many lines", "wide letters"})
"""Bundles whose incident and run are not among the eight newest, which are all that the page of a project lists."""
AMONG_THE_NEWEST = [seen for one in BUNDLES if _NO_ROOM.isdisjoint(text.name for text in one.texts) for seen in one.seen]
NAMES = " ".join(one.named for one in BUNDLES[:4])
"""Many of them, as an address may have them."""
Places = Mapping[str, Sequence[str]]
"""Selectors, and what every element that one finds has to show."""
EXCHANGE = (
    "h1", "#verdict p.quoted", "#said > pre", "#d-thinking", "#d-about", "#found .dimensions dd", "#found .facts dd", "#judge .problem",
    "#judge ol", "#answer-1 pre", "#prompt-1 pre[aria-labelledby=prompt-m-1]", ".call:has(#answer-1) .pairs", "#people blockquote",
    "#people p",
)  # fmt: skip
INCIDENT = (
    "h1", "#verdict .notice", "#why", "#decisions blockquote", "#decisions li > p", "#decide > p", "#sure p.quoted", "#sure summary + p + p",
    "#part summary ~ .quoted", "#part td:first-child", "#part li strong", "#part blockquote", "#moved .quoted", "#mix td:first-child",
    "#against", "#alerts td:nth-child(2)", "#queries",
)  # fmt: skip
OPEN = ("h1", "#why", "#todo")
"""What an incident has that is not decided yet: what to do about it."""
RUN = ("#verdict dl", "#timeline table", "#timeline nav[aria-label='Event type']")
EVALUATION = (
    "h1", "[aria-labelledby=overall-title]", "[aria-labelledby=checks-title] tbody", "#answer-1 .problem", "#answer-2 pre",
    "[aria-labelledby=about-title]",
)  # fmt: skip
LISTS = {
    "project": (LINKS.project(WILD), ("main",)),
    "anomalies": (LINKS.anomalies(WILD), ("#anomalies table",)),
    "exchanges": (LINKS.exchanges(WILD), ("#rows table",)),
    "sessions": (LINKS.sessions(WILD), ("#rows table",)),
    "wrap quality": (LINKS.wrap_quality(WILD), ("#wraps table",)),
    "incidents": (LINKS.incidents(WILD), ("#incidents table",)),
    "runs": (LINKS.runs(WILD), ("#runs table",)),
    "agents": (LINKS.agents(WILD), ("[aria-label^=Agents] table", "[aria-label^=Runs] table")),
    "evaluations": (LINKS.evaluations(WILD, window="all"), ("#list table", "#models table")),
    "telemetry": (LINKS.telemetry, ("#sessions table", "#alerts table")),
    "agreement": (LINKS.agreement(WILD), ("#agreement table",)),
    "fleet": (LINKS.fleet, ()),
}
"""Pages that show many of them at once."""
ADDRESSES = {
    "path": f"/{quote(NAMES)}",
    "project": f"/projects/{quote(NAMES)}",
    "incident": LINKS.incident(WILD, NAMES[:200]),
    "exchange": LINKS.exchange(WILD, NAMES[:200]),
    "run": LINKS.run(WILD, NAMES[:200]),
    "timeline": LINKS.run(WILD, "run_001", type=NAMES[:200]),
    "evaluation": LINKS.evaluation(WILD, NAMES[:200]),
    "session": LINKS.session(WILD, NAMES[:200]),
    "session by id": f"/sessions/{quote(NAMES[:200], safe='')}",
    "exchanges": LINKS.exchanges(WILD, agent=NAMES[:200], reason=NAMES[:100], label=NAMES[:100]),
    "evaluations": LINKS.evaluations(WILD, case=NAMES[:200], model=NAMES[:100]),
    "page": LINKS.incidents(WILD, cursor=NAMES),
    "agent": f"{LINKS.agents(WILD)}?{urlencode({'agent': NAMES[:200]})}",
    "days": f"{LINKS.project(WILD)}?{urlencode({'window': NAMES})}",
    "telemetry": LINKS.watched(project=NAMES),
    "sign-in": f"{LINKS.sign_in}?{urlencode({'next': '//evil.example/' + NAMES})}",
    "SQL": f"{LINKS.sql}?{urlencode({'q': NAMES})}",
    "fleet": LINKS.fleet_of(q=NAMES[:200]),
}
"""Where they are in the address."""
_INJECTED = """() => {
    const ours = (one) => (one.getAttribute("src") ?? one.getAttribute("href") ?? "").startsWith("/static/");
    const named = "iframe, frame, object, embed, applet, base, style, math, foreignObject, video, audio, marquee, template, "
        + "meta[http-equiv], animate, set, use";
    return [...document.querySelectorAll("*")].filter((one) =>
        one.matches(named)
        || one.matches("script, img, link") && !ours(one)
        || one.matches("form") && one.hasAttribute("action") && !one.getAttribute("action").startsWith("/api/audit/")
        || one.matches("a[href]") && !/^[/#]/.test(one.getAttribute("href"))
            // Links of Markdown, whose targets are written beside them.
            && !(one.matches('.rendered a[rel="noopener nofollow"]') && /^(https?:\\/\\/|mailto:)/i.test(one.getAttribute("href")))
        || [...one.attributes].some(({ name, value }) => name.startsWith("on") || (name === "style" && !one.closest(".plot, .spark")) || name === "srcdoc"
            || name === "formaction" || /^\\s*javascript:/i.test(value) && name !== "value")
    // What somebody writes into the editor stands behind it again, unseen, for its lines to be numbered.
    ).concat(document.querySelectorAll("#main, main").length === 1 ? [] : [document.body]).map((one) => one.outerHTML.slice(0, 200))
        .concat(document.body.innerText.replace(document.querySelector("[data-lines]")?.innerText, "").match(/\\p{M}{5,}|[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\u200f\\u2060\\ufeff\\u{e0041}]/gu) ?? []);
}"""
_UNREAD = """(places) => {
    const written = (json) => json.replace(/\\\\u([0-9a-f]{4})/gi, (_, code) => String.fromCharCode(parseInt(code, 16))).replace(/\\\\(.)/g, "$1");
    for (const one of document.querySelectorAll("details")) one.open = true;
    document.documentElement.dataset.texts = "raw";
    return Object.entries(places).flatMap(([place, texts]) => {
        const found = [...document.querySelectorAll(place)].map((one) => one.innerText);
        return !found.length ? [`there is no ${place}`] : texts.filter((text) =>
            !found.every((words) => words.includes(text) || written(words).includes(text))).map((text) => `${place}: ${text}`);
    });
}"""


@pytest.fixture(scope="session")  # a worker that takes up other modules in between says nothing twice
def wild(site: Site) -> Mapping[int, str]:
    """All of them said through the doors: by agents, runs, judges, raters and who decides. Answers the score of each."""
    for number, one in enumerate(BUNDLES):
        site.say(WILD, one.named, 1, one.text, one.text, agent=one.named, thinking=one.text[:20_000], model=one.named)
        site.work(WILD, f"r {one.named}", events(one), number + 1, one.named)
        decided = {"status": "accepted", "resolvedBy": one.named, "comment": one.text[:1900]}
        site.post(f"{WILD}/incidents/decided-{number}", site.operator, decided, method="PUT")
    found: dict[str, str] = {}

    def judged() -> bool:
        scores = site.get(f"{WILD}/scores?limit=100")["scores"]
        found.update({one["sessionId"]: one["id"] for one in scores if one["tier3BehavioralScore"] is not None})
        return len(BUNDLES) == len(found)

    until(judged, "the scores")
    for one in BUNDLES:
        said = {"score": 2, "comment": one.text[:1900], "rater": one.named}
        site.post(f"{WILD}/scores/{found[one.named]}/human", site.operator, said)
    return {one.number: found[one.named] for one in BUNDLES}


def read(window: Window, places: Places) -> None:
    """All of it is read on the page as it is now; nothing ran, nothing was let in, and nothing is out of its place on screen or phone."""
    page, before = window.page, window.page.url
    assert page.evaluate(_INJECTED) == []
    assert page.evaluate(_UNREAD, places) == []
    assert page.evaluate(_INJECTED) == []
    for size in (DESKTOP, PHONE):
        window.resize(size)
        assert (window.find_too_wide(), window.find_overflowing()) == ([], []), before
    assert window.list_script_effects() == []
    assert window.problems == []
    assert page.url == before
    window.resize(DESKTOP)


@pytest.mark.parametrize("one", BUNDLES, ids=lambda one: ", ".join(text.name for text in one.texts))
def test_whatever_is_said_is_read_and_does_nothing(window: Window, wild: Mapping[int, str], one: Bundle) -> None:
    """Whoever looks into an attack has to see it; looking must not be one: said by agents, tools, judges, raters, policies and cases."""
    pages = {
        LINKS.exchange(WILD, wild[one.number]): EXCHANGE,
        LINKS.incident(WILD, f"decided-{one.number}"): INCIDENT,
        LINKS.incident(WILD, f"open-{one.number}"): OPEN,
        LINKS.run(WILD, f"run_{one.number + 1:03}"): RUN,
        LINKS.evaluation(WILD, f"wild-{one.number}"): EVALUATION,
        LINKS.session(WILD, one.named): ("#verdict",),
    }
    for path, places in pages.items():
        window.open(path)
        read(window, dict.fromkeys(places, one.seen))


@pytest.mark.usefixtures("wild")
@pytest.mark.parametrize("name", LISTS)
def test_lists_show_all_of_them(window: Window, name: str) -> None:
    """Names of agents, sessions, models and raters, titles, reasons, errors: short texts, many at once."""
    path, places = LISTS[name]
    window.open(path)
    read(window, dict.fromkeys(places, AMONG_THE_NEWEST if name == "project" else EVERYTHING))


@pytest.mark.usefixtures("wild")
def test_the_queue_goes_through_all_of_them(window: Window) -> None:
    """The script of the review brings one after the other into the page: what the server escaped must stay a text there."""
    page = window.open(LINKS.review(WILD))
    item, seen = page.locator("[data-item]"), []
    for _ in BUNDLES:
        seen.append(page.locator("#queue").inner_text())
        assert page.evaluate(_INJECTED) == []
        assert window.list_script_effects() == []
        assert window.problems == []
        now = str(item.get_attribute("data-item"))
        page.keyboard.press("s")
        expect(page.locator(f'[data-item="{now}"]')).to_have_count(0)
    assert [one.named for one in BUNDLES if not any(all(words in text for words in one.seen) for text in seen)] == []


def _quoted(text: str, mark: str) -> str:
    """A text as SQL writes names and texts."""
    return mark + text.replace(mark, 2 * mark) + mark


def test_answers_to_questions_are_texts(window: Window) -> None:
    """Rows of SQL are put into the page by a script of ours; so are the names of columns, in tables, choices and charts, and what is refused."""
    page = window.open(LINKS.sql)
    columns = ", ".join(f"{_quoted(one.named, chr(34))} := {one.number} + row" for one in BUNDLES)
    texts = ", ".join(f"({_quoted(one.text[:400], chr(39))}, {one.number})" for one in BUNDLES)
    page.locator("#statement").fill(
        f"SELECT said, unnest(struct_pack({columns})) FROM (VALUES {texts}) AS told(said, row) ORDER BY row"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-table] tbody tr")).to_have_count(len(BUNDLES))
    expect(page.locator("[data-chart] canvas")).to_be_visible()
    read(window, {"[data-table] thead": EVERYTHING, "[data-table] tbody": EVERYTHING})
    page.get_by_label("Chart of").select_option(index=2)
    read(window, {})
    page.locator("#statement").fill(f"SELECT {_quoted(BUNDLES[0].named, chr(34))}")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text(BUNDLES[0].seen[0])
    window.problems.clear()  # a refusal is an answer of 400, which browsers write into the console
    read(window, {})


@pytest.mark.usefixtures("wild")
@pytest.mark.parametrize("path", ADDRESSES.values(), ids=ADDRESSES)
def test_addresses_of_them_lead_nowhere(window: Window, path: str) -> None:
    """Links are sent by anybody: what stands in one is said back as a text, if at all, and leads to no other site."""
    window.open(path)
    window.problems[:] = [one for one in window.problems if not re.search(r"refused: 4\d\d |status of 4\d\d", one)]
    read(window, {})


def test_no_project_and_no_connection_can_be_called_like_that() -> None:
    """Their names stand in addresses, files and terminals: admission takes no such name."""
    assert [one.name for one in corpus() if re.fullmatch(NAME, one.named)] == []


@pytest.mark.usefixtures("wild")
def test_what_comes_while_one_looks_is_a_text(window: Window, site: Site) -> None:
    """Parts of a page are exchanged as they come: that is another way in."""
    page = window.open(LINKS.telemetry)
    one = BUNDLES[0]
    site.say(QUIET, f"new {one.named}", 1, one.text, one.text, agent=one.named, thinking=one.text)
    window.refresh()
    expect(page.locator("#sessions")).to_contain_text("new <script>")
    read(window, {"#sessions": one.seen})
    page = window.open(LINKS.incident(WILD, "open-0"))
    page.locator("#reason").fill(one.text)
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator("#decisions")).to_contain_text("Dismissed")
    read(window, {"#decisions blockquote": one.seen})
