"""The documentation site: it builds without warnings, its reference is complete, it loads nothing from other hosts, and its guides work."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
from service.alerts.messages import signature
from service.cli.main import application
from service.server.app import ROUTERS
from service.setup.settings import PREFIX, Settings
from streams.kafka.topics import TOPICS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
GUIDES_TYPED_ELSEWHERE = {"tutorial.md", "on-call.md", "evaluation.md", "detector.md"}
"""Guides whose commands are run by tests of the demo, of evaluations and of detectors."""
GUIDES = [path for path in DOCUMENTS if typed_in(path.read_text("utf-8")) and path.name not in GUIDES_TYPED_ELSEWHERE]
"""Guides whose commands are run here."""
DEMO_COMMAND = ".venv/bin/driftline demo --last-day 2026-11-01"
"""Is run by `tests/trial/demo/test_demo.py` instead."""
ROOT_COMMAND: Any = typer.main.get_command(application())
ADDRESS_ATTRIBUTES = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
"""Tags that make a browser load a file, and the attribute with its address."""
LINKS_NOT_LOADED = {"canonical", "prev", "next", "alternate"}
"""Relations of a `link` tag that make a browser load nothing."""
HEADING_TAGS = {"h1", "h2", "h3"}
TEXT_TAGS = HEADING_TAGS | {"p", "td"}
UNRENDERED_MARKDOWN = re.compile(r"^\s*(?:[-*] |\d+\. |\||```)|\*\*|\]\(", re.MULTILINE)
"""A list, table, emphasis or link that is still Markdown in the text of a paragraph."""
REMOTE_STYLE = re.compile(r"(?:@import |url\()[\"']?((?:https?:)?//[^\"')]+)")
"""A file on another host that a stylesheet loads."""
COMMAND_LINE = re.compile(r"(?:^|`|\$ |&& |run: )(driftline [a-z][^`\n]*)", re.MULTILINE)
"""A `driftline` command in a document, up to the end of the line or of the code."""
OPTION = re.compile(r"(?<=\s)(--?[a-z][a-z-]*)")
TEST_PATH = re.compile(r"`(tests/[a-z_/]+(?:\.py)?)`")


class PageContent(HTMLParser):
    """The parts of an HTML page that the tests look at."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: set[str] = set()
        self.loaded_addresses: list[str] = []
        self.paragraphs: list[str] = []
        self.table_cells: set[str] = set()
        self._open_tags: list[str] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the address that the tag loads, if any, and begin a new text."""
        attributes = dict(attrs)
        is_loaded = tag != "link" or attributes.get("rel") not in LINKS_NOT_LOADED
        if tag in ADDRESS_ATTRIBUTES and is_loaded:
            self.loaded_addresses.append(attributes.get(ADDRESS_ATTRIBUTES[tag]) or "")
        if tag in TEXT_TAGS:
            self._text = ""
        self._open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Record the text of a heading, paragraph or table cell, and close the tag with all tags inside it."""
        while tag in self._open_tags:
            if self._open_tags.pop() == tag:
                break
        if tag in HEADING_TAGS:
            self.headings.add(self._text.rstrip("¶").strip())
        elif tag == "p":
            self.paragraphs.append(self._text)
        elif tag == "td":
            self.table_cells.add(self._text.strip())

    def handle_data(self, data: str) -> None:
        """Add to the current text. Code in a paragraph is left out, because it may contain characters of Markdown."""
        is_invisible = not {"style", "script"}.isdisjoint(self._open_tags)
        is_code = "pre" in self._open_tags or {"code", "p"} <= {*self._open_tags}
        if not is_invisible and not is_code:
            self._text += data


Site = Mapping[str, PageContent]
"""The pages by their address in the site."""


def run_in_root(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository with these arguments."""
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. The first worker of a test run builds it; the others wait for its lock."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build = run_in_root("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder))
            assert build.returncode == 0, build.stderr
            assert build.stderr == ""
    return folder


@pytest.fixture(scope="module")
def site(site_folder: Path) -> Site:
    """Every page by its address."""
    pages = {}
    for path in sorted(site_folder.rglob("*.html")):
        page = PageContent()
        page.feed(path.read_text("utf-8"))
        pages[path.relative_to(site_folder).as_posix()] = page
    return pages


def list_commands(group: Any, prefix: str = "driftline") -> Iterator[str]:
    """Yield the full names of a group's commands and of all commands inside them, except hidden ones."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from list_commands(command, f"{prefix} {name}")


def list_endpoints() -> set[str]:
    """Return the method and path of every endpoint that the API describes."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    return {f"{method} {route.path_format}" for route in routes for method in route.methods or ()}


def list_errors(error_class: type[DriftlineError] = DriftlineError) -> set[str]:
    """Return the names of an error class and of all loaded classes derived from it, except those of tests."""
    names = {error_class.__name__}
    for subclass in error_class.__subclasses__():
        if not subclass.__module__.startswith("test"):
            names |= list_errors(subclass)
    return names


def list_tier_terms() -> set[str]:
    """Return the reasons of the gate and of sampling and the states of a tier, as the reference names them."""
    gate_reasons = get_args(cascade.OpeningReason)
    sampling_reasons = [*get_args(sampling.CertainReason), sampling.ROUTINE_SAMPLE]
    states = ["scored", "not_applicable", "skipped_gate", "skipped_cost_cap", "skipped_sampling", "unscored"]
    return {
        *(f"gate: {reason}" for reason in gate_reasons),
        *(f"sampling: {reason}" for reason in sampling_reasons),
        *(f"state: {state}" for state in states),
    }


REFERENCE: dict[str, Callable[[], Collection[str]]] = {
    "commands": lambda: set(list_commands(ROOT_COMMAND)),
    "settings": lambda: {f"{PREFIX}{name.upper()}" for name in Settings.__struct_fields__},
    "endpoints": list_endpoints,
    "topics": lambda: TOPICS,
    "records": current_schemas,
    "detectors": lambda: FAILURE_TYPES,
    "errors": list_errors,
    "tiers": list_tier_terms,
}
"""Pages of the reference, and the names that each, or a page of one of its groups, must have as headings."""


@pytest.mark.parametrize("page", REFERENCE)
def test_the_reference_has_a_heading_for_every_name(page: str, site: Site) -> None:
    """Readers who look up a name find it and can link to it."""
    names = set(REFERENCE[page]())
    pages = [content for address, content in site.items() if re.fullmatch(rf"reference/{page}(-[a-z-]+)?\.html", address)]

    assert names != set()
    assert names - set().union(*(content.headings for content in pages)) == set()


def test_the_reference_has_every_field_of_every_record(site: Site) -> None:
    """Readers of the tables would have to guess what an undocumented column means."""
    fields = {record_field["name"] for schema in current_schemas().values() for record_field in schema.fields}

    assert fields - site["reference/records.html"].table_cells == set()


def test_generated_pages_are_up_to_date() -> None:
    """They are committed so that they can be read in the repository; `make generate` writes them."""
    result = run_in_root("docs/site/publish.py", "--check")

    assert result.returncode == 0
    assert result.stderr == ""


def test_every_document_is_in_the_site(site: Site) -> None:
    """Navigation is a list written by hand, so a new page is easily forgotten."""
    addresses = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}

    assert addresses - site.keys() == set()


def test_no_page_loads_files_from_other_hosts(site_folder: Path, site: Site) -> None:
    """Another host would learn who reads the documentation, and pages would break without a network."""
    remote_addresses = [address for page in site.values() for address in page.loaded_addresses if urlsplit(address).netloc]
    for path in site_folder.rglob("*.css"):
        remote_addresses += REMOTE_STYLE.findall(path.read_text("utf-8"))

    assert remote_addresses == []


def test_every_page_has_a_content_security_policy(site_folder: Path, site: Site) -> None:
    """With it, browsers refuse to load files from other hosts."""
    unprotected = [address for address in site if "Content-Security-Policy" not in (site_folder / address).read_text("utf-8")]

    assert unprotected == []


def test_every_file_that_a_page_loads_exists(site_folder: Path, site: Site) -> None:
    """The build does not report a missing picture or script."""
    for page_address, page in site.items():
        if page_address == "404.html":  # Its addresses are relative to the root of a host.
            continue
        folder = (site_folder / page_address).parent
        missing = [address for address in page.loaded_addresses if not (folder / urlsplit(address).path).exists()]
        assert missing == [], page_address


SEARCH_RESULTS = {
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


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP on a free port of this machine, and return its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietRequestHandler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class QuietRequestHandler(SimpleHTTPRequestHandler):
    """Serves files without logging the requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the standard library
        """Log nothing."""


@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_the_search_finds_pages_without_a_network(site_folder: Path, width: int) -> None:
    """The search runs in the browser, with an index in the site, and fits a desktop and a phone. Pages opened from disk say what it needs."""
    requested_urls: list[str] = []
    console_errors: list[str] = []
    with serve_folder(site_folder) as site_url, ExitStack() as stack:
        try:
            page = stack.enter_context(browser()).new_page(viewport={"width": width, "height": 844})
        except FileNotFoundError as error:
            skip_or_fail(str(error))
        page.on("request", lambda request: requested_urls.append(request.url))
        page.on("console", lambda message: console_errors.append(message.text) if message.type == "error" else None)
        page.goto(f"{site_url}/how-to/on-call.html")
        page.keyboard.press("/")
        for word, answer in SEARCH_RESULTS.items():
            page.get_by_role("textbox", name="Search").press("Control+a")
            page.keyboard.type(word)
            links = page.locator(f".md-search-result__link[href*='{answer}.html']")
            expect(links.first).to_be_attached()
        # The search is wider than the page until it has slid in.
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        expect(page.locator("#from-disk")).to_be_hidden()
        assert console_errors == []
        page.goto((site_folder / "index.html").as_uri())
        expect(page.locator("#from-disk")).to_be_visible()
        page.get_by_role("link", name="Ideas in five minutes").click()
        expect(page.locator("h1")).to_contain_text("Ideas in five minutes")

    assert {urlsplit(url).hostname for url in requested_urls} <= {"127.0.0.1", None}


def test_no_paragraph_contains_unrendered_markdown(site: Site) -> None:
    """A list without an empty line before it is rendered as one paragraph here, but as a list on GitHub."""
    for address, page in site.items():
        unrendered = [paragraph for paragraph in page.paragraphs if UNRENDERED_MARKDOWN.search(paragraph)]
        assert unrendered == [], address


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_commands_of_a_guide_print_what_it_shows(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers type the commands of a guide and compare the output."""
    text = guide.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in list(os.environ):
        if variable.startswith((PREFIX, "ANTHROPIC_")):
            monkeypatch.delenv(variable)
    for name, content in files_in(text).items():
        (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    terminal = Terminal(tmp_path)
    for typed in typed_in(text):
        if typed.command == DEMO_COMMAND:
            continue
        output = terminal.type(typed.command)
        assert is_shown(typed.shown, output), f"$ {typed.command}\n{output}"


def test_commands_of_guides_are_recognized() -> None:
    """If the format of code blocks changed, no guide would be tested."""
    assert {"README", "ci", "methodology", "sampling-and-cost", "back-up"} <= {path.stem for path in GUIDES}


@pytest.fixture
def is_genuine() -> Callable[[str, bytes, bytes], bool]:
    """The function of the guide to alerts that checks the signature of a delivery."""
    receiver: dict[str, Any] = {}
    guide = (DOCS / "how-to" / "alerts.md").read_text("utf-8")
    exec(files_in(guide)["receiver.py"], receiver)  # noqa: S102 - our own document
    return receiver["is_genuine"]


def test_the_receiver_of_the_guide_accepts_only_genuine_deliveries(is_genuine: Callable[[str, bytes, bytes], bool]) -> None:
    """Readers copy its code, so a mistake would let anybody send them alerts."""
    secret = "sixteen-characters"
    now = datetime.now(UTC)
    current_signature = signature(secret, b"{}", now)
    old_signature = signature(secret, b"{}", now - timedelta(hours=1))

    assert is_genuine(current_signature, b"{}", secret.encode())
    assert not is_genuine(current_signature, b"[]", secret.encode())
    assert not is_genuine(old_signature, b"{}", secret.encode())


@dataclass(frozen=True)
class ResolvedCommand:
    """A command of the command line, with its full name."""

    name: str
    command: Any

    def options(self) -> set[str]:
        """Return every spelling of the command's options."""
        parameters = self.command.params
        return {"--help"}.union(
            *(parameter.opts for parameter in parameters), *(parameter.secondary_opts for parameter in parameters)
        )


def resolve_command(line: str) -> ResolvedCommand:
    """Return the command that a line of a document runs: its words up to the first argument or option."""
    without_shell_syntax = re.sub(r"\s#.*| && .*|[()|\"']", "", line)
    program, *words = shlex.split(without_shell_syntax)
    name = program
    command = ROOT_COMMAND
    for word in words:
        subcommands = getattr(command, "commands", {})
        if word not in subcommands:
            break
        command = subcommands[word]
        name = f"{name} {word}"
    return ResolvedCommand(name, command)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_options_in_documents_exist(document: Path) -> None:
    """A command with an option that was renamed fails for the reader."""
    for line in COMMAND_LINE.findall(document.read_text("utf-8")):
        command = resolve_command(line)
        options = set(OPTION.findall(line.partition(" #")[0]))
        assert options - command.options() == set(), f"{command.name}: {line}"


def test_tests_named_in_documents_exist() -> None:
    """The page on threats names the test that proves each protection."""
    paths = {path for document in DOCS.rglob("*.md") for path in TEST_PATH.findall(document.read_text("utf-8"))}

    assert paths != set()
    assert {path for path in paths if not (ROOT / path).exists()} == set()
