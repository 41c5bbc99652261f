"""Lists say what of their period is in the lake only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.api_server import NOW
from support.builders import exchange, score
from support.lakes import put_all
from support.watch_histories import put

from analytics.lake import Lake
from analytics.store.store import Store
from audit.policy import Policy
from schemas.registry import topics
from service.text.links import Links
from streams.log.log import SINK
from streams.upkeep.deletion import HotDays, purge

LINKS = Links()
Look = Callable[..., str]


@pytest.fixture
def cooled(store: Store, tmp_path: Path) -> None:
    """Store two exchanges of last week and one of today, and leave the older ones to the lake."""
    times = {"a": NOW - timedelta(days=8), "b": NOW - timedelta(days=7), "c": NOW - timedelta(hours=1)}
    put(store, "exchanges", [exchange(name, 1, occurred_at=at, ingested_at=at) for name, at in times.items()])
    put(store, "scores", [score(name, 1, exchange_at=at) for name, at in times.items()])
    put_all(tmp_path / "lake", store)
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", 3)
        transaction.set_watermarks(SINK, {(topic, 0): store.end_of(topic) for topic in topics()})
    purge(store, Policy(), NOW, hot=HotDays(3, Lake(str(tmp_path / "lake"))))


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
