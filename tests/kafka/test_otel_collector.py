"""A real OpenTelemetry Collector: over HTTP, gRPC and Kafka it gives the same exchanges and events as direct export."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.clients import bearer
from support.kafka_workers import until_committed
from support.otel_collector import UnavailableError, find_or_build_collector, run_collector
from support.otlp_captures import Captured, requests_of
from support.processes import free_port
from support.servers import PATIENCE, ROOT, Child, Home, Nursery, nursery, until

from analytics.store.store import Store
from audit.policy import Origin, SpanFiling, load_policy
from schemas.registry import topics
from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import COLLECTOR

MakeTopics = Callable[..., None]
CAPTURES = ("openai_v2", "pydantic_ai")
POLICY = """
version: 1
defaults: {retentionDays: null, traces: {settleSeconds: 10}}
collector: {connection: fleet, project: ops}
"""
GUIDE = ROOT / "docs" / "how-to" / "collector.md"
PARTITIONS = 2
Rows = dict[str, list[tuple[Any, ...]]]
SAID = {
    "exchanges": "SELECT * EXCLUDE (ingested_at) FROM exchanges ORDER BY exchange_id",
    "events": "SELECT * EXCLUDE (ingested_at, seq) FROM agent_events ORDER BY session_id, event_id",
    "letters": "SELECT * FROM dead_letters",
}
"""What has to be the same, whichever way spans came. A session's traces stand in the order in which they were complete."""


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Build the Collector before anything else starts. Without it the tests are skipped with a reason, also in CI."""
    try:
        find_or_build_collector()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """Return a starter of servers and workers."""
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="module")
def sent() -> list[Captured]:
    """Return the export requests of two captures."""
    return [request for name in CAPTURES for request in requests_of(name)]


@pytest.fixture(scope="module")
def directly(children: Nursery, sent: list[Captured], tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return the results of exporting directly to the server."""
    home = Home(tmp_path_factory.mktemp("directly"), POLICY)
    return served(children, home, lambda url: post(sent, url, bearer(home.connection("fleet", "ops"))))


def post(sent: list[Captured], url: str, headers: dict[str, str] | None = None) -> None:
    """Export requests alternately as protobuf and as JSON, as instrumentors of several languages do."""
    kinds = ("application/x-protobuf", "application/json")
    for number, capture in enumerate(sent):
        body = capture.as_json if number % 2 else capture.as_protobuf
        request_headers = {"Content-Type": kinds[number % 2], **(headers or {})}
        answer = httpx2.post(f"{url}/v1/{capture.signal}", content=body, headers=request_headers, timeout=60)
        assert answer.status_code == httpx2.codes.OK, answer.text


def served(children: Nursery, home: Home, export: Callable[[str], None], *arguments: str) -> Rows:
    """Run a server until all traces are assembled, and return its records; `export` is called with its address."""
    home.connection("fleet", "ops")
    operator = bearer(home.operator())
    server = children.serve(home, "--judge", "none", *arguments)
    url = ready(server)
    export(url)
    question = {"sql": "SELECT count(*) AS traces, sum(spans)::BIGINT AS spans FROM trace_assemblies"}

    expected = {"traces": TRACES, "spans": SPANS}

    def assembled() -> bool:
        assert not server.ended, server.logged[-4000:]
        answer = httpx2.post(f"{url}/api/audit/query", json=question, headers=operator, timeout=60)
        return answer.status_code == httpx2.codes.OK and answer.json()["rows"] == [expected]

    until(assembled, f"{TRACES} traces of {SPANS} spans and records")
    server.send(signal.SIGTERM)
    assert server.wait() == 0, server.logged[-4000:]
    with Store(home.database) as store, closing(store.cursor()) as cursor:
        return {name: cursor.execute(statement).fetchall() for name, statement in SAID.items()}


def ready(server: Child) -> str:
    """Return the server's address as soon as it accepts records."""
    url = server.serving()
    until(
        lambda: httpx2.get(f"{url}/readyz", timeout=60).status_code == httpx2.codes.OK or server.ended,
        "the server to take records",
    )
    assert not server.ended, server.logged[-4000:]
    return url


def count_captures() -> tuple[int, int]:
    """Return the number of traces in the captures, and of spans and log records about a model."""
    traces = set()
    spans = 0
    for capture in (request for name in CAPTURES for request in requests_of(name)):
        groups = capture.request.get("resourceSpans", []) + capture.request.get("resourceLogs", [])
        for scoped in (scoped for group in groups for key in ("scopeSpans", "scopeLogs") for scoped in group.get(key, ())):
            for item in scoped.get("spans", []) + scoped.get("logRecords", []):
                if "spanId" in item and ("startTimeUnixNano" in item or "gen_ai" in json.dumps(item)):
                    traces.add(item["traceId"])
                    spans += 1
    return len(traces), spans


TRACES, SPANS = count_captures()


def test_over_http(children: Nursery, sent: list[Captured], directly: Rows, tmp_path: Path) -> None:
    """The usual setup: one more exporter in an existing Collector."""
    home = Home(tmp_path, POLICY)

    def export(url: str) -> None:
        settings = {"endpoint": url, "headers": {"Authorization": f"Bearer {home.tokens['fleet']}"}, "compression": "gzip"}
        with run_collector(tmp_path / "collector", {"otlp_http": settings}) as running:
            post(sent, running.url)

    assert served(children, home, export) == directly


def test_over_grpc(children: Nursery, sent: list[Captured], directly: Rows, tmp_path: Path) -> None:
    """The Collector's default exporter speaks gRPC."""
    port = free_port()
    home = Home(tmp_path, POLICY, DRIFTLINE_OTLP_GRPC_PORT=str(port))

    def export(_url: str) -> None:
        headers = {"authorization": f"Bearer {home.tokens['fleet']}"}
        settings = {"endpoint": f"127.0.0.1:{port}", "tls": {"insecure": True}, "headers": headers}
        with run_collector(tmp_path / "collector", {"otlp_grpc": settings}) as running:
            post(sent, running.url)

    assert served(children, home, export) == directly


@pytest.mark.parametrize("encoding", ["otlp_proto", "otlp_json"])
@pytest.mark.parametrize("by_trace", [True, False], ids=["keyed by trace", "without a key"])
def test_over_kafka(
    children: Nursery,
    sent: list[Captured],
    directly: Rows,
    tmp_path: Path,
    kafka: KafkaConnection,
    *,
    make_topics: MakeTopics,
    encoding: str,
    by_trace: bool,
) -> None:
    """Kafka keeps spans while Driftline is down; keys and partitions are chosen by the Collector."""
    names = {"traces": f"{kafka.prefix}otlp_spans", "logs": f"{kafka.prefix}otlp_logs"}
    make_topics(*topics(), "diagnosis-state", "intake-state", "otlp_spans", "otlp_logs", partitions=PARTITIONS)
    settings = {"DRIFTLINE_KAFKA_OTLP_SPANS": names["traces"], "DRIFTLINE_KAFKA_OTLP_LOGS": names["logs"]}
    home = Home(tmp_path, POLICY, DRIFTLINE_KAFKA=kafka.bootstrap, DRIFTLINE_KAFKA_PREFIX=kafka.prefix, **settings)

    def export(_url: str) -> None:
        with run_collector(
            tmp_path / "collector", {"kafka": kafka_exporter(kafka, names, encoding, by_trace=by_trace)}
        ) as running:
            post(sent, running.url)

    worker = children.start(home, "worker", "--stages", f"{COLLECTOR},diagnosis")
    until(lambda: "worker process" in worker.printed or worker.ended, "a worker")
    assert not worker.ended, worker.logged[-4000:]
    found = served(children, home, export)
    asyncio.run(until_committed(kafka, "otlp_spans", PARTITIONS))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.logged[-4000:]
    assert found == directly


def kafka_exporter(kafka: KafkaConnection, names: dict[str, str], encoding: str, *, by_trace: bool) -> dict[str, Any]:
    """Return the exporter's configuration from the guide."""
    return {
        "brokers": kafka.servers,
        "producer": {"required_acks": "all", "compression": "zstd"},
        "partition_traces_by_id": by_trace,
    } | {signal: {"topic": name, "encoding": encoding} for signal, name in names.items()}


def blocks(language: str) -> list[str]:
    """Return the guide's code blocks in a language."""
    return [part.partition("```")[0] for part in GUIDE.read_text("utf-8").split(f"```{language}\n")[1:]]


def test_the_configurations_of_the_guide_are_valid(tmp_path: Path) -> None:
    """Users copy them, and the Collector renames components and settings every few months."""
    configurations = [block for block in blocks("yaml") if "exporters:" in block]
    assert len(configurations) == 3
    for number, block in enumerate(configurations):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block, "utf-8")
        command = [str(find_or_build_collector()), "validate", "--config", str(file)]
        done = subprocess.run(
            command, env=os.environ | {"TOKEN": "dl_x"}, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "deprecated" not in done.stderr


def test_the_policy_of_the_guide_files_spans_as_it_says(tmp_path: Path) -> None:
    """Users copy the policy, so its routes must match their comments."""
    (policy,) = [block for block in blocks("yaml") if "routes:" in block]
    file = tmp_path / "policy.yaml"
    file.write_text(policy, "utf-8")
    filing = load_policy(file).collector.filing

    assert SpanFiling("fleet", "ops", None) == filing(Origin("otlp_spans", {}, "web"))
    assert SpanFiling("fleet", "shop", None) == filing(Origin("otlp_spans", {}, "checkout-web"))
    assert SpanFiling("fleet", "north", None) == filing(Origin("otlp_spans", {"x-tenant": "north"}, "web"))
    assert SpanFiling("lab", "lab", None) == filing(Origin("otlp_spans_lab", {}, "web"))
