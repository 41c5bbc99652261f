"""Scores as OpenTelemetry's events: a real collector's endpoint decodes what comes, and fails in every way a collector fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from support.builders import START, exchange

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import SettingsError
from schemas.records import DimensionScore, Score
from service.export import otlp as otlp_export
from service.export.otlp import Collector, read_collector
from service.setup.settings import Settings

SECRET = "Bearer collector-secret-0123456789"


class Receiver:
    """A collector on a free port: stores what it accepts, and answers with the given statuses, then with 200."""

    def __init__(self) -> None:
        self.requests: list[ExportLogsServiceRequest] = []
        self.headers: list[Mapping[str, str]] = []
        self.statuses: list[int] = []
        self.partial = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.headers.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                answer = ExportLogsServiceResponse()
                if status == 200:
                    receiver.requests.append(ExportLogsServiceRequest.FromString(body))
                    answer.partial_success.rejected_log_records = receiver.partial
                content = answer.SerializeToString()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def events(self) -> list[dict[str, Any]]:
        """Return the attributes of every received event."""
        records = (
            record
            for request in self.requests
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        )
        return [
            {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in record.attributes} for record in records
        ]

    def close(self) -> None:
        """Stop the collector."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a running collector."""
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield an empty store."""
    with Store(tmp_path / "fleet.duckdb") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_export, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(otlp_export, "MAX_PAUSE_SECONDS", 0.01)


def score(number: int, **explanation: Any) -> Score:
    """Return a score with every tier."""
    neutral: dict[str, Any] = {
        "score_id": f"score-{number}", "revision": 0, "exchange_id": f"e{number}", "connection": "north", "project": "ops",
        "agent": "deployer", "session_id": "s1", "turn_number": number, "exchange_at": START, "scored_at": START,
        "disposition": "scored", "sampling_reason": "routine_sample", "sampling_probability": 0.5, "tier1_score": 1.0,
        "tier1_flags": [], "tier2_state": "scored", "tier2_score": 0.75, "tier2_flagged": False,
        "tier2_dimensions": [DimensionScore(dimension="scope_compliance", score=0.75, reasoning="It kept to the question.")],
        "tier2_5_state": "not_applicable", "tier3_state": "unscored", "tier3_reason": "timeout", "anomaly": False,
        "methodology": "default", "methodology_version": "1", "methodology_digest": "d", "rule_version": "1",
        "policy_digest": "p", "evidence_digest": "e",
    }  # fmt: skip
    return Score(**neutral | explanation)


def append(store: Store, *scores: Score) -> None:
    """Append scores as the engine does."""
    with store.transaction() as transaction:
        transaction.append("scores", [encode(one) for one in scores])


def send_score_events(store: Store, collector: Collector) -> None:
    """Run the periodic task once."""
    asyncio.run(otlp_export.ScoreEvents(store, collector).run())


def test_scores_are_events_of_the_semantic_conventions(store: Store, receiver: Receiver) -> None:
    """Each scored tier and dimension is an event, a failed tier gives the reason, and an unsampled tier gives none."""
    collector = Collector(f"{receiver.url}/v1/logs")
    send_score_events(store, collector)
    append(store, score(1))
    send_score_events(store, collector)

    events = receiver.events()
    attributes = [
        {name: value for name, value in event.items() if "evaluation" in name or name == "error.type"} for event in events
    ]
    assert attributes == [
        {"gen_ai.evaluation.name": "tier1", "gen_ai.evaluation.score.value": 1.0, "gen_ai.evaluation.score.label": "pass"},
        {"gen_ai.evaluation.name": "tier2", "gen_ai.evaluation.score.value": 0.75, "gen_ai.evaluation.score.label": "pass"},
        {"gen_ai.evaluation.name": "tier2.scope_compliance", "gen_ai.evaluation.score.value": 0.75},
        {"gen_ai.evaluation.name": "tier3", "error.type": "timeout"},
    ]
    expected = {
        "gen_ai.response.id": "e1",
        "gen_ai.conversation.id": "s1",
        "gen_ai.agent.name": "deployer",
        "driftline.turn": 1,
    }
    assert all(expected.items() <= event.items() for event in events)
    (record, *_) = receiver.requests[0].resource_logs[0].scope_logs[0].log_records
    assert record.event_name == "gen_ai.evaluation.result"
    assert record.time_unix_nano == int(START.timestamp()) * 10**9
    assert receiver.headers[0]["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("explain", [False, True])
def test_explanations_are_sent_only_if_enabled(store: Store, receiver: Receiver, explain: bool) -> None:
    """They quote users and agents."""
    collector = Collector(f"{receiver.url}/v1/logs", explain=explain)
    send_score_events(store, collector)
    append(store, score(1))
    send_score_events(store, collector)

    explanations = [
        event["gen_ai.evaluation.explanation"] for event in receiver.events() if "gen_ai.evaluation.explanation" in event
    ]
    assert explanations == (["It kept to the question."] if explain else [])


def test_scores_from_before_the_activation_are_not_sent(store: Store, receiver: Receiver) -> None:
    """Years of history would flood a collector, which may also reject old events."""
    append(store, score(1))
    collector = Collector(f"{receiver.url}/v1/logs")
    send_score_events(store, collector)
    append(store, score(2))
    send_score_events(store, collector)
    send_score_events(store, collector)

    assert [event["gen_ai.response.id"] for event in receiver.events()] == ["e2"] * 4


@pytest.mark.parametrize("statuses", [[503], [429, 502], [503, 503, 503], [401]])
def test_rejected_scores_are_sent_again(store: Store, receiver: Receiver, statuses: list[int]) -> None:
    """They are retried at once and with the next run, so that nothing is lost and nothing arrives twice."""
    collector = Collector(f"{receiver.url}/v1/logs")
    send_score_events(store, collector)
    append(store, score(1), score(2))
    receiver.statuses = list(statuses)
    if statuses in ([503, 503, 503], [401]):
        with pytest.raises(otlp_export.CollectorError):
            send_score_events(store, collector)
    send_score_events(store, collector)

    assert [event["gen_ai.response.id"] for event in receiver.events()] == ["e1"] * 4 + ["e2"] * 4
    assert receiver.statuses == []


def test_an_unreachable_collector_loses_nothing(store: Store, receiver: Receiver) -> None:
    """It may come back with the next deployment."""
    send_score_events(store, Collector(f"{receiver.url}/v1/logs"))
    append(store, score(1))
    with pytest.raises(otlp_export.CollectorError):
        send_score_events(store, Collector("http://127.0.0.1:9/v1/logs"))
    send_score_events(store, Collector(f"{receiver.url}/v1/logs"))

    assert len(receiver.events()) == 4


def test_scores_that_a_collector_calls_malformed_are_skipped(
    store: Store, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """By the protocol they must not be repeated, and all later scores would wait for them forever."""
    collector = Collector(f"{receiver.url}/v1/logs")
    send_score_events(store, collector)
    append(store, score(1))
    receiver.statuses = [400]
    send_score_events(store, collector)
    append(store, score(2))
    receiver.partial = 1
    send_score_events(store, collector)

    assert [event["gen_ai.response.id"] for event in receiver.events()] == ["e2"] * 4
    assert "malformed" in caplog.messages[0]
    assert "rejected 1 events" in caplog.messages[1]


def test_many_scores_are_sent_in_batches(store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectors limit the size of a request."""
    monkeypatch.setattr(otlp_export, "BATCH_SIZE", 2)
    collector = Collector(f"{receiver.url}/v1/logs")
    send_score_events(store, collector)
    append(store, *(score(number) for number in range(5)))
    send_score_events(store, collector)

    assert [len(request.resource_logs[0].scope_logs[0].log_records) for request in receiver.requests] == [8, 8, 4]


def test_no_text_of_an_exchange_is_sent(store: Store, receiver: Receiver) -> None:
    """The texts of users must not leave the server."""
    collector = Collector(f"{receiver.url}/v1/logs", explain=True)
    send_score_events(store, collector)
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(exchange("s1", 1, user_message="my private question"))])
    append(store, score(1))
    send_score_events(store, collector)

    assert b"private" not in receiver.requests[0].SerializeToString()


def test_the_export_is_off_without_an_address() -> None:
    """Nothing may be sent without a request to do so."""
    assert read_collector(Settings(), {}) is None


@pytest.mark.parametrize(
    ("setting", "environment", "url"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/logs"),
        ("http://c:4318/", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, "http://c:4318/v1/logs"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://d/base"}, "https://d/base/v1/logs"),
        (None, {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://d/own"}, "https://d/own"),
    ],
)
def test_our_setting_overrides_the_standard_variable(setting: str | None, environment: dict[str, str], url: str) -> None:
    """Users with other instrumented services have the standard variables set."""
    collector = read_collector(Settings(otlp_endpoint=setting), environment)
    assert collector is not None
    assert collector.url == url


def test_headers_are_sent_and_not_shown(store: Store, receiver: Receiver) -> None:
    """They contain the collector's key."""
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20collector-secret-0123456789, x-team=ops"}
    collector = read_collector(Settings(otlp_endpoint=receiver.url), environment)
    assert collector is not None
    send_score_events(store, collector)
    append(store, score(1))
    send_score_events(store, collector)

    assert tuple(receiver.headers[0][name] for name in ("authorization", "x-team", "path")) == (SECRET, "ops", "/v1/logs")
    assert "secret" not in repr(collector)


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "no-equals"},
    ],
)
def test_an_invalid_address_or_header_is_refused_at_startup(environment: dict[str, str]) -> None:
    """Otherwise nothing would be sent, and nobody would notice."""
    with pytest.raises(SettingsError, match="OTEL_EXPORTER"):
        read_collector(Settings(), environment)
