"""People beside the judge over HTTP: their scores with history, the queue, and how far all agree."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.api_server import Call, Tokens
from support.builders import exchange, score

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Record
from service.read.people import human_scores
from service.setup.access import AccessStore, Holder
from streams.engine.engine import Engine

SCORE = "/api/audit/ops/scores/score s:1/human"
NEXT = "/api/audit/ops/review/next"
AGREEMENT = "/api/audit/ops/agreement"
JUDGED = {"disposition": "scored", "tier2_state": "scored", "tier3_state": "scored", "tier2_score": 0.9, "tier3_score": 4.0}


class Clock:
    """A clock that advances by a second on each reading."""

    def __init__(self) -> None:
        self._now = datetime(2026, 10, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the next second."""
        self._now += timedelta(seconds=1)
        return self._now


@pytest.fixture
def takes_human_scores() -> bool:
    """Return whether the project's policy accepts human scores."""
    return True


@pytest.fixture
def engine(store: Store, loop: asyncio.Runner, *, takes_human_scores: bool) -> Iterator[Engine]:
    """Yield a started engine whose policy accepts human scores."""
    policy = Policy.model_validate({"defaults": {"bidirectionalScoring": takes_human_scores}})
    started = Engine(store, policy, Redactor(policy.redaction), Clock())
    loop.run(started.start())
    yield started
    loop.run(started.stop())


@pytest.fixture
def judged(store: Store) -> None:
    """Store three judged exchanges in ops, the second anomalous, and one in web."""
    land(store, "exchanges", [exchange("s", n, f"Answer {n}.") for n in (1, 2, 3)])
    anomaly = {"anomaly": True, "anomaly_reasons": ("tier 3 says so",), "tier3_score": 1.5}
    other_scores = [score("s", 1, **JUDGED), score("s", 3, **JUDGED), score("w", 1, project="web", **JUDGED)]
    land(store, "scores", [*other_scores, score("s", 2, **(JUDGED | anomaly))])


def land(store: Store, topic: str, records: list[Record]) -> None:
    """Append records as if the stages had written them."""
    with store.transaction() as transaction:
        transaction.append(topic, [encode(record) for record in records])
        transaction.set_watermark("intake", "exchanges", 100)


@pytest.mark.usefixtures("judged")
def test_a_score_shows_the_human_score(call: Call, tokens: Tokens) -> None:
    """The answer has it, and so does every later list."""
    response = call("POST", SCORE, tokens.root, json={"score": 2, "comment": "Too short."})
    document = response.json()["score"]
    assert response.status_code == 200
    assert document["humanScore"] == 2
    assert document["humanComment"] == "Too short."
    listed = call("GET", "/api/audit/ops/scores", tokens.root).json()["scores"]
    assert next(one for one in listed if one["id"] == document["id"]) == document
    assert str(document["tier3BehavioralScore"]) == "4.0"


@pytest.mark.usefixtures("judged")
def test_each_rater_has_a_history_and_the_newest_score_counts(call: Call, tokens: Tokens) -> None:
    """Every score is kept, under its own author."""
    for rater, value in (("ann", 2), ("bob", 5), ("ann", 3)):
        call("POST", SCORE, tokens.root, json={"score": value, "rater": rater})
    body = call("GET", SCORE, tokens.root).json()
    human_scores = [(one["rater"], one["score"], one["counts"]) for one in body["humanScores"]]
    assert human_scores == [("ann", 3, True), ("bob", 5, True), ("ann", 2, False)]
    assert body["count"] == 3
    listed = call("GET", "/api/audit/ops/scores", tokens.root).json()["scores"]
    assert [one["humanScore"] for one in listed if one["id"] == "score s:1"] == [3]


@pytest.mark.usefixtures("judged")
def test_without_a_name_the_operator_is_the_rater(call: Call, tokens: Tokens) -> None:
    """Every score needs an author."""
    call("POST", SCORE, tokens.root, json={"score": 4})
    assert [one["rater"] for one in call("GET", SCORE, tokens.root).json()["humanScores"]] == ["root"]


@pytest.mark.usefixtures("judged")
def test_secrets_in_a_comment_are_redacted(call: Call, tokens: Tokens) -> None:
    """People may paste secrets."""
    secret = "sk-ant-api03-" + "Zz9" * 20
    document = call("POST", SCORE, tokens.root, json={"score": 1, "comment": f"It showed {secret}"}).json()["score"]
    assert document["humanComment"].startswith("It showed [SECRET:")
    assert secret not in json.dumps(call("GET", SCORE, tokens.root).json())


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "score"),
        ({"score": 0}, "score"),
        ({"score": 6}, "score"),
        ({"score": "4"}, "score"),
        ({"score": 3.5}, "score"),
        ({"score": 3, "comment": 7}, "comment"),
        ({"score": 3, "comment": "x" * 10_001}, "comment"),
        ({"score": 3, "rater": " "}, "rater"),
    ],
)
def test_an_invalid_score_is_refused_with_its_field(call: Call, tokens: Tokens, body: dict[str, Any], field: str) -> None:
    """An invalid score must not be stored."""
    response = call("POST", SCORE, tokens.root, json=body)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert response.json()["error"].startswith(f"{field}: ")
    assert call("GET", SCORE, tokens.root).json()["count"] == 0


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize(("project", "score_id"), [("ops", "nothing"), ("ops", "score w:1"), ("new", "score s:1")])
def test_a_score_of_another_project_is_not_found(call: Call, tokens: Tokens, project: str, score_id: str) -> None:
    """An id of another project must reveal nothing."""
    path = f"/api/audit/{project}/scores/{score_id}/human"
    for response in (call("POST", path, tokens.root, json={"score": 3}), call("GET", path, tokens.root)):
        assert response.status_code == 404
        assert response.json()["code"] == "not_found"


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize("takes_human_scores", [False])
def test_a_project_without_human_scores_refuses_them(call: Call, tokens: Tokens) -> None:
    """By default, human scores are refused, so that nobody expects them to count."""
    for response in (call("POST", SCORE, tokens.root, json={"score": 3}), call("GET", NEXT, tokens.root)):
        assert response.status_code == 409
        assert response.json()["code"] == "human_scores_off"
        assert "bidirectionalScoring" in response.json()["error"]
    assert call("GET", AGREEMENT, tokens.root).status_code == 200


@pytest.mark.usefixtures("judged")
def test_scoring_requires_the_right_to_review_in_the_project(call: Call, tokens: Tokens, access: AccessStore) -> None:
    """A connection's token is within reach of the agent."""
    reader = access.add(Holder("operator", "eve", None, scopes=frozenset({"read"})))
    other = access.add(Holder("operator", "fay", "web"))
    body = {"score": 3}
    assert [call("POST", SCORE, token, json=body).status_code for token in (None, tokens.ops, reader, other)] == [
        401,
        403,
        403,
        403,
    ]
    assert [call("GET", NEXT, token).status_code for token in (None, tokens.ops, reader, other)] == [401, 403, 403, 403]
    assert [call("GET", AGREEMENT, token).status_code for token in (None, tokens.ops, reader, other)] == [401, 403, 200, 403]
    assert [call("GET", SCORE, token).status_code for token in (None, tokens.ops, reader, other)] == [401, 403, 200, 403]


@pytest.mark.usefixtures("judged")
def test_the_queue_serves_each_exchange_once_with_its_texts(call: Call, tokens: Tokens) -> None:
    """The anomaly comes first, and each rater has a separate queue."""
    served = []
    while (item := call("GET", NEXT, tokens.root, params={"rater": "ann"}).json()["review"]) is not None:
        served.append((item["exchangeId"], item["agentResponse"], item["score"]["id"] == item["scoreId"]))
        path = f"/api/audit/ops/scores/{item['scoreId']}/human"
        call("POST", path, tokens.root, json={"score": 3, "rater": "ann"})
    assert served[0] == ("s:2", "Answer 2.", True)
    assert set(served[1:]) == {("s:1", "Answer 1.", True), ("s:3", "Answer 3.", True)}
    other_queue = call("GET", NEXT, tokens.root, params={"rater": "dan"}).json()["review"]
    assert other_queue["seenBy"] == 1


@pytest.mark.usefixtures("judged")
def test_the_queue_repeats_an_exchange_until_it_is_scored_or_skipped(call: Call, tokens: Tokens) -> None:
    """Reloading the page must show the same exchange."""
    answers = [call("GET", NEXT, tokens.root, params={"rater": "ann"}).json() for _ in range(2)]
    assert answers[0] == answers[1]
    skipped = answers[0]["review"]["scoreId"]
    other = call("GET", NEXT, tokens.root, params={"rater": "ann", "skip": [skipped]}).json()["review"]
    assert skipped != other["scoreId"]
    everything = ["score s:1", "score s:2", "score s:3"]
    assert call("GET", NEXT, tokens.root, params={"skip": everything}).json() == {"review": None}


@pytest.mark.usefixtures("judged")
def test_a_blind_review_hides_the_verdict(call: Call, tokens: Tokens) -> None:
    """Reviewers who know the verdict tend to agree with it."""
    item = call("GET", NEXT, tokens.root, params={"blind": True}).json()["review"]
    assert item["score"] is None
    assert item["stratum"] is None
    assert item["userMessage"]


def test_a_new_project_has_an_empty_queue(call: Call, tokens: Tokens) -> None:
    """It has no agreement either, which is no error."""
    assert call("GET", NEXT, tokens.root).json() == {"review": None}
    body = call("GET", AGREEMENT, tokens.root).json()
    assert body["overall"]["state"] == "not_enough_labels"
    assert body["overall"]["labels"] == 0
    assert body["overall"]["kappa"] is None
    assert body["raters"] == []
    assert body["covered"] is None
    assert body["unjudged"] == 0


def test_agreement_has_an_interval_and_is_given_per_rater(call: Call, tokens: Tokens, store: Store) -> None:
    """Of forty sessions with one exchange each, one rater has scored all, another half."""
    land(store, "scores", [score(f"s{n}", 1, **(JUDGED | {"tier3_score": float(n % 5 + 1)})) for n in range(40)])
    land(store, "scores", [score("u", 1)])
    for n in range(40):
        path = f"/api/audit/ops/scores/score s{n}:1/human"
        call("POST", path, tokens.root, json={"score": min(n % 5 + 1 + (n % 3 == 0), 5), "rater": "ann"})
        if n % 2:
            call("POST", path, tokens.root, json={"score": n % 5 + 1, "rater": "bob"})
    call("POST", "/api/audit/ops/scores/score u:1/human", tokens.root, json={"score": 2, "rater": "ann"})
    body = call("GET", AGREEMENT, tokens.root).json()
    overall = body["overall"]
    assert overall["state"] == "enough"
    assert overall["labels"] == 60
    assert overall["exchanges"] == 40
    assert 0 < overall["low"] < overall["kappa"] < overall["high"] < 1
    assert overall["biasLow"] < overall["bias"] < overall["biasHigh"]
    assert [(one["rater"], one["state"]) for one in body["raters"]] == [("ann", "enough"), ("bob", "not_enough_labels")]
    assert body["betweenRaters"]["exchanges"] == 20
    mean = body["correctedMean"]
    assert mean["state"] == "enough"
    assert mean["labels"] == mean["sessions"] == 40
    assert mean["low"] < mean["corrected"] < mean["high"]
    assert mean["corrected"] - mean["judge"] == pytest.approx(-overall["bias"], abs=0.05)
    assert body["covered"] == 1.0
    assert body["unjudged"] == 1


@pytest.mark.usefixtures("judged")
def test_human_scores_stay_with_an_exchange_that_is_judged_again(call: Call, tokens: Tokens, store: Store) -> None:
    """A person scored the exchange, not a revision."""
    call("POST", SCORE, tokens.root, json={"score": 2})
    land(store, "scores", [score("s", 1, revision=1, **JUDGED)])
    listed = call("GET", "/api/audit/ops/scores", tokens.root).json()["scores"]
    assert [(one["revision"], one["humanScore"]) for one in listed if one["id"] == "score s:1"] == [(1, 2)]
    with contextlib.closing(store.cursor()) as cursor:
        assert len(human_scores(cursor, "ops", "score s:1")) == 1


@pytest.mark.usefixtures("judged")
def test_the_queue_can_go_by_what_narrows_the_interval(call: Call, tokens: Tokens) -> None:
    """Two thirds of the project are ordinary exchanges, so the first label belongs there and not to the anomaly."""
    review = call("GET", f"{NEXT}?order=interval", tokens.root).json()["review"]
    assert (review["pick"], review["stratum"]) == ("interval", "routine")
    assert review["gain"]["share"] == pytest.approx(2 / 3, abs=0.001)
    assert call("GET", f"{NEXT}?order=best", tokens.root).status_code == 400
