"""The documents say what is so."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import typer.main
from support.repository_copy import Copy

from audit.agreement import MIN_EXCHANGES, MIN_SESSIONS
from audit.detectors.detectors import FAILURE_TYPES
from audit.diagnosis.diagnosis import LOWEST_TRUST, READY_TRUST
from audit.exchanges.outcomes import LOW_ALIGNMENT, LOW_DIMENSION
from audit.policy import Policy
from schemas.registry import schema_of
from service.cli.commands.options import SHOWN
from service.cli.main import application
from service.setup.settings import PREFIX, Settings
from service.web import bounds

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HANDBOOK = (ROOT / "docs" / "handbook.md").read_text(encoding="utf-8")
SETTINGS = "docs/reference/settings.md"
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


GROUPS = "|".join(f"{group.name} " for group in application().registered_groups)


@cache
def commands() -> set[str]:
    """Every command of the command line, groups with their members, but those that are kept for older scripts and shown nowhere."""
    group = typer.main.get_command(application())
    found = set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        members = getattr(command, "commands", None)
        found |= {f"{name} {member}" for member, one in members.items() if not one.hidden} if members else {name}
    return found


def test_the_handbook_names_every_command() -> None:
    """A command that nobody is told of is not there."""
    named = {match.strip() for match in re.findall(rf"driftline ((?:{GROUPS})?[a-z-]+)", HANDBOOK)}
    assert commands() - {"demo"} <= named


@pytest.mark.parametrize(
    "guide", ["tutorial", "how-to/tune", "how-to/alerts", "how-to/on-call", "how-to/review", "how-to/find"]
)
def test_what_a_guide_names_on_a_page_is_there(guide: str) -> None:
    """Guides set in italics what stands on a page; a reader looks for exactly that, and finds nothing once it is renamed."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / "docs" / f"{guide}.md").read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    names = {" ".join(name.split()) for name in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text)}
    assert names
    assert {name for name in names if name not in words_of_pages()} == set()


@cache
def words_of_pages() -> str:
    """What the sources have for pages to show, without tags."""
    files = [path for package in ("service", "audit", "streams/watch") for path in (ROOT / package).rglob("*")]
    sources = (path.read_text("utf-8") for path in files if path.suffix in {".html", ".js", ".py", ".yaml"})
    return " ".join(re.sub(r"</?[a-z]+[^>]*>", " ", " ".join(sources)).split())


IDEAS = ("exchange", "session", "run", "tier", "trust", "readiness", "anomaly", "incident", "drift")


def test_an_idea_is_defined_before_its_first_use() -> None:
    """A newcomer reads the page from top to bottom."""
    text = (ROOT / "docs" / "ideas.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [*map(str.capitalize, IDEAS), "From here"]
    for idea in IDEAS:
        before = text.partition(f"## {idea.capitalize()}\n")[0]
        assert re.search(rf"\b{idea.removesuffix('y')}(s|y|ies)?\b", before, re.IGNORECASE) is None, idea
    assert len(FAILURE_TYPES) == 6


@pytest.mark.parametrize("document", ["README.md", "docs/index.md", "docs/tutorial.md"])
def test_where_readers_begin_the_ideas_are_linked_at_their_first_use(document: str) -> None:
    """A newcomer who meets "tier" or "incident" must be one click from its definition."""
    text = (ROOT / document).read_text("utf-8")
    first = re.search(rf"\b({'|'.join(IDEAS[3:])})\b", text.partition("\n\n")[2], re.IGNORECASE)
    assert first is not None
    through_paragraph = text[: text.find("\n\n", text.index("\n\n") + 2 + first.end())]
    assert "ideas.md" in through_paragraph


TRACES = Policy().for_project("any").settings.traces
NUMBERS = {
    "ideas": {
        "after {} minutes of silence": Policy().session_gap_minutes,
        "No run is below {},": LOWEST_TRUST,
        "or trust below {}.": READY_TRUST,
        "gave {} or less of 5": LOW_DIMENSION,
        "agree at {} or less": LOW_ALIGNMENT,
    },
    "how-to/shell": {"Without it a list shows {},": SHOWN},
    "how-to/collector": {
        "A body may have {} MB,": bounds.BODY_LIMITS[bounds.TRACES] >> 20,
        "{} MB unpacked": bounds.MAX_UNPACKED >> 20,
        "{} spans;": f"{bounds.MAX_SPANS:,}",
    },
    "how-to/opentelemetry": {
        "no span has followed for {} seconds": f"{TRACES.settle_seconds:g}",
        "no span has arrived for {:g} minutes": TRACES.idle_seconds / 60,
    },
    "how-to/review": {"From the same {} exchanges": MIN_EXCHANGES, "of {} sessions on": MIN_SESSIONS},
    "deploying": {"`DRIFTLINE_JUDGE_DEADLINE`, {:g} s": Settings().judge_deadline},
}
"""Numbers in guides that no command prints, by guide: the sentence and the setting or limit of the code."""


@pytest.mark.parametrize("guide", NUMBERS)
def test_the_limits_that_a_guide_names_are_those_of_the_code(guide: str) -> None:
    """A reader plans with them; a changed default must change the guide."""
    text = (ROOT / "docs" / f"{guide}.md").read_text("utf-8")
    assert [sentence for sentence, number in NUMBERS[guide].items() if sentence.format(number) not in text] == []


@pytest.mark.parametrize(
    "place",
    ["docs/ideas.md", "docs/tutorial.md", "docs/handbook.md", "docs/how-to/index.md", "docs/reference/index.md", SETTINGS],
)
def test_the_readme_leads_to_what_it_does_not_say_itself(place: str) -> None:
    """It is short because these are there."""
    assert f"]({place})" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_only_commands_that_exist(document: Path) -> None:
    """What a reader types must work."""
    text = document.read_text(encoding="utf-8")
    typed = re.findall(rf"^(?:\$ )?driftline ((?:{GROUPS})?[a-z-]+)", text, re.MULTILINE)
    assert set(typed) <= commands()


def test_the_settings_are_all_where_the_readme_leads() -> None:
    """Settings are found in one place, each with its own heading."""
    headings = re.findall(rf"^## ({PREFIX}[A-Z_]+)$", (ROOT / SETTINGS).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == {f"{PREFIX}{name.upper()}" for name in Settings.__struct_fields__}


def test_the_readme_names_every_failure_type_that_counts() -> None:
    """The table is complete; what is on trial, without a weight, is not in it."""
    assert set(re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE)) == {
        one.name for one in FAILURE_TYPES.values() if one.weight
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere_in_the_repository(document: Path) -> None:
    """Documents are read where the repository is shown, too: each link leads to a file that is there, and to a heading of it."""
    text = document.read_text(encoding="utf-8")
    dead = []
    for link in _LINK.findall(_CODE.sub("", text)):
        target, _, anchor = link.partition("#")
        path = (document.parent / target) if target else document
        if not re.match("[a-z]+:", link) and not (path.exists() and (not anchor or anchor in anchors(path))):
            dead.append(link)

    assert dead == []


def anchors(document: Path) -> set[str]:
    """What code hosts call the headings of a document: small letters, digits, hyphens."""
    lines = re.sub(r"^ *```.*?^ *```$", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*?)\s*$", lines, re.MULTILINE)
    }


def test_pictures_are_shown() -> None:
    """A picture that no document has is taken for nothing, and one that `make pictures` does not take becomes old."""
    shown = {Path(link).name for path in DOCUMENTS for link in _LINK.findall(path.read_text("utf-8")) if link.endswith(".png")}

    taken = re.findall(r'^    "(\w+)": \(', (ROOT / "tests/browser/pictures.py").read_text("utf-8"), re.MULTILINE)

    assert shown == {path.name for path in ROOT.glob("docs/pictures/*.png")} == {f"{name}.png" for name in taken}


def test_the_marks_of_values_that_producers_copy_are_those_of_the_schemas() -> None:
    """They stand in programs as constants, and a value with another mark is set aside."""
    said = dict(
        re.findall(r"^\| `(\w+)` \| `([0-9a-f]{20})` \|$", (ROOT / "docs/producing.md").read_text("utf-8"), re.MULTILINE)
    )

    assert {*said} == {"Exchange", "AgentEvent", "SessionClosed"}
    assert {name: schema_of(name).prefix.hex() for name in said} == said


def test_the_guide_to_extending_fits_the_code(tmp_path: Path) -> None:
    """`tests/test_extending.py` follows it, which takes minutes; that a block has lost its place is found here."""
    guide = (ROOT / "docs/how-to/extend.md").read_text("utf-8")
    for name in set(re.findall(r'^```diff title="([^"]+)"$', guide, re.MULTILINE)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)

    assert Copy(tmp_path).follow(guide)
