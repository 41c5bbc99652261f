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
from service.export.otlp import Collector, collector_of
from service.setup.settings import Settings

SECRET = "Bearer collector-secret-0123456789"


class Receiver:
    """A collector on a free port: keeps what it takes, and answers with the statuses it was told, then with 200."""

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
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def events(self) -> list[dict[str, Any]]:
        """The attributes of every event that came."""
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
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running collector."""
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "fleet.duckdb") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_export, "PAUSE", 0.0)
    monkeypatch.setattr(otlp_export, "LONGEST_PAUSE", 0.01)


def score(number: int, **said: Any) -> Score:
    """A score of every tier."""
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
    return Score(**neutral | said)


def append(store: Store, *scores: Score) -> None:
    """Put scores where the engine puts them."""
    with store.transaction() as transaction:
        transaction.append("scores", [encode(one) for one in scores])


def sent(store: Store, collector: Collector) -> None:
    """One run of the periodic task."""
    asyncio.run(otlp_export.ScoreEvents(store, collector).run())


def test_scores_arrive_as_events_of_the_semantic_conventions(store: Store, receiver: Receiver) -> None:
    """One a tier with a number, one a dimension, and a tier that failed says why; a tier that was left out says nothing."""
    collector = Collector(f"{receiver.url}/v1/logs")
    sent(store, collector)
    append(store, score(1))
    sent(store, collector)

    events = receiver.events()
    shown = [{name: value for name, value in event.items() if "evaluation" in name or name == "error.type"} for event in events]
    assert shown == [
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
def test_the_judge_s_words_go_along_only_where_they_are_wanted(store: Store, receiver: Receiver, explain: bool) -> None:
    """They quote what people and agents wrote."""
    collector = Collector(f"{receiver.url}/v1/logs", explain=explain)
    sent(store, collector)
    append(store, score(1))
    sent(store, collector)

    words = [event["gen_ai.evaluation.explanation"] for event in receiver.events() if "gen_ai.evaluation.explanation" in event]
    assert words == (["It kept to the question."] if explain else [])


def test_scores_from_before_it_was_switched_on_are_not_sent(store: Store, receiver: Receiver) -> None:
    """Years of history would drown a collector, which has its own idea of what is recent."""
    append(store, score(1))
    collector = Collector(f"{receiver.url}/v1/logs")
    sent(store, collector)
    append(store, score(2))
    sent(store, collector)
    sent(store, collector)

    assert [event["gen_ai.response.id"] for event in receiver.events()] == ["e2"] * 4


@pytest.mark.parametrize("statuses", [[503], [429, 502], [503, 503, 503], [401]])
def test_what_a_collector_does_not_take_is_sent_again(store: Store, receiver: Receiver, statuses: list[int]) -> None:
    """At once a few times, then with the next run: nothing is lost, and with this collector nothing comes twice."""
    collector = Collector(f"{receiver.url}/v1/logs")
    sent(store, collector)
    append(store, score(1), score(2))
    receiver.statuses = list(statuses)
    if statuses in ([503, 503, 503], [401]):
        with pytest.raises(otlp_export.CollectorError):
            sent(store, collector)
    sent(store, collector)

    assert [event["gen_ai.response.id"] for event in receiver.events()] == ["e1"] * 4 + ["e2"] * 4
    assert receiver.statuses == []


def test_a_collector_that_is_not_there_loses_nothing(store: Store, receiver: Receiver) -> None:
    """It comes back with the next deployment."""
    sent(store, Collector(f"{receiver.url}/v1/logs"))
    append(store, score(1))
    with pytest.raises(otlp_export.CollectorError):
        sent(store, Collector("http://127.0.0.1:9/v1/logs"))
    sent(store, Collector(f"{receiver.url}/v1/logs"))

    assert len(receiver.events()) == 4


def test_what_a_collector_calls_malformed_is_left_behind(
    store: Store, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """By the protocol it must not be sent again, and all that comes after it would wait for ever."""
    collector = Collector(f"{receiver.url}/v1/logs")
    sent(store, collector)
    append(store, score(1))
    receiver.statuses = [400]
    sent(store, collector)
    append(store, score(2))
    receiver.partial = 1
    sent(store, collector)

    assert [event["gen_ai.response.id"] for event in receiver.events()] == ["e2"] * 4
    assert ["malformed" in caplog.messages[0], "left 1 events" in caplog.messages[1]] == [True, True]


def test_many_scores_go_in_batches(store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector bounds the size of a request."""
    monkeypatch.setattr(otlp_export, "BATCH", 2)
    collector = Collector(f"{receiver.url}/v1/logs")
    sent(store, collector)
    append(store, *(score(number) for number in range(5)))
    sent(store, collector)

    assert [len(request.resource_logs[0].scope_logs[0].log_records) for request in receiver.requests] == [8, 8, 4]


def test_no_text_of_an_exchange_is_sent(store: Store, receiver: Receiver) -> None:
    """What users wrote stays here."""
    collector = Collector(f"{receiver.url}/v1/logs", explain=True)
    sent(store, collector)
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(exchange("s1", 1, user_message="my private question"))])
    append(store, score(1))
    sent(store, collector)

    assert b"private" not in receiver.requests[0].SerializeToString()


def test_it_is_off_unless_an_address_is_given() -> None:
    """Nothing leaves without being asked to."""
    assert collector_of(Settings(), {}) is None


@pytest.mark.parametrize(
    ("setting", "environment", "url"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/logs"),
        ("http://c:4318/", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, "http://c:4318/v1/logs"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://d/base"}, "https://d/base/v1/logs"),
        (None, {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "https://d/own"}, "https://d/own"),
    ],
)
def test_the_address_is_ours_else_the_standard_one(setting: str | None, environment: dict[str, str], url: str) -> None:
    """Whoever runs other instrumented services has these variables set."""
    found = collector_of(Settings(otlp_endpoint=setting), environment)
    assert found is not None
    assert found.url == url


def test_headers_are_sent_and_not_shown(store: Store, receiver: Receiver) -> None:
    """They hold the key of the collector."""
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20collector-secret-0123456789, x-team=ops"}
    collector = collector_of(Settings(otlp_endpoint=receiver.url), environment)
    assert collector is not None
    sent(store, collector)
    append(store, score(1))
    sent(store, collector)

    assert tuple(receiver.headers[0][name] for name in ("authorization", "x-team", "path")) == (SECRET, "ops", "/v1/logs")
    assert "secret" not in repr(collector)


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "no-equals"},
    ],
)
def test_what_is_no_address_or_header_is_refused_at_start(environment: dict[str, str]) -> None:
    """Else nothing would be sent, and nobody would know."""
    with pytest.raises(SettingsError, match="OTEL_EXPORTER"):
        collector_of(Settings(), environment)
