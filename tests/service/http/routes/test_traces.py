"""OTLP over HTTP: spans are durable once answered and handled separately, whatever an exporter or an attacker sends."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.json_format import Parse, ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from support.api_server import Call, Tokens
from support.otlp_captures import Captured, Json
from support.otlp_spans import agent, body, chat, span, tool

from analytics.store.store import Store
from schemas.errors import BrokerError, BusyError
from service.http.routes.traces import MAX_LETTERS
from service.web.bounds import BODY_LIMITS, MAX_SPANS, MAX_UNPACKED
from streams.engine.engine import Engine

TRACES, LOGS, METRICS = "/v1/traces", "/v1/logs", "/v1/metrics"
JSON, PROTOBUF = "application/json", "application/x-protobuf"
Send = Callable[..., Any]


@pytest.fixture
def send(call: Call, tokens: Tokens) -> Send:
    """Sends the body of a request: as it is, or a JSON object as JSON; answers the response."""

    def sent(content: bytes | Json, token: str | None = None, kind: str = JSON, path: str = TRACES, **headers: str) -> Any:
        packed = content if isinstance(content, bytes) else json.dumps(content).encode()
        given = {"content-type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
        return call("POST", path, tokens.ops if token is None else token, content=packed, headers=given)

    return sent


def stored(store: Store) -> list[tuple[str, str, str]]:
    """The spans that the log holds, by connection, session and id."""
    return store.cursor().execute("SELECT connection, session_id, span_id FROM log.spans ORDER BY ALL").fetchall()


def ids(*spans: Json) -> list[str]:
    """The ids of spans."""
    return [one["spanId"] for one in spans]


def protobuf(sent: Json) -> bytes:
    """A body as protobuf."""
    return Captured("traces", sent).as_protobuf


def test_both_content_types_are_taken_and_answered_in_kind(send: Send, store: Store) -> None:
    """An exporter expects the answer in its own content type."""
    first, second = agent(0), tool(1)
    plain = send(body([first]))
    assert plain.status_code == 200
    assert plain.headers["content-type"] == JSON
    assert plain.json() == {}
    packed = send(protobuf(body([second])), kind=PROTOBUF)
    assert packed.status_code == 200
    assert packed.headers["content-type"] == PROTOBUF
    assert not ExportTraceServiceResponse.FromString(packed.content).HasField("partial_success")
    assert ids(first, second) == sorted(row[2] for row in stored(store))


def test_spans_are_filed_as_the_token_says(send: Send, tokens: Tokens, store: Store) -> None:
    """Attributes of the spans must not override the token."""
    send(body([agent(0)]), tokens.web)
    [(content, project)] = store.cursor().execute("SELECT content, project FROM log.spans").fetchall()
    assert json.loads(content)["agent"] == "south-agent"
    assert project == "web"


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_gzip_is_unpacked(send: Send, store: Store, kind: str) -> None:
    """Collectors compress by default."""
    sent = body([agent(0)])
    content = protobuf(sent) if kind == PROTOBUF else Captured("traces", sent).as_json
    assert send(gzip.compress(content), kind=kind, content_encoding="gzip").status_code == 200
    assert len(stored(store)) == 1


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (gzip.compress(bytes(MAX_UNPACKED + 1)), 413, "too_large"),
        (b"not gzip at all", 400, "not_gzip"),
        (gzip.compress(b'{"resourceSpans": []}')[:-9], 400, "not_gzip"),
        (gzip.compress(b"{}") + b"more", 400, "not_gzip"),
        (gzip.compress(b"{}") * 2, 400, "not_gzip"),
        (gzip.compress(gzip.compress(b"{}")), 400, "invalid"),
        (b"", 400, "not_gzip"),
    ],
    ids=["bomb", "none", "cut", "trailing", "two", "twice", "empty"],
)
def test_what_does_not_unpack_is_refused(send: Send, store: Store, content: bytes, status: int, code: str) -> None:
    """A bomb of 64 kB unpacks to 64 MB and one byte: it is stopped there."""
    response = send(content, content_encoding="gzip")
    assert response.status_code == status
    assert response.json()["code"] == code
    assert stored(store) == []


@pytest.mark.parametrize("path", [TRACES, LOGS])
def test_a_token_of_a_connection_is_needed(send: Send, tokens: Tokens, store: Store, path: str) -> None:
    """The rule is the same as for ingest."""
    assert send(body([agent(0)]), "dl_wrong", path=path).status_code == 401
    assert send(body([agent(0)]), tokens.root, path=path).status_code == 403
    assert (
        (refused := send(body([agent(0)]), tokens.dark, path=path)).status_code,
        refused.json()["code"],
    ) == (403, "audit_disabled")
    assert stored(store) == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-ndjson", "application/xml", "application/grpc"])
def test_other_content_types_are_refused(send: Send, kind: str) -> None:
    """With those that are taken."""
    response = send(b"x", kind=kind)
    assert response.status_code == 415
    assert response.json()["code"] == "not_json"
    assert PROTOBUF in response.json()["error"]


def test_other_encodings_are_refused(send: Send) -> None:
    """Only gzip is unpacked."""
    response = send(b"x", content_encoding="br")
    assert response.status_code == 415
    assert response.json()["code"] == "content_encoding"


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"{}", JSON), (b'{"resourceSpans": []}', JSON), (b"", PROTOBUF), (b'{"resourceSpans": [], "later": 1}', JSON)],
)
def test_a_request_without_spans_is_taken(send: Send, content: bytes, kind: str) -> None:
    """The protocol says so, and that fields to come are passed over."""
    answer = send(content, kind=kind)
    assert answer.status_code == 200
    assert answer.content == (content[:0] if kind == PROTOBUF else b"{}")


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"{", JSON), (b"[]", JSON), (b"4", JSON), (b"", JSON), (b"\xff\xff", PROTOBUF), (b"\xff", JSON), (b"{}", PROTOBUF)],
)
def test_what_is_no_request_is_refused_as_a_whole(send: Send, store: Store, content: bytes, kind: str) -> None:
    """400, which no exporter sends again."""
    response = send(content, kind=kind)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert stored(store) == []


def test_a_bad_span_costs_itself_alone(send: Send, store: Store) -> None:
    """It is counted and named; the others are durable."""
    good, bad, late = agent(0), {**tool(1), "traceId": "00"}, {**tool(2), "startTimeUnixNano": "7258118400000000000"}
    answer = send(body([good, bad, late, *[{**bad}] * 5])).json()["partialSuccess"]
    assert answer["rejectedSpans"] == "7"
    assert "trace_id" in answer["errorMessage"]
    assert "in the future" in answer["errorMessage"]
    assert "6 of them" in answer["errorMessage"]
    assert ids(good) == [row[2] for row in stored(store)]


def test_the_same_request_twice_doubles_nothing(send: Send, store: Store) -> None:
    """An exporter that saw no answer sends again, perhaps in the other content type."""
    sent = body([agent(0), tool(1), chat(2)])
    for _ in range(2):
        assert send(sent).json() == {}
    assert send(protobuf(sent), kind=PROTOBUF).content == b""
    assert len(stored(store)) == 3


def test_a_span_twice_in_a_request_is_one(send: Send, store: Store) -> None:
    """A Collector may batch a retry with the first try."""
    assert send(body([agent(0), agent(0)])).json() == {}
    assert len(stored(store)) == 1


def test_a_known_id_with_other_content_is_a_conflict(send: Send, store: Store) -> None:
    """The stored span is kept, and the answer names the conflicting one."""
    send(body([agent(0)]))
    answer = send(body([agent(0, answer="Another."), tool(1)])).json()["partialSuccess"]
    assert answer["rejectedSpans"] == "1"
    assert ids(agent(0))[0] in answer["errorMessage"]
    assert len(stored(store)) == 2


@pytest.mark.parametrize(("error", "status"), [(BusyError("the log is full"), 503), (BrokerError("gone"), 503)])
def test_a_log_that_takes_nothing_says_when_to_try_again(
    send: Send, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """An exporter keeps the spans and sends them again."""

    async def publish(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine, "publish_admitted", publish)
    response = send(body([agent(0)]))
    assert response.status_code == status
    assert int(response.headers["retry-after"]) > 0
    assert "gone" not in response.text


def test_more_spans_than_a_request_may_have_are_refused(send: Send, store: Store) -> None:
    """Empty spans are two bytes each: a body of 16 MB has millions."""
    response = send(body([{}] * (MAX_SPANS + 1)))
    assert response.status_code == 413
    assert response.json()["code"] == "too_large"
    assert stored(store) == []


def test_a_body_over_the_limit_is_refused(send: Send) -> None:
    """The declared length suffices to refuse a large body."""
    assert send(bytes(BODY_LIMITS[TRACES] + 1), kind=PROTOBUF).status_code == 413


def test_a_query_is_refused(call: Call, tokens: Tokens) -> None:
    """Unknown parameters are refused, as on every other endpoint."""
    response = call("POST", f"{TRACES}?a=b", tokens.ops, content=b"{}", headers={"content-type": JSON})
    assert response.status_code == 400


def test_logs_of_a_model_are_taken_and_others_passed_over(send: Send, call: Call, tokens: Tokens, store: Store) -> None:
    """Other log records are ignored but counted, so that users see why they have no effect."""
    about = {"traceId": agent(0)["traceId"], "spanId": agent(0)["spanId"], "timeUnixNano": agent(0)["startTimeUnixNano"]}
    said = {
        **about,
        "eventName": "gen_ai.user.message",
        "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "Hi"}}]}},
    }
    records = [said, {**about, "body": {"stringValue": "started"}}, {**said, "spanId": ""}]
    answer = send({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}, path=LOGS)
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    [(_, _, span_id)] = stored(store)
    assert span_id.startswith(agent(0)["spanId"] + ":")
    assert 'driftline_ingested_spans_total{outcome="passed_over"} 1.0' in call("GET", "/metrics", tokens.root).text


def test_hostile_text_is_stored_as_text(send: Send, store: Store) -> None:
    """Names and contents are chosen by senders and must be treated as text in answers."""
    hostile = "<script>alert(1)</script>\u202e'; DROP TABLE log.spans; --"
    told = agent(0, question=hostile, answer=hostile, name=hostile, attributes={"gen_ai.conversation.id": hostile})
    answer = send(body([told, {**span(1), "traceId": hostile}], resource={"service.name": hostile}))
    assert answer.headers["content-type"] == JSON
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert len(stored(store)) == 1


@pytest.mark.parametrize(
    ("path", "sent", "words"),
    [
        (TRACES, {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {}}] * 4}]}]}, ("/v1/logs", "resourceLogs")),
        (TRACES, {"resource_metrics": [{"scopeMetrics": [{"metrics": [{"name": "x"}] * 4}]}]}, ("metrics are not stored",)),
        (LOGS, {"resourceSpans": body([agent(0)] * 4)["resourceSpans"]}, ("/v1/traces", "resourceSpans")),
    ],
)
def test_what_came_to_the_wrong_address_is_counted_and_sent_on_its_way(
    send: Send, store: Store, path: str, sent: Json, words: tuple[str, ...]
) -> None:
    """One endpoint for all signals is an easy mistake; 200 and nothing else would hide it for good."""
    answer = send(sent, path=path).json()["partialSuccess"]
    assert "4" in (answer.get("rejectedSpans"), answer.get("rejectedLogRecords"))
    assert all(word in answer["errorMessage"] for word in words)
    assert stored(store) == []


@pytest.mark.parametrize(
    "sent",
    [
        {"later": [1]},
        {"spans": [agent(0)]},
        {"resourceSpans": [{"spans": [agent(0)]}]},
        {"resourceSpans": {"scopeSpans": [{"spans": [agent(0)]}]}},
        {"resourceSpans": [[{"spans": [agent(0)]}]]},
        {"resourceSpans": [{"scopeSpans": [{"scope": {}, "items": [agent(0)]}]}]},
    ],
    ids=["unknown", "no_groups", "no_scopes", "object", "nested", "no_items"],
)
def test_what_is_not_read_is_never_answered_as_if_it_were(send: Send, store: Store, sent: Json) -> None:
    """A hand-made exporter that leaves out a level loses everything, and its author sees a bare 200."""
    answer = send(sent)
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["errorMessage"]
    assert stored(store) == []


def test_a_resource_is_read_as_far_as_it_can_be_and_the_rest_is_told(send: Send, store: Store) -> None:
    """Spans are accepted without the invalid attributes of their resource, and none is counted as refused."""
    sent = body([agent(0)], {"service.name": "shop"})
    sent["resourceSpans"][0]["resource"]["attributes"].append({"key": "team", "value": {"intValue": "many"}})
    answer = send(sent).json()["partialSuccess"]
    assert answer.get("rejectedSpans", "0") == "0"
    assert "resource.attributes" in answer["errorMessage"]
    [(content,)] = store.cursor().execute("SELECT content FROM log.spans").fetchall()
    assert json.loads(content)["service"] == "shop"


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_a_refused_span_is_a_dead_letter(send: Send, store: Store, kind: str) -> None:
    """Few SDKs report what a partial success says: who runs the server has to see it. Sent again it is the same letter."""
    sent = body([agent(0), {**tool(1), "startTimeUnixNano": "17"}])
    for _ in range(2):
        send(sent if kind == JSON else protobuf(sent), kind=kind)
    [(stage, reason, detail, source)] = letters_of(store)
    assert stage == "otlp"
    assert reason == "refused_span"
    assert "start_time_unix_nano" in detail
    assert source.endswith("/traces")


def test_a_conflicting_span_is_a_dead_letter(send: Send, store: Store) -> None:
    """Two processes with one seed for their ids: the second one's spans are lost to us, and it never learns."""
    send(body([agent(0, question="How are the vines?")]))
    send(body([agent(0, question="Is the cellar dry?", attributes={"gen_ai.conversation.id": "another"})]))
    [(stage, reason, detail, _)] = letters_of(store)
    assert stage == "otlp"
    assert reason == "conflicting_id"
    assert agent(0)["spanId"] in detail


def test_a_flood_of_bad_spans_makes_few_letters(send: Send, store: Store) -> None:
    """Dead letters are limited, but the answer counts all refused spans."""
    bad = [{**tool(number), "traceId": ""} for number in range(200)]
    assert send(body(bad)).json()["partialSuccess"]["rejectedSpans"] == "200"
    assert len(letters_of(store)) == MAX_LETTERS


def test_letters_hold_no_secret(send: Send, store: Store) -> None:
    """Mastra's exporter sends its own configuration along, tokens and all."""
    secret = "a-token-of-its-own-0123456789"
    told = {"exporter": {"headers": {"Authorization": f"Bearer {secret}"}, "api_key": secret}}
    send(body([{**tool(0, attributes={"config": json.dumps(told), "x-api-key": secret, **told}), "traceId": ""}]))
    [(held,)] = store.cursor().execute("SELECT body FROM log.dead_letters").fetchall()
    assert secret.encode() not in held


def letters_of(store: Store) -> list[tuple[str, str, str, str]]:
    """The dead letters: stage, reason, detail, source."""
    return store.cursor().execute("SELECT stage, reason, detail, source FROM log.dead_letters ORDER BY ALL").fetchall()


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_metrics_are_refused_in_their_own_words_and_counted(send: Send, call: Call, tokens: Tokens, kind: str) -> None:
    """SDKs send metrics to the same address unless told not to: an error of ours would be one in their log, minute by minute."""
    sent = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "gen_ai.client.token.usage"}, {"name": "x"}]}]}]}
    content = ParseDict(sent, ExportMetricsServiceRequest()).SerializeToString() if kind == PROTOBUF else sent
    answer = send(content, kind=kind, path=METRICS)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    read = (
        Parse(answer.content, ExportMetricsServiceResponse())
        if kind == JSON
        else ExportMetricsServiceResponse.FromString(answer.content)
    )
    assert read.partial_success.rejected_data_points == 2
    assert "metrics are not stored" in read.partial_success.error_message
    assert "driftline_refused_metrics_total 2.0" in call("GET", "/metrics", tokens.root).text
    assert send(content, "dl_wrong", kind=kind, path=METRICS).status_code == 401


@pytest.mark.parametrize("header", ["Bearer%20{}", "bearer%20{}", "Bearer {}", "Bearer%20%20{}"])
def test_a_header_is_taken_as_the_variable_has_it(call: Call, tokens: Tokens, header: str) -> None:
    """LiteLLM and others send OTEL_EXPORTER_OTLP_HEADERS without decoding it."""
    given = {"content-type": JSON, "authorization": header.format(tokens.ops)}
    assert call("POST", TRACES, "", content=b"{}", headers=given).status_code == 200


@pytest.mark.parametrize("header", ["Bearer%2520{}", "Basic%20{}", "Bearer%20{}x", "Bearer%00{}"])
def test_other_headers_stay_refused(call: Call, tokens: Tokens, header: str) -> None:
    """It is decoded once, and means what it meant."""
    given = {"content-type": JSON, "authorization": header.format(tokens.ops)}
    assert call("POST", TRACES, "", content=b"{}", headers=given).status_code == 401


def test_the_outcomes_are_counted(send: Send, call: Call, tokens: Tokens) -> None:
    """An operator sees in the metrics what a fleet sends."""
    send(body([agent(0), {**tool(1), "traceId": ""}]))
    send(body([agent(0)]))
    text = call("GET", "/metrics", tokens.root).text
    for outcome in ("accepted", "known", "refused"):
        assert f'driftline_ingested_spans_total{{outcome="{outcome}"}} 1.0' in text
