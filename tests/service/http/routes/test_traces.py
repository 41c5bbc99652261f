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
    """Return a function that sends a body, unchanged or as JSON, and returns the response."""

    def sent(content: bytes | Json, token: str | None = None, kind: str = JSON, path: str = TRACES, **headers: str) -> Any:
        packed = content if isinstance(content, bytes) else json.dumps(content).encode()
        request_headers = {"content-type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
        return call("POST", path, tokens.ops if token is None else token, content=packed, headers=request_headers)

    return sent


def stored(store: Store) -> list[tuple[str, str, str]]:
    """Return connection, session and id of the stored spans."""
    return store.cursor().execute("SELECT connection, session_id, span_id FROM log.spans ORDER BY ALL").fetchall()


def ids(*spans: Json) -> list[str]:
    """Return the ids of spans."""
    return [one["spanId"] for one in spans]


def protobuf(sent: Json) -> bytes:
    """Return a body as protobuf."""
    return Captured("traces", sent).as_protobuf


def test_both_content_types_are_accepted_and_answered_in_kind(send: Send, store: Store) -> None:
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


def test_spans_are_filed_by_the_token(send: Send, tokens: Tokens, store: Store) -> None:
    """Attributes of the spans must not override the token."""
    send(body([agent(0)]), tokens.web)
    [(content, project)] = store.cursor().execute("SELECT content, project FROM log.spans").fetchall()
    assert json.loads(content)["agent"] == "south-agent"
    assert project == "web"


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_a_gzip_body_is_decompressed(send: Send, store: Store, kind: str) -> None:
    """Collectors compress by default."""
    request = body([agent(0)])
    content = protobuf(request) if kind == PROTOBUF else Captured("traces", request).as_json
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
def test_an_invalid_gzip_body_is_refused(send: Send, store: Store, content: bytes, status: int, code: str) -> None:
    """Decompression stops one byte after the limit of 64 MB, so that a bomb does no harm."""
    response = send(content, content_encoding="gzip")
    assert response.status_code == status
    assert response.json()["code"] == code
    assert stored(store) == []


@pytest.mark.parametrize("path", [TRACES, LOGS])
def test_a_token_of_a_connection_is_required(send: Send, tokens: Tokens, store: Store, path: str) -> None:
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
    """The error lists the accepted content types."""
    response = send(b"x", kind=kind)
    assert response.status_code == 415
    assert response.json()["code"] == "not_json"
    assert PROTOBUF in response.json()["error"]


def test_other_encodings_are_refused(send: Send) -> None:
    """Only gzip is supported."""
    response = send(b"x", content_encoding="br")
    assert response.status_code == 415
    assert response.json()["code"] == "content_encoding"


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"{}", JSON), (b'{"resourceSpans": []}', JSON), (b"", PROTOBUF), (b'{"resourceSpans": [], "later": 1}', JSON)],
)
def test_a_request_without_spans_is_accepted(send: Send, content: bytes, kind: str) -> None:
    """The protocol requires it, and requires that unknown fields are ignored."""
    answer = send(content, kind=kind)
    assert answer.status_code == 200
    assert answer.content == (content[:0] if kind == PROTOBUF else b"{}")


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"{", JSON), (b"[]", JSON), (b"4", JSON), (b"", JSON), (b"\xff\xff", PROTOBUF), (b"\xff", JSON), (b"{}", PROTOBUF)],
)
def test_an_invalid_request_is_refused_completely(send: Send, store: Store, content: bytes, kind: str) -> None:
    """Exporters do not repeat a request answered with 400."""
    response = send(content, kind=kind)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid"
    assert stored(store) == []


def test_an_invalid_span_affects_no_other(send: Send, store: Store) -> None:
    """It is counted and named, and the other spans are durable."""
    good, bad, late = agent(0), {**tool(1), "traceId": "00"}, {**tool(2), "startTimeUnixNano": "7258118400000000000"}
    answer = send(body([good, bad, late, *[{**bad}] * 5])).json()["partialSuccess"]
    assert answer["rejectedSpans"] == "7"
    assert "trace_id" in answer["errorMessage"]
    assert "in the future" in answer["errorMessage"]
    assert "6 of them" in answer["errorMessage"]
    assert ids(good) == [row[2] for row in stored(store)]


def test_a_repeated_request_duplicates_nothing(send: Send, store: Store) -> None:
    """An exporter without an answer repeats the request, perhaps in the other content type."""
    request = body([agent(0), tool(1), chat(2)])
    for _ in range(2):
        assert send(request).json() == {}
    assert send(protobuf(request), kind=PROTOBUF).content == b""
    assert len(stored(store)) == 3


def test_a_span_repeated_within_a_request_counts_once(send: Send, store: Store) -> None:
    """A Collector may batch a retry together with the first try."""
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
def test_an_unavailable_log_says_when_to_retry(
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


def test_model_logs_are_stored_and_other_logs_are_counted(send: Send, call: Call, tokens: Tokens, store: Store) -> None:
    """Other log records are ignored but counted, so that users see why they have no effect."""
    about = {"traceId": agent(0)["traceId"], "spanId": agent(0)["spanId"], "timeUnixNano": agent(0)["startTimeUnixNano"]}
    message = {
        **about,
        "eventName": "gen_ai.user.message",
        "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "Hi"}}]}},
    }
    records = [message, {**about, "body": {"stringValue": "started"}}, {**message, "spanId": ""}]
    answer = send({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}, path=LOGS)
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    [(_, _, span_id)] = stored(store)
    assert span_id.startswith(agent(0)["spanId"] + ":")
    assert 'driftline_ingested_spans_total{outcome="passed_over"} 1.0' in call("GET", "/metrics", tokens.root).text


def test_hostile_text_is_stored_as_text(send: Send, store: Store) -> None:
    """Names and contents are chosen by senders and must be treated as text in answers."""
    hostile = "<script>alert(1)</script>\u202e'; DROP TABLE log.spans; --"
    hostile_span = agent(0, question=hostile, answer=hostile, name=hostile, attributes={"gen_ai.conversation.id": hostile})
    answer = send(body([hostile_span, {**span(1), "traceId": hostile}], resource={"service.name": hostile}))
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
def test_a_signal_at_the_wrong_address_is_counted_with_the_right_address(
    send: Send, store: Store, path: str, sent: Json, words: tuple[str, ...]
) -> None:
    """Using one endpoint for all signals is a common mistake, which a bare 200 would hide."""
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
def test_an_unreadable_request_gets_an_error_message(send: Send, store: Store, sent: Json) -> None:
    """A hand-made exporter that omits a level loses all spans, and a bare 200 would hide it."""
    answer = send(sent)
    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["errorMessage"]
    assert stored(store) == []


def test_a_resource_with_an_invalid_attribute_keeps_the_others(send: Send, store: Store) -> None:
    """Spans are accepted without the invalid attributes of their resource, and none is counted as refused."""
    request = body([agent(0)], {"service.name": "shop"})
    request["resourceSpans"][0]["resource"]["attributes"].append({"key": "team", "value": {"intValue": "many"}})
    answer = send(request).json()["partialSuccess"]
    assert answer.get("rejectedSpans", "0") == "0"
    assert "resource.attributes" in answer["errorMessage"]
    [(content,)] = store.cursor().execute("SELECT content FROM log.spans").fetchall()
    assert json.loads(content)["service"] == "shop"


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_a_refused_span_is_a_dead_letter(send: Send, store: Store, kind: str) -> None:
    """Few SDKs show a partial success, so the operator has to see the span. Repeated, it is the same letter."""
    request = body([agent(0), {**tool(1), "startTimeUnixNano": "17"}])
    for _ in range(2):
        send(request if kind == JSON else protobuf(request), kind=kind)
    [(stage, reason, detail, source)] = letters_of(store)
    assert stage == "otlp"
    assert reason == "refused_span"
    assert "start_time_unix_nano" in detail
    assert source.endswith("/traces")


def test_a_conflicting_span_is_a_dead_letter(send: Send, store: Store) -> None:
    """Two processes with the same seed generate the same ids, and the second one never learns that its spans are lost."""
    send(body([agent(0, question="How are the vines?")]))
    send(body([agent(0, question="Is the cellar dry?", attributes={"gen_ai.conversation.id": "another"})]))
    [(stage, reason, detail, _)] = letters_of(store)
    assert stage == "otlp"
    assert reason == "conflicting_id"
    assert agent(0)["spanId"] in detail


def test_many_invalid_spans_make_few_letters(send: Send, store: Store) -> None:
    """Dead letters are limited, but the answer counts all refused spans."""
    bad = [{**tool(number), "traceId": ""} for number in range(200)]
    assert send(body(bad)).json()["partialSuccess"]["rejectedSpans"] == "200"
    assert len(letters_of(store)) == MAX_LETTERS


def test_dead_letters_contain_no_secret(send: Send, store: Store) -> None:
    """Mastra's exporter sends its own configuration along, including tokens."""
    secret = "a-token-of-its-own-0123456789"
    configuration = {"exporter": {"headers": {"Authorization": f"Bearer {secret}"}, "api_key": secret}}
    send(
        body(
            [{**tool(0, attributes={"config": json.dumps(configuration), "x-api-key": secret, **configuration}), "traceId": ""}]
        )
    )
    [(letter_body,)] = store.cursor().execute("SELECT body FROM log.dead_letters").fetchall()
    assert secret.encode() not in letter_body


def letters_of(store: Store) -> list[tuple[str, str, str, str]]:
    """Return stage, reason, detail and source of the dead letters."""
    return store.cursor().execute("SELECT stage, reason, detail, source FROM log.dead_letters ORDER BY ALL").fetchall()


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_metrics_are_refused_with_a_partial_success_and_counted(send: Send, call: Call, tokens: Tokens, kind: str) -> None:
    """SDKs send metrics to the same address by default, so an error would fill their log every minute."""
    request = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "gen_ai.client.token.usage"}, {"name": "x"}]}]}]}
    content = ParseDict(request, ExportMetricsServiceRequest()).SerializeToString() if kind == PROTOBUF else request
    answer = send(content, kind=kind, path=METRICS)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    response = (
        Parse(answer.content, ExportMetricsServiceResponse())
        if kind == JSON
        else ExportMetricsServiceResponse.FromString(answer.content)
    )
    assert response.partial_success.rejected_data_points == 2
    assert "metrics are not stored" in response.partial_success.error_message
    assert "driftline_refused_metrics_total 2.0" in call("GET", "/metrics", tokens.root).text
    assert send(content, "dl_wrong", kind=kind, path=METRICS).status_code == 401


@pytest.mark.parametrize("header", ["Bearer%20{}", "bearer%20{}", "Bearer {}", "Bearer%20%20{}"])
def test_a_percent_encoded_header_is_accepted(call: Call, tokens: Tokens, header: str) -> None:
    """LiteLLM and others send OTEL_EXPORTER_OTLP_HEADERS without decoding it."""
    headers = {"content-type": JSON, "authorization": header.format(tokens.ops)}
    assert call("POST", TRACES, "", content=b"{}", headers=headers).status_code == 200


@pytest.mark.parametrize("header", ["Bearer%2520{}", "Basic%20{}", "Bearer%20{}x", "Bearer%00{}"])
def test_other_encoded_headers_are_refused(call: Call, tokens: Tokens, header: str) -> None:
    """The header is decoded only once."""
    headers = {"content-type": JSON, "authorization": header.format(tokens.ops)}
    assert call("POST", TRACES, "", content=b"{}", headers=headers).status_code == 401


def test_ingest_outcomes_are_counted(send: Send, call: Call, tokens: Tokens) -> None:
    """The metrics show the operator what a fleet sends."""
    send(body([agent(0), {**tool(1), "traceId": ""}]))
    send(body([agent(0)]))
    text = call("GET", "/metrics", tokens.root).text
    for outcome in ("accepted", "known", "refused"):
        assert f'driftline_ingested_spans_total{{outcome="{outcome}"}} 1.0' in text
