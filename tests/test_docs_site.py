"""The documentation as a site: it builds strictly, has a heading for everything there is, loads nothing from elsewhere, and its guides work."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
import typer.main
from fastapi.routing import APIRoute
from playwright.sync_api import expect
from support.browser_windows import browser
from support.processes import skip_or_fail
from support.typed_guides import Terminal, files_in, is_shown, typed_in

from audit.detectors.detectors import FAILURE_TYPES
from audit.exchanges import cascade, sampling
from schemas.errors import DriftlineError
from schemas.registry import current_schemas
from service.cli.main import application
from service.server.app import ROUTERS
from service.setup.settings import PREFIX, Settings
from streams.kafka.topics import TOPICS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted(
    path
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]
    if typed_in(path.read_text("utf-8")) and path.name not in {"tutorial.md", "on-call.md", "evaluation.md", "detector.md"}
)
"""Guides with commands that are typed here; those of the tutorial and on-call.md are typed into the demo, by its tests, those of
evaluation.md and detector.md by theirs."""
OF_THE_DEMO = ".venv/bin/driftline demo --last-day 2026-11-01"
"""What tests/trial/demo/test_demo.py looks at."""
GROUP: Any = typer.main.get_command(application())
LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""What makes a browser load something, and where it says what."""
UNREAD = re.compile(r"^\s*(?:[-*] |\d+\. |\||```)|\*\*|\]\(", re.MULTILINE)
"""Markdown that stands in a paragraph because nothing has read it."""


@dataclass
class Seen(HTMLParser):
    """What is in a page."""

    headings: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    cells: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is loaded, and where a text begins."""
        said = dict(attrs)
        if tag in LOADING and not (tag == "link" and said.get("rel") in {"canonical", "prev", "next", "alternate"}):
            self.loaded.append(said.get(LOADING[tag]) or "")
        if tag in {"h1", "h2", "h3", "p", "td"}:
            self._text = ""
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Note a text that has ended."""
        if tag in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]
        if tag in {"h1", "h2", "h3"}:
            self.headings.append(self._text.rstrip("¶").strip())
        if tag == "p":
            self.paragraphs.append(self._text)
        if tag == "td":
            self.cells.add(self._text.strip())

    def handle_data(self, data: str) -> None:
        """Take in text; what is code in a paragraph has no meaning as Markdown."""
        if not {"pre", "style", "script"} & {*self._open} and not ("code" in self._open and "p" in self._open):
            self._text += data


Site = Mapping[str, Seen]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once, whichever worker of the test run comes first."""
    base = tmp_path_factory.getbasetemp()
    built = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
            environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            assert done.stderr == ""
    return built


@pytest.fixture(scope="module")
def site(folder: Path) -> Site:
    """Every page by its address."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path.relative_to(folder).as_posix()] = seen = Seen()
        seen.feed(path.read_text("utf-8"))
    return pages


def commands(group: Any, before: str = "driftline") -> Iterator[str]:
    """Every command that is shown, groups with their members."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield f"{before} {name}"
        if hasattr(command, "commands"):
            yield from commands(command, f"{before} {name}")


def endpoints() -> set[str]:
    """Every endpoint that the API describes."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    return {f"{method} {route.path_format}" for route in routes for method in route.methods}


def errors(kind: type[DriftlineError] = DriftlineError) -> set[str]:
    """Every expected error that is loaded."""
    return {kind.__name__}.union(*(errors(one) for one in kind.__subclasses__() if not one.__module__.startswith("test")))


EVERYTHING = {
    "commands": lambda: {*commands(GROUP)},
    "settings": lambda: {f"{PREFIX}{name.upper()}" for name in Settings.__struct_fields__},
    "endpoints": endpoints,
    "topics": lambda: {*TOPICS},
    "records": lambda: {*current_schemas()},
    "detectors": lambda: {*FAILURE_TYPES},
    "errors": errors,
    "tiers": lambda: {
        *(f"gate: {name}" for name in get_args(cascade.OpeningReason)),
        *(f"sampling: {name}" for name in (*get_args(sampling.CertainReason), sampling.ROUTINE_SAMPLE)),
        *(
            f"state: {name}"
            for name in ["scored", "not_applicable", "skipped_gate", "skipped_cost_cap", "skipped_sampling", "unscored"]
        ),
    },
}
"""What has to have a heading on a page of the reference."""


@pytest.mark.parametrize("page", EVERYTHING)
def test_everything_there_is_has_its_heading(page: str, site: Site) -> None:
    """Whoever looks a name up finds it, and can link to it."""
    wanted = EVERYTHING[page]()

    assert wanted
    assert wanted - {*site[f"reference/{page}.html"].headings} == set()


def test_every_field_of_every_record_is_told(site: Site) -> None:
    """A column whose meaning is guessed is read wrongly."""
    fields = {one["name"] for schema in current_schemas().values() for one in schema.fields}

    assert fields - site["reference/records.html"].cells == set()


def test_pages_that_are_made_from_the_code_are_as_it_is() -> None:
    """They are committed, so that whoever reads the repository has them: `make generate` writes them anew."""
    command = [sys.executable, "docs/site/publish.py", "--check"]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )

    assert done.returncode == 0
    assert done.stderr == ""


def test_every_document_is_in_the_site(site: Site) -> None:
    """What is built from a list of pages forgets new ones."""
    wanted = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}

    assert wanted - {*site} == set()


def test_no_page_loads_anything_from_elsewhere(folder: Path, site: Site) -> None:
    """Documentation that phones somebody tells them who reads it, and is broken where there is no network."""
    styles = {
        path.name: re.findall(r"(?:@import |url\()[\"']?((?:https?:)?//[^\"')]+)", path.read_text("utf-8"))
        for path in folder.rglob("*.css")
    }

    assert {name: found for name, found in styles.items() if found} == {}
    assert {name: away for name, seen in site.items() if (away := [one for one in seen.loaded if urlsplit(one).netloc])} == {}
    assert all("Content-Security-Policy" in (folder / name).read_text("utf-8") for name in site)


def test_what_pages_load_is_there(folder: Path, site: Site) -> None:
    """A picture that is missing is seen only by readers."""
    for name, seen in site.items():
        if name != "404.html":  # its addresses are those of a site at the root of a host
            here = (folder / name).parent
            assert [one for one in seen.loaded if not (here / urlsplit(one).path).exists()] == [], name


SEARCHED = {
    "heartbeatInterval": "how-to/alerts",
    "langgraph": "how-to/opentelemetry",
    "kubernetes": "how-to/kubernetes",
    "gdpr": "explanations/privacy",
    "grafana": "how-to/grafana",
    "sso": "deploying",
    "pricing": "explanations/cost",
    "openclaw": "openclaw",
    "anchors": "how-to/anchors",
}
"""Words that readers search for, and the page that answers."""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_search_finds_what_is_typed_without_a_network(folder: Path, width: int) -> None:
    """It is a script with an index of its own: at any width, nothing is asked of another host, and nothing spills over."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=folder)) as server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        stack.callback(server.shutdown)
        try:
            page = stack.enter_context(browser()).new_page(viewport={"width": width, "height": 844})
        except FileNotFoundError as error:
            skip_or_fail(str(error))
        asked, wrong = [], []
        page.on("request", lambda one: asked.append(one.url))
        page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
        page.goto(f"http://127.0.0.1:{server.server_port}/how-to/on-call.html")
        page.keyboard.press("/")
        for word, answer in SEARCHED.items():
            page.get_by_role("textbox", name="Search").press("Control+a")
            page.keyboard.type(word)
            found = page.locator(f".md-search-result__link[href*='{answer}.html']")
            expect(found.first).to_be_attached()
        # The search slides in, and lies beside the page until it has.
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")

    assert {urlsplit(url).hostname for url in asked} - {"127.0.0.1", None} == set()
    assert wrong == []


def test_no_markdown_is_left_unread(site: Site) -> None:
    """A list without an empty line before it is one long sentence in the site, and looks right elsewhere."""
    assert {
        name: bad[:2] for name, seen in site.items() if (bad := [one[:80] for one in seen.paragraphs if UNREAD.search(one)])
    } == {}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_what_a_guide_has_the_reader_type_works(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And prints what the guide says."""
    text = guide.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in [name for name in os.environ if name.startswith((PREFIX, "ANTHROPIC_"))]:
        monkeypatch.delenv(name)
    for name, content in files_in(text).items():
        (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    terminal = Terminal(tmp_path)
    for typed in typed_in(text):
        if typed.command == OF_THE_DEMO:
            continue
        printed = terminal.type(typed.command)
        assert is_shown(typed.shown, printed), f"$ {typed.command}\n{printed}"


def test_guides_are_typed() -> None:
    """A mark that is spelt otherwise would have nothing tested."""
    assert {"README", "ci", "methodology", "sampling-and-cost", "back-up"} <= {path.stem for path in GUIDES}


def test_a_receiver_of_the_guide_tells_what_is_genuine() -> None:
    """Its code is copied."""
    from datetime import UTC, datetime, timedelta

    from service.alerts.delivery import signature

    names: dict[str, Any] = {}
    exec(files_in((DOCS / "how-to" / "alerts.md").read_text("utf-8"))["receiver.py"], names)  # noqa: S102 - our own document
    now, secret, body = datetime.now(UTC), "sixteen-characters", b"{}"

    assert names["is_genuine"](signature(secret, body, now), body, secret.encode())
    assert not names["is_genuine"](signature(secret, body, now), b"[]", secret.encode())
    assert not names["is_genuine"](signature(secret, body, now - timedelta(hours=1)), body, secret.encode())


@pytest.mark.parametrize("document", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.stem)
def test_options_that_are_named_exist(document: Path) -> None:
    """An option that was renamed is an error when it is typed."""
    text = document.read_text("utf-8")
    for line in re.findall(r"(?:^|`|\$ |&& |run: )(driftline [a-z][^`\n]*)", text, re.MULTILINE):
        words = iter(shlex.split(re.sub(r"\s#.*| && .*|[()|\"']", "", line)))
        command, path = GROUP, [next(words)]
        for word in words:
            if not hasattr(command, "commands") or word not in command.commands:
                break
            command, path = command.commands[word], [*path, word]
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
        named = {word.partition("=")[0] for word in re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", line.partition(" #")[0])}
        assert named - known == set(), f"{' '.join(path)}: {line}"


def test_tests_that_are_named_exist() -> None:
    """The page on threats says which test proves what."""
    named = {one for path in DOCS.rglob("*.md") for one in re.findall(r"`(tests/[a-z_/]+(?:\.py)?)`", path.read_text("utf-8"))}

    assert named
    assert {one for one in named if not (ROOT / one).exists()} == set()
