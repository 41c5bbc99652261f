"""The names under which anchors are judged again: a connection of their own, and for each project one that holds its rounds."""

from __future__ import annotations

from audit.fingerprints import digest

ANCHORS = "anchors"
"""Connection of what anchors are judged by, a reserved name."""
_MARK = f"{ANCHORS}."
_LONGEST = 63


def anchor_project(project: str) -> str:
    """The project under which the anchors of a project are judged; a name that grows too long is cut and told apart by its digest."""
    name = f"{_MARK}{project}"
    return name if len(name) <= _LONGEST else f"{name[:46]}.{digest(project)}"


def is_reserved(name: str) -> bool:
    """Tell whether a connection or project of this name would be taken for anchors."""
    return name == ANCHORS or name.startswith(_MARK)


def checked_own_name(name: str) -> str:
    """Return the name of a connection or project that records may be filed under; ValueError for one of anchors."""
    if is_reserved(name):
        raise ValueError("the name is reserved for anchors")
    return name
