"""The simulated judge speaks the Message Batches API as the SDK knows it: made, looked at, listed, cancelled, read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest
from support.builders import exchange
from support.servers import until

from audit.exchanges.prompts import tier2_question
from audit.exchanges.questions import Invalid
from audit.policy import Policy
from driftline_trial.simulator import RunningJudge, running
from driftline_trial.simulator.answers import MODEL

QUESTION = tier2_question(exchange("s", 1), Policy().for_project("ops"))
PARAMS: dict[str, Any] = {
    "model": QUESTION.model,
    "max_tokens": QUESTION.max_tokens,
    "system": QUESTION.instructions,
    "messages": [{"role": "user", "content": QUESTION.content("b0")}],
    "output_config": {"format": {"type": "json_schema", "schema": QUESTION.schema}},
}


@pytest.fixture(scope="module")
def served() -> Iterator[RunningJudge]:
    """One server for the module."""
    with running() as judge:
        yield judge


@pytest.fixture
def judge(served: RunningJudge) -> RunningJudge:
    """The server as it starts."""
    served.reset("answer")
    return served


@pytest.fixture(scope="module")
def client(served: RunningJudge) -> Iterator[anthropic.Anthropic]:
    """The SDK; the address of results is followed as the API gives it, so it is led back here."""

    def lead_back(request: httpx2.Request) -> None:
        if request.url.host == "judge.invalid":
            request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=httpx2.URL(served.base_url).port)

    http = httpx2.Client(event_hooks={"request": [lead_back]}, timeout=60)
    with anthropic.Anthropic(api_key="any", base_url=served.base_url, max_retries=0, timeout=60, http_client=http) as sdk:
        yield sdk


def _made(client: anthropic.Anthropic, count: int, **fields: Any) -> Any:
    requests = [{"custom_id": f"q-{number}", "params": PARAMS | fields} for number in range(count)]
    return client.messages.batches.create(requests=requests)  # type: ignore[arg-type]


def test_the_sdk_gets_results_in_another_order_that_say_they_are_simulated(
    judge: RunningJudge, client: anthropic.Anthropic
) -> None:
    """Code that trusts the order works until the first real batch."""
    batch = _made(client, 20)
    assert batch.processing_status == "ended"
    assert batch.request_counts.succeeded == 20
    assert batch.request_counts.processing == 0
    results = list(client.messages.batches.results(batch.id))
    names = [result.custom_id for result in results]
    assert sorted(names) == sorted(f"q-{number}" for number in range(20))
    assert names != [f"q-{number}" for number in range(20)]
    for result in results:
        assert result.result.type == "succeeded"
        message = result.result.message
        assert message.model == MODEL
        assert message.usage.service_tier == "batch"
        (block,) = message.content
        assert block.type == "text"
        assert not isinstance(QUESTION.read(block.text), Invalid)
    assert judge.requests == 20


def test_a_batch_takes_its_time_and_has_no_results_before(judge: RunningJudge, client: anthropic.Anthropic) -> None:
    """A client that reads too early must find it out here."""
    judge.reset("answer", batch_seconds=0.2)
    batch = _made(client, 3)
    assert batch.processing_status == "in_progress"
    assert batch.request_counts.processing == 3
    assert batch.results_url is None
    with pytest.raises(anthropic.NotFoundError):
        client.get(f"/v1/messages/batches/{batch.id}/results", cast_to=object)
    until(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended", "the batch to end", 120)
    ended = client.messages.batches.retrieve(batch.id)
    assert ended.ended_at is not None
    assert 0.1 < (ended.ended_at - ended.created_at).total_seconds() < 0.3


def test_a_step_of_the_script_is_for_one_request_of_the_batch(judge: RunningJudge, client: anthropic.Anthropic) -> None:
    """Errored, expired, missing and sound results in one batch are what a real one may hold."""
    judge.reset("answer,overloaded,hang,reset,bad_request,answer")
    batch = _made(client, 6)
    found = {result.custom_id: result.result.type for result in client.messages.batches.results(batch.id)}
    expected = {"q-0": "succeeded", "q-1": "errored", "q-2": "expired", "q-4": "errored", "q-5": "succeeded"}
    assert found == expected
    counts = batch.request_counts
    assert counts.succeeded == 3
    assert counts.errored == 2
    assert counts.expired == 1
    assert counts.canceled == 0


def test_a_request_that_the_api_refuses_is_an_error_of_its_own(judge: RunningJudge, client: anthropic.Anthropic) -> None:
    """The API looks at the parameters when it processes them; the batch itself is taken."""
    batch = _made(client, 1, temperature=0)
    (result,) = client.messages.batches.results(batch.id)
    assert result.result.type == "errored"
    assert "temperature" in result.result.error.error.message
    assert judge.requests == 1


def test_a_cancelled_batch_ends_with_what_it_had_time_for(judge: RunningJudge, client: anthropic.Anthropic) -> None:
    """Results of before the cancellation are there, and paid for."""
    judge.reset("answer", batch_seconds=3600.0)
    batch = _made(client, 4)
    cancelled = client.messages.batches.cancel(batch.id)
    assert cancelled.processing_status == "ended"
    assert cancelled.request_counts.canceled == 4
    assert cancelled.cancel_initiated_at is not None
    assert {result.result.type for result in client.messages.batches.results(batch.id)} == {"canceled"}
    assert cancelled == client.messages.batches.cancel(batch.id)


def test_batches_are_listed_page_by_page_the_newest_first(judge: RunningJudge, client: anthropic.Anthropic) -> None:
    """Who looks for a lost batch must be able to see all of them."""
    made = [_made(client, 1).id for _ in range(5)]
    assert judge.requests == 5
    assert made[::-1] == [batch.id for batch in client.messages.batches.list(limit=2)]
    first = client.messages.batches.list(limit=2)
    assert first.has_more
    before = client.messages.batches.list(before_id=made[3])
    assert [batch.id for batch in before.data] == [made[4]]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "list of 1 to"),
        ({"requests": []}, "list of 1 to"),
        ({"requests": [{"custom_id": "a"}]}, "requests.0"),
        ({"requests": [{"custom_id": "a b", "params": {}}]}, "requests.0.custom_id"),
        ({"requests": [{"custom_id": "a" * 65, "params": {}}]}, "requests.0.custom_id"),
        ({"requests": [{"custom_id": "a", "params": {}}] * 2}, "requests.1.custom_id"),
    ],
)
def test_what_the_api_refuses_as_a_batch_is_refused(judge: RunningJudge, body: dict[str, Any], complaint: str) -> None:
    """A batch that only the simulator takes would be found out with the first real key."""
    headers = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
    answer = httpx2.post(f"{judge.base_url}/v1/messages/batches", content=json.dumps(body), headers=headers, timeout=60)
    assert answer.status_code == 400
    assert answer.headers["x-driftline-simulated"] == "1"
    assert complaint in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/unknown", 404),
        ("GET", "/unknown/results", 404),
        ("POST", "/unknown/cancel", 404),
        ("GET", "?limit=0", 400),
        ("GET", "?after_id=unknown", 400),
        ("DELETE", "/unknown", 404),
    ],
)
def test_what_is_not_there_is_said_so(judge: RunningJudge, method: str, path: str, status: int) -> None:
    """And with the errors that the SDK expects."""
    headers = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
    answer = httpx2.request(method, f"{judge.base_url}/v1/messages/batches{path}", headers=headers, timeout=60)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert httpx2.request(method, f"{judge.base_url}/v1/messages/batches{path}", timeout=60).status_code == 401
