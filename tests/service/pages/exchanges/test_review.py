"""The review queue as a page: the next exchange, why it is there, what waits, and how far people and the judge agree."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.api_server import NOW, Call, Tokens
from support.builders import exchange, score
from support.pages import cookie, from_page, signed_in
from support.watch_histories import put

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from service.setup.access import AccessStore, Holder
from streams.engine.engine import Engine

REVIEW = "/projects/ops/review"
QUEUES = "/api/audit/ops/review/queues"
AGREEMENT = "/projects/ops/agreement"
JUDGED: dict[str, Any] = {
    "disposition": "scored",
    "tier2_state": "scored",
    "tier3_state": "scored",
    "tier2_score": 0.9,
    "tier3_score": 4.0,
}
ODD: dict[str, Any] = {"anomaly": True, "anomaly_reasons": ("it made up a file",), "tier3_score": 1.5}
HOSTILE = "<script>alert(1)</script>\u202etxt.exe"


@pytest.fixture
def takes_human_scores() -> bool:
    """Return whether the policy accepts human scores."""
    return True


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner, *, takes_human_scores: bool) -> Iterator[Engine]:
    """Yield a started engine whose policy accepts human scores."""
    policy = Policy.model_validate({"defaults": {"bidirectionalScoring": takes_human_scores}})
    started = Engine(store, policy, Redactor(policy.redaction), lambda: NOW)
    loop.run(started.start())
    yield started
    loop.run(started.stop())


@pytest.fixture
def judged(store: Store) -> None:
    """Store two judged exchanges of ops, the second anomalous and hostile, and one of web."""
    put(store, "exchanges", [exchange("s", 1), exchange("s", 2, HOSTILE, user_message=HOSTILE, agent_thinking=HOSTILE)])
    put(store, "scores", [score("s", 1, **JUDGED), score("s", 2, **(JUDGED | ODD)), score("w", 1, project="web", **JUDGED)])
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", 100)


def open_page(call: Call, token: str, path: str = REVIEW) -> str:
    """Return the text of a page."""
    answer = call("GET", path, headers=cookie(signed_in(call, token)))
    assert answer.status_code == 200
    return answer.text


def item_of(page: str) -> str | None:
    """Return the id of the score to be reviewed."""
    match = re.search(r'data-item="([^"]*)"', page)
    return match and match[1]


@pytest.mark.usefixtures("judged")
def test_the_anomalous_exchange_comes_first_with_its_reason(call: Call, tokens: Tokens) -> None:
    """Reviewers must see why the exchange is in the queue, and how many are left."""
    page = open_page(call, tokens.root)
    assert item_of(page) == "score s:2"
    assert "it made up a file" in page
    assert re.findall(
        r'<td class="words">([^:]*):.*?</td><td class="number">(\d+)</td><td class="number">(\d+)</td>', page
    ) == [("Anomalies", "1", "0"), ("No anomaly", "1", "0")]


@pytest.mark.usefixtures("judged")
def test_the_page_lists_its_keyboard_shortcuts(call: Call, tokens: Tokens) -> None:
    """Shortcuts must be documented to be used."""
    keys = re.search(r'<p class="keys[^"]*">(.*?)</p>', open_page(call, tokens.root))
    assert keys is not None
    assert re.findall(r"<kbd>(\w+)</kbd>", keys[1]) == ["1", "5", "C", "Esc", "S", "B", "E"]


@pytest.mark.usefixtures("judged")
def test_no_text_of_an_agent_is_markup(call: Call, tokens: Tokens) -> None:
    """The reviewed texts were written by the audited agent."""
    page = open_page(call, tokens.root)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;" + '<span class="code-point">U+202E</span>txt.exe') == 3


@pytest.mark.usefixtures("judged")
def test_a_blind_review_reveals_nothing_of_the_verdict(call: Call, tokens: Tokens) -> None:
    """It hides score, explanation, reason in the queue, and the link to the exchange."""
    page = open_page(call, tokens.root, f"{REVIEW}?blind=true")
    assert item_of(page) == "score s:2"
    for word in ("it made up a file", "The judge's findings", "/exchanges/", ">Anomaly<"):
        assert word not in page


@pytest.mark.usefixtures("judged")
def test_a_submitted_score_shows_the_next_exchange(call: Call, tokens: Tokens) -> None:
    """Submitting the form shows the next exchange, until none is left."""
    value = signed_in(call, tokens.root)
    for expected in ("score s:2", "score s:1"):
        page = call("GET", REVIEW, headers=cookie(value)).text
        assert item_of(page) == expected
        (address,) = re.findall(r'data-review action="([^"]+)"', page)
        assert call("POST", address, json={"score": 2}, headers=from_page(value)).status_code == 200
    page = call("GET", REVIEW, headers=cookie(value)).text
    assert item_of(page) is None
    assert "Nothing to review" in page


@pytest.mark.usefixtures("judged")
def test_a_queue_has_its_rubric_its_people_and_its_progress(call: Call, tokens: Tokens) -> None:
    """Reviewers of a task see what to look at and how far it is, and the exchanges that somebody chose for it."""
    rule = {"anomaly": True, "perDay": 5}
    settings = {"rubric": HOSTILE, "dimensions": ["tone_alignment"], "assignees": ["root"], "reviews": 2, "rule": rule}
    assert call("PUT", f"{QUEUES}/odd ones", tokens.root, json=settings).status_code == 200
    for change, field in (({"dimensions": ["beauty"]}, "dimensions"), ({"assignees": ["rot"]}, "assignees")):
        refused = call("PUT", f"{QUEUES}/odd ones", tokens.root, json=settings | change)
        assert (refused.status_code, field in refused.json()["error"]) == (400, True)
    page = open_page(call, tokens.root, f"{REVIEW}?queue=odd+ones")
    assert item_of(page) == "score s:2"
    assert "<script>alert" not in page
    assert "0 of 1 done" in page
    assert 'data-dimension="tone_alignment"' in page
    assert "Earlier in this session, 1 turn" in page
    body = {"score": 2, "queue": "odd ones", "dimensions": {"tone_alignment": 4}}
    assert call("POST", "/api/audit/ops/scores/score s:2/human", tokens.root, json=body).status_code == 200
    [score] = call("GET", "/api/audit/ops/scores/score s:2/human", tokens.root).json()["humanScores"]
    assert (score["queue"], score["dimensions"]) == ("odd ones", {"tone_alignment": 4})
    assert item_of(open_page(call, tokens.root, f"{REVIEW}?queue=odd+ones")) is None
    assert item_of(open_page(call, tokens.root)) == "score s:2"
    [queue] = call("GET", QUEUES, tokens.root).json()["queues"]
    assert {name: queue[name] for name in ("items", "done", "mine", "waiting", "reviewers")} == {
        "items": 1,
        "done": 0,  # a second person is to score it
        "mine": 1,
        "waiting": 0,
        "reviewers": {"root": 1},
    }
    added = call("POST", f"{QUEUES}/odd ones/items", tokens.root, json={"session": "s"}).json()
    assert added == {"queue": "odd ones", "changed": 2}
    assert item_of(open_page(call, tokens.root, f"{REVIEW}?queue=odd+ones")) == "score s:1"
    call("POST", f"{QUEUES}/odd ones/items", tokens.root, json={"scores": ["score s:1"], "remove": True})
    assert item_of(open_page(call, tokens.root, f"{REVIEW}?queue=odd+ones")) is None
    listed = open_page(call, tokens.root, "/projects/ops/review/queues")
    assert "an anomaly, at most 5 a day; and by hand" in listed
    call("PUT", f"{QUEUES}/zero", tokens.root, json={"rule": {"most": 0}})
    assert 'name="rule.most" type="number" value="0.0"' in open_page(call, tokens.root, "/projects/ops/review/queues?edit=zero")
    assert call("DELETE", f"{QUEUES}/odd ones", tokens.root).status_code == 200
    assert call("GET", f"{REVIEW}?queue=odd+ones", headers=cookie(signed_in(call, tokens.root))).status_code == 404


def test_labels_of_a_queue_count_in_no_figure_that_needs_a_random_sample(call: Call, tokens: Tokens, store: Store) -> None:
    """People choose bad answers for a queue. Among the other labels, they would make the judge look kind."""
    labelled(call, tokens, store, 32)
    before = call("GET", "/api/audit/ops/agreement", tokens.root).json()
    assert before["correctedMean"]["state"] == "enough"
    call("PUT", f"{QUEUES}/bad", tokens.root, json={})
    for number in range(32):
        body = {"score": 1 + number % 2, "queue": "bad"}
        assert call("POST", f"/api/audit/ops/scores/score s{number}:1/human", tokens.root, json=body).status_code == 200
    after = call("GET", "/api/audit/ops/agreement", tokens.root).json()
    [queue] = after.pop("queues")
    before.pop("queues")
    assert after == before
    assert (queue["queue"], queue["labels"], queue["bias"]) == ("bad", 32, 2.0)
    assert "no random sample" in open_page(call, tokens.root, AGREEMENT + "?days=0")


def test_a_long_text_does_not_enlarge_the_page(call: Call, tokens: Tokens, store: Store) -> None:
    """Long texts must not break the queue; the complete text is a file."""
    put(store, "exchanges", [exchange("s", 1, "x" * 900_000)])
    put(store, "scores", [score("s", 1, **JUDGED)])
    page = open_page(call, tokens.root)
    assert len(page) < 100_000
    (file_path,) = re.findall(r'<a href="([^"]+)" download>', page)
    response = call("GET", file_path.replace("&amp;", "&"), headers=cookie(signed_in(call, tokens.root)))
    assert response.text == "x" * 900_000


@pytest.mark.usefixtures("judged")
def test_an_exchange_can_be_skipped_without_a_script(call: Call, tokens: Tokens) -> None:
    """Skipped exchanges can be found again."""
    path, items = REVIEW, []
    for _ in range(2):
        page = open_page(call, tokens.root, path)
        items.append(item_of(page))
        (path,) = re.findall(r'data-skip href="([^"]+)"', page)
        path = path.replace("&amp;", "&")
    assert set(items) == {"score s:1", "score s:2"}
    page = open_page(call, tokens.root, path)
    assert item_of(page) is None
    assert re.search(rf'<a href="{REVIEW}">Review the 2 skipped</a>', page)


@pytest.mark.usefixtures("judged")
def test_a_reader_is_told_why_scoring_is_unavailable(call: Call, access: AccessStore) -> None:
    """Without an explanation, missing buttons would look like an error."""
    token = access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
    page = open_page(call, token)
    assert item_of(page) is None
    assert "Scoring needs the Review permission" in page
    assert "looker" in page


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize("takes_human_scores", [False])
def test_a_project_without_human_scores_says_what_to_do(call: Call, tokens: Tokens) -> None:
    """The setting is off by default."""
    page = open_page(call, tokens.root)
    assert item_of(page) is None
    assert "bidirectionalScoring: true" in page


def test_an_empty_project_has_nothing_to_score(call: Call, tokens: Tokens) -> None:
    """New users start with an empty project."""
    page = open_page(call, tokens.root)
    assert "once it has been scored" in page
    assert "No exchange has been scored yet." in page


@pytest.mark.usefixtures("judged")
def test_a_deleted_exchange_can_still_be_skipped(call: Call, tokens: Tokens, store: Store) -> None:
    """The queue must continue after retention has deleted texts."""
    put(store, "scores", [score("gone", 1, exchange_at=NOW, **(JUDGED | ODD))])
    page = open_page(call, tokens.root)
    assert item_of(page) == "score gone:1"
    assert "The texts were deleted" in page


@pytest.mark.parametrize("path", [REVIEW, AGREEMENT])
def test_another_project_is_hidden(call: Call, access: AccessStore, path: str) -> None:
    """This includes its texts and its agreement figures."""
    token = access.add(Holder("operator", "other", "web"))
    assert call("GET", path, headers=cookie(signed_in(call, token))).status_code == 403
    assert call("GET", path, headers={"accept": "text/html"}).status_code == 303


@pytest.mark.parametrize("path", [f"{REVIEW}?blind=maybe", f"{AGREEMENT}?days=31", f"{REVIEW}?{'&'.join(['skip=a'] * 201)}"])
def test_an_invalid_address_is_an_error_page(call: Call, tokens: Tokens, path: str) -> None:
    """Users edit addresses by hand, so errors must be pages."""
    answer = call("GET", path, headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_few_labels_give_no_kappa(call: Call, tokens: Tokens, store: Store) -> None:
    """Kappa of two labels would be misleading."""
    labelled(call, tokens, store, 2)
    page = open_page(call, tokens.root, AGREEMENT)
    assert page.count("Not enough labels") == 2
    assert not re.search(r"<strong>-?\d", page)
    assert "30 exchanges from 15 sessions" in page


def test_agreement_is_shown_overall_and_per_rater(call: Call, tokens: Tokens, store: Store) -> None:
    """With enough labels, the page shows kappa, its interval, and the signed bias."""
    labelled(call, tokens, store, 32)
    page = open_page(call, tokens.root, f"{AGREEMENT}?days=0")
    assert re.findall(r'<th scope="row">(.*?)</th>', page) == ["All people", "root", "The judge alone", "Corrected by people"]
    assert re.search(
        r"<strong>-?\d\.\d\d</strong></td><td class=\"number\" data-label=\"95%\">-?\d\.\d\d to -?\d\.\d\d</td>", page
    )
    assert '<td class="number" data-label="Bias">+0.50</td>' in page
    assert "scored by two people yet" in page
    judge, corrected = re.findall(r'data-label="Points">(?:<strong>)?(\d\.\d\d)', page)
    assert float(judge) - float(corrected) == pytest.approx(0.5, abs=0.01)


def labelled(call: Call, tokens: Tokens, store: Store, count: int) -> None:
    """Store judged sessions, each scored by root; every other score is a point below the judge's."""
    verdicts = [{**JUDGED, "tier3_score": 2.0 + number % 4} for number in range(count)]
    put(store, "scores", [score(f"s{number}", 1, **said) for number, said in enumerate(verdicts)])
    for number, verdict in enumerate(verdicts):
        points = int(verdict["tier3_score"]) - (number // 4) % 2
        path = f"/api/audit/ops/scores/score s{number}:1/human"
        assert call("POST", path, tokens.root, json={"score": points}).status_code == 200
