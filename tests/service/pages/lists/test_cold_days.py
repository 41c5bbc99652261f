"""Pages say what of their period is in the lake only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.api_server import NOW
from support.builders import exchange, score
from support.lakes import leave_to_lake
from support.watch_histories import put

from analytics.store.store import Store
from service.text.links import Links

LINKS = Links()
Look = Callable[..., str]


@pytest.fixture
def cooled(store: Store, tmp_path: Path) -> None:
    """Store two exchanges of last week and one of today, and leave the older ones to the lake."""
    times = {"a": NOW - timedelta(days=8), "b": NOW - timedelta(days=7), "c": NOW - timedelta(hours=1)}
    put(store, "exchanges", [exchange(name, 1, occurred_at=at, ingested_at=at, agent="scout") for name, at in times.items()])
    put(store, "scores", [score(name, 1, exchange_at=at, agent="scout") for name, at in times.items()])
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", 3)
    leave_to_lake(tmp_path / "lake", store, NOW, days=3)


@pytest.mark.usefixtures("cooled")
def test_a_list_says_what_is_in_the_lake_only(look: Look) -> None:
    """An empty end of a list would look as if nothing had happened then."""
    border = (NOW - timedelta(days=3)).date().isoformat()
    page = look("/projects/ops/exchanges?window=14d")
    assert f"2 exchanges from before {border} (UTC) are in the lake only" in page
    assert "1 exchange" in page
    assert "in the lake only" in look("/projects/ops/sessions?window=14d")
    assert "in the lake only" not in look("/projects/ops/exchanges?window=24h")


@pytest.mark.usefixtures("cooled")
def test_sessions_of_cold_days_are_listed(look: Look) -> None:
    """The sums of sessions stay, so that somebody who looks for one finds it."""
    page = look("/projects/ops/sessions?window=14d")
    assert "3 sessions" in page
    assert all(LINKS.session("ops", name) in page for name in ("a", "b", "c"))


@pytest.mark.parametrize("path", ["/projects/ops/details", "/projects/ops/agents", "/agents/scout"])
@pytest.mark.usefixtures("cooled")
def test_pages_that_compare_versions_say_so_once(look: Look, path: str) -> None:
    """Versions are compared by single exchanges, and an older version would seem to have none."""
    assert look(path).count("2 exchanges from before") == 1


@pytest.mark.parametrize("path", ["/exchanges", "/sessions"])
@pytest.mark.usefixtures("cooled")
def test_lists_of_all_projects_say_so(look: Look, path: str) -> None:
    """They read the same rows."""
    assert look(f"{path}?window=14d").count("2 exchanges from before") == 1
