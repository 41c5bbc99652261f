"""The roles that the pages give, each a set of scopes, and the role that an operator has."""

from __future__ import annotations

from dataclasses import dataclass

from service.setup.access.access import SCOPES, Holder, Scope


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of the form: its name, a sentence about it, and its scopes."""

    name: str
    words: str
    scopes: tuple[Scope, ...]
    may: str
    """The rights in words, as they follow the word may; `{where}` is a project, or every one."""


CHOICES = (
    Choice("Read", "See everything on the pages. Change nothing.", ("read",), "read {where}"),
    Choice(
        "Review", "Read, score exchanges, and decide on incidents.", ("read", "review"), "read, review and decide in {where}"
    ),
    Choice("Query", "Read, and ask in SQL. Sees all projects.", ("read", "query"), "read {where} and ask in SQL"),
    Choice("Admin", "Everything, these pages too.", SCOPES, "do everything in {where}"),
)


def role_of(holder: Holder) -> str:
    """Return the scopes of an operator in one word if there is one, else the list of them."""
    held = [scope for scope in SCOPES if scope in holder.scopes]
    without = frozenset({"query"} if holder.project else ())
    # Of choices that come to the same in one project, the first is what was meant.
    own: dict[frozenset[str], str] = {frozenset(one.scopes) - without: one.name for one in reversed(CHOICES)}
    return own.get(holder.scopes) or ", ".join(held)
