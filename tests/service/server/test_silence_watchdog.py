"""The watchdog over a real engine: which sessions are watched, which alerts are raised, and the effect of a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from support.alerting import webhook
from support.builders import closing, event, exchange
from support.receivers import Receiver, receiving

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.records import AgentEvent, Exchange, Heartbeat, Record, TraceAssembly
from service.alerts.delivery import Alerts, Delivery
from service.server.periodic_tasks import SilenceWatchdog
from streams.engine.engine import Engine

START = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)
POLICY = {"projects": {"slow": {"heartbeatInterval": 1_200_000}, "dark": {"enabled": False}}, "sessionGapMinutes": 90}


class Yard:
    """An engine with its watchdog and a settable clock, which can be restarted."""

    def __init__(self, store: Store, receiver: Receiver, loop: asyncio.Runner) -> None:
        self.now = START
        self.receiver = receiver
        self._store, self._loop = store, loop
        self._policy = Policy.model_validate(POLICY)
        self.channels = (webhook(receiver),)
        self.engine: Engine | None = None
        self.restart()

    def restart(self) -> None:
        """A new process over the same database, which looks at once, as periodic tasks do."""
        self.stop()
        redactor = Redactor(self._policy.redaction)
        self.engine = Engine(self._store, self._policy, redactor, lambda: self.now)
        self.alerts = Alerts(self._store, self.channels, redactor, lambda: self.now)
        self.watchdog = SilenceWatchdog(self.engine, self.alerts)
        self._loop.run(self.engine.start())
        assert self.look() == []

    def stop(self) -> None:
        """End the process."""
        if self.engine is not None:
            self._loop.run(self.engine.stop())
            self.engine = None

    def take(self, topic: str, *records: Record) -> None:
        """Take records in."""
        assert self.engine is not None
        assert len(records) == self._loop.run(self.engine.publish(topic, records)).written

    def beat(self, session: str = "s1", project: str = "ops") -> None:
        """A sign of life."""
        times = {"occurred_at": self.now, "ingested_at": self.now}
        self.take("heartbeats", Heartbeat(connection="local", project=project, session_id=session, **times))

    def look(self) -> list[tuple[str, str]]:
        """Let the watchdog look and what it raises be delivered; answers session and severity of what arrived."""
        before = len(self.receiver.posts)
        self._loop.run(self.watchdog.run())
        self._loop.run(Delivery(self.alerts).run())
        documents = [post.document for post in self.receiver.posts[before:]]
        return [(one["details"]["sessionId"], one["severity"]) for one in documents if "sessionId" in one.get("details", {})]

    def watch(self, minutes: float, step: float = 1) -> list[tuple[str, str]]:
        """Let time go by, with a look every minute."""
        raised = []
        for _ in range(round(minutes / step)):
            self.now += timedelta(minutes=step)
            raised += self.look()
        return raised


@pytest.fixture
def yard() -> Iterator[Yard]:
    """A yard."""
    with Store(None) as store, receiving() as receiver, asyncio.Runner() as loop:
        yard = Yard(store, receiver, loop)
        yield yard
        yard.stop()


def test_a_silent_session_raises_two_alerts(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    """One missed interval is logged, two raise a warning, three an error; then no more alerts follow."""
    caplog.set_level(logging.INFO, "service.server.periodic_tasks")
    yard.beat()
    assert yard.watch(10) == []
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert yard.watch(5) == [("s1", "warning")]
    assert yard.watch(5) == [("s1", "critical")]
    assert yard.watch(30) == []
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR"]


def test_every_record_counts_as_a_heartbeat(yard: Yard) -> None:
    """An agent that sends records needs no heartbeats."""
    yard.beat()
    for number in range(6):
        assert yard.watch(9) == []
        yard.take("exchanges", exchange("s1", number, occurred_at=yard.now, ingested_at=yard.now))


def test_a_session_that_continues_is_watched_again(yard: Yard) -> None:
    """The next silence is a new one."""
    yard.beat()
    assert yard.watch(12) == [("s1", "warning")]
    yard.beat()
    assert yard.watch(9) == []
    assert yard.watch(9) == [("s1", "warning"), ("s1", "critical")]


def test_a_closed_session_is_no_longer_watched(yard: Yard) -> None:
    """A closed session has ended properly."""
    yard.take("exchanges", exchange("s1", 1, occurred_at=yard.now, ingested_at=yard.now))
    yard.take("exchanges", msgspec.structs.replace(closing("s1", 1), closed_at=yard.now, ingested_at=yard.now))
    assert yard.watch(40) == []


def test_imported_history_raises_no_alert(yard: Yard) -> None:
    """Imported sessions of last month ended long ago and must not raise alerts."""
    old = [exchange(f"s{number}", 1, occurred_at=START - timedelta(days=30), ingested_at=START) for number in range(50)]
    yard.take("exchanges", *old)
    assert yard.watch(40) == []


def test_a_sender_in_another_time_zone_is_watched(yard: Yard) -> None:
    """A wrong clock does not mean that the session is silent."""
    yard.take("agent-events", acted(1, START - timedelta(hours=9), START))
    assert yard.watch(11) == [("s1", "warning")]


def acted(number: int, at: datetime, received: datetime) -> AgentEvent:
    """Something that an agent did within a turn."""
    return msgspec.structs.replace(event("s1", number), occurred_at=at, ingested_at=received)


def completed_turn(number: int, at: datetime) -> Exchange:
    """Return an exchange that the agent completed at this time."""
    return exchange("s1", number, occurred_at=at, ingested_at=at)


def test_an_agent_that_answered_waits_for_its_user(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    """Every chat ends eventually; an alert for each would hide the agents that really stopped."""
    yard.take("agent-events", acted(1, START, START))
    yard.take("exchanges", completed_turn(1, START))
    yard.take("agent-events", acted(2, START - timedelta(seconds=1), START + timedelta(seconds=5)))
    assert yard.watch(60) == []
    assert [record.message for record in caplog.records if "no heartbeat or record" in record.message] == []


def test_an_agent_that_stops_within_its_next_turn_raises_an_alert(yard: Yard) -> None:
    """It had answered before, but its user is waiting again."""
    yard.take("exchanges", completed_turn(1, START))
    assert yard.watch(20) == []
    yard.take("agent-events", acted(1, yard.now, yard.now))
    assert yard.watch(16) == [("s1", "warning"), ("s1", "critical")]


def test_a_session_with_heartbeats_is_watched_between_turns(yard: Yard) -> None:
    """Heartbeats ask to be watched between turns as well."""
    yard.take("exchanges", completed_turn(1, START))
    assert yard.watch(3) == []
    yard.beat()
    assert yard.watch(16) == [("s1", "warning"), ("s1", "critical")]


@pytest.mark.parametrize(("reason", "told"), [("settled", []), ("idle", [("s1", "warning"), ("s1", "critical")])])
def test_an_ended_trace_ends_the_turn(yard: Yard, reason: str, told: list[tuple[str, str]]) -> None:
    """Without content there is no exchange, but the root has arrived; without a root, the turn may continue."""
    yard.take("agent-events", acted(1, START, START))
    trace = TraceAssembly(
        connection="local", project="ops", agent=None, session_id="s1", trace_id="a" * 32, revision=0, reason=reason, spans=1,
        exchanges=0, kept_exchanges=0, events=1, state="no_content", truncated=False, sampling_probability=None,
        started_at=START, ended_at=START, assembled_at=START,
    )  # fmt: skip
    yard.take("trace-assemblies", trace)
    assert yard.watch(16) == told


def test_the_interval_is_set_per_project(yard: Yard) -> None:
    """An agent that thinks for twenty minutes has not stopped after ten."""
    yard.beat("s1", "slow")
    yard.beat("s2", "dark")
    assert yard.watch(40) == []
    assert yard.watch(1) == [("s1", "warning")]


def test_a_restart_repeats_no_alert(yard: Yard) -> None:
    """The outbox has the earlier alerts, and silence counts from the start."""
    yard.beat()
    assert yard.watch(12) == [("s1", "warning")]
    yard.restart()
    assert yard.watch(15) == []
    assert yard.watch(1) == [("s1", "critical")]
    yard.restart()
    assert yard.watch(20) == []


def test_a_server_that_was_down_does_not_report_every_session(yard: Yard) -> None:
    """Signs of life could not be delivered while the server was down."""
    yard.beat("s1")
    yard.beat("s2")
    yard.stop()
    yard.now += timedelta(minutes=50)
    yard.restart()
    yard.beat("s1")
    assert yard.watch(9) == []


def test_time_while_the_process_was_suspended_does_not_count(yard: Yard) -> None:
    """A suspended machine received nothing, which is not silence of the agent."""
    yard.beat()
    yard.watch(2)
    yard.now += timedelta(minutes=40)
    assert yard.look() == []
    assert yard.watch(9) == []
    assert yard.watch(2) == [("s1", "warning")]


def test_several_silent_sessions_are_one_message(yard: Yard) -> None:
    """Each session raises its own alert, and the alerts are delivered as a digest."""
    for number in range(100):
        yard.beat(f"s{number}")
    yard.watch(11)
    assert [(post.document["kind"], post.document["count"]) for post in yard.receiver.posts] == [("digest", 100)]


def test_a_silent_fleet_is_one_alert(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    """A network outage must not raise a hundred thousand alerts, nor raise them again after a restart."""
    for number in range(101):
        yard.beat(f"s{number}")
    yard.watch(16)
    yard.restart()
    yard.watch(16)
    alerts = [(post.document["severity"], post.document["title"]) for post in yard.receiver.posts]
    assert alerts == [("warning", "101 sessions of ops are silent"), ("critical", "101 sessions of ops have stopped")]
    assert "1 more sessions" in caplog.text


def test_intervals_that_no_session_can_miss_are_reported_at_startup(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With an interval of an hour and a session gap of half an hour, the alert could never be raised."""
    monkeypatch.setitem(POLICY, "sessionGapMinutes", 60)
    assert yard.engine is not None
    yard.engine.policy = Policy.model_validate(POLICY)
    SilenceWatchdog(yard.engine, yard.alerts)
    assert "3 intervals of heartbeatInterval: slow" in caplog.text


def test_without_a_channel_the_silence_is_logged(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    """The watchdog works without a channel for alerts."""
    yard.channels = ()
    yard.restart()
    yard.beat()
    assert yard.watch(16) == []
    assert [record.levelname for record in caplog.records if record.name == "service.server.periodic_tasks"] == [
        "WARNING",
        "ERROR",
    ]
    assert "session s1 of connection local (ops)" in caplog.text
