"""What MkDocs calls: makes pages of the files of the repository that documents link to, and leads the links there."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from repository import is_code, linked, page_of, rewritten, shown


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add every file of the repository that a page links to, however indirectly."""
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        file = waiting.pop()
        for place in linked(file.content_string, file.src_uri):
            source = page_of(place)
            if files.get_file_from_path(source) is None:
                added = File.generated(config, source, content=shown(place))
                files.append(added)
                waiting.append(added)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Lead links to files of the repository to their pages; those that hold code are found by links, not by searching."""
    if is_code(page.file.src_uri):
        page.meta["search"] = {"exclude": True}
    return rewritten(markdown, page.file.src_uri)
