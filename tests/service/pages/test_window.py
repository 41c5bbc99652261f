"""The time in the address of a page: what it means, how far it reaches, what links keep of it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from urllib.parse import parse_qsl

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import exchange, incident, score
from support.pages import cookie, signed_in
from support.stored_sessions import filled
from support.watch_histories import put

from analytics.store.store import Store
from service.text.links import Links
from service.text.window import LENGTHS, RangeRequest, age_start, kept_of, range_of, window_of

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
    custom = {"since": "2026-09-01", "until": "2026-09-02T10:00", "zone": "Europe/Berlin"}
    assert kept_of(custom) == custom
    assert kept_of({**custom, "window": "7d"}) == {"window": "7d", "until": "2026-09-02T10:00"}
    assert kept_of({**custom, "until": "2026-08-01"}) == {}
    assert kept_of({"since": "2026-09-01", "zone": "../../etc/passwd"}) == {"since": "2026-09-01"}
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
        ("since=2026-09-02&until=2026-09-01", "since: must not be after until"),
        ("since=2025-01-01&until=2026-09-01", "since: must be at most 366 days before until"),
        ("since=2026-09-02&zone=Atlantis", "zone: must be a time zone such as Europe/Berlin"),
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
        ("anomalies?", "ately odd", "nce odd"),
        ("incidents?status=any&", "Fell lately", "Fell once"),
        ("wrap-quality?", "latest", "former"),
    ):
        page_text = look(f"/projects/ops/{page}window=7d")
        assert late in page_text, page
        assert early not in page_text, page
        assert early not in look(f"/projects/ops/{page}"), page
        assert early in look(f"/projects/ops/{page}window=all"), page
        assert early in look(f"/projects/ops/{page}window=7d&until={old.date()}"), page


def test_the_period_control_keeps_other_parameters(call: Call, tokens: Tokens) -> None:
    """Changing the period keeps the filters and starts at the first page."""
    path = "/projects/ops/incidents?status=open&window=7d&until=2026-09-20"
    page = call("GET", path, headers=cookie(signed_in(call, tokens.root))).text
    assert 'href="/projects/ops/incidents?status=open&amp;window=30d&amp;until=2026-09-20"' in page
    assert 'href="/projects/ops/incidents?status=open&amp;window=7d&amp;until=2026-09-13"' in page
    assert 'href="/projects/ops/incidents?status=open&amp;window=all" aria-label="All time" >All</a>' in page
    assert 'href="/projects/ops/runs?window=7d&amp;until=2026-09-20"' in page


TABS = (
    "",
    "/incidents",
    "/exchanges",
    "/sessions",
    "/anomalies",
    "/runs",
    "/agents",
    "/wrap-quality",
    "/evaluations",
    "/costs",
)
BERLIN = "since=2026-09-03&until=2026-09-09&zone=Europe/Berlin"


def test_a_custom_range_is_the_same_on_every_tab(look: Look, store: Store) -> None:
    """Whoever narrowed one tab to some days compares it with the others, and gets rid of the range with one click."""
    put(store, "scores", [score("s", 1, exchange_at=NOW, scored_at=NOW)])
    for tab in TABS:
        page = look(f"/projects/ops{tab}?{BERLIN}")
        assert "3 Sep \u2013 9 Sep 2026" in page, tab
        assert 'href="/projects/ops/exchanges?since=2026-09-03&amp;until=2026-09-09&amp;zone=Europe%2FBerlin"' in page, tab
        assert f'class="reset" href="/projects/ops{tab}"' in page, tab
    for page in ("/exchanges", "/sessions", "/incidents"):
        assert "3 Sep \u2013 9 Sep 2026" in look(f"{page}?{BERLIN}"), page


@pytest.mark.parametrize(
    ("query", "start", "end"),
    [
        (BERLIN, "2026-09-02T22:00", "2026-09-09T22:00"),
        ("since=2026-10-24&until=2026-10-25&zone=Europe/Berlin", "2026-10-23T22:00", "2026-10-25T23:00"),
        ("since=2026-09-03T08:30&until=2026-09-03T09:00&zone=Asia/Kolkata", "2026-09-03T03:00", "2026-09-03T03:30"),
        ("since=2026-09-03&until=2026-09-03T08:00Z", "2026-09-03", "2026-09-03T08:00"),
        ("since=2026-10-01&zone=Pacific/Auckland", "2026-09-30T11:00", "2026-10-02T11:00"),
    ],
)
def test_a_custom_range_means_the_same_to_every_reader(query: str, start: str, end: str) -> None:
    """Its days are those of the zone in the address, with their 23 to 25 hours; the reader's zone does not matter."""
    window = window_of(range_of(dict(parse_qsl(query))), LATE)
    assert (window.start, window.end) == (at(start), at(end))
    assert (window_of(range_of(window.params), LATE).start, window_of(range_of(window.params), LATE).end) == (
        at(start),
        at(end),
    )
    assert window_of(range_of(window.before.params), LATE).end == window.start
    steps = window.in_steps()
    assert steps.slots()[0] == steps.start
    assert steps.slots()[-1] + steps.step == steps.end


def test_charts_show_the_utc_days_of_the_same_dates() -> None:
    """Baselines and detectors count UTC days, so the chart of local days would show others than those that raised the alarm."""
    steps = window_of(range_of(dict(parse_qsl(BERLIN))), LATE).in_steps()
    assert (steps.start, steps.end) == (at("2026-09-03"), at("2026-09-10"))


def test_times_are_in_the_zone_of_the_reader_and_files_in_utc(call: Call, tokens: Tokens, store: Store) -> None:
    """The day of a list is the reader's; a file has the same rows, with times that need no explanation."""
    late, early = datetime(2026, 9, 3, 21, 30, tzinfo=UTC), datetime(2026, 9, 3, 22, 30, tzinfo=UTC)
    put(store, "scores", [score("s", turn, exchange_at=when, scored_at=NOW) for turn, when in ((1, late), (2, early))])
    headers = cookie(signed_in(call, tokens.root))
    zoned = {**headers, "cookie": f"{headers['cookie']}; driftline_zone=browser:Europe/Berlin"}
    query = "since=2026-09-04&until=2026-09-04&zone=Europe/Berlin"
    page = call("GET", f"/projects/ops/exchanges?{query}", headers=zoned).text
    assert '<time datetime="2026-09-03T22:30:00Z">2026-09-04 00:30</time>' in page
    assert "2026-09-03 23:30" not in page
    assert "4 Sep 2026</summary>" in page
    assert "Europe/Berlin (UTC+2)" in page
    file = call("GET", f"/projects/ops/lists/exchanges.csv?{query}", headers=zoned).text
    assert [row.split(",")[0] for row in file.splitlines()[1:]] == ["2026-09-03T22:30:00Z"]
    hours = call("GET", f"/projects/ops?{query}", headers=zoned).text.split('id="exchanges-table"')[1]
    assert ">2026-09-04 00:00</time>" in hours
    days = call("GET", "/projects/ops?since=2026-09-01&until=2026-09-04&zone=Europe/Berlin", headers=zoned).text
    assert "1 Sep \u2013 4 Sep 2026 (UTC days)" in days
    assert "2026-09-03 UTC" in days.split('id="exchanges-table"')[1]
    for odd in ("Atlantis", "../../etc/passwd", "<b>"):
        page = call(
            "GET",
            f"/projects/ops/exchanges?{query}",
            headers={**headers, "cookie": f"{headers['cookie']}; driftline_zone={odd}"},
        ).text
        assert "2026-09-03 22:30" in page
