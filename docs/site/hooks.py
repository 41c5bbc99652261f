"""What MkDocs calls: adds the pages that are made from the code and the pictures that there are, and leads links to files of the repository to their pages."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pictures import with_pictures
from reference import PAGES
from repository import decisions, linked, page_of, rewritten, shown


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the reference, the list of decisions, and every file of the repository that a page links to, however indirectly."""
    for name, made in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=made()))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
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
    """Put pictures into their places, and lead links to their pages."""
    return rewritten(with_pictures(markdown, page.file.src_uri), page.file.src_uri)
