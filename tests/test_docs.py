"""The documents say what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from audit.detectors import FAILURE_TYPES
from service.cli import app
from service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
MADE = re.compile(r"(\.\./|\./)*(reference/[a-z]+|decisions/index)\.md")
"""Pages that are made when the site is built; tests/test_docs_site.py looks at links to them."""


GROUPS = "|".join(f"{group.name} " for group in app.registered_groups)


def commands() -> set[str]:
    """Every command of the command line, groups with their members."""
    group = typer.main.get_command(app)
    found = set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        members = getattr(command, "commands", None)
        found |= {f"{name} {member}" for member in members} if members else {name}
    return found


def test_the_readme_names_every_command() -> None:
    """A command that nobody is told of is not there."""
    named = {match.strip() for match in re.findall(rf"driftline ((?:{GROUPS})?[a-z-]+)", README)}
    assert commands() - {"demo"} <= named


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_only_commands_that_exist(document: Path) -> None:
    """What a reader types must work."""
    text = document.read_text(encoding="utf-8")
    typed = re.findall(rf"^(?:\$ )?driftline ((?:{GROUPS})?[a-z-]+)", text, re.MULTILINE)
    assert set(typed) <= commands()


def test_the_readme_names_every_setting() -> None:
    """Settings are found in one place."""
    assert {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} <= set(re.findall(rf"{PREFIX}[A-Z_]+", README))


def test_the_readme_names_every_failure_type() -> None:
    """The table is complete."""
    assert set(FAILURE_TYPES) == set(re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """A link within the repository points to a file that is there."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8"))
    assert [] == [target for target in targets if not MADE.fullmatch(target) and not (document.parent / target).exists()]
