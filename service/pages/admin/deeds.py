"""The lines of the audit log in words: actions of operators and commands, or attempts, by the table `deeds` of `words.yaml`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from service.pages.admin.roles import role_of
from service.setup.access.access import Holder, Kind
from service.setup.access.audit_log import AuditLine
from service.text.words import WORDS

Known = Callable[[Kind, str], Holder | None]
"""Finds the holder of a name. The rights of a name are given once and never change."""


class Deed(NamedTuple):
    """A line, its action in words, and the address or command behind it."""

    line: AuditLine
    words: str
    path: str


def deed_of(line: AuditLine, known: Known) -> Deed:
    """Describe a line; an action that is not in the table is described by its address or command."""
    path = f"{line.method} {line.route}"
    told = WORDS["deeds"].get(path)
    if told is None:
        return Deed(line, path, path)
    subject = line.subject or "something unnamed"
    words = told.replace("{project}", line.project or "every project").replace("{grant}", _grant(line, known))
    words = words.replace("{subject}", subject)
    return Deed(line, words if line.outcome == "done" else _tried(words), path)


def _tried(words: str) -> str:
    """Describe a refused, failed or unfinished action as an attempt."""
    verb, _, rest = words.partition(" ")
    return " ".join(filter(None, ("Tried to", WORDS["verbs"].get(verb, verb.lower()), rest)))


def _grant(line: AuditLine, known: Known) -> str:
    """Describe the rights given to a new operator or connection, which never change; empty if no holder has that name."""
    kind: Kind = "connection" if "connections" in line.route else "operator"
    holder = known(kind, line.subject) if line.subject and line.outcome == "done" else None
    if holder is None:
        return ""
    if kind == "connection":
        return f" of {holder.project}"
    return f": {role_of(holder)} on {holder.project or 'every project'}"
