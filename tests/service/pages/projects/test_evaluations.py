"""Evaluations as pages: the list, cases and models, and one result down to the judge's own words."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from urllib.parse import parse_qs

import msgspec
import pytest
from support.api_server import Call, Tokens
from support.evaluation_builders import make_request
from support.pages import cookie, signed_in
from support.sample_evaluations import AT, CLAUDE, HOSTILE, MINIMAX, REFUND, REPORT, SET, Made, evaluated
from support.watch_histories import put

from analytics.store.store import Store
from schemas.records import DeadLetter, Evaluation, Heartbeat
from service.pages import listing
from service.pages.rendering import MAX_SHOWN
from service.setup.access import AccessStore, Holder

LIST = "/projects/shop/evaluations"


def landed(store: Store, *samples: Made) -> list[Evaluation]:
    """Store evaluations, each judged a minute after the previous one."""
    records = [
        msgspec.structs.replace(evaluated(one).evaluation, evaluated_at=AT + timedelta(hours=1, minutes=number))
        for number, one in enumerate(samples)
    ]
    put(store, "evaluations", records)
    return records


def open_page(call: Call, tokens: Tokens, path: str = LIST) -> str:
    """Return the text of a page; the list covers all time."""
    if path.partition("?")[0] == LIST and "window=" not in path:
        path += "&window=all" if "?" in path else "?window=all"
    answer = call("GET", path, headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 200
    return answer.text


def evaluation_ids(page: str) -> list[str]:
    """Return the ids of the listed evaluations, in order."""
    return [html.unescape(evaluation_id) for evaluation_id in re.findall(rf'<a href="{LIST}/([^"]+)">', page)]


def test_evaluations_are_listed_newest_first(call: Call, tokens: Tokens, store: Store) -> None:
    """A failed evaluation is listed without a score."""
    landed(store, *SET)
    page = open_page(call, tokens)
    assert [one.session for one in reversed(SET)] == [one.partition("%3A")[0] for one in evaluation_ids(page)]
    assert re.findall(r'<td class="number" data-label="Score">(?:<strong>([\d.]+)</strong>|\s*<span class="pill (bad))', page)[:2] == [
        ("", "bad"), ("9.50", ""),
    ]  # fmt: skip


def test_the_list_can_be_filtered_by_case_and_model(call: Call, tokens: Tokens, store: Store) -> None:
    """Case and model are filters in the address."""
    landed(store, *SET)
    page = open_page(call, tokens)
    queries = [parse_qs(html.unescape(query)) for query in re.findall(rf'href="{LIST}\?([^"]+)"', page)]
    assert {"case": ["monthly-report"], "window": ["all"]} in queries
    assert {"model": [MINIMAX], "window": ["all"]} in queries
    ids = evaluation_ids(open_page(call, tokens, f"{LIST}?case=refund-policy&model={CLAUDE}"))
    assert ids == ["2f1c7f0e-5b7a-4d35-9a0c-7c6b1f7f2a11%3Arefund-policy"]
    assert "No evaluation matches" in open_page(call, tokens, f"{LIST}?case=refund-policy&model=nobody")


def test_models_are_compared_with_an_interval(call: Call, tokens: Tokens, store: Store) -> None:
    """With too few runs, the page says that there is no verdict."""
    landed(store, *SET, Made(CLAUDE, REFUND, "s-9", (9.0, 9.5, 9.0)))
    page = open_page(call, tokens)
    assert ">Few runs<" in page
    assert "pair with too few runs" in page
    assert re.search(
        r"<strong>-\d\.\d\d</strong></td><td class=\"number\" data-label=\"95% interval\">-\d+\.\d\d to \+\d+\.\d\d</td>", page
    )


def test_a_case_has_a_chart_if_there_is_more_than_one_week(call: Call, tokens: Tokens, store: Store) -> None:
    """A single point is not drawn as a chart, but its mean and interval are shown."""
    first, *_ = landed(store, *SET)
    assert "<svg" not in open_page(call, tokens)
    later = first.run_at and first.run_at + timedelta(days=21)
    put(store, "evaluations", [msgspec.structs.replace(first, evaluation_id="x", session_id="s-later", run_at=later)])
    page = open_page(call, tokens)
    assert page.count(' data-chart="') == 1
    assert "Mean final score of 4 runs" in page


def test_pages_continue_where_the_previous_one_ended(
    call: Call, tokens: Tokens, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every evaluation is on one page, and the filter stays."""
    monkeypatch.setattr(listing, "ROWS_PER_PAGE", 2)
    landed(store, *SET)
    path, ids = f"{LIST}?case=refund-policy", []
    while path:
        page = open_page(call, tokens, path)
        ids += evaluation_ids(page)
        following = re.findall(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(following[0]) if following else ""
    assert len(ids) == 3
    assert len(set(ids)) == 3
    assert "First page" in page


def test_a_result_shows_its_parts(call: Call, tokens: Tokens, store: Store) -> None:
    """It shows score, dimensions with their policies, checks, and every answer verbatim."""
    landed(store, SET[0])
    page = open_page(call, tokens, f"{LIST}/s-0001:refund-policy")
    dimensions = re.findall(r'<tr><th scope="row" title="[^"]+">(\w+)</th>(.*?)</tr>', page)
    assert [name for name, _ in dimensions] == ["task", "process", "autonomy", "closeness", "efficiency", "spark"]
    assert "75.0% judge, 25.0% checks" in dict(dimensions)["process"]
    assert "8.50<small>of 10</small>" in page
    assert page.count('<details id="answer-') == 3
    assert "&#34;overall&#34;" in page or "&quot;overall&quot;" in page
    assert "names-the-amount" in page
    assert "Simulated judge" not in page


def test_a_failed_judge_leaves_no_score_and_a_reason(call: Call, tokens: Tokens, store: Store) -> None:
    """An unknown score must not be shown as 0."""
    landed(store, SET[-1])
    page = open_page(call, tokens, f"{LIST}/s-0005:monthly-report")
    assert "failed: no valid answer" in page
    assert re.findall(r'<span class="pill bad"[^>]*>\s*([A-Za-z ]+?)\s*</span>', page) == [
        "Provider error",
        "Provider error",
        "Timeout",
    ]
    assert page.count("There is no answer.") == 3
    assert "needs two answers" in page


def test_the_judges_text_is_escaped(call: Call, tokens: Tokens, store: Store) -> None:
    """The judge's text may contain text of the agent, so it is escaped."""
    title = f"<b>{HOSTILE[2]}"
    hostile = Made(
        f"{HOSTILE[2]}\u202etxt.exe", {**REPORT, "title": title}, "s-h", (5.0, 5.0, 5.0), evidence=HOSTILE, simulated=True
    )
    landed(store, hostile)
    for path in (LIST, f"{LIST}/s-h:monthly-report"):
        page = open_page(call, tokens, path)
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page
        assert '<span class="code-point">U+202E</span>txt.exe' in page
        assert "Simulated judge" in page


def test_the_prompts_can_be_downloaded_completely(call: Call, tokens: Tokens, store: Store) -> None:
    """Users can read the complete prompt behind a score; the page shows the beginning."""
    landed(store, SET[0])
    long = "<i>" + "x" * MAX_SHOWN
    request = make_request(
        evaluation_id="s-0001:refund-policy", project="shop", attempt=0, system_prompt="Judge.", user_prompt=long
    )
    put(store, "evaluation-requests", [request])
    page = open_page(call, tokens, f"{LIST}/s-0001:refund-policy")
    links = re.findall(r'<a href="([^"]+)" download>', page)
    assert links == [f"{LIST}/s-0001%3Arefund-policy/prompts/user"]
    response = call("GET", links[0], headers=cookie(signed_in(call, tokens.root)))
    assert response.text == long
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-disposition"].startswith("attachment")
    odd = f"{LIST}/s-0001:refund-policy/prompts/other"
    assert call("GET", odd, headers=cookie(signed_in(call, tokens.root))).status_code == 404


def test_pending_and_failed_evaluations_are_marked(call: Call, tokens: Tokens, store: Store) -> None:
    """The link to an evaluation exists before its result."""
    put(store, "evaluation-requests", [make_request(evaluation_id="e1", project="shop", attempt=0)])
    assert "The judge is being asked;" in open_page(call, tokens, f"{LIST}/e1")
    letter = DeadLetter(
        dead_letter_id="l1", stage="evaluation", source="evaluation-requests", position=0, reason="it cannot be read",
        detail="", digest="0" * 64, size=0, body=b"", rejected_at=AT,
    )  # fmt: skip
    put(store, "dead-letters", [letter])
    assert "will not be judged: it cannot be read" in open_page(call, tokens, f"{LIST}/e1")


def test_a_project_without_evaluations_says_how_to_make_one(call: Call, tokens: Tokens, store: Store) -> None:
    """New users start with an empty project."""
    put(store, "heartbeats", [Heartbeat(connection="c", project="shop", session_id="s", occurred_at=AT, ingested_at=AT)])
    assert "driftline evaluate --case" in open_page(call, tokens)


@pytest.mark.parametrize("path", [LIST, f"{LIST}/s-0001:refund-policy", f"{LIST}/s-0001:refund-policy/prompts/user"])
def test_another_project_is_hidden(call: Call, access: AccessStore, store: Store, path: str) -> None:
    """Another project's evaluation is hidden under any address."""
    landed(store, SET[0])
    value = signed_in(call, access.add(Holder("operator", "other", "web")))
    assert call("GET", path, headers=cookie(value)).status_code == 403
    if path != LIST:
        assert call("GET", path.replace("/shop/", "/web/"), headers=cookie(value)).status_code == 404
