"""OTLP over gRPC: the same spans as over HTTP, and for each refusal the code by which an exporter knows what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from support.api_server import Tokens
from support.otlp_captures import Captured
from support.otlp_spans import agent, body, chat, span

from analytics.store.store import Store
from schemas.errors import BrokerError, BusyError, SettingsError
from service.http.otlp_grpc import SERVICES
from service.server.server_lifecycle import listen_for_spans
from service.setup.access import AccessStore
from service.setup.settings import Settings
from service.text.links import TRACES
from service.web.bounds import BODY_LIMITS, ApiSettings
from service.web.context import ApiContext, Metrics
from streams.engine.engine import Engine

Export = Callable[..., Any]
GOOD = body([agent(), chat(1)])


@pytest.fixture
def context(engine: Engine, access: AccessStore) -> ApiContext:
    """Return the context of the HTTP endpoints."""
    return ApiContext(engine, access, ApiSettings(max_failures=2), Metrics())


@pytest.fixture
def export(context: ApiContext, tokens: Tokens, loop: asyncio.Runner) -> Export:
    """Return a function that calls the server as an exporter does, and returns the response or raises its error."""

    def exported(content: bytes, token: str | None = None, signal: str = "traces", *, times: int = 1, **given: Any) -> Any:
        metadata = (("authorization", f"Bearer {tokens.ops if token is None else token}"),)
        return loop.run(_exported(context, content, signal, times, {"metadata": metadata} | given))

    return exported


async def _exported(context: ApiContext, content: bytes, signal: str, times: int, given: dict[str, Any]) -> Any:
    answers = {"traces": ExportTraceServiceResponse, "logs": ExportLogsServiceResponse, "metrics": ExportMetricsServiceResponse}
    answer: Any = answers[signal]
    async with _channel(context) as channel:
        method: Any = channel.unary_unary(f"/{SERVICES[signal]}/Export", response_deserializer=answer.FromString)
        for _ in range(times - 1):
            with pytest.raises(grpc.aio.AioRpcError):
                await method(content, **given)
        return await method(content, **given)


@asynccontextmanager
async def _channel(context: ApiContext) -> AsyncIterator[grpc.aio.Channel]:
    listener = listen_for_spans(Settings(otlp_grpc_port=0), context)
    assert listener is not None
    async with listener.taking(), grpc.aio.insecure_channel(listener.address) as channel:
        yield channel


def packed(request: Any) -> bytes:
    """Return a request as protobuf."""
    return Captured("traces", request).as_protobuf


def refusal(exported: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Return code and details of a refused call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        exported()
    return caught.value.code(), caught.value.details() or ""


def stored(store: Store) -> int:
    """Return the number of stored spans."""
    ((count,),) = store.cursor().execute("SELECT count(*) FROM log.spans").fetchall()
    return int(count)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_spans_are_durable_when_the_call_returns(
    export: Export, store: Store, loop: asyncio.Runner, engine: Engine, compression: grpc.Compression
) -> None:
    """An exporter drops spans once they are acknowledged."""
    answer = export(packed(GOOD), compression=compression)
    loop.run(engine.flush())

    assert not answer.HasField("partial_success")
    assert stored(store) == 2


def test_an_invalid_span_affects_no_other(export: Export, store: Store, loop: asyncio.Runner, engine: Engine) -> None:
    """The protocol reports rejected spans separately."""
    answer = export(packed(body([chat(1), span(2, startTimeUnixNano="7258118400000000000")])))
    loop.run(engine.flush())

    assert answer.partial_success.rejected_spans == 1
    assert "future" in answer.partial_success.error_message
    assert stored(store) == 1


def test_an_incomplete_character_affects_only_its_span(
    export: Export, store: Store, loop: asyncio.Runner, engine: Engine
) -> None:
    """Over gRPC a rejected request is lost with all its spans."""
    broken = packed(body([agent(0, answer="Low tide."), agent(1, answer="High @@@")])).replace(b"@@@", b"\xed\xa0\xbc")
    answer = export(broken)
    loop.run(engine.flush())

    assert not answer.HasField("partial_success")
    contents = [content for (content,) in store.cursor().execute("SELECT content FROM log.spans ORDER BY span_id").fetchall()]
    assert ["\ufffd" in content for content in contents] == [False, True]
    assert ["truncated" in content for content in contents] == [False, True]


def test_metrics_are_refused_with_a_partial_success(export: Export) -> None:
    """Exporters log an error every minute if they receive UNIMPLEMENTED."""
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.add().name = "gen_ai.client.token.usage"
    answer = export(request.SerializeToString(), signal="metrics")
    assert answer.partial_success.rejected_data_points == 1
    assert "metrics are not stored" in answer.partial_success.error_message


def test_a_percent_encoded_header_is_accepted(export: Export, tokens: Tokens) -> None:
    """Some exporters send the value of OTEL_EXPORTER_OTLP_HEADERS without decoding it."""
    metadata = (("authorization", f"Bearer%20{tokens.ops}"),)
    assert not export(packed(GOOD), metadata=metadata).HasField("partial_success")


def test_logs_are_accepted(export: Export) -> None:
    """Instrumentors of OpenTelemetry put texts into logs."""
    assert not export(b"", signal="logs").HasField("partial_success")


@pytest.mark.parametrize(
    ("token", "code"),
    [("", grpc.StatusCode.UNAUTHENTICATED), ("dl_wrong", grpc.StatusCode.UNAUTHENTICATED), (None, grpc.StatusCode.OK)],
)
def test_a_token_is_required(export: Export, token: str | None, code: grpc.StatusCode) -> None:
    """The token identifies the owner of the spans."""
    if code is grpc.StatusCode.OK:
        export(packed(GOOD), token)
    else:
        assert code is refusal(lambda: export(packed(GOOD), token))[0]


def test_an_operators_token_is_refused(export: Export, tokens: Tokens) -> None:
    """An operator's token may not deliver records."""
    code, details = refusal(lambda: export(packed(GOOD), tokens.root))

    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "connection" in details


def test_repeated_wrong_tokens_are_throttled(export: Export) -> None:
    """As over HTTP, a valid token from the same address is still accepted."""
    code, details = refusal(lambda: export(packed(GOOD), "dl_wrong", times=3))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert "too many wrong tokens" in details


def test_an_invalid_request_is_not_retryable(export: Export) -> None:
    """An exporter that keeps repeating a bad request would lose later ones."""
    code, details = refusal(lambda: export(b"\xff\xff"))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "protobuf" in details


def test_a_decompression_bomb_is_refused(export: Export, store: Store) -> None:
    """A decompression bomb must be refused without harm."""
    bomb = bytes(BODY_LIMITS[TRACES] + 1)

    assert refusal(lambda: export(bomb, compression=grpc.Compression.Gzip))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stored(store) == 0


@pytest.mark.parametrize("error", [BusyError("too many records wait"), BrokerError("broker 10.0.0.7: refused")])
def test_an_unavailable_log_is_retryable(
    export: Export, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Exporters retry UNAVAILABLE; the cause is not the sender's concern."""

    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine, "publish_admitted", fails)
    code, details = refusal(lambda: export(packed(GOOD)))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert "10.0.0.7" not in details


def test_without_the_setting_no_port_is_open(context: ApiContext) -> None:
    """Without the setting, no port is opened."""
    assert listen_for_spans(Settings(), context) is None


def test_an_occupied_port_is_an_error_with_the_setting(context: ApiContext, loop: asyncio.Runner) -> None:
    """The error must name the setting to change."""

    async def twice() -> None:
        first = listen_for_spans(Settings(otlp_grpc_port=0), context)
        assert first is not None
        async with first.taking():
            port = int(first.address.rpartition(":")[2])
            with pytest.raises(SettingsError, match="DRIFTLINE_OTLP_GRPC_PORT"):
                listen_for_spans(Settings(otlp_grpc_port=port), context)

    loop.run(twice())
