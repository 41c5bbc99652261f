"""State folders in which real versions of OpenClaw played the scenarios: once on a machine and test run, whoever asks first.

The newest version plays everything, and what can be done with its sessions besides; the oldest plays every scenario; those between
play the reduced list. `Played.answers` is what the gateway answered to its client: where a version decides what becomes of a
scenario, for example whether an overload is tried again, its own answer says so.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.model_apis.messages import MODEL, Provider, Step, stand_in
from support.processes import locked

from openclaw import scenarios
from openclaw.install import CURRENT_SQLITE, JSONL, NEWEST, Installed, Version
from openclaw.instance import PROVIDER, Gateway, Instance
from openclaw.scenarios import Scenario

PATIENCE = 600.0
DATABASE = "agents/main/agent/openclaw-agent.sqlite"
Json = dict[str, Any]


@dataclass(frozen=True)
class Played:
    """A state folder, the scenarios that were played in it, and what the client was answered, by what it said."""

    version: Version
    state: Path
    scenarios: Sequence[Scenario]
    answers: dict[str, str]
    life: Json


def played_on(version: Version, install: Callable[[Version], Installed], folder: Path) -> Played:
    """The version's state folder, played now unless another process of this test run did or does so."""
    chosen = scenarios_of(version)
    base = folder / f"openclaw-{version.name}"
    with locked(folder / f"openclaw-{version.name}.lock"):
        record = base / "record.json"
        if not record.exists():
            base.mkdir()
            answers, life = _play(install(version), base, chosen)
            record.write_text(json.dumps([answers, life]), "utf-8")
    answers, life = json.loads(record.read_text("utf-8"))
    return Played(version, base / "state", chosen, answers, life)


def scenarios_of(version: Version) -> list[Scenario]:
    """Return the scenarios that a version plays."""
    plays_all = version == NEWEST or version.form == JSONL
    return scenarios.scenarios_for(has_wrapper=version.form == CURRENT_SQLITE, reduced=not plays_all)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a test run have in common."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def instance_of(installed: Installed, folder: Path, provider: Provider) -> Instance:
    """An instance with two agents: one whose model has a large context, and one with a small one."""
    small = {
        "id": MODEL,
        "name": "Small",
        "reasoning": False,
        "input": ["text"],
        "contextWindow": scenarios.SMALL_CONTEXT_TOKENS,
        "maxTokens": 2048,
        "cost": {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75},
    }
    provided = {"baseUrl": provider.url, "apiKey": "not-a-key", "api": "anthropic-messages", "models": [small]}
    agents = [{"id": "main", "default": True}, {"id": scenarios.SMALL_CONTEXT_AGENT, "model": f"small/{MODEL}"}]
    compaction = {"mode": "default"}  # the other one judges the stand-in's summaries
    more = {
        "models": {"providers": {"small": provided}},
        "agents": {"list": agents, "defaults": {"compaction": compaction}},
    }
    return Instance(installed, folder, provider, agents=("main", scenarios.SMALL_CONTEXT_AGENT), thinking=True, more=more)


def _play(installed: Installed, base: Path, chosen: Sequence[Scenario]) -> tuple[dict[str, str], Json]:
    assert PROVIDER != "small"
    plays = scenarios.build_plays(chosen) | scenarios.build_plays(LIFE)
    with stand_in(plays) as provider:
        instance = instance_of(installed, base, provider)
        with instance.gateway() as gateway:
            answers = {}
            for scenario in chosen:
                answers |= scenarios.play(gateway, scenario)
            life = live(gateway) if installed.version == NEWEST else {}
            provider.released.set()  # an endless delay would keep the gateway running
    return answers, life


def _scenario(name: str, *messages: str) -> Scenario:
    return Scenario(name, [scenarios.Turn(text, [Step(f"Heard: {text}")]) for text in messages])


FORKED = _scenario("forked", "Said before the fork.", "Said where the fork begins.")
IN_FORK = _scenario("fork", "Said in the fork.")
REWOUND = _scenario("rewound", "Said before the rewind.", "Said and taken back.")
AFTER_REWIND = _scenario("rewound", "Said after the rewind.")
RESET = _scenario("reset", "Said before the reset.")
AFTER_RESET = _scenario("reset", "Said after the reset.")
COMPACTED = _scenario("compacted", "Said before the compaction.")
DELETED = _scenario("deleted", "Said before the deletion.")
LIFE = (FORKED, IN_FORK, REWOUND, AFTER_REWIND, RESET, AFTER_RESET, COMPACTED, DELETED)
"""Messages before and after each operation on a session; each must be imported once."""


def live(gateway: Gateway) -> Json:
    """Fork, rewind, reset, compact and delete sessions on the newest version; return whether the compaction happened."""
    for scenario in (FORKED, REWOUND, RESET, COMPACTED, DELETED):
        scenarios.play(gateway, scenario)
    database = gateway.instance.state / DATABASE
    fork = gateway.call(
        "sessions.fork", {"sessionKey": "agent:main:forked", "entryId": _load_user_entry_ids(database, "forked")[1]}
    )
    key = fork["sessionKey"].removeprefix("agent:main:")
    gateway.turn(key, IN_FORK.turns[0].message)
    gateway.call(
        "sessions.rewind", {"sessionKey": "agent:main:rewound", "entryId": _load_user_entry_ids(database, "rewound")[1]}
    )
    scenarios.play(gateway, AFTER_REWIND)
    gateway.call("sessions.reset", {"key": "agent:main:reset"})
    scenarios.play(gateway, AFTER_RESET)
    compacted = gateway.call("sessions.compact", {"key": "agent:main:compacted"})
    gateway.call("sessions.delete", {"key": "agent:main:deleted"})
    timed = {
        "message": scenarios.TIMED_OUT_MESSAGE,
        "sessionKey": scenarios.TIMED_OUT_SESSION_KEY,
        "idempotencyKey": "timed-run",
        "timeout": 5,
    }
    gateway.call("agent", timed)
    job = gateway.call("cron.add", _cron_job())
    gateway.call("cron.run", {"id": job["id"], "mode": "force"})
    gateway.call("wake", {"mode": "now", "text": scenarios.WAKE_MESSAGE})
    _wait_for_sessions(database, "agent:main:cron:%", "agent:main:timed", "agent:main:subagent:%", "agent:main:main")
    return {"compacted": compacted.get("compacted")}


def _cron_job() -> Json:
    payload = {"kind": "agentTurn", "message": scenarios.CRON_MESSAGE}
    schedule = {"kind": "cron", "expr": "0 3 * * *"}
    return {"name": "nightly", "schedule": schedule, "sessionTarget": "isolated", "wakeMode": "now", "payload": payload}


def _load_user_entry_ids(database: Path, session: str) -> list[str]:
    """Return the ids of the user's entries in the current session of a conversation."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT event_json FROM transcript_events JOIN session_nodes ON session_id = current_session_id "
            "WHERE session_key = ? AND event_json IS NOT NULL ORDER BY seq",
            (f"agent:main:{session}",),
        ).fetchall()
    entries = (json.loads(row[0]) for row in rows)
    return [entry["id"] for entry in entries if entry.get("message", {}).get("role") == "user"]


def _wait_for_sessions(database: Path, *keys: str) -> None:
    """Wait until the last run of each conversation has ended."""
    deadline = time.monotonic() + PATIENCE
    waiting = set(keys)
    while waiting:
        assert time.monotonic() < deadline, f"these sessions did not end: {', '.join(sorted(waiting))}"
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            waiting -= {key for key in waiting if _has_ended(connection, key)}
        time.sleep(0.2)


def _has_ended(connection: sqlite3.Connection, key: str) -> bool:
    ended = connection.execute(
        "SELECT count(*) FROM session_windows JOIN trajectory_runtime_events USING (session_id) "
        'WHERE session_key LIKE ? AND event_json LIKE \'%"type":"session.ended"%\'',
        (key,),
    ).fetchone()
    return bool(ended[0])
