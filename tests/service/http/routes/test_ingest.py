"""Taking exchanges in: what is answered, and what the log then holds."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from msgspec.structs import replace
from support.api_server import BodyBuilder, Call, Tokens

from analytics.store.store import Store
from schemas.errors import BusyError, StoreError
from schemas.records import Exchange
from streams.engine.engine import Engine

INGEST = "/api/audit/ingest"


def stored(store: Store, columns: str) -> list[tuple[Any, ...]]:
    """Return columns of every stored exchange."""
    return store.cursor().execute(f"SELECT {columns} FROM exchanges ORDER BY exchange_id").fetchall()


def test_a_sampled_exchange_is_answered_with_its_score(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Existing webhooks read exactly these fields."""
    response = call("POST", INGEST, tokens.ops, json=exchange_body())
    assert response.status_code == 201
    body = response.json()
    score_id = body.pop("scoreId")
    assert len(score_id) == 36
    assert body == {
        "exchangeId": "s1:1",
        "scored": True,
        "reason": "first_turns",
        "tier1": {"score": 1.0, "flags": []},
        "anomaly": False,
    }


def test_a_routine_turn_is_not_sampled(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """The answer for an exchange that was not sampled."""
    response = call("POST", INGEST, tokens.ops, json=exchange_body(7))
    assert (response.status_code, response.json()) == (201, {
        "exchangeId": "s1:7", "scored": False, "reason": "sampling_skip", "tier1": {"score": 1.0, "flags": []},
    })  # fmt: skip


def test_a_session_over_its_cap_is_told_so(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """A cap of 0 allows no paid call, which is a decision about money and not about sampling."""
    response = call("POST", INGEST, tokens.capped, json=exchange_body())
    assert (response.status_code, response.json()) == (201, {
        "exchangeId": "s1:1", "scored": False, "reason": "cost_cap_exceeded", "tier1": {"score": 1.0, "flags": []},
        "costCap": {"currentCost": 0.0, "cap": 0.0},
    })  # fmt: skip


def test_an_undecided_exchange_is_queued(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Kafka, the server has no state of sessions and cannot decide."""
    ingest = engine.ingest_exchange

    async def queued(exchange: Exchange) -> Any:
        return replace(await ingest(exchange), reason="queued", sampled=False)

    monkeypatch.setattr(engine, "ingest_exchange", queued)
    body = call("POST", INGEST, tokens.ops, json=exchange_body()).json()
    assert set(body) == {"exchangeId", "scoreId", "scored", "reason", "tier1", "anomaly"}
    assert body["scored"] is None
    assert body["reason"] == "queued"


def test_a_repetition_is_a_duplicate_with_the_first_outcome(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """Webhooks repeat deliveries until they succeed, so a duplicate must not be an error."""
    first = call("POST", INGEST, tokens.ops, json=exchange_body()).json()
    repeated = call("POST", INGEST, tokens.ops, json=exchange_body())
    assert repeated.status_code == 200
    assert repeated.json() == first | {"duplicate": True}
    assert store.count("exchanges") == 1


def test_other_content_under_a_known_id_is_a_conflict(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """Stored records are never replaced."""
    call("POST", INGEST, tokens.ops, json=exchange_body())
    response = call("POST", INGEST, tokens.ops, json=exchange_body(response="It is not."))
    assert response.status_code == 409
    assert response.json()["code"] == "conflict"
    assert response.json()["error"].startswith("exchange.id: ")
    assert "differs in exchange.agent_response.content" in response.json()["error"]
    assert stored(store, "agent_response") == [("It is done.",)]


def test_stored_digests_stay_valid_after_an_upgrade(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """With another digest, every repeated exchange would contradict the stored one."""
    body = exchange_body(agent_response=SENT) | {"agent": "cleo", "multi_user": True}
    assert call("POST", INGEST, tokens.ops, json=body).status_code == 201
    assert stored(store, "content_digest") == [(DIGEST,)]


@pytest.mark.parametrize("text", ["", "It is done."])
def test_the_stop_reason_gives_the_outcome(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store, text: str
) -> None:
    """A failed answer must be distinguished from an empty one, whatever field reports the failure."""
    outcome = "answered" if text else "error"
    body = exchange_body(agent_response={"content": text, "stop_reason": "error"})
    assert [call("POST", INGEST, tokens.ops, json=body).status_code for _ in range(2)] == [201, 200]
    assert stored(store, "stop_reason, outcome") == [("error", outcome)]
    body["exchange"]["agent_response"]["stop_reason"] = "aborted"
    assert "exchange.agent_response.stop_reason" in call("POST", INGEST, tokens.ops, json=body).json()["error"]


SENT = {"content": "It is done.", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 6}}
"""The answer of the exchange that others differ from."""
DIGEST = "f4dab796afaa606b"
"""The digest that the first version gave to it."""


@pytest.mark.parametrize(
    "other",
    [
        {"session_id": "s2"},
        {"agent": "other"},
        {"multi_user": True},
        {"exchange": {"turn_number": 2}},
        {"exchange": {"turn_number": None}},
        {"exchange": {"timestamp": "2026-10-01T09:02:00Z"}},
        {"exchange": {"user_message": {"content": "Is it?"}}},
        {"exchange": {"agent_response": SENT | {"thinking": "Hm."}}},
        {"exchange": {"agent_response": SENT | {"model": "n"}}},
        {"exchange": {"agent_response": SENT | {"usage": None}}},
        {"exchange": {"agent_response": SENT | {"usage": {"input_tokens": 5, "output_tokens": 7}}}},
    ],
    ids=str,
)
def test_any_difference_under_a_known_id_is_a_conflict(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store, other: dict[str, Any]
) -> None:
    """As a duplicate it would be dropped while its sender believes that it is stored."""
    original = exchange_body(agent_response=SENT) | {"agent": "cleo"}
    changed = original | other | {"exchange": original["exchange"] | other.get("exchange", {})}
    statuses = [call("POST", INGEST, tokens.ops, json=body).status_code for body in (original, changed, original)]
    assert statuses == [201, 409, 200]
    assert store.count("exchanges") == 1


def test_ids_are_unique_per_connection(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """Two connections may use the same ids."""
    assert [
        call("POST", INGEST, token, json=exchange_body(response=token[-4:])).status_code for token in (tokens.ops, tokens.web)
    ] == [201, 201]
    assert store.count("exchanges") == 2


def test_the_token_decides_the_project(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """A sender must not be able to write into other projects."""
    body = exchange_body() | {"connection_id": ["north"], "project": "ops", "agent": "mallory"}
    assert call("POST", INGEST, tokens.web, json=body).status_code == 201
    assert stored(store, "connection, project, agent") == [("south", "web", "south-agent")]


def test_every_sent_field_is_stored(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """Zero values and the model's name must be stored."""
    answer = {
        "content": "Done.",
        "thinking": "Easy.",
        "model": "claude-sonnet-4-5",
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    body = exchange_body(turn_number=0, agent_response=answer) | {"agent": "cleo", "multi_user": True}
    assert call("POST", INGEST, tokens.ops, json=body).status_code == 201
    columns = "turn_number, input_tokens, output_tokens, agent_model, agent_thinking, agent, multi_user, outcome"
    assert stored(store, columns) == [(0, 0, 0, "claude-sonnet-4-5", "Easy.", "cleo", True, "answered")]


def test_labels_are_stored_sorted_and_redacted(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """Slices are based on labels, and every incident would show a secret in one."""
    sent_labels = {"tenant": "acme", "agent_version": "1.4.0", "db.password": "hunter2-hunter2"}
    assert call("POST", INGEST, tokens.ops, json=exchange_body(labels=sent_labels)).status_code == 201
    [(labels,)] = stored(store, "labels")
    assert [one["name"] for one in labels] == ["agent_version", "db.password", "tenant"]
    assert [labels[0]["value"], labels[2]["value"]] == ["1.4.0", "acme"]
    assert labels[1]["value"].startswith("[SECRET:secret_field:")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["1.4.0"], "exchange.labels: must be an object"),
        ({"Tenant": "acme"}, "exchange.labels: 'Tenant' "),
        ({"tenant": 7}, "exchange.labels.tenant: must be a string"),
        ({"tenant": ""}, "exchange.labels.tenant: has 0 characters; 1 to 256"),
        ({"tenant": "a" * 257}, "exchange.labels.tenant: has 257 characters"),
        ({"model": "m"}, "exchange.labels.model: "),
        ({f"l{number}": "x" for number in range(17)}, "exchange.labels: has 17 labels"),
    ],
)
def test_an_invalid_label_is_named(call: Call, tokens: Tokens, exchange_body: BodyBuilder, labels: Any, said: str) -> None:
    """Some of the labels would put a score into the wrong slice, so the exchange is refused."""
    response = call("POST", INGEST, tokens.ops, json=exchange_body(labels=labels))
    assert response.status_code == 400
    assert said in response.text


def test_an_exchange_repeated_with_other_labels_is_a_conflict(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """A label is content: the first exchange stays, and the sender learns about the conflict."""
    body = exchange_body(labels={"tenant": "acme"})
    assert [call("POST", INGEST, tokens.ops, json=body).status_code for _ in range(2)] == [201, 200]
    other = call("POST", INGEST, tokens.ops, json=exchange_body(labels={"tenant": "bolt"}))
    assert other.status_code == 409
    assert "exchange.labels" in other.text


def test_a_field_that_was_not_sent_is_missing(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """A missing value is not zero, and null counts as missing."""
    body = exchange_body(turn_number=None, agent_response={"content": "Done.", "thinking": None, "model": None, "usage": None})
    assert call("POST", INGEST, tokens.ops, json=body | {"agent": None}).status_code == 201
    columns = "turn_number, input_tokens, output_tokens, agent_model, agent_thinking, agent, multi_user"
    assert stored(store, columns) == [(None, None, None, None, None, None, False)]


def test_an_empty_response_is_accepted_and_flagged(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """Empty answers must be accepted, because silent refusals have to be detected."""
    body = call("POST", INGEST, tokens.ops, json=exchange_body(response="")).json()
    assert body["tier1"]["flags"] == ["silent_refusal"]
    assert body["anomaly"] is True
    assert stored(store, "outcome") == [("no_response",)]


def test_secrets_are_redacted_before_anything_is_stored(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """Secrets must reach neither the log nor the judge."""
    secret = "sk-ant-" + "a1B2" * 8
    answer = {"content": f"the key is {secret}", "thinking": secret, "model": "m"}
    body = exchange_body(user_message={"content": f"use {secret}"}, agent_response=answer)
    assert call("POST", INGEST, tokens.ops, json=body).status_code == 201
    [(texts, redactions)] = stored(store, "concat(user_message, agent_response, agent_thinking, raw_user_message), redactions")
    assert secret not in texts
    assert texts.count("[SECRET:") == 3
    assert redactions == [{"kind": "provider_key", "count": 3}]


def test_a_gateways_wrapping_is_removed_as_in_transcripts(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """The same exchange must have the same text, whichever way it arrived."""
    wrapped = 'Conversation info (untrusted metadata):\n```json\n{"is_group_chat": true}\n```\nHello?'
    call("POST", INGEST, tokens.ops, json=exchange_body(user_message={"content": wrapped}))
    assert stored(store, "trim(user_message), raw_user_message, multi_user") == [("Hello?", wrapped, True)]


def test_a_disabled_project_accepts_nothing(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """The policy's master switch applies to every way in which records arrive."""
    response = call("POST", INGEST, tokens.dark, json=exchange_body())
    assert response.status_code == 403
    assert response.json()["code"] == "audit_disabled"
    assert store.count("exchanges") == 0


def test_a_busy_log_says_when_to_retry(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepted means durable, so an exchange that cannot be made durable is not accepted."""

    async def busy(_: Exchange) -> Any:
        raise BusyError("the log cannot take more at the moment")

    monkeypatch.setattr(engine, "ingest_exchange", busy)
    response = call("POST", INGEST, tokens.ops, json=exchange_body())
    assert response.status_code == 503
    assert response.json()["code"] == "busy"
    assert response.headers["retry-after"] == "2"


@pytest.mark.parametrize("error", [StoreError("no space left"), duckdb.IOException("no space left")])
@pytest.mark.parametrize(
    ("path", "method"),
    [("ingest", "ingest_exchange"), ("events", "publish"), ("heartbeat", "publish"), ("sessions/s1/finalize", "finalize")],
)
def test_an_unwritable_log_is_unavailable(
    call: Call,
    tokens: Tokens,
    exchange_body: BodyBuilder,
    *,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    method: str,
    error: Exception,
) -> None:
    """A full disk is temporary: the sender may retry, and the cause is not disclosed."""

    async def failing(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(engine, method, failing)
    response = call("POST", f"/api/audit/{path}", tokens.ops, json=exchange_body() | {"events": [{}], "first_seq": 0})
    assert response.status_code == 503
    assert response.json()["code"] == "log_unavailable"
    assert response.headers["retry-after"] == "30"
    assert "space" not in response.text


@pytest.mark.parametrize(
    "timestamp", ["2026-10-01T09:01:00", "2026-10-01T11:01:00+02:00", 1790845260, 1790845260000, 1790845260.0]
)
def test_common_time_formats_are_accepted(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store, timestamp: Any
) -> None:
    """Gateways use different time formats."""
    assert call("POST", INGEST, tokens.ops, json=exchange_body(timestamp=timestamp)).status_code == 201
    assert stored(store, "occurred_at::VARCHAR") == [("2026-10-01 09:01:00",)]


@pytest.mark.parametrize("status", [201, 200])
def test_a_project_in_the_body_that_contradicts_the_token_is_reported(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, status: int
) -> None:
    """A sender that names another project must learn where its records are filed."""
    plain = call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(1) | {"project": "ops"})
    number = 1 if status == 200 else 2
    answer = call("POST", "/api/audit/ingest", tokens.ops, json=exchange_body(number) | {"project": "sk-secret"})
    note = "the project in the body is ignored: the token of north files its records under ops"
    assert answer.status_code == status
    assert answer.json()["project"] == "ops"
    assert answer.json()["note"] == note
    assert answer.json().keys() - plain.json().keys() - {"duplicate"} == {"project", "note"}


def test_a_contradicting_project_of_an_event_batch_is_reported(call: Call, tokens: Tokens) -> None:
    """Without a project, or with the token's, there is no note."""
    events = [{"event": "tool_call", "tool": "exec", "timestamp": "2026-10-01T09:00:00Z"}]
    body = {"session_id": "s", "first_seq": 0, "events": events}
    assert call("POST", "/api/audit/events", tokens.ops, json=body).json().keys() == {"accepted", "known", "refused"}
    answer = call("POST", "/api/audit/events", tokens.ops, json=body | {"project": "web"}).json()
    assert answer["project"] == "ops"
    assert answer["note"].startswith("the project in the body is ignored")


def test_tool_calls_are_kept_as_excerpts_without_secrets(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """The judge compares the answer with what the tools returned, and a token in their output must not reach it."""
    calls = [
        {"name": "read_file", "arguments": {"path": "a.txt"}, "result": f"api_key={'k9' * 20}", "outcome": "error"},
        {"name": "search", "arguments": "owls", "result": ["x" * 5_000]},
        {"name": "deploy"},
    ]
    body = exchange_body(7)
    body["exchange"]["tool_calls"] = calls
    assert call("POST", INGEST, tokens.ops, json=body).json()["reason"] == "tool_trouble"
    [(kept, omitted)] = stored(store, "tool_calls, omitted_tool_calls")
    assert omitted == 0
    assert [(one["name"], one["arguments"], one["outcome"]) for one in kept] == [
        ("read_file", '{"path":"a.txt"}', "error"),
        ("search", "owls", "ok"),
        ("deploy", None, "unanswered"),
    ]
    assert "[SECRET:" in kept[0]["result"]
    assert "k9k9" not in str(kept)
    assert "characters left out" in kept[1]["result"]
    assert kept[2]["result"] is None


def test_other_tool_calls_under_an_id_are_a_conflict(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """The judge judged what the calls show, so they are a part of the content."""
    body = exchange_body()
    body["exchange"]["tool_calls"] = [{"name": "search", "result": "1 hit"}]
    assert call("POST", INGEST, tokens.ops, json=body).status_code == 201
    assert call("POST", INGEST, tokens.ops, json=body).status_code == 200
    body["exchange"]["tool_calls"] = [{"name": "search", "result": "2 hits"}]
    assert call("POST", INGEST, tokens.ops, json=body).status_code == 409


def test_of_many_tool_calls_the_number_left_out_is_kept(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """An agent that works for an hour makes hundreds of calls."""
    body = exchange_body()
    body["exchange"]["tool_calls"] = [{"name": "page", "arguments": f"{page}", "result": "ok"} for page in range(100)]
    assert call("POST", INGEST, tokens.ops, json=body).status_code == 201
    [(kept, omitted)] = stored(store, "tool_calls, omitted_tool_calls")
    assert len(kept) + omitted == 100
    assert kept[-1]["arguments"] == "99"


def test_a_task_carries_the_turns_before_its_exchange(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store
) -> None:
    """An answer of "Yes." is right or wrong only with the turn before."""
    for turn in (1, 2, 3, 4):
        body = exchange_body(turn)
        body["exchange"]["user_message"]["content"] = f"Question {turn}?"
        assert call("POST", INGEST, tokens.ops, json=body).status_code == 201
    rows = store.cursor().execute("SELECT turn_number, earlier_turns FROM log.scoring_tasks ORDER BY turn_number").fetchall()
    messages = {turn: [one["user_message"] for one in turns] for turn, turns in rows}
    assert messages == {1: [], 2: ["Question 1?"], 3: ["Question 1?", "Question 2?"], 4: ["Question 2?", "Question 3?"]}
