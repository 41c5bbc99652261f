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
    """The same context as that of the HTTP endpoints."""
    return ApiContext(engine, access, ApiSettings(max_failures=2), Metrics())


@pytest.fixture
def export(context: ApiContext, tokens: Tokens, loop: asyncio.Runner) -> Export:
    """Calls the server as an exporter does; answers the response, or raises its error."""

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


def packed(sent: Any) -> bytes:
    """A request as protobuf."""
    return Captured("traces", sent).as_protobuf


def refusal(exported: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """The code and the words of a refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        exported()
    return caught.value.code(), caught.value.details() or ""


def stored(store: Store) -> int:
    """Return the number of stored spans."""
    ((count,),) = store.cursor().execute("SELECT count(*) FROM log.spans").fetchall()
    return int(count)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_spans_are_durable_when_it_answers(
    export: Export, store: Store, loop: asyncio.Runner, engine: Engine, compression: grpc.Compression
) -> None:
    """An exporter drops spans once they are acknowledged."""
    answer = export(packed(GOOD), compression=compression)
    loop.run(engine.flush())

    assert not answer.HasField("partial_success")
    assert stored(store) == 2


def test_a_bad_span_costs_itself_alone(export: Export, store: Store, loop: asyncio.Runner, engine: Engine) -> None:
    """The protocol reports rejected spans separately."""
    answer = export(packed(body([chat(1), span(2, startTimeUnixNano="7258118400000000000")])))
    loop.run(engine.flush())

    assert answer.partial_success.rejected_spans == 1
    assert "future" in answer.partial_success.error_message
    assert stored(store) == 1


def test_half_a_character_costs_itself_alone(export: Export, store: Store, loop: asyncio.Runner, engine: Engine) -> None:
    """Over gRPC a request that was refused as a whole would be lost as a whole, and with it its neighbours."""
    broken = packed(body([agent(0, answer="Low tide."), agent(1, answer="High @@@")])).replace(b"@@@", b"\xed\xa0\xbc")
    answer = export(broken)
    loop.run(engine.flush())

    assert not answer.HasField("partial_success")
    contents = [content for (content,) in store.cursor().execute("SELECT content FROM log.spans ORDER BY span_id").fetchall()]
    assert ["\ufffd" in content for content in contents] == [False, True]
    assert ["truncated" in content for content in contents] == [False, True]


def test_metrics_are_refused_in_their_own_words(export: Export) -> None:
    """Exporters log an error every minute if they receive UNIMPLEMENTED."""
    sent = ExportMetricsServiceRequest()
    sent.resource_metrics.add().scope_metrics.add().metrics.add().name = "gen_ai.client.token.usage"
    answer = export(sent.SerializeToString(), signal="metrics")
    assert answer.partial_success.rejected_data_points == 1
    assert "metrics are not stored" in answer.partial_success.error_message


def test_a_header_in_percent_encoding_is_taken(export: Export, tokens: Tokens) -> None:
    """Some exporters send the value of OTEL_EXPORTER_OTLP_HEADERS without decoding it."""
    metadata = (("authorization", f"Bearer%20{tokens.ops}"),)
    assert not export(packed(GOOD), metadata=metadata).HasField("partial_success")


def test_logs_are_taken(export: Export) -> None:
    """Instrumentors of OpenTelemetry put texts into logs."""
    assert not export(b"", signal="logs").HasField("partial_success")


@pytest.mark.parametrize(
    ("token", "code"),
    [("", grpc.StatusCode.UNAUTHENTICATED), ("dl_wrong", grpc.StatusCode.UNAUTHENTICATED), (None, grpc.StatusCode.OK)],
)
def test_a_token_is_needed(export: Export, token: str | None, code: grpc.StatusCode) -> None:
    """The token identifies the owner of the spans."""
    if code is grpc.StatusCode.OK:
        export(packed(GOOD), token)
    else:
        assert code is refusal(lambda: export(packed(GOOD), token))[0]


def test_a_token_of_an_operator_is_none_of_a_connection(export: Export, tokens: Tokens) -> None:
    """An operator's token may not deliver records."""
    code, words = refusal(lambda: export(packed(GOOD), tokens.root))

    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "connection" in words


def test_an_address_that_guesses_has_to_wait(export: Export) -> None:
    """As over HTTP; a right token is let in all the same."""
    code, words = refusal(lambda: export(packed(GOOD), "dl_wrong", times=3))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert "too many wrong tokens" in words


def test_what_is_no_request_is_not_sent_again(export: Export) -> None:
    """An exporter that keeps repeating a bad request would lose later ones."""
    code, words = refusal(lambda: export(b"\xff\xff"))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "protobuf" in words


def test_a_request_that_unpacks_to_too_much_is_refused(export: Export, store: Store) -> None:
    """A decompression bomb must be refused without harm."""
    bomb = bytes(BODY_LIMITS[TRACES] + 1)

    assert refusal(lambda: export(bomb, compression=grpc.Compression.Gzip))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stored(store) == 0


@pytest.mark.parametrize("error", [BusyError("too many records wait"), BrokerError("broker 10.0.0.7: refused")])
def test_a_log_that_takes_nothing_is_asked_again(
    export: Export, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """UNAVAILABLE is what exporters try again; where the broker is concerns the sender nothing."""

    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine, "publish_admitted", fails)
    code, words = refusal(lambda: export(packed(GOOD)))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert "10.0.0.7" not in words


def test_without_the_setting_there_is_no_listener(context: ApiContext) -> None:
    """Without the setting, no port is opened."""
    assert listen_for_spans(Settings(), context) is None


def test_a_port_that_is_taken_is_an_error_that_names_the_setting(context: ApiContext, loop: asyncio.Runner) -> None:
    """The error must name the setting to change."""

    async def twice() -> None:
        first = listen_for_spans(Settings(otlp_grpc_port=0), context)
        assert first is not None
        async with first.taking():
            port = int(first.address.rpartition(":")[2])
            with pytest.raises(SettingsError, match="DRIFTLINE_OTLP_GRPC_PORT"):
                listen_for_spans(Settings(otlp_grpc_port=port), context)

    loop.run(twice())
