"""A judge whose answers cannot be read is reported on every page, and by `driftline doctor`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from support import builders
from support.clocks import NOW
from support.watch_histories import put

from analytics.store.store import Store
from streams.judges.rate_limits import MAX_UNREADABLE


def test_every_page_reports_an_unreadable_judge_until_it_answers(look: Callable[..., str], store: Store) -> None:
    """Exchanges are not judged meanwhile, so users must learn why scores are missing."""
    error = "unreadable answer: <b>Sign in</b>"
    bad = [
        builders.judgement("s", number, outcome="provider_error", error=error, judged_at=NOW - timedelta(minutes=number))
        for number in range(1, MAX_UNREADABLE)
    ]
    put(store, "judgements", bad)
    assert "cannot be read" not in look("/")
    put(store, "judgements", [builders.judgement("s", 0, outcome="invalid", error=error, judged_at=NOW)])
    for path in ("/", "/telemetry", "/projects/ops"):
        page = look(path)
        assert "claude-haiku-4-5" in page
        assert "cannot be read" in page
        assert "<b>Sign in" not in page
    put(store, "judgements", [builders.judgement("s", 99, judged_at=NOW + timedelta(minutes=1))])
    assert "cannot be read" not in look("/")
