"""Faults that audits of this kind have had, each as the law that it broke: one fact each, through the API and everything behind it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
from support.clients import INGEST, bearer, exchange_body
from support.clocks import TickingClock
from support.engines import live_judge
from support.invariants import check_money, rows
from support.watch_histories import END, fallen, history, put, steady

from analytics.store.store import Store
from audit.cost import nano_of
from audit.policy import Policy
from audit.redaction import Redactor
from driftline_trial.simulator import RunningJudge, running
from service.server.app import create_app
from service.setup.access import AccessStore, Holder
from service.web.bounds import ApiSettings
from service.web.context import ApiContext
from streams.engine.engine import Engine
from streams.watch.rounds import WatchRounds

T = TypeVar("T")
CAPS = {"ops": 1.0, "poor": 0.05, "broke": 0.0, "dark": 1.0}
POLICY = {"projects": {name: {"costCapPerSession": cap, "enabled": name != "dark"} for name, cap in CAPS.items()}}
SCORES = "/api/audit/ops/scores"
OF_CONNECTIONS = {
    INGEST,
    "/api/audit/exchanges",
    "/api/audit/events",
    "/api/audit/events/bulk",
    "/api/audit/heartbeat",
    "/api/audit/sessions/{session_id}/finalize",
    "/v1/traces",
    "/v1/logs",
    "/v1/metrics",
}
"""What a connection's token is for: to deliver records of its own."""
OPEN = {"/healthz", "/readyz", "/metrics"}


class Service:
    """An application over a started engine with a judge, called in one event loop."""

    def __init__(self, store: Store, access: AccessStore, simulator: RunningJudge) -> None:
        self.store = store
        self.simulator = simulator
        self.tokens = {project: access.add(Holder("connection", project, project)) for project in CAPS}
        self.operator = access.add(Holder("operator", "root", None))
        policy = Policy.model_validate(POLICY)
        self.runner = asyncio.Runner()
        judge = live_judge(simulator.base_url)
        self.engine = Engine(
            store, policy, Redactor(policy.redaction), TickingClock(), judge=judge, judge_name="simulated judge"
        )
        self.app = create_app(self.engine, access, ApiSettings())
        self.run(self.engine.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end, within a time that no sound run needs."""
        return self.runner.run(asyncio.wait_for(work, 300))

    def call(self, method: str, path: str, token: str | None = None, body: Any = None) -> httpx2.Response:
        """One call."""
        return self.run(self.calls([(method, path, token, body)]))[0]

    async def calls(
        self, wanted: list[tuple[str, str, str | None, Any]], address: str = "203.0.113.9"
    ) -> list[httpx2.Response]:
        """Calls side by side."""
        transport = httpx2.ASGITransport(self.app, client=(address, 4711))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8377") as client:

            def one(method: str, path: str, token: str | None, body: Any) -> Coroutine[Any, Any, httpx2.Response]:
                return client.request(method, path, json=body, headers=bearer(token) if token else {})

            return await asyncio.gather(*(one(*call) for call in wanted))

    def ingest(self, body: dict[str, Any], project: str = "ops") -> httpx2.Response:
        """Deliver an exchange, and have it scored before going on."""
        response = self.call("POST", INGEST, self.tokens[project], body)
        self.run(self.engine.wait_until_drained())
        return response

    def score(self) -> dict[str, Any]:
        """The newest score as operators see it."""
        document: dict[str, Any] = self.call("GET", SCORES, self.operator).json()["scores"][0]
        return document

    def projects(self) -> list[dict[str, Any]]:
        """The projects as operators see them."""
        listed: list[dict[str, Any]] = self.call("GET", "/api/audit/projects", self.operator).json()["projects"]
        return listed

    def watch(self) -> None:
        """Do what a server does by the clock."""
        context: ApiContext = self.app.state.context
        self.run(WatchRounds(context.watch, self.store, self.engine.now, lambda: True).run())

    def close(self) -> None:
        """End it."""
        self.run(self.engine.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def simulator() -> Iterator[RunningJudge]:
    """A simulated judge."""
    with running() as judge:
        yield judge


@pytest.fixture
def service(tmp_path: Path, simulator: RunningJudge) -> Iterator[Service]:
    """A service over an empty database in memory, whose judge answers."""
    simulator.reset("answer")
    with Store(None) as store, AccessStore(tmp_path / "fleet.access", TickingClock()) as access:
        opened = Service(store, access, simulator)
        yield opened
        opened.close()


def exchange(turn: int = 1, said: str = "The backup is healthy.", **response: object) -> dict[str, Any]:
    """The body of an exchange."""
    return exchange_body("s", turn, said, **response)


def test_a_duplicate_id_is_answered_200_and_not_500(service: Service) -> None:
    """It answered 500, and the webhook tried for ever."""
    assert [service.ingest(exchange()).status_code for _ in range(2)] == [201, 200]


def test_a_silent_refusal_can_be_reached_through_the_ingest(service: Service) -> None:
    """An empty response was refused at the admission, so the check could never fire."""
    response = service.ingest(exchange(said=""))
    assert response.status_code == 201
    assert response.json()["tier1"]["flags"] == ["silent_refusal"]
    assert service.score()["tier1Flags"] == ["silent_refusal"]


def test_the_agents_model_is_kept(service: Service) -> None:
    """It was always null."""
    service.ingest(exchange(model="claude-sonnet-4-5"))
    assert rows(service.store, "SELECT agent_model FROM exchanges") == [("claude-sonnet-4-5",)]


def test_turn_0_and_no_tokens_stay_0(service: Service) -> None:
    """They became null: 0 is a number that somebody counted."""
    body = exchange(usage={"input_tokens": 0, "output_tokens": 0})
    body["exchange"]["turn_number"] = 0
    service.ingest(body)
    assert rows(service.store, "SELECT turn_number, input_tokens, output_tokens FROM exchanges") == [(0, 0, 0)]
    assert service.score()["turnNumber"] == 0


def test_a_cap_of_0_stays_0(service: Service) -> None:
    """It became 1.00, and who wanted to pay nothing paid."""
    answer = service.ingest(exchange(), "broke").json()
    assert answer["reason"] == "cost_cap_exceeded"
    assert answer["costCap"] == {"currentCost": 0.0, "cap": 0.0}
    assert service.simulator.requests == 0


def test_a_project_that_is_switched_off_is_refused_at_the_ingest(service: Service) -> None:
    """The switch was read nowhere."""
    assert service.ingest(exchange(), "dark").status_code == 403
    assert service.store.count("exchanges") == 0


@pytest.mark.parametrize("fault", ["refusal", "garbage", "out_of_range", "html", "bad_request"])
def test_a_failed_tier_is_in_exactly_one_state(service: Service, fault: str) -> None:
    """It was stored as neither scored nor skipped, which every average read differently."""
    service.simulator.reset(fault)
    service.ingest(exchange())
    score = service.score()
    assert score["disposition"] == "unscored"
    assert score["tier2State"] == "unscored"
    assert score["tier2SemanticScore"] is None
    assert score["tier2Skipped"] is True
    assert {name for name in score if name.endswith("State") and score[name]} == {"tier2State", "tier2_5State", "tier3State"}


def test_a_judge_that_failed_is_recorded_and_asked_again(service: Service) -> None:
    """It was a line in a log, and the exchange had no score for ever."""
    service.simulator.reset("refusal*2,answer")
    service.ingest(exchange())
    assert set(rows(service.store, "SELECT outcome FROM judgements")) == {("refused",)}
    assert service.call("POST", "/api/audit/ops/rejudge", service.operator, {}).status_code == 202
    service.run(service.engine.wait_until_drained())
    assert service.score()["disposition"] == "scored"
    assert service.score()["revision"] == 1


def test_a_failure_that_passes_is_tried_again_at_once(service: Service) -> None:
    """One overloaded moment of a provider cost a score."""
    service.simulator.reset("reset,answer")
    service.ingest(exchange())
    assert service.score()["disposition"] == "scored"
    assert rows(service.store, "SELECT attempts, len(attempt_errors) FROM judgements WHERE purpose = 'tier2'")[0] == (2, 1)


def test_every_endpoint_but_those_that_deliver_wants_an_operators_token(service: Service) -> None:
    """All but the ingest were open, those that write too."""
    paths = service.app.openapi()["paths"]
    assert paths.keys() >= OF_CONNECTIONS | OPEN
    for number, (path, method) in enumerate((path, method) for path, methods in paths.items() for method in methods):
        address = re.sub(r"\{\w+\}", "s", path.replace("{project}", "ops"))
        asked = [(method.upper(), address, token, {}) for token in (None, service.tokens["ops"])]
        statuses = [one.status_code for one in service.run(service.calls(asked, f"203.0.113.{number}"))]
        if path in OF_CONNECTIONS:
            assert statuses[0] == 401, path
            assert statuses[1] not in {401, 403}, path
        elif path not in OPEN:
            assert statuses == [401, 403], path


def test_the_judges_text_is_read_after_a_thinking_block(service: Service) -> None:
    """The first block was taken for the answer, whatever it was."""
    service.simulator.reset("thinking_first")
    service.ingest(exchange())
    assert service.score()["disposition"] == "scored"
    assert service.score()["tier2SemanticScore"] is not None


def test_values_out_of_range_are_refused(service: Service) -> None:
    """A 103 on a scale from 0 to 1 was kept, and ruined every average."""
    service.simulator.reset("out_of_range")
    service.ingest(exchange(thinking="It looks healthy."))
    score = service.score()
    assert tuple(score[f"tier{tier}Reason"] for tier in ("2", "2_5", "3")) == ("invalid", "invalid", "invalid")
    assert [score[name] for name in ("tier2SemanticScore", "tier2_5AlignmentScore", "tier3BehavioralScore")] == [None] * 3
    assert score["tier3DimensionScores"] == {}


def test_a_cap_holds_whatever_is_in_flight(service: Service) -> None:
    """Calls that ran at once each found money left, and together spent more than there was."""
    bodies = [exchange(turn) for turn in range(1, 33)]
    for body in bodies:
        body["exchange"]["agent_response"]["content"] += " I'm unable to say more."  # flagged, so every turn is judged
    answers = service.run(service.calls([("POST", INGEST, service.tokens["poor"], body) for body in bodies]))
    service.run(service.engine.wait_until_drained())
    assert {answer.status_code for answer in answers} == {201}
    check_money(service.store, CAPS)
    [(spent,)] = rows(service.store, "SELECT sum(cost_usd) FROM judgements")
    assert nano_of(0.025) < nano_of(round(spent, 9)) <= nano_of(0.05)
    assert {"scored", "skipped_cost_cap"} <= {one for (one,) in rows(service.store, "SELECT disposition FROM scores")}


def test_the_last_turns_are_sampled(service: Service) -> None:
    """The rule was dead: nobody told it how many turns there are."""
    for turn in range(1, 9):
        service.ingest(exchange(turn))
    assert service.score()["samplingReason"] == "sampling_skip"
    assert service.call("POST", "/api/audit/sessions/s/finalize", service.tokens["ops"], {}).status_code == 200
    service.run(service.engine.wait_until_drained())
    last = rows(service.store, "SELECT turn_number, sampling_reason, disposition FROM scores WHERE turn_number > 6 ORDER BY 1")
    assert last == [(7, "last_turns", "scored"), (8, "last_turns", "scored")]


def test_a_session_that_sends_anything_is_watched(service: Service) -> None:
    """Sessions had to be registered, nothing did, and telemetry was always empty."""
    body = exchange(1)
    body["exchange"]["timestamp"] = service.engine.now().isoformat()
    service.ingest(body)
    listed = service.call("GET", "/api/audit/telemetry", service.operator).json()["sessions"]
    assert [(one["sessionId"], one["project"], one["status"]) for one in listed] == [("s", "ops", "green")]


def test_what_a_panel_shows_is_what_is_sent(service: Service) -> None:
    """It read fields that nobody sent, and showed 0 whatever there was."""
    service.ingest(exchange(1, "I'm unable to say more."))
    summary = service.call("GET", "/api/audit/ops/summary", service.operator).json()
    [project] = [one for one in service.projects() if one["project"] == "ops"]
    assert project["exchanges"] == 1
    assert project["scored"] == 1
    assert project["anomalies"] == 1
    assert project["openIncidents"] == 0
    assert summary["exchanges"]["total"] == 1
    assert summary["exchanges"]["scored"] == 1
    assert summary["scores"]["anomalies"] == 1
    assert summary["openIncidents"] == 0


def test_a_baseline_is_computed_and_an_open_incident_is_shown_everywhere_without_being_asked_for(service: Service) -> None:
    """Nobody ever called for a baseline, so there was no drift; and an incident that there was stood on no page."""
    put(service.store, "scores", history(fallen(6), 40))
    service.watch()
    summary = service.call("GET", "/api/audit/ops/summary", service.operator).json()
    assert summary["baseline"]["exchangeCount"] == 140
    [project] = [one for one in service.projects() if one["project"] == "ops"]
    listed = service.call("GET", "/api/audit/ops/incidents?status=open", service.operator).json()["incidents"]
    assert 1 == len(listed) == summary["openIncidents"] == project["openIncidents"]
    assert service.call("GET", "/api/audit/ops/banner", service.operator).text.endswith("Open incidents: 1")


def test_drift_and_trends_go_by_the_time_of_the_exchange(service: Service) -> None:
    """They went by the time of scoring: a history that was scored today was one day, and a change long past began today."""
    put(service.store, "scores", history(steady, 29, scored_at=END))
    trends = service.call("GET", "/api/audit/ops/trends?window=30d", service.operator).json()["dataPoints"]
    assert [point["exchangeCount"] for point in trends] == [10] * 30
    put(service.store, "scores", history(lambda _: 0.2, 5, end=END - timedelta(days=80), name="-late", scored_at=END))
    service.watch()
    (rise,) = service.call("GET", "/api/audit/ops/incidents", service.operator).json()["incidents"]
    first = END - timedelta(days=29)
    assert f"since {first.day} {first:%B %Y}" in rise["title"], "the first day of what came later"
