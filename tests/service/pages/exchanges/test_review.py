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
    """Whether the policy accepts human scores."""
    return True


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner, *, takes_human_scores: bool) -> Iterator[Engine]:
    """A started engine whose policy takes scores of people."""
    policy = Policy.model_validate({"defaults": {"bidirectionalScoring": takes_human_scores}})
    started = Engine(store, policy, Redactor(policy.redaction), lambda: NOW)
    loop.run(started.start())
    yield started
    loop.run(started.stop())


@pytest.fixture
def judged(store: Store) -> None:
    """Two judged exchanges of ops, the second odd and hostile, and one of web."""
    put(store, "exchanges", [exchange("s", 1), exchange("s", 2, HOSTILE, user_message=HOSTILE, agent_thinking=HOSTILE)])
    put(store, "scores", [score("s", 1, **JUDGED), score("s", 2, **(JUDGED | ODD)), score("w", 1, project="web", **JUDGED)])
    with store.transaction() as transaction:
        transaction.set_watermark("intake", "exchanges", 100)


def shown(call: Call, token: str, path: str = REVIEW) -> str:
    """A page as text."""
    answer = call("GET", path, headers=cookie(signed_in(call, token)))
    assert answer.status_code == 200
    return answer.text


def item_of(page: str) -> str | None:
    """The score that the page asks for."""
    found = re.search(r'data-item="([^"]*)"', page)
    return found and found[1]


@pytest.mark.usefixtures("judged")
def test_the_odd_one_comes_first_and_the_page_says_why(call: Call, tokens: Tokens) -> None:
    """Reviewers must see why the exchange is in the queue, and how many are left."""
    page = shown(call, tokens.root)
    assert item_of(page) == "score s:2"
    assert "it made up a file" in page
    assert re.findall(
        r'<td class="words">([^:]*):.*?</td><td class="number">(\d+)</td><td class="number">(\d+)</td>', page
    ) == [("Anomalies", "1", "0"), ("No anomaly", "1", "0")]


@pytest.mark.usefixtures("judged")
def test_the_page_names_every_key_it_knows(call: Call, tokens: Tokens) -> None:
    """Shortcuts must be documented to be used."""
    keys = re.search(r'<p class="keys[^"]*">(.*?)</p>', shown(call, tokens.root))
    assert keys is not None
    assert re.findall(r"<kbd>(\w+)</kbd>", keys[1]) == ["1", "5", "C", "Esc", "S", "B"]


@pytest.mark.usefixtures("judged")
def test_nothing_an_agent_said_is_markup(call: Call, tokens: Tokens) -> None:
    """The reviewed texts were written by the audited agent."""
    page = shown(call, tokens.root)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;" + '<span class="code-point">U+202E</span>txt.exe') == 3


@pytest.mark.usefixtures("judged")
def test_blind_tells_nothing_of_the_verdict(call: Call, tokens: Tokens) -> None:
    """Not the score, not the reason, not why it is there, and no link to where it stands."""
    page = shown(call, tokens.root, f"{REVIEW}?blind=true")
    assert item_of(page) == "score s:2"
    for word in ("it made up a file", "The judge's findings", "/exchanges/", ">Anomaly<"):
        assert word not in page


@pytest.mark.usefixtures("judged")
def test_a_score_sent_from_the_page_brings_the_next(call: Call, tokens: Tokens) -> None:
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


def test_a_text_of_any_length_leaves_the_page_small(call: Call, tokens: Tokens, store: Store) -> None:
    """Long texts must not break the queue; the complete text is a file."""
    put(store, "exchanges", [exchange("s", 1, "x" * 900_000)])
    put(store, "scores", [score("s", 1, **JUDGED)])
    page = shown(call, tokens.root)
    assert len(page) < 100_000
    (whole,) = re.findall(r'<a href="([^"]+)" download>', page)
    found = call("GET", whole.replace("&amp;", "&"), headers=cookie(signed_in(call, tokens.root)))
    assert found.text == "x" * 900_000


@pytest.mark.usefixtures("judged")
def test_skipping_is_a_link_and_ends(call: Call, tokens: Tokens) -> None:
    """It works without a script; what was skipped is found again."""
    path, seen = REVIEW, []
    for _ in range(2):
        page = shown(call, tokens.root, path)
        seen.append(item_of(page))
        (path,) = re.findall(r'data-skip href="([^"]+)"', page)
        path = path.replace("&amp;", "&")
    assert set(seen) == {"score s:1", "score s:2"}
    page = shown(call, tokens.root, path)
    assert item_of(page) is None
    assert re.search(rf'<a href="{REVIEW}">Review the 2 skipped</a>', page)


@pytest.mark.usefixtures("judged")
def test_whoever_may_not_score_is_told_why(call: Call, access: AccessStore) -> None:
    """Without an explanation, missing buttons would look like an error."""
    token = access.add(Holder("operator", "looker", None, scopes=frozenset({"read"})))
    page = shown(call, token)
    assert item_of(page) is None
    assert "scope review" in page
    assert "looker" in page


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize("takes_human_scores", [False])
def test_a_project_that_takes_no_scores_says_what_to_do(call: Call, tokens: Tokens) -> None:
    """The setting is off by default."""
    page = shown(call, tokens.root)
    assert item_of(page) is None
    assert "bidirectionalScoring: true" in page


def test_an_empty_project_has_nothing_to_score(call: Call, tokens: Tokens) -> None:
    """New users start with an empty project."""
    page = shown(call, tokens.root)
    assert "once it has been scored" in page
    assert "No exchange has been scored yet." in page


@pytest.mark.usefixtures("judged")
def test_a_deleted_exchange_can_still_be_skipped(call: Call, tokens: Tokens, store: Store) -> None:
    """The queue must continue after retention has deleted texts."""
    put(store, "scores", [score("gone", 1, exchange_at=NOW, **(JUDGED | ODD))])
    page = shown(call, tokens.root)
    assert item_of(page) == "score gone:1"
    assert "The texts were deleted" in page


@pytest.mark.parametrize("path", [REVIEW, AGREEMENT])
def test_another_project_is_not_shown(call: Call, access: AccessStore, path: str) -> None:
    """Neither its texts nor how people judge it."""
    token = access.add(Holder("operator", "other", "web"))
    assert call("GET", path, headers=cookie(signed_in(call, token))).status_code == 403
    assert call("GET", path, headers={"accept": "text/html"}).status_code == 303


@pytest.mark.parametrize("path", [f"{REVIEW}?blind=maybe", f"{AGREEMENT}?days=31", f"{REVIEW}?{'&'.join(['skip=a'] * 201)}"])
def test_an_address_that_cannot_be_read_is_a_page(call: Call, tokens: Tokens, path: str) -> None:
    """Users edit addresses by hand, so errors must be pages."""
    answer = call("GET", path, headers=cookie(signed_in(call, tokens.root)))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_few_labels_are_no_number(call: Call, tokens: Tokens, store: Store) -> None:
    """Kappa of two labels would be misleading."""
    labelled(call, tokens, store, 2)
    page = shown(call, tokens.root, AGREEMENT)
    assert page.count("Not enough labels") == 2
    assert not re.search(r"<strong>-?\d", page)
    assert "30 exchanges from 15 sessions" in page


def test_agreement_is_shown_of_all_and_of_each(call: Call, tokens: Tokens, store: Store) -> None:
    """With as many labels as it takes: kappa, its interval, the bias with its sign."""
    labelled(call, tokens, store, 32)
    page = shown(call, tokens.root, f"{AGREEMENT}?days=0")
    assert re.findall(r'<th scope="row">(.*?)</th>', page) == ["All people", "root"]
    assert re.search(
        r"<strong>-?\d\.\d\d</strong></td><td class=\"number\" data-label=\"95 %\">-?\d\.\d\d to -?\d\.\d\d</td>", page
    )
    assert '<td class="number" data-label="Bias">+0.50</td>' in page
    assert "scored by two people yet" in page


def labelled(call: Call, tokens: Tokens, store: Store, count: int) -> None:
    """So many judged sessions, each scored by root; every other one a point lower than the judge."""
    verdicts = [{**JUDGED, "tier3_score": 2.0 + number % 4} for number in range(count)]
    put(store, "scores", [score(f"s{number}", 1, **said) for number, said in enumerate(verdicts)])
    for number, said in enumerate(verdicts):
        points = int(said["tier3_score"]) - (number // 4) % 2
        path = f"/api/audit/ops/scores/score s{number}:1/human"
        assert call("POST", path, tokens.root, json={"score": points}).status_code == 200
