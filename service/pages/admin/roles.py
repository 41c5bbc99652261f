"""The roles on the pages, each a set of scopes, and the role of an operator."""

from __future__ import annotations

from dataclasses import dataclass

from service.setup.access.access import SCOPES, Holder, Scope


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice in the form: its name, a sentence about it, and its scopes."""

    name: str
    words: str
    scopes: tuple[Scope, ...]
    may: str
    """The rights in words that follow "may"; `{where}` is a project, or every project."""


CHOICES = (
    Choice("Read", "See everything on the pages. Change nothing.", ("read",), "read {where}"),
    Choice(
        "Review", "Read, score exchanges, and decide on incidents.", ("read", "review"), "read, review and decide in {where}"
    ),
    Choice("Query", "Read, and ask in SQL. Sees all projects.", ("read", "query"), "read {where} and ask in SQL"),
    Choice("Admin", "Everything, these pages too.", SCOPES, "do everything in {where}"),
)


def role_of(holder: Holder) -> str:
    """Return the name of the role with an operator's scopes, or the list of scopes if there is no such role."""
    held = [scope for scope in SCOPES if scope in holder.scopes]
    without = frozenset({"query"} if holder.project else ())
    # Some choices are equivalent within one project; the first one was meant.
    own: dict[frozenset[str], str] = {frozenset(one.scopes) - without: one.name for one in reversed(CHOICES)}
    return own.get(holder.scopes) or ", ".join(held)
