"""A project's page: open incidents, figures, costs and unscored exchanges, without data of other projects."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from html import unescape
from urllib.parse import quote

import httpx2
import msgspec
import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import event, exchange, incident, judgement, score
from support.pages import cookie, drawn_charts, signed_in
from support.servers import ROOT
from support.stored_sessions import filled
from support.watch_histories import JUDGED, fallen, history, put

from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.fingerprints import digest
from schemas.records import Baseline, Incident, Label, TierStatistics, ToolCall
from service.pages.rendering import NOTHING
from service.setup.access import AccessStore, Holder
from service.text.words import WORDS

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(1)</script>\u202eexe'
LATELY = timedelta(hours=6)


@pytest.fixture
def root(call: Call, tokens: Tokens) -> str:
    """Return the cookie of an operator with every right."""
    return signed_in(call, tokens.root)


def looks(call: Call, value: str, path: str = "/projects/ops") -> httpx2.Response:
    """Return a page as a browser loads it."""
    return call("GET", path, headers=cookie(value))


def text(answer: httpx2.Response) -> str:
    """Return the text of a page without tags."""
    assert answer.status_code == 200, answer.text
    return " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())


def drift(**fields: object) -> Incident:
    """Return an open drift incident that began two days ago, with the evidence of its rule."""
    days: list[dict[str, object]] = [
        {"day": f"{(NOW - timedelta(days=back)).date()}", "average": 0.5, "count": 3} for back in (2, 1, 0)
    ]
    rules = {"sequential": {"since": days[0]["day"], "until": days[-1]["day"], "days": days}}
    return incident(**({"metadata": json.dumps({"rules": rules}), "detected_at": NOW} | fields))


def baseline(**fields: object) -> Baseline:
    """Return a baseline of ops: Tier 2 is 0.85 with a deviation of 0.1."""
    tier = TierStatistics(mean=0.85, stddev=0.1, count=140)
    none = TierStatistics(count=0)
    values = {
        "baseline_id": "b1", "project": "ops", "computed_at": NOW - LATELY, "window_start": NOW - timedelta(days=14),
        "window_end": NOW, "tier1": none, "tier2": tier, "tier2_5": none, "tier3": none, "exchange_count": 140, "policy_digest": "0" * 16,
    }  # fmt: skip
    return Baseline(**(values | fields))  # type: ignore[arg-type]


def test_an_empty_project_says_how_to_begin(call: Call, root: str) -> None:
    """The page of a new project must not look broken."""
    page_text = text(looks(call, root))
    assert "No data yet" in page_text
    assert "driftline connections add" in page_text
    assert "No data yet" in page_text
    assert "Cost of judging" not in page_text


def test_open_incidents_come_first(call: Call, root: str, store: Store) -> None:
    """Open incidents come first, for the person on call."""
    put(store, "scores", history(fallen(0), 2, end=NOW))
    put(store, "incidents", [drift(cause="agent")])
    page = looks(call, root).text
    assert page.index("Tier 2 fell") < page.index('id="days"')
    assert f'href="/projects/ops/incidents/{incident().incident_id}"' in page
    row = re.search(r"<tr><td class=\"words\"><a [^>]*>Tier 2 fell.*?</tr>", page, re.DOTALL)
    assert row
    assert re.findall(r">([^<>]+)</(?:a|span|td|time)>", row[0]) == [
        "Tier 2 fell",
        "Critical",
        "2026-09-29",
        "The agent changed",
        "2026-10-01 12:00",
    ]
    assert "1 open incident" in text(looks(call, root))


def test_an_unknown_cause_is_named_as_unknown(call: Call, root: str, store: Store) -> None:
    """An unknown cause must be named, not shown as a dash."""
    put(store, "incidents", [drift()])
    assert ">Unknown</td>" in looks(call, root).text


def test_incidents_that_began_on_the_same_day_link_to_each_other(call: Call, root: str, store: Store) -> None:
    """An incident with an unknown cause may share that of its twin."""
    put(store, "incidents", [drift(), drift(incident_id="i2", tier="tier1", cause="agent")])
    page = looks(call, root)
    assert "Suspected: the agent changed" in text(page)
    assert "same days: Answer structure · Tier 1" in text(page)
    assert "same days: Answer quality · Tier 2" in text(page)
    assert 'Began on the same days: <a href="/projects/ops/incidents/i2">' in page.text


def test_an_unknown_project_is_an_error(call: Call, root: str) -> None:
    """A mistyped name must not look like a healthy project."""
    answer = call("GET", "/projects/nope", headers=cookie(root) | {"accept": "text/html"})
    assert answer.status_code == 404
    assert "There is no project nope; there are " in answer.text


def test_an_unsupported_parameter_is_reported(call: Call, root: str) -> None:
    """An ignored request for other days would be misleading."""
    assert "Unknown parameter in the address: <b> from.".replace("<b>", "&lt;b&gt;,") in text(
        looks(call, root, "/projects/ops?from=2026-01-01&<b>=1")
    )
    assert "which this page does not know" not in text(looks(call, root, "/projects/ops?window=7d&until=2026-09-20"))


def test_the_most_expensive_sessions_show_their_total_cost(call: Call, root: str, store: Store) -> None:
    """Most tokens are read from the cache, and cost money as well."""
    at = NOW - timedelta(days=1)
    filled(
        store,
        ("judgements", judgement("cheap", 1, judged_at=at, cost_usd=0.5)),
        ("judgements", judgement("dear", 1, judged_at=at, cost_usd=2.5, cache_read_tokens=4_000, cache_write_tokens=70)),
    )
    models = looks(call, root, "/projects/ops/details").text.split(">Cost by model</caption>")[1].split("</table>")[0]
    sessions = (
        looks(call, root, "/projects/ops/costs?window=7d").text.split("<h2>Most expensive sessions")[1].split("</table>")[0]
    )
    assert 'href="/projects/ops/costs?window=14d"' in looks(call, root, "/projects/ops/details").text
    assert "was judged" in text(looks(call, root, "/projects/ops/costs?until=2026-01-01"))
    assert sessions.index("dear") < sessions.index("cheap")
    for table in (models, sessions):
        assert re.search(r'data-label="Cache reads">4,000<', table)
        assert 'data-label="Cache writes">70<' in table


def test_a_project_without_incidents_may_still_need_attention(call: Call, root: str, store: Store) -> None:
    """Without any judge's answer, few rules can find anything, so the health is unknown; a project that is only set up deserves no warning."""
    filled(store, ("exchanges", exchange("s", 1)), ("scores", score("s", 1)))
    page_text = text(looks(call, root))
    assert "ops Audited Not known yet" in page_text
    assert "Set up a judge" in page_text


def test_every_page_explains_the_band_alike(call: Call, root: str, store: Store) -> None:
    """The page, the help and the tutorial must explain the band in the same words."""
    put(store, "scores", history(fallen(0), 20, end=NOW))
    put(store, "baselines", [baseline()])
    texts = [
        text(looks(call, root)),
        text(looks(call, root, "/help")).replace(" More ", " "),
        (ROOT / "docs" / "tutorial.md").read_text("utf-8"),
    ]
    assert [WORDS["charts"]["band"] in " ".join(unescape(one).split()) for one in texts] == [True] * 3


def test_decided_incidents_are_not_listed_as_open(call: Call, root: str, store: Store) -> None:
    """Decided incidents are not listed as open, and dismissed ones mark no days."""
    put(store, "scores", history(fallen(3), 10, end=NOW))
    put(store, "incidents", [drift(status="dismissed", resolved_at=NOW, resolved_by="ada")])
    page = looks(call, root)
    assert "Tier 2 fell" not in page.text
    assert 'href="/projects/ops/incidents?status=any&amp;window=all">All incidents' in page.text
    assert "off baseline" not in page.text


def test_days_of_drift_are_marked_in_the_chart_of_their_tier(call: Call, root: str, store: Store) -> None:
    """Charts must mark the days of drift."""
    put(store, "scores", history(fallen(3), 10, end=NOW))
    put(store, "baselines", [baseline()])
    put(store, "incidents", [drift()])
    page = looks(call, root).text
    tier2 = drawn_charts(page)["trend-tier2"]
    assert tier2["marked"] == [11, 12, 13]
    assert tier2["band"] == [[0, 13, 0.75, 0.85, 0.95]]
    assert "off baseline 3 days" in text(looks(call, root))
    assert "Baseline 0.85 ± 0.10 over 140 scores, as sampled" in text(looks(call, root))
    assert "marked" not in drawn_charts(page)["trend-tier1"]


@pytest.mark.parametrize(("hour", "last"), [(0, 1), (9, 0)])
def test_a_baseline_names_its_days(call: Call, root: str, store: Store, hour: int, last: int) -> None:
    """A baseline covers two weeks, and an incident compares with all earlier days; both must say so."""
    end = NOW.replace(hour=hour, minute=0, second=0, microsecond=0)
    put(store, "scores", history(fallen(3), 10, end=NOW))
    put(store, "baselines", [baseline(window_start=end - timedelta(days=14), window_end=end)])
    days = f"{(end - timedelta(days=14)).date()} to {(end - timedelta(days=last)).date()}"
    assert f"Baseline 0.85 ± 0.10 over 140 scores, as sampled, {days}" in text(looks(call, root))


def test_a_good_day_is_not_marked_as_drift(call: Call, root: str, store: Store) -> None:
    """A mark on a good day would mislead the reader."""
    days = [f"{(NOW - timedelta(days=back)).date()}" for back in (2, 1, 0)]
    rule_evidence = {"since": days[0], "until": days[-1], "meanBefore": 0.9, "sigma": 0.05, "change": -0.4}
    level = {NOW - timedelta(days=2): 0.5, NOW - timedelta(days=1): 0.3, NOW: 0.92}
    scores = [score(f"s{at:%d}", 1, exchange_at=at, scored_at=NOW, **JUDGED, tier2_score=value) for at, value in level.items()]
    put(store, "scores", scores)
    put(store, "incidents", [drift(metadata=json.dumps({"rules": {"sequential": rule_evidence}}))])
    page = looks(call, root)
    assert drawn_charts(page.text)["trend-tier2"]["marked"] == [11, 12]
    assert f"Drift on {days[0]}, {days[1]}" in page.text.split('id="trend-tier2-chart"')[1].split("</figure>")[0]
    assert "off baseline 2 days" in text(page)


def test_the_earlier_level_of_a_tier_is_drawn_while_its_change_is_open(call: Call, root: str, store: Store) -> None:
    """A baseline that includes the bad days does not show how bad they are."""
    rule_evidence = {
        "since": f"{(NOW - timedelta(days=2)).date()}",
        "until": f"{NOW.date()}",
        "meanBefore": 0.9,
        "sigma": 0.05,
        "change": -0.4,
    }
    incident = drift(metadata=json.dumps({"rules": {"sequential": rule_evidence}}))
    put(store, "scores", history(fallen(3), 10, end=NOW))
    put(store, "incidents", [incident])
    page = looks(call, root)
    assert drawn_charts(page.text)["trend-tier2"]["before"][-5:] == [None, None, *[0.9] * 3]
    assert "0.90 (dotted)" in text(page)
    put(
        store,
        "incidents",
        [msgspec.structs.replace(incident, revision=1, status="accepted", resolved_at=NOW, resolved_by="ada")],
    )
    assert "before" not in drawn_charts(looks(call, root).text)["trend-tier2"]


def test_the_mean_of_a_day_does_not_depend_on_the_sampling(call: Call, root: str, store: Store) -> None:
    """Means must be weighted by sampling, or they differ from the incident's and the views'."""
    at = {"exchange_at": NOW - LATELY, "scored_at": NOW, **JUDGED}
    put(store, "scores", [
        score("s", 1, tier2_score=0.9, **at), score("s", 2, tier2_score=0.5, sampling_probability=1 / 3, **at),
    ])  # fmt: skip
    table = looks(call, root).text.split('id="trend-tier2-table"')[1].split("</table>")[0]
    assert "Weighted mean" in table
    assert re.findall(r">(0\.\d+)<", table) == ["0.60"]


def test_days_of_drift_link_to_their_incident(call: Call, root: str, store: Store) -> None:
    """If several incidents cover the days, they link to all of them."""
    put(store, "scores", history(fallen(3), 10, end=NOW))
    put(store, "incidents", [drift()])
    link = re.compile(r'href="([^"]*)">off baseline 3 days')
    assert link.findall(looks(call, root).text) == ["/projects/ops/incidents/i1"]
    put(store, "incidents", [drift(incident_id="i2")])
    assert link.findall(looks(call, root).text) == ["/projects/ops/incidents"]


def test_the_band_of_each_day_uses_the_baseline_of_that_day(call: Call, root: str, store: Store) -> None:
    """With today's baseline behind last week's days, the chart would show drift that did not exist."""
    newer = TierStatistics(mean=0.65, stddev=0.1, count=90)
    put(store, "scores", history(fallen(0), 10, end=NOW))
    put(store, "baselines", [baseline(computed_at=NOW - timedelta(days=5)), baseline(baseline_id="b2", tier2=newer)])
    page = looks(call, root)
    assert [(first, last) for first, last, *_ in drawn_charts(page.text)["trend-tier2"]["band"]] == [(0, 12), (13, 13)]
    assert "Baseline 0.65 ± 0.10 over 90 scores, as sampled" in text(page)
    assert "baseline of 2026-09-26 applies to all earlier days" in text(page)


def test_a_tier_without_scores_has_no_empty_chart(call: Call, root: str, store: Store) -> None:
    """A single line names the tiers without scores."""
    put(store, "scores", [score("s", 1, exchange_at=NOW - LATELY, scored_at=NOW)])
    page = looks(call, root)
    assert set(drawn_charts(page.text)) == {"trend-tier1", "exchanges"}
    assert "no scores of Answer quality · Tier 2, Thinking quality · Tier 2.5" in text(page)


def test_the_worst_of_many_open_incidents_are_listed(call: Call, root: str, store: Store) -> None:
    """The list of open incidents is limited and links to the others."""
    incidents = [
        drift(incident_id=f"i{n}", title=f"Number {n}", severity="warning", detected_at=NOW - timedelta(hours=n))
        for n in range(20)
    ]
    put(store, "incidents", [*incidents, drift(incident_id="old", title="Old and grave", detected_at=NOW - timedelta(days=3))])
    page = looks(call, root)
    assert re.findall(r"(Old and grave|Number \d+)</a>", page.text) == ["Old and grave", *(f"Number {n}" for n in range(7))]
    assert "All 21 open incidents" in text(page)
    assert 'href="/projects/ops/incidents?status=open&amp;status=acknowledged&amp;window=all"' in page.text


def test_the_address_contains_the_window(call: Call, root: str, store: Store) -> None:
    """The address reproduces the shown window."""
    put(store, "scores", history(fallen(0), 20, end=NOW))
    assert "18 Sep \u2013 1 Oct 2026" in text(looks(call, root))
    page = looks(call, root, "/projects/ops?window=7d&until=2026-09-20")
    assert "14 Sep \u2013 20 Sep 2026" in text(page)
    assert page.text.split('id="exchanges-table"')[1].split("</table>")[0].count('<th scope="row">') == 7
    assert 'href="/projects/ops?window=30d&amp;until=2026-09-20"' in page.text
    assert 'href="/projects/ops?window=7d&amp;until=2026-09-13"' in page.text
    assert 'href="/projects/ops?window=7d&amp;until=2026-09-27"' in page.text


def test_a_silent_project_shows_since_when_and_whether_this_is_usual(call: Call, root: str, store: Store) -> None:
    """Empty charts need an explanation for a project that has gone silent."""
    put(store, "scores", history(fallen(0), 3, end=NOW - timedelta(days=60)))
    page_text = text(looks(call, root))
    assert "2026-08-02, 60 days ago" in page_text
    assert "unusual" in page_text
    assert "was 1 day that quarter" in page_text
    assert "No data from 18 Sep \u2013 1 Oct 2026" in page_text
    assert "data: 20 Jul \u2013 2 Aug 2026" in page_text


def test_a_pause_as_long_as_earlier_ones_is_usual(call: Call, root: str, store: Store) -> None:
    """A pause is normal for an agent that works once a month."""
    for back in (20, 50):
        at = NOW - timedelta(days=back)
        filled(
            store,
            ("exchanges", exchange(f"s{back}", 1, occurred_at=at)),
            ("scores", score(f"s{back}", 1, exchange_at=at, scored_at=at)),
        )
    usual = text(looks(call, root))
    assert "2026-09-11 12:00 UTC, 20 days ago" in usual
    assert "That is usual" in usual


def test_the_band_ignores_the_days_of_an_open_change(call: Call, root: str, store: Store) -> None:
    """A band that includes the bad days would call the fall normal."""
    since = NOW.date() - timedelta(days=4)
    rule_evidence = {"since": f"{since}", "until": f"{NOW.date()}", "meanBefore": 0.85, "sigma": 0.05, "change": -0.4}
    put(store, "scores", history(fallen(5), 10, end=NOW))
    fell = TierStatistics(mean=0.65, stddev=0.2, count=90)
    put(store, "baselines", [baseline(computed_at=NOW - timedelta(days=6)), baseline(baseline_id="b2", tier2=fell)])
    incident = drift(metadata=json.dumps({"rules": {"sequential": rule_evidence}}))
    put(store, "incidents", [incident])
    band = drawn_charts(looks(call, root).text)["trend-tier2"]["band"]
    assert [(first, last, mean) for first, last, _low, mean, _high in band] == [(0, 13, 0.85)]
    put(
        store,
        "incidents",
        [msgspec.structs.replace(incident, revision=1, status="dismissed", resolved_at=NOW, resolved_by="ada")],
    )
    assert len(drawn_charts(looks(call, root).text)["trend-tier2"]["band"]) == 2


def test_without_a_clean_baseline_the_band_is_the_rules_reference(call: Call, root: str, store: Store) -> None:
    """A history imported after the fall has one baseline over good and bad days, which is no valid reference."""
    since = NOW.date() - timedelta(days=4)
    rule_evidence = {"since": f"{since}", "until": f"{NOW.date()}", "meanBefore": 0.9, "sigma": 0.05, "change": -0.4}
    put(store, "scores", history(fallen(5), 10, end=NOW))
    put(store, "baselines", [baseline(tier2=TierStatistics(mean=0.65, stddev=0.3, count=90))])
    put(store, "incidents", [drift(metadata=json.dumps({"rules": {"sequential": rule_evidence}}))])
    page = looks(call, root)
    assert [(first, last, mean) for first, last, _low, mean, _high in drawn_charts(page.text)["trend-tier2"]["band"]] == [
        (0, 13, 0.9)
    ]
    assert "Baseline 0.65" not in text(page)


def test_a_changed_judge_is_marked_on_the_day_shown_by_anchors(call: Call, root: str, store: Store) -> None:
    """A changed judge keeps its name and policy, so only anchors can mark the day; changes of the agent are not marks."""
    put(store, "scores", history(fallen(3), 10, end=NOW))
    day = datetime.combine(NOW.date() - timedelta(days=2), datetime.min.time(), NOW.tzinfo)
    put(store, "incidents", [drift(cause="judge", first_day=day), drift(incident_id="i2", cause="agent", first_day=day)])
    page = looks(call, root).text
    assert drawn_charts(page)["trend-tier2"]["marks"] == [[10.5, "judge", ""]]
    assert "the judge rates anchors differently" in page


def test_a_day_links_to_its_exchanges(call: Call, root: str, store: Store) -> None:
    """A day links to its hours in the chart and to its exchanges in the list."""
    put(store, "scores", history(fallen(3), 10, end=NOW, anomaly=True))
    page = looks(call, root).text
    day = f"{NOW:%Y-%m-%d}"
    assert f'<a href="/projects/ops/exchanges?window=24h&amp;until={day}">10</a>' in page.split('id="exchanges-table"')[1]
    anomalous = f'<a href="/projects/ops/exchanges?anomalies=yes&amp;window=24h&amp;until={day}">10</a>'
    assert anomalous in page.split('id="anomalies-table"')[1].split("</table>", maxsplit=1)[0]
    assert '<a href="/projects/ops/exchanges?window=14d">Exchanges in this period</a>' in page


def test_a_baseline_of_one_score_has_no_band(call: Call, root: str, store: Store) -> None:
    """The spread of a single score is unknown, so there is no band."""
    statistics = TierStatistics(mean=0.667, stddev=0.0, count=1)
    put(store, "scores", history(fallen(0), 1, end=NOW))
    put(store, "baselines", [baseline(tier1=statistics, tier2=statistics, exchange_count=1)])
    page_text = text(looks(call, root))
    assert "Baseline so far 0.67, of 1 score" in page_text
    assert "±" not in page_text.replace("± one sigma", "")
    tiers = call("GET", "/api/audit/ops/baseline", headers=cookie(root)).json()["baseline"]["dimensionAverages"]
    assert tiers["tier1"] == {"avg": 0.667, "stddev": None, "count": 1}


def test_a_project_with_only_events_is_active(call: Call, root: str, store: Store) -> None:
    """An agent that only sends events is active, so the page must not call it silent."""
    put(store, "scores", history(fallen(0), 3, end=NOW - timedelta(days=60)))
    filled(store, ("agent-events", event("run", 1)))
    page_text = text(looks(call, root))
    assert "newest event is from 2026-10-01" in page_text


@pytest.mark.parametrize("query", ["window=1d", "window=14", "until=1999-01-01", "until=9999-12-31", "until=x"])
def test_an_invalid_address_is_refused(call: Call, root: str, query: str) -> None:
    """An invalid address is answered with an error page."""
    assert looks(call, root, f"/projects/ops?{query}").status_code in {400, 422}


def test_costs_cover_the_same_days_as_the_charts(call: Call, root: str, store: Store) -> None:
    """Exchanges judged later cost something on their own days, or an empty cost chart would contradict the scores beside it."""
    put(store, "scores", history(fallen(0), 3, end=NOW - timedelta(days=60)))
    then = NOW - timedelta(days=61)
    filled(
        store,
        ("exchanges", exchange("old", 1, occurred_at=then)),
        ("judgements", judgement("old", 1, judged_at=NOW, cost_usd=0.5)),
    )
    page_text = text(looks(call, root, "/projects/ops?until=2026-08-02"))
    details = looks(call, root, "/projects/ops/details?until=2026-08-02")
    assert "20 Jul \u2013 2 Aug 2026" in page_text
    assert "$0.5000 for the exchanges from 20 Jul \u2013 2 Aug 2026" in text(details)
    assert "2026-08-01" in details.text.split('id="costs-table"')[1].split("</table>")[0]
    assert "Most expensive sessions, 20 Jul \u2013 2 Aug 2026" in text(
        looks(call, root, "/projects/ops/costs?until=2026-08-02")
    )
    assert "was judged" in text(looks(call, root, "/projects/ops/costs?until=2026-09-30"))


def test_other_judge_costs_count_on_the_day_of_the_answer(call: Call, root: str, store: Store) -> None:
    """An unknown cost must not be shown as zero."""
    at = NOW - timedelta(days=1)
    filled(
        store,
        ("judgements", judgement("a", 1, judged_at=at)),
        ("judgements", judgement("a", 2, judged_at=at, requested_model="dear", cost_usd=2.5)),
        ("judgements", judgement("a", 3, judged_at=at, requested_model=HOSTILE, cost_usd=None)),
    )
    page = looks(call, root, "/projects/ops/details").text
    table = page.split(">Cost by model")[1].split("</table>")[0]
    assert [cell.strip() for cell in re.findall(r"<td[^>]*>([^<]*)", table)[:7]][::6] == ["dear", "$2.50"]
    assert "1 unknown" in table
    assert "<script>alert" not in page


def test_unscored_exchanges_are_listed_with_the_remedy(call: Call, root: str, tokens: Tokens, store: Store) -> None:
    """Admins are told the remedy, readers only the fact."""
    filled(store, ("exchanges", exchange("s", 1)), ("scores", score("s", 1)))
    admin, reader = (looks(call, one, "/projects/ops/details") for one in (root, signed_in(call, tokens.ops_reader)))
    assert "No judge is configured." in text(admin)
    assert "driftline rejudge" in admin.text
    assert 'data-post="/api/audit/ops/rejudge"' not in admin.text, "there is no judge to ask"
    assert "No judge is configured." in text(reader)


def test_less_urgent_parts_are_loaded_after_the_page(call: Call, root: str, store: Store) -> None:
    """They cover the same days; a browser that opens them by themselves gets the page, which has them."""
    put(store, "scores", history(fallen(0), 20, end=NOW))
    page = looks(call, root, "/projects/ops?window=7d&until=2026-09-20").text
    address = "/projects/ops/details?window=7d&amp;until=2026-09-20"
    assert re.findall(f'data-load="{re.escape(address)}" data-take="([a-z]+)"', page) == [
        "failures",
        "versions",
        "figures",
        "details",
    ]
    whole = call("GET", unescape(address), headers=cookie(root) | {"sec-fetch-dest": "document"})
    assert (whole.status_code, whole.headers["location"]) == (303, "/projects/ops?window=7d&until=2026-09-20")
    details = looks(call, root, unescape(address)).text
    assert all(f'id="{name}" data-part' in details for name in ("failures", "versions", "figures", "details"))
    for label in ("Exchanges", "Judged", "Anomalies"):
        figure = f"<dt>{label}</dt><dd>([^<]*)<"
        assert re.findall(figure, page) == re.findall(figure, details)


def test_details_cover_the_days_of_the_page(call: Call, root: str, store: Store) -> None:
    """Like the page itself, they are empty if there are no recent records."""
    put(store, "scores", history(fallen(0), 3, end=NOW - timedelta(days=60)))
    assert "No exchange from" in text(looks(call, root, "/projects/ops/details"))
    assert "No exchange from" not in text(looks(call, root, "/projects/ops/details?until=2026-08-02"))


def test_only_admins_see_how_to_spend_money(call: Call, access: AccessStore, store: Store) -> None:
    """A button must not be offered if it would be refused."""
    filled(store, ("exchanges", exchange("s", 1)), ("scores", score("s", 1)))
    token = access.add(Holder("operator", "looker", "ops", scopes=frozenset({"read"})))
    page = looks(call, signed_in(call, token), "/projects/ops/details")
    assert "No judge is configured." in text(page)
    assert "driftline rejudge" not in page.text


def test_the_sampling_mix_shows_the_rules(call: Call, root: str, store: Store) -> None:
    """Users who tune sampling need the number of exchanges per rule."""
    recent = {"exchange_at": NOW - LATELY, "scored_at": NOW}
    put(
        store,
        "scores",
        [score("s", 1, **recent), score("s", 2, sampling_reason="sampling_skip", disposition="sampling_skip", **recent)],
    )
    page_text = text(looks(call, root, "/projects/ops/details"))
    assert "Not judged 1 50.0%" in page_text
    assert "Not sampled 1 50.0%" in page_text


def test_figures_of_a_simulated_judge_are_marked(call: Call, root: str, store: Store) -> None:
    """Scores of a simulated judge must not pass for real ones."""
    put(store, "scores", history(fallen(0), 2, end=NOW, simulated=True))
    assert "Simulated judge" in text(looks(call, root))


def test_the_banner_is_shown_as_agents_receive_it(call: Call, root: str) -> None:
    """The page shows the banner exactly as agents receive it."""
    assert "Eval Audit Mode: Active\n" in looks(call, root).text
    assert "Eval Audit Mode: Off\n" in looks(call, root, "/projects/dark").text


def test_no_text_of_an_agent_is_markup(call: Call, root: str, store: Store) -> None:
    """Titles and reasons quote agents, and sessions choose their names."""
    at = {"exchange_at": NOW - LATELY, "scored_at": NOW}
    bad = score("s", 1, anomaly=True, anomaly_reasons=(HOSTILE,), agent=HOSTILE, **at)
    put(store, "scores", [msgspec.structs.replace(bad, session_id=HOSTILE)])
    put(store, "incidents", [drift(title=HOSTILE, description=HOSTILE, cause=HOSTILE)])
    for path in (
        "/projects/ops",
        "/projects/ops/details",
        "/projects/ops/anomalies",
        "/projects/ops/wrap-quality",
        "/projects/ops/agents",
        f"/projects/ops/agents?agent={quote(HOSTILE)}",
    ):
        page = looks(call, root, path).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "\u202e" not in page
        assert re.findall(r"\sstyle=|<style|<script(?! src=\"/static/)|(?:src|href)=\"(?!/|#)", page) == []


PAGES = ("", "/details", "/anomalies", "/costs", "/wrap-quality", "/agents")


@pytest.mark.parametrize("path", PAGES)
def test_a_project_of_other_operators_is_hidden(call: Call, tokens: Tokens, path: str) -> None:
    """A token of ops shows ops only."""
    value = signed_in(call, tokens.ops_reader)
    assert looks(call, value, f"/projects/ops{path}").status_code == 200
    assert looks(call, value, f"/projects/web{path}").status_code == 403
    assert call("GET", f"/projects/ops{path}").status_code == 303


@pytest.mark.parametrize("path", PAGES)
def test_an_unchanged_page_is_not_sent_again(call: Call, root: str, store: Store, path: str) -> None:
    """Dashboards poll the page often, so unchanged pages must not be sent again."""
    put(store, "scores", history(fallen(2), 5, end=NOW))
    first = looks(call, root, f"/projects/ops{path}")
    repeated = call("GET", f"/projects/ops{path}", headers=cookie(root) | {"if-none-match": first.headers["etag"]})
    assert repeated.status_code == 304
    assert repeated.content == b""


def test_anomalies_link_to_their_exchanges_in_pages(call: Call, root: str, store: Store) -> None:
    """They are listed newest first, each once."""
    scores = [
        score("s", place, anomaly=True, anomaly_reasons=("bad",), exchange_at=NOW - timedelta(minutes=place), scored_at=NOW)
        for place in range(1, 61)
    ]
    put(store, "scores", [*scores, score("fine", 1, exchange_at=NOW - LATELY, scored_at=NOW)])
    turns, path = [], "/projects/ops/anomalies"
    while path:
        page = looks(call, root, path).text
        turns += re.findall(r'href="/projects/ops/exchanges/score%20s%3A(\d+)\?at=', page)
        following = re.search(r'href="([^"]*cursor=[^"]*)"[^>]*>Next page', page)
        path = unescape(following[1]) if following else ""
    assert turns == [f"{place}" for place in range(1, 61)]
    assert f"Bad {NOTHING} 60" in text(looks(call, root, "/projects/ops/anomalies"))


def test_a_long_reason_can_be_read_completely(call: Call, root: str, store: Store) -> None:
    """A cut reason must be readable in full."""
    reason = "it said so " * 60 + "and then this"
    put(store, "scores", [score("s", 1, anomaly=True, anomaly_reasons=(reason,), exchange_at=NOW - LATELY, scored_at=NOW)])
    common = looks(call, root, "/projects/ops/anomalies").text.split('id="reasons"')[1]
    assert "<summary>Full text" in common
    assert reason in common


def test_the_steps_of_a_wrap_up_are_listed_by_session(call: Call, root: str, store: Store) -> None:
    """Screen readers skip dashes, so missing steps are named."""
    filled(store, ("exchanges", exchange("s", 1, response="I updated the changelog and committed it.")))
    page_text = text(looks(call, root, "/projects/ops/wrap-quality"))
    assert "40.0% on average" in page_text
    missing = f"{NOTHING} missing"
    assert f"2 of 5 {missing} ✓ found {missing} {missing} ✓ found" in page_text


def test_what_agents_do_is_shown_by_version_and_read_over_http(call: Call, root: str, tokens: Tokens, store: Store) -> None:
    """After a release, its errors and tokens stand beside those of the version before and of the days before, without a judge."""
    failed = ToolCall(name=HOSTILE, arguments=None, result=None, outcome="error")
    answered = msgspec.structs.replace(failed, outcome="ok")
    versions = (("6", 20, answered, 400), ("7", 1, failed, 1600))
    put(
        store,
        "exchanges",
        [
            exchange(
                version, 1,
                agent="checkout", labels=(Label(name="agent_version", value=version),), occurred_at=NOW - timedelta(days=days),
                ingested_at=NOW, tool_calls=(call_of_tool, answered), output_tokens=tokens_out,
            )
            for version, days, call_of_tool, tokens_out in versions
        ],
    )  # fmt: skip
    described = [
        event(f"s{days}", 1, event="tool_definitions", agent="checkout", tools={HOSTILE: f"{days}"}) for days in (20, 1)
    ]
    put(
        store,
        "agent-events",
        [
            msgspec.structs.replace(record, occurred_at=NOW - timedelta(days=int(record.session_id[1:])), ingested_at=NOW)
            for record in described
        ],
    )
    refresh_daily(store)
    listed = call("GET", "/api/audit/ops/behaviour?from=2026-09-20T00:00:00Z", tokens.root).json()
    (description,) = listed["descriptions"]
    assert (description["sessionId"], description["previous"]) == ("s1", digest("20"))
    levels = {(entry["version"], entry["series"]): (entry["level"], entry["count"]) for entry in listed["behaviour"]}
    assert listed["count"] == len(levels)
    assert levels["7", f"tool_errors:{HOSTILE}"] == (0.5, 2)
    assert levels["7", "output_tokens"] == (pytest.approx(1600), 1)
    assert all(version == "7" for version, _ in levels)
    of_agent = looks(call, root, "/projects/ops/agents?agent=checkout&window=90d")
    assert "Output tokens per turn 400 1,600 +300% 1" in text(of_agent), "versions beside each other"
    assert "<script>alert" not in of_agent.text
    page = looks(call, root, "/projects/ops/details?compare=before")
    assert f"Output tokens per turn {NOTHING} 1,600" in text(page)
    assert f"{digest('1')} {digest('20')}" in text(page)
    assert "50%" in text(page)
    assert "<script>alert" not in page.text


def test_costs_of_agents_stand_beside_those_of_judging(call: Call, root: str, store: Store) -> None:
    """A new version may need twice the tokens; costs of unknown models are said to be unknown, not zero."""
    recent = {"occurred_at": NOW - LATELY}
    tokens = {"input_tokens": 1_000_000, "output_tokens": 100_000}
    filled(
        store,
        ("exchanges", exchange("s", 1, agent="scout", agent_model="claude-haiku-4-5", **tokens, **recent)),
        ("exchanges", exchange("s", 2, agent="scout", agent_model="claude-haiku-4-5", **recent)),
        ("exchanges", exchange("t", 1, agent="<b>odd</b>", agent_model="house-model", **tokens, **recent)),
    )
    page = looks(call, root, "/projects/ops/costs")
    page_text = text(page)
    assert "Agents (upper bound) $1.50" in page_text
    assert re.search(r"claude-haiku-4-5 2 1 1,000,000 100,000 \$1\.50", page_text)
    assert re.search(r"house-model 1 0 1,000,000 100,000 (?!\$)", page_text)
    assert "<b>odd" not in page.text

    answer = call("GET", "/api/audit/ops/costs/agents", headers=cookie(root), params={"by": "model"}).json()
    [known, unknown] = answer["costs"]
    assert (answer["costUsd"], answer["judgingUsd"]) == (1.5, None)
    assert (known["model"], known["costUsd"], known["exchanges"], known["unknownTokens"]) == ("claude-haiku-4-5", 1.5, 2, 1)
    assert (unknown["model"], unknown["costUsd"], unknown["unknownPrices"]) == ("house-model", None, 1)


def test_charts_have_a_line_for_each_agent_with_most_exchanges(call: Call, root: str, store: Store) -> None:
    """One bad agent hides in the mean of all; the rest is folded, and no exchange is lost. Names of agents are only text."""
    agents = ["<b>busy", *(f"a{number}" for number in range(8))]
    put(store, "scores", [
        score(f"{agent} {day} {number}", 1, agent=agent, tier1_score=0.5 if agent == "a0" else 1.0, exchange_at=NOW - timedelta(days=day, hours=1))
        for place, agent in enumerate(agents) for day in range(3) for number in range(9 - place)
    ])  # fmt: skip
    answer = looks(call, root, "/projects/ops?split=agent")
    charts, whole = drawn_charts(answer.text), drawn_charts(looks(call, root).text)
    assert len(charts["trend-tier1"]["series"]) == 7
    assert [values[-1] for values in charts["trend-tier1"]["series"][:3]] == [1.0, 0.5, 1.0]
    assert [sum(values) for values in zip(*charts["exchanges"]["series"], strict=True)] == whole["exchanges"]["series"][0]
    assert "<b>busy" not in answer.text
    assert "&lt;b&gt;busy" in answer.text
    assert "Other (3)" in answer.text
    assert "3 more are drawn together" in text(answer)
    assert "Unknown parameter" not in text(answer)
    assert looks(call, root, "/projects/ops?split=tool").status_code == 400


def test_charts_split_by_version_name_what_changed(call: Call, root: str, store: Store) -> None:
    """Two versions side by side are two lines; a label that never changes would only lengthen their names."""
    labels = [
        (Label(name="agent_version", value="7"), Label(name="prompt_version", value=prompt)) for prompt in ("spring", "autumn")
    ]
    put(store, "scores", [
        score(f"{place} {day}", 1, agent="desk", labels=pair, tier1_score=1.0 - place / 2, exchange_at=NOW - timedelta(days=day, hours=1))
        for place, pair in enumerate(labels) for day in range(place, 4)
    ])  # fmt: skip
    answer = looks(call, root, "/projects/ops?split=version")
    legend = re.findall(r'<span class="swatch part-\d"></span> ([^<]*)<', answer.text)
    assert legend[:2] == ["prompt spring", "prompt autumn"]
    assert [values[-1] for values in drawn_charts(answer.text)["trend-tier1"]["series"]] == [1.0, None]


def test_errors_of_tools_are_shown_as_text(call: Call, root: str, store: Store) -> None:
    """Names of tools and errors are an agent's, and must not become part of the page."""
    at = NOW - timedelta(days=1)
    hostile = ToolCall(
        name="<b>shell</b>", arguments=None, result="failed &lt;i&gt; <script>alert(1)</script>", outcome="error"
    )
    put(store, "exchanges", [exchange("s1", 1, occurred_at=at, ingested_at=at, tool_calls=(hostile,))])
    low = {"exchange_at": at, "anomaly": True, "anomaly_reasons": ("low",), "tier1_flags": ("silent_refusal",)}
    put(store, "scores", [msgspec.structs.replace(score("s1", 1), **low)])
    refresh_daily(store)
    for path in ("/projects/ops/failures", "/projects/ops/details"):
        page = looks(call, root, path).text
        assert "&lt;b&gt;shell&lt;/b&gt; failed" in page
        assert not re.search(r"<b>shell|alert\(1\)|<script>a", page)
    assert "Nothing failed" in looks(call, root, "/projects/ops/failures?window=7d&until=2026-01-01").text
