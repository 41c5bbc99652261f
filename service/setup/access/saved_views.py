"""Saved views of the inbox: filters that an operator has named, for themselves or for everybody.

They are personal settings and no audited data, so they are stored beside the tokens and not in the log. They are not replayed, and
they outlive the tokens of their owner.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from schemas.errors import InputError
from service.setup.access.shared_file import SharedFile, stamped
from service.text.answers import Answer

MAX_VIEWS = 50
"""Views of one person."""
MAX_VIEW_NAME = 64
"""Characters of a name."""
VIEWS_TABLE = """CREATE TABLE inbox_views (
    owner TEXT NOT NULL, name TEXT NOT NULL, query TEXT NOT NULL, is_shared INTEGER NOT NULL, created_at TEXT NOT NULL,
    PRIMARY KEY (owner, name)
) STRICT"""


class View(Answer, frozen=True):
    """A saved view."""

    name: str
    owner: str
    query: str
    shared: bool


class ViewList(Answer, frozen=True):
    """Your own views, then views shared by others."""

    views: list[View]
    count: int


class SavedViews:
    """The saved views in the file of tokens. It can be shared between threads."""

    def __init__(self, file: SharedFile, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    def seen_by(self, owner: str) -> list[View]:
        """Return a person's own views, then views shared by others, each by name."""
        rows = self._file.rows(
            "SELECT name, owner, query, is_shared FROM inbox_views WHERE owner = :owner OR is_shared "
            "ORDER BY owner <> :owner, name COLLATE NOCASE, owner",
            {"owner": owner},
        )
        return [View(name, owner, query, bool(is_shared)) for name, owner, query, is_shared in rows]

    def save(self, view: View) -> None:
        """Save a view, or replace the owner's view of the same name. InputError for an invalid name, or one view too many."""
        name = checked_name(view.name)
        with self._file.transaction() as cursor:
            count = "SELECT count(*) FROM inbox_views WHERE owner = ? AND name <> ?"
            (others,) = cursor.execute(count, [view.owner, name]).fetchone()
            if others >= MAX_VIEWS:
                raise InputError(f"name: you have {MAX_VIEWS} views already", hint="Delete one that you do not need.")
            cursor.execute(
                "INSERT INTO inbox_views VALUES (?, ?, ?, ?, ?) ON CONFLICT (owner, name) "
                "DO UPDATE SET query = excluded.query, is_shared = excluded.is_shared",
                [view.owner, name, view.query, int(view.shared), stamped(self._now())],
            )

    def delete(self, owner: str, name: str) -> bool:
        """Delete a view; tell whether there was one."""
        with self._file.transaction() as cursor:
            cursor.execute("DELETE FROM inbox_views WHERE owner = ? AND name = ?", [owner, name])
            return cursor.rowcount > 0


def checked_name(name: str) -> str:
    """Return the name of a view, stripped; InputError if it is invalid."""
    said = name.strip()
    if not said:
        raise InputError("name: is blank", hint="Call the view something.")
    if len(said) > MAX_VIEW_NAME:
        raise InputError(f"name: has {len(said)} characters; at most {MAX_VIEW_NAME} are taken", hint="Shorten it.")
    if "/" in said or not said.isprintable():
        raise InputError("name: has a slash or a character that does not print", hint="Use letters, digits and blanks.")
    return said
