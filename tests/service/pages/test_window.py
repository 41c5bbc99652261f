"""The time in the address of a page: what it means, how far it reaches, what links keep of it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import exchange, incident, score
from support.pages import cookie, signed_in
from support.stored_sessions import filled
from support.watch_histories import put

from analytics.store.store import Store
from service.text.links import Links
from service.text.window import LENGTHS, RangeRequest, age_start, kept_of, window_of

LATE = datetime(2026, 10, 1, 12, 34, 56, tzinfo=UTC)
Look = Callable[..., str]


def at(text: str) -> datetime:
    """Return a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("length", "until", "start", "end", "points"),
    [
        ("14d", None, "2026-09-18", "2026-10-02", 14),
        ("7d", date(2026, 9, 20), "2026-09-14", "2026-09-21", 7),
        ("7d", at("2026-09-20T10:00"), "2026-09-14", "2026-09-21", 7),
        ("6h", None, "2026-10-01T07:00", "2026-10-01T13:00", 6),
        ("24h", date(2026, 9, 20), "2026-09-20", "2026-09-21", 24),
        ("24h", at("2026-09-20T14:00"), "2026-09-19T14:00", "2026-09-20T14:00", 24),
        ("3d", at("2026-09-20T14:20"), "2026-09-17T15:00", "2026-09-20T15:00", 72),
        ("90d", None, "2026-07-04", "2026-10-02", 90),
    ],
)
def test_a_window_ends_with_a_complete_hour_or_day(
    length: str, until: date | datetime | None, start: str, end: str, points: int
) -> None:
    """A partial point would look like a fall."""
    window = window_of(RangeRequest(length, until), LATE)  # type: ignore[arg-type]
    assert window.start == at(start)
    assert window.end == at(end)
    assert len(window.slots()) == points
    assert all(after - before == window.step for before, after in pairwise(window.slots()))
    assert window.slots()[-1] + window.step == window.end


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("now", [LATE, at("2026-10-01"), at("2026-10-01T23:59:59")])
def test_an_age_on_the_command_line_starts_like_the_window_of_a_page(length: str, now: datetime) -> None:
    """`--since 7d` and the 7 days of a page must be the same days."""
    assert age_start(LENGTHS[length], now) == window_of(RangeRequest(length), now).start  # type: ignore[arg-type, index]


@pytest.mark.parametrize(
    ("age", "start"),
    [
        (timedelta(minutes=30), "2026-10-01T12:04:56"),
        (timedelta(hours=5), "2026-10-01T08:00"),
        (timedelta(hours=100), "2026-09-27T09:00"),
        (timedelta(weeks=2), "2026-09-18"),
        (timedelta(), "2026-10-01T12:34:56"),
    ],
)
def test_an_age_counts_back_in_whole_hours_or_days(age: timedelta, start: str) -> None:
    """An age in minutes is exact and not rounded to hours."""
    assert age_start(age, LATE) == at(start)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_address_survives_a_round_trip(length: str) -> None:
    """Earlier and later periods are adjacent, and the links are inverse."""
    window = window_of(RangeRequest(length, date(2026, 9, 20), compare=True), LATE)  # type: ignore[arg-type]
    assert window.params == kept_of(window.params)
    assert window.before.end == window.start
    assert window.before.params == window.earlier()
    assert window.params == window.before.later(LATE + timedelta(days=200))
    assert window.later(window.end - timedelta(hours=1)) is None


def test_links_keep_the_period_unless_they_set_one() -> None:
    """The period stays between pages, but an incident links to the runs of its own days."""
    links = Links({"window": "24h", "compare": "before"})
    query = "window=24h&compare=before"
    assert links.project("ops") == f"/projects/ops?{query}"
    assert links.run("ops", "run_001", "event-3", at="3") == f"/projects/ops/runs/run_001?at=3&{query}#event-3"
    assert links.runs("ops", since="2026-09-01", until="2026-09-02") == "/projects/ops/runs?since=2026-09-01&until=2026-09-02"
    assert links.run_file("ops", "run_001", "session.json") == "/projects/ops/runs/run_001/session.json"
    assert links.fleet == "/"


def test_only_a_valid_period_is_kept() -> None:
    """A page that ignores the period must not pass on one that another page refuses."""
    assert kept_of({"window": "5m", "until": "tomorrow", "compare": "never", "limit": "3"}) == {}
    assert kept_of({"since": "2026-09-01", "until": "2026-09-02"}) == {}
    assert kept_of({"until": "2026-09-02"}) == {"until": "2026-09-02"}
    assert kept_of({"window": "all", "until": "2026-09-02"}) == {"window": "all"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("window=5m", "window: must be "),
        ("until=soon", "until: must be a day such as 2026-11-26"),
        ("until=1999-01-01", "until: must be from "),
        ("until=9999-12-31T00:00Z", "until: must be from "),
        ("compare=never", "compare: must be "),
    ],
)
@pytest.mark.parametrize(
    "page", ["", "/anomalies", "/runs", "/incidents", "/costs", "/wrap-quality", "/agents", "/evaluations"]
)
def test_an_invalid_period_is_refused_with_the_valid_form(look: Look, page: str, query: str, words: str) -> None:
    """The error names the invalid part and the valid form."""
    assert words in look(f"/projects/ops{page}?{query}", 400)


def test_a_short_window_is_shown_by_hours(look: Look, store: Store) -> None:
    """The person on call needs the last hours rather than days."""
    scores = [
        score("s", place, exchange_at=NOW - timedelta(hours=place), scored_at=NOW, tier1_score=1 / place)
        for place in (1, 2, 30)
    ]
    put(store, "scores", scores)
    page = look("/projects/ops?window=6h")
    table = page.split('id="trend-tier1-table"')[1].split("</table>")[0]
    assert table.count('<th scope="row">') == 6
    assert "2026-10-01 11:00" in table
    assert ">1.00<" in table
    assert "2026-09-30 06:00" in look("/projects/ops?window=24h&until=2026-09-30").split('id="exchanges-table"')[1]


def test_figures_are_shown_beside_those_of_the_previous_period(look: Look, store: Store) -> None:
    """A figure needs the previous value for comparison."""
    now = [score("s", place, exchange_at=NOW - timedelta(hours=place), scored_at=NOW) for place in (1, 2, 3)]
    past = [score("p", place, exchange_at=NOW - timedelta(days=7, hours=place), scored_at=NOW) for place in (1, 2)]
    put(store, "scores", [*now, *past])
    assert "before 2, +50%" in look("/projects/ops?window=7d&compare=before")
    assert "before 2" not in look("/projects/ops?window=7d")
    assert "before 2, +50%" in look("/projects/ops/details?window=7d&compare=before")


@pytest.mark.parametrize("page", ["anomalies", "runs", "incidents", "evaluations"])
def test_lists_show_the_number_in_the_previous_period(look: Look, store: Store, page: str) -> None:
    """The number in the previous period shows whether a count is unusual."""
    odd = {"anomaly": True, "anomaly_reasons": ("odd",), "scored_at": NOW}
    put(store, "scores", [score("s", 1, exchange_at=NOW - timedelta(days=1), **odd)])
    assert "before 0" in look(f"/projects/ops/{page}?window=7d&compare=before")


def test_lists_cover_the_period_of_the_address(look: Look, store: Store) -> None:
    """Older records are listed only for all time."""
    odd = {"anomaly": True, "scored_at": NOW}
    old, new = NOW - timedelta(days=40), NOW - timedelta(hours=2)
    put(store, "scores", [
        score("new", 1, exchange_at=new, anomaly_reasons=("lately odd",), **odd), score("old", 1, exchange_at=old, anomaly_reasons=("once odd",), **odd),
    ])  # fmt: skip
    put(store, "incidents", [
        incident(incident_id="n", title="Fell lately", detected_at=new),
        incident(incident_id="o", title="Fell once", detected_at=old, status="resolved", resolved_at=old + timedelta(days=1)),
    ])  # fmt: skip
    filled(
        store,
        ("exchanges", exchange("latest", 1, occurred_at=new)),
        ("exchanges", exchange("former", 1, occurred_at=old)),
    )
    for page, late, early in (
        ("anomalies", "lately odd", "once odd"),
        ("incidents", "Fell lately", "Fell once"),
        ("wrap-quality", "latest", "former"),
    ):
        page_text = look(f"/projects/ops/{page}?window=7d")
        assert late in page_text, page
        assert early not in page_text, page
        assert early not in look(f"/projects/ops/{page}"), page
        assert early in look(f"/projects/ops/{page}?window=all"), page
        assert early in look(f"/projects/ops/{page}?window=7d&until={old.date()}"), page


def test_the_period_control_keeps_other_parameters(call: Call, tokens: Tokens) -> None:
    """Changing the period keeps the filters and starts at the first page."""
    path = "/projects/ops/incidents?status=open&window=7d&until=2026-09-20"
    page = call("GET", path, headers=cookie(signed_in(call, tokens.root))).text
    assert 'href="/projects/ops/incidents?status=open&amp;window=30d&amp;until=2026-09-20"' in page
    assert 'href="/projects/ops/incidents?status=open&amp;window=7d&amp;until=2026-09-13"' in page
    assert 'href="/projects/ops/incidents?status=open&amp;window=all" aria-label="All time" >All</a>' in page
    assert 'href="/projects/ops/runs?window=7d&amp;until=2026-09-20"' in page
