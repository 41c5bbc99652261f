"""Files of the repository that documents link to and that are no documents: each becomes a page, so that no link leaves the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from reference.markdown import fenced

ROOT = Path(__file__).parents[2]
DOCS = "docs"
FOLDER = "repository"
"""Where these pages are in the site."""
_LINK = re.compile(r"(\]\()([^)\s]+)(?=[)\s])")
_CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(r"[a-z]+:|#|/")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".avsc": "json", ".js": "js", ".jsonl": "json", ".sh": "sh"}
_LARGEST = 100_000
_MADE = {"node_modules", "__pycache__"}


def is_code(source: str) -> bool:
    """Whether a page of the site shows a file that is no document."""
    return source.endswith(".page.md")


def place_of(source: str) -> str:
    """Return the place in the repository of a page of the site."""
    return source.removeprefix(f"{FOLDER}/").removesuffix(".page.md") if source.startswith(f"{FOLDER}/") else f"{DOCS}/{source}"


def page_of(place: str) -> str:
    """Return the page of the site that shows what is at a place in the repository."""
    path = ROOT / place
    if path.is_dir():
        return page_of(f"{place}/folder.md")
    if place.startswith(f"{DOCS}/"):
        return place.removeprefix(f"{DOCS}/")
    return f"{FOLDER}/{place}" if path.suffix == ".md" else f"{FOLDER}/{place}.page.md"


def rewritten(text: str, source: str) -> str:
    """Return the Markdown of a page with its links to files of the repository leading to their pages."""
    here = place_of(source)

    def led(found: re.Match[str]) -> str:
        target, mark, anchor = found[2].partition("#")
        if not target or _ELSEWHERE.match(target):
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        return found[1] + posixpath.relpath(page_of(place), posixpath.dirname(source) or ".") + mark + anchor

    return "".join(part if _CODE.fullmatch(part) else _LINK.sub(led, part) for part in _CODE.split(text))


def linked(text: str, source: str) -> Iterator[str]:
    """Return the places in the repository, outside of the documents, that a page links to."""
    here = posixpath.dirname(place_of(source))
    for part in _CODE.split(text):
        for _, target in () if _CODE.fullmatch(part) else _LINK.findall(part):
            path = target.partition("#")[0]
            if path and not _ELSEWHERE.match(path):
                place = posixpath.normpath(posixpath.join(here, path))
                if not place.startswith((f"{DOCS}/", "..")) and (ROOT / place).exists():
                    yield place


def shown(place: str) -> str:
    """Return the Markdown that shows a file, or lists a folder."""
    path = ROOT / place
    if path.is_dir():
        return f"# {place}\n\n" + "\n".join(f"- {_listed(one, path)}" for one in _files(path)) + "\n"
    text = path.read_text("utf-8")
    return text if path.suffix == ".md" else f"# {place}\n\n{fenced(text[:_LARGEST], _LANGUAGES.get(path.suffix, ''))}\n"


def _files(folder: Path) -> list[Path]:
    return [one for one in sorted(folder.rglob("*")) if one.is_file() and not _MADE & {*one.parts}]


def _listed(file: Path, folder: Path) -> str:
    """Return the name of a file; those with words for people are pages, too."""
    name = str(file.relative_to(folder))
    return f"[{name}]({name})" if file.suffix == ".md" else f"`{name}`"


def decisions() -> str:
    """Return the list of the decisions."""
    titles = [
        (path.name, path.read_text("utf-8").partition("\n")[0].removeprefix("# "))
        for path in sorted((ROOT / DOCS / "decisions").glob("[0-9]*.md"))
    ]
    return (
        "# Decisions\n\nWhy things are as they are, each with its options.\n\n"
        + "\n".join(f"- [{title}]({name})" for name, title in titles)
        + "\n"
    )
