"""The lines of the audit log in words: what an operator or a command did, or tried to do, by the table `deeds` of `words.yaml`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from service.pages.admin.roles import role_of
from service.setup.access.access import Holder, Kind
from service.setup.access.audit_log import AuditLine
from service.text.words import WORDS

Known = Callable[[Kind, str], Holder | None]
"""Finds who has a name: what a name may do is given once, and never changed."""


class Deed(NamedTuple):
    """A line, what it did in words, and the address or command that did it."""

    line: AuditLine
    words: str
    path: str


def deed_of(line: AuditLine, known: Known) -> Deed:
    """Return a line in words; one that the table does not have is told by its address or command."""
    path = f"{line.method} {line.route}"
    told = WORDS["deeds"].get(path)
    if told is None:
        return Deed(line, path, path)
    subject = line.subject or "something unnamed"
    words = told.replace("{project}", line.project or "every project").replace("{grant}", _grant(line, known))
    words = words.replace("{subject}", subject)
    return Deed(line, words if line.outcome == "done" else _tried(words), path)


def _tried(words: str) -> str:
    """Say of what was refused, failed or never finished that it was tried."""
    verb, _, rest = words.partition(" ")
    return " ".join(filter(None, ("Tried to", WORDS["verbs"].get(verb, verb.lower()), rest)))


def _grant(line: AuditLine, known: Known) -> str:
    """Say what was given to a new operator or connection, which has it to this day; nothing if there is none of that name."""
    kind: Kind = "connection" if "connections" in line.route else "operator"
    holder = known(kind, line.subject) if line.subject and line.outcome == "done" else None
    if holder is None:
        return ""
    if kind == "connection":
        return f" of {holder.project}"
    return f": {role_of(holder)} on {holder.project or 'every project'}"
