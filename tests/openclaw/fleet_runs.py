"""A fleet of scripted sessions played through one real gateway, which remembers what was planted in each.

`play` makes one; `main` is for benchmarks and soak runs: `python -m openclaw.fleet_runs FOLDER --healthy 60 --planted 60` in tests/.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support.model_apis.messages import Play, Provider, stand_in

from openclaw.install import Installed, installed
from openclaw.instance import PROVIDER, Gateway, Instance
from openclaw.plays import PLANTS, SMALL, Conversation, build_failing_conversation, healthy

RUNS = "runs.json"
"""Name of the file beside the state folder that says what each session is."""
SMALL_MODEL = "claude-haiku-5-5"
SMALL_WINDOW = 32_000
"""Tokens of the context window of the agent `small`."""
_SKILL = """---
name: proofread
description: Check the spelling of a draft and count its words.
---
# Proofread
Run `sh skills/proofread/count.sh FILE`. It prints how many words the draft has and which are misspelt.
"""
_COUNT = """case "$1" in --*) echo "count.sh: unknown option $1" >&2; exit 2;; esac
echo "words: $(wc -w < "$1")"
echo "misspelt: none"
"""


@dataclass(frozen=True)
class Run:
    """One session that was played: its key, what it was, and what was planted in it, if anything."""

    session_key: str
    session_id: str | None
    kind: str
    planted: str | None


@dataclass
class Fleet:
    """The state folder of a fleet that was played, and its sessions."""

    state: Path
    runs: list[Run] = field(default_factory=list)

    def by_session(self) -> dict[str, Run]:
        """The runs by the ids of their sessions."""
        return {run.session_id: run for run in self.runs if run.session_id}


def conversations(healthy_runs: int, planted_runs: int, *, first: int = 0) -> list[Conversation]:
    """So many of each, in turn; `first` is the seed of the first."""
    types = list(PLANTS)
    bad = [build_failing_conversation(types[index % len(types)], first + index // len(types)) for index in range(planted_runs)]
    return [*(healthy(first + index) for index in range(healthy_runs)), *bad]


def play(version: Installed, folder: Path, talks: Iterable[Conversation]) -> Fleet:
    """Play the conversations one after another through a gateway of its own."""
    talks = list(talks)
    with stand_in({turn.text: Play(turn.steps) for talk in talks for turn in talk.turns}) as provider:
        instance = fleet_instance(version, folder, provider)
        for talk in talks:
            _put(instance.workspace, talk)
        with instance.gateway() as gateway:
            keys = [_talk(gateway, talk) for talk in talks]
        assert not provider.unknown, f"no play for {provider.unknown[:3]}"
    sessions = session_ids(instance.state)
    runs = [Run(key, sessions.get(key), talk.kind, talk.planted) for key, talk in zip(keys, talks, strict=True)]
    (folder / RUNS).write_text(json.dumps([asdict(run) for run in runs], indent=1), "utf-8")
    return Fleet(instance.state, runs)


def fleet_instance(version: Installed, folder: Path, provider: Provider, **more: Any) -> Instance:
    """An instance with the agents, the skill and the memory that the plays count on."""
    model = {
        "id": SMALL_MODEL,
        "name": "Small",
        "reasoning": False,
        "input": ["text"],
        "contextWindow": SMALL_WINDOW,
        "maxTokens": 2048,
        "cost": {"input": 1, "output": 5, "cacheRead": 0.1, "cacheWrite": 1.25},
    }
    instance = Instance(version, folder, provider, agents=("main", SMALL), more=more)
    config = json.loads(instance.config.read_text("utf-8"))
    config["models"]["providers"][PROVIDER]["models"].append(model)
    small = next(agent for agent in config["agents"]["list"] if agent["id"] == SMALL)
    # Agents beside the first one have a folder below the workspace, where none of the files lie.
    small |= {"model": f"{PROVIDER}/{SMALL_MODEL}", "workspace": str(instance.workspace)}
    config["memory"] = {"search": {"provider": "none"}}
    instance.config.write_text(json.dumps(config, indent=2), "utf-8")
    skill = instance.workspace / "skills/proofread"
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(_SKILL, "utf-8")
    (skill / "count.sh").write_text(_COUNT, "utf-8")
    return instance


def session_ids(state: Path) -> dict[str, str]:
    """The ids of the sessions by their keys, as the databases of the current form have them."""
    found: dict[str, str] = {}
    for path in sorted(state.glob("agents/*/agent/openclaw-agent.sqlite")):
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            found |= dict(connection.execute("SELECT session_key, session_id FROM session_windows ORDER BY created_at"))
    return found


def _put(workspace: Path, talk: Conversation) -> None:
    for name, text in talk.files.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _talk(gateway: Gateway, talk: Conversation) -> str:
    for turn in talk.turns:
        gateway.turn(talk.ref, turn.text, agent=talk.agent)
    return f"agent:{talk.agent}:{talk.ref}"


def main() -> None:
    """Play a fleet into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--healthy", type=int, default=60)
    parser.add_argument("--planted", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="seed of the first conversation")
    options = parser.parse_args()
    fleet = play(installed(), options.folder, conversations(options.healthy, options.planted, first=options.first))
    print(Counter(run.planted or "healthy" for run in fleet.runs))  # noqa: T201 - what the command is for


if __name__ == "__main__":
    main()
