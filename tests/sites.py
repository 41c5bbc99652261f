"""A whole server on the data of a small fleet, for tests that look at its pages: an incident, runs, scores of people, evaluations, silence.

Everything is made from records, at one fixed time, so that it is the same each time and takes a second.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hostile
import httpx2
import msgspec
import yaml
from api_server import PATIENT, LiveServer
from builders import exchange, judgement
from engines import NOW, Clock
from evaluated import SET, evaluated
from servers import PATIENCE, until
from watched import fallen, history, put

from analytics.store.outbox import Outbox
from analytics.store.store import Store
from audit.policy.policy import Policy, load_policy
from audit.redaction import Redactor
from schemas.records import Alert, DimensionScore, Heartbeat, Score
from service.setup.access.access import AccessStore, Holder
from service.web.bounds import ApiSettings
from streams.engine.engine import Engine

DRIFTED, WORKING, EVALUATED, QUIET = "support", "desk", "shop", "night"
"""Projects: one that drifts, one with finished runs, one whose runs were held against cases, one where sessions are silent."""
POLICY = {
    "version": 1,
    "defaults": {"bidirectionalScoring": True},
    "projects": {hostile.WILD: {"methodology": "wild.yaml", "costCapPerSession": None}},
}
SAME = "night-1"
"""A session that the projects of the finished runs and of the silent sessions both have."""
RUNS = (12, 500)
"""Events of the finished runs."""
_ASKED = (
    "Where is order 4711?",
    "Please cancel my subscription.",
    "The invoice of October shows two items that I never ordered.",
)
_SAID = ("It left the depot this morning.", "I have cancelled it.", "I cannot help with that.")
_ANSWER = '{"dimensions": {"correctness": {"score": 0.4, "reasoning": "It answers what was asked."}}}'
_DIMENSIONS = ("correctness", "instruction_following", "clarity", "tone")


@dataclass(frozen=True, slots=True)
class Site:
    """A running server, and what opens it."""

    url: str
    operator: str
    """Token of an operator of every project."""
    connections: Mapping[str, str]
    """Token of the connection of each project."""
    score: Score
    """The newest score of the project that drifts."""
    incident: str
    """Id of its incident."""

    def post(self, path: str, token: str, body: Any = None, method: str = "POST") -> dict[str, Any]:
        """Call the API, as a gateway or an operator does."""
        headers = {"Authorization": f"Bearer {token}"}
        address = f"{self.url}/api/audit/{path}"
        answer = httpx2.request(method, address, headers=headers, json=body or {}, timeout=PATIENCE, trust_env=False)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def get(self, path: str) -> dict[str, Any]:
        """What the API answers an operator."""
        headers = {"Authorization": f"Bearer {self.operator}"}
        found: dict[str, Any] = httpx2.get(f"{self.url}/api/audit/{path}", headers=headers, trust_env=False, timeout=60).json()
        return found

    def say(
        self, project: str, session: str, number: int, asked: str, said: str, *, agent: str | None = None, **fields: Any
    ) -> None:
        """Have an agent say something."""
        body = {
            "id": f"{session}:{number}",
            "timestamp": iso(NOW - timedelta(seconds=30)),
            "turn_number": number,
            "user_message": {"content": asked},
            "agent_response": {"content": said, **fields},
        }
        self.post("ingest", self.connections[project], {"session_id": session, "agent": agent, "exchange": body})

    def work(
        self, project: str, session: str, events: Iterable[Mapping[str, Any]], runs: int, agent: str | None = None
    ) -> None:
        """Send the events of a session and end it; there are so many runs of the project then."""
        timed = [{"timestamp": iso(NOW - timedelta(hours=2, seconds=-place)), **one} for place, one in enumerate(events)]
        body = {"session_id": session, "agent": agent, "first_seq": 0, "events": timed}
        self.post("events", self.connections[project], body)
        self.post(f"sessions/{quote(session, safe='')}/finalize", self.connections[project])
        until(lambda: runs == len(self.get(f"{project}/runs")["runs"]), "the diagnoses")


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A site with its fleet in a folder of its own."""
    with Store(folder / "fleet.duckdb") as store, AccessStore(folder / "fleet.access", Clock(NOW)) as access:
        newest = _fill(store)
        projects = (DRIFTED, WORKING, EVALUATED, QUIET, hostile.WILD)
        connections = {project: access.add(Holder("connection", project, project)) for project in projects}
        operator = access.add(Holder("operator", "ada", None))
        policy = _policy(folder)
        server = LiveServer(
            store,
            access,
            ApiSettings(queries=PATIENT, policy_file=folder / "policy.yaml"),
            lambda store: _engine(store, policy),
        )
        try:
            made = Site(server.url, operator, connections, newest, "")
            yield _begun(made, store)
        finally:
            server.stop()


def iso(at: datetime) -> str:
    """A time as senders write it."""
    return at.isoformat().replace("+00:00", "Z")


def _policy(folder: Path) -> Policy:
    """The policy and the methodology of the wild project, as files."""
    (folder / "wild.yaml").write_text(yaml.safe_dump(hostile.methodology()), "utf-8")
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(POLICY), "utf-8")
    return load_policy(file)


def _engine(store: Store, policy: Policy) -> Engine:
    judge = hostile.WildJudge()
    return Engine(store, policy, Redactor(policy.redaction), Clock(NOW), judge=judge, judge_name="scripted judge")


def _fill(store: Store) -> Score:
    """Put in what a server would have taken weeks to make; answers the newest score."""
    scores = [_told(one) for one in history(fallen(3), 24, project=DRIFTED, a_day=8, end=NOW)]
    said = [
        exchange(
            one.session_id,
            1,
            _SAID[place % 3],
            user_message=_ASKED[place % 3],
            agent_thinking="The user is in a hurry.",
            project=DRIFTED,
            occurred_at=one.exchange_at,
            ingested_at=one.exchange_at,
        )
        for place, one in enumerate(scores)
    ]
    asked = [
        judgement(one.session_id, 1, project=DRIFTED, judged_at=one.exchange_at, answer=_ANSWER, simulated=True)
        for one in scores
    ]
    put(store, "exchanges", said)
    put(store, "scores", scores)
    put(store, "judgements", asked)
    put(store, "evaluations", [evaluated(one).evaluation for one in SET])
    hostile.fill(store)
    for minutes in (7, 25):
        at = NOW - timedelta(minutes=minutes)
        sign = Heartbeat(connection=QUIET, project=QUIET, session_id=f"since-{minutes}", occurred_at=at, ingested_at=at)
        put(store, "heartbeats", [sign])
    with store.transaction() as transaction:
        # What is said here has its scores: no stage has to make them.
        transaction.set_watermark("intake", "exchanges", len(said))
    return max(scores, key=lambda one: one.exchange_at)


def _told(one: Score) -> Score:
    """A score with what a judge says beside it."""
    low = one.tier2_score is not None and one.tier2_score < 0.4
    return msgspec.structs.replace(
        one,
        tier2_dimensions=tuple(
            DimensionScore(dimension=name, score=one.tier2_score or 0.0, reasoning="It answers what was asked.")
            for name in _DIMENSIONS
        ),
        anomaly=low,
        anomaly_reasons=("It left out what was asked.",) if low else (),
        simulated=True,
        agent="support-desk",
    )


def _events(count: int) -> Iterator[dict[str, Any]]:
    """A run that reads, fails, tries again and goes on; the same each time."""
    chance = random.Random(count)
    yield {"event": "session_start"}
    for number in range((count - 2) // 2):
        tool = chance.choice(("search", "read_file", "write_file", "exec"))
        yield {"event": "tool_call", "tool": tool, "args": {"q": f"order {number % 5}"}, "tokens": 120}
        yield {"event": "tool_output", "tool": tool, "result": "found nothing", "is_error": number % 7 == 3}
    yield {"event": "session_end"}


def _begun(made: Site, store: Store) -> Site:
    """What only a running server makes: the incident, the runs, who is silent and who was told."""
    made.post(f"{DRIFTED}/check", made.operator)
    incident: str = next(one["id"] for one in made.get(f"{DRIFTED}/incidents")["incidents"] if one["type"] == "drift")
    for number, count in enumerate(RUNS, 1):
        made.work(WORKING, f"night-{number}", _events(count), number)
    for number in range(3):
        made.say(QUIET, f"talk-{number}", 1, _ASKED[number], _SAID[number], thinking="The user is in a hurry.")
    made.say(QUIET, SAME, 1, _ASKED[0], _SAID[0])
    alert = Alert(
        alert_id="a1", channel="webhook", kind="incident", subject_id=incident, project=DRIFTED, severity="critical", body="{}",
        created_at=NOW, not_before=NOW, attempts=2, status="waiting", last_error="the address answered 503",
    )  # fmt: skip
    Outbox(store).put([alert, *hostile.alerts()])
    return replace(made, incident=incident)
