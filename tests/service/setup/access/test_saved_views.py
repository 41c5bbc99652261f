"""Saved views: named filters, personal or shared, stored with the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.api_server import NOW

from schemas.errors import InputError
from service.setup.access import MAX_VIEW_NAME, MAX_VIEWS, AccessStore, View


@pytest.fixture
def access(tmp_path: Path) -> Iterator[AccessStore]:
    """The file of tokens."""
    with AccessStore(tmp_path / "a.access", lambda: NOW) as opened:
        yield opened


def test_a_person_sees_own_views_first_and_then_shared_ones(access: AccessStore) -> None:
    """Personal views are visible to their owner only."""
    for owner, name, is_shared in (("bob", "b", True), ("ann", "z", False), ("bob", "own", False), ("ann", "A", True)):
        access.saved_views.save(View(name, owner, "severity=critical", is_shared))
    assert [(one.owner, one.name) for one in access.saved_views.visible_to("ann")] == [("ann", "A"), ("ann", "z"), ("bob", "b")]


def test_a_name_identifies_one_view_of_a_person(access: AccessStore) -> None:
    """Saving again replaces it, and another person's view of this name stays."""
    for owner, query, is_shared in (("ann", "a", True), ("bob", "b", True), ("ann", "c", False)):
        access.saved_views.save(View("same", owner, query, is_shared))
    assert [(one.owner, one.query, one.shared) for one in access.saved_views.visible_to("ann")] == [
        ("ann", "c", False),
        ("bob", "b", True),
    ]
    assert [access.saved_views.delete("ann", "same") for _ in range(2)] == [True, False]
    assert [one.owner for one in access.saved_views.visible_to("ann")] == ["bob"]


@pytest.mark.parametrize("name", ["", "  ", "x" * (MAX_VIEW_NAME + 1), "a/b", "a\nb", "a\u202eb", "a\0b"])
def test_an_invalid_name_is_refused(access: AccessStore, name: str) -> None:
    """Names of views appear on pages and in addresses."""
    with pytest.raises(InputError, match="name: "):
        access.saved_views.save(View(name, "ann", "", shared=False))


def test_a_person_has_a_bounded_number_of_views(access: AccessStore) -> None:
    """The number of views is limited, but existing ones can still be replaced."""
    for number in range(MAX_VIEWS):
        access.saved_views.save(View(f"v{number}", "ann", "", shared=False))
    with pytest.raises(InputError, match="name: you already have 50 views"):
        access.saved_views.save(View("more", "ann", "", shared=False))
    access.saved_views.save(View("v1", "ann", "sort=newest", shared=False))
    access.saved_views.save(View("more", "bob", "", shared=False))


def test_views_survive_a_restart_and_an_upgrade(tmp_path: Path) -> None:
    """A file of an earlier version has no table for them."""
    with AccessStore(tmp_path / "b.access", lambda: NOW) as first:
        first.saved_views.save(View("mine", "ann", "assignee=me", shared=False))
    with AccessStore(tmp_path / "b.access", lambda: NOW) as reopened:
        assert [one.name for one in reopened.saved_views.visible_to("ann")] == ["mine"]
