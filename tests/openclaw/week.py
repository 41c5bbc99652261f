"""A week of a small fleet, played through a real gateway with the plugin on; one agent gets a worse prompt on the fourth day.

The clock of the gateway is set back, by libfaketime, to each of the seven days; everything else is as it is: OpenClaw, the plugin,
a Driftline server, an import afterwards. The model and the judge are simulated, and the week is made up.

    python -m openclaw.week FOLDER          in tests/; some ten minutes on two quiet cores
"""

from __future__ import annotations

import argparse
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random

from support.model_apis.messages import Call, Play, Step, stand_in
from support.openclaw_host import ALLOWED, PLUGIN
from support.processes import free_port
from support.servers import Home, Nursery, nursery, until

from driftline_trial.simulator import running
from openclaw.install import Installed, installed
from openclaw.instance import Instance
from openclaw.queues import Queue

DAYS = 7
WORSE_AGENT, WORSE_DAY = "support", 4
"""The agent that gets worse, and the day on which it does, from 1."""
AGENTS = ("main", "support", "notes")
SESSIONS = 8
"""Sessions of each agent on a day."""
WATCHED = "version: 1\ndefaults: {retentionDays: null}\n"
UNWATCHED = "version: 1\ndefaults: {retentionDays: null, incidentRules: []}\n"
"""The policy while the week is played: seven days come within minutes, and a check in between would take the first for all."""
LIBRARY = "libfaketime.so.1"
TOPICS = (
    (
        "the invoice {n} that was paid twice",
        "Invoice {n} was paid twice. I have asked the bank to return the second payment; it takes three days.",
    ),
    (
        "the login of customer {n}",
        "The login of customer {n} failed because the password had expired. I have sent the customer a link to set a new one.",
    ),
    (
        "the delivery {n} that is late",
        "Delivery {n} is late because the truck broke down. It arrives tomorrow before noon, and the customer knows.",
    ),
    (
        "the refund for order {n}",
        "The refund for order {n} was approved this morning. The amount is on its way to the card that was used.",
    ),
    ("the contract {n}", "Contract {n} ends in March. It renews by itself unless it is cancelled four weeks before."),
)
WORSE = ("I cannot help with that.", "Sorry, no.", "That is not something I do. Ask somebody else.")


@dataclass(frozen=True)
class Talk:
    """One session of one turn: what is asked, and how the model answers."""

    agent: str
    session: str
    text: str
    play: Play


def day_of(number: int, last: date) -> date:
    """The date of a day of the week, from 1; the last one is `last`."""
    return last - timedelta(days=DAYS - number)


def talks(day: int, seed: int = 1) -> Iterator[Talk]:
    """The sessions of a day."""
    chance = Random(f"{seed}/{day}")
    for agent in AGENTS:
        for place in range(SESSIONS):
            number = 1000 * day + 100 * AGENTS.index(agent) + place
            asked, answered = chance.choice(TOPICS)
            is_worse = agent == WORSE_AGENT and day >= WORSE_DAY and chance.random() < 0.85
            answer = chance.choice(WORSE) if is_worse else answered.format(n=number)
            looks = (
                [Step("I look it up.", calls=[Call("read", {"path": f"cases/{number}.txt"})])]
                if place % 2 and not is_worse
                else []
            )
            text = f"What about {asked.format(n=number)}? Case {number}."
            yield Talk(agent, f"day-{day}-{place}", text, Play([*looks, Step(answer)]))


def play_week(version: Installed, folder: Path, children: Nursery) -> tuple[Home, Instance]:
    """Play the week; the database with what came of it, and the state folder. Both processes have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    last = datetime.now(UTC).date()
    with running() as judge, stand_in() as provider:
        home = Home(
            folder, DRIFTLINE_CONNECTION="gateway", DRIFTLINE_PROJECT="ops",
            ANTHROPIC_BASE_URL=judge.base_url, ANTHROPIC_API_KEY="not-a-key",
        )  # fmt: skip
        port = free_port()
        config = {"url": f"http://127.0.0.1:{port}", "token": home.connection("gateway"), "flushMs": 100}
        entry = ALLOWED | {"enabled": True, "config": config}
        plugins = {"load": {"paths": [str(PLUGIN)]}, "allow": ["driftline"], "entries": {"driftline": entry}}
        instance = Instance(version, folder / "openclaw", provider, agents=AGENTS, plugins=plugins)
        server = children.start(home, "serve", "--port", str(port))
        server.serving()
        for day in range(1, DAYS + 1):
            _play_day(instance, day, last)
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        home.policy.write_text(WATCHED, "utf-8")
    return home, instance


def _play_day(instance: Instance, day: int, last: date) -> None:
    instance.environment = set_back((last - day_of(day, last)).days)
    told = list(talks(day))
    instance.provider.add({talk.text: talk.play for talk in told})
    cases = instance.workspace / "cases"
    cases.mkdir(exist_ok=True)
    for talk in told:
        (cases / f"{talk.text.split()[-1].strip('.')}.txt").write_text("open\n", "utf-8")
    with instance.gateway() as gateway:
        for talk in told:
            gateway.turn(talk.session, talk.text, agent=talk.agent)
        # What a process leaves behind waits for the next one, and after the last day there is none.
        until(Queue(instance.state / "driftline").is_empty, "the plugin's queue to be delivered")


def set_back(days: int) -> dict[str, str]:
    """What makes the clock of a process one of so many days ago; timers go on by the real one."""
    library = next(Path("/usr/lib").glob(f"*/faketime/{LIBRARY}"), None)
    if library is None:
        raise FileNotFoundError(f"{LIBRARY} is not installed: the Debian package is called faketime")
    return {"LD_PRELOAD": str(library), "FAKETIME": f"-{days}d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"} if days else {}


def main() -> None:
    """Play a week into a folder, import it, look for drift and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    with nursery() as children:
        home, instance = play_week(installed(), folder, children)
        for arguments in (("import", "openclaw", str(instance.state)), ("check-drift",), ("incidents", "list")):
            print(children.run(home, *arguments)[1])  # noqa: T201 - what the command is for


if __name__ == "__main__":
    main()
