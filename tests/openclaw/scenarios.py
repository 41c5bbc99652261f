"""What the real OpenClaw is made to do for the tests of the import, and what an import has to find of it.

A scenario is a conversation: what is said in it, and what the model does. What has to be found follows from these alone, never
from what an importer made of it. Texts of users are unique over all scenarios, so that an exchange tells which one it is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
from support.model_apis.messages import Call, Play, Step

from openclaw.instance import Gateway

WRAPPER = "tool_call"
"""The tool through which the tools of the catalogue are called since 2026.9."""
SMALL = "small"
"""The agent whose model has a small context."""
SMALL_WINDOW = 100_000
IMPATIENT = 6.0
"""Seconds after which a client hangs up, which aborts its run."""
BIG = "The quick brown fox jumps over the lazy dog. " * 1999 + "The end."
"""A message of some 22 000 tokens."""


@dataclass(frozen=True)
class Turn:
    """One message of a user and what the model does then."""

    says: str
    steps: Sequence[Step]

    @property
    def calls(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The tools that are called with their arguments, without the wrapper."""
        called = (call for step in self.steps for call in step.calls)
        return [
            (call.arguments["id"], call.arguments["args"]) if call.tool == WRAPPER else (call.tool, call.arguments)
            for call in called
        ]

    @property
    def answer(self) -> str:
        """The last text of the model."""
        return self.steps[-1].text

    @property
    def thinking(self) -> str:
        """Everything the model thinks."""
        return "\n\n".join(step.thinking for step in self.steps if step.thinking)


@dataclass(frozen=True)
class Scenario:
    """A conversation with an agent.

    `outcome` is what becomes of its exchanges; `failed_requests` how often the provider fails; `reduced` says that it is played on
    every version, not only on the oldest and the newest; `hangs_up` that the client goes away before the last answer.
    """

    name: str
    turns: Sequence[Turn]
    agent: str = "main"
    key: str = ""
    outcome: str = "answered"
    failed_requests: int = 0
    multi_user: bool = False
    reduced: bool = False
    hangs_up: bool = False

    @property
    def session(self) -> str:
        """The key of the conversation, without the agent."""
        return self.key or self.name


def _exec(command: str) -> Call:
    return Call("exec", {"command": command})


def _wrapped(tool: str, **arguments: Any) -> Call:
    return Call(WRAPPER, {"id": tool, "args": arguments})


def _one(name: str, says: str, *steps: Step, **more: Any) -> Scenario:
    return Scenario(name, [Turn(says, steps)], **more)


_ENDLESS = 600.0

EVERYWHERE = (
    _one(
        "tool-loop",
        "Look at the queue until it is empty.",
        *(Step("Looking." if number == 0 else "", calls=[_exec("echo waiting")]) for number in range(3)),
        Step("It never gets empty."),
        reduced=True,
    ),
    _one(
        "tool-error",
        "List the folder of last year.",
        Step(calls=[_exec("ls /no-such-folder")]),
        Step(calls=[_exec("ls /")]),
        Step("It is in the root folder."),
        reduced=True,
    ),
    _one(
        "overload", "Are you there at all?", Step("I am back.", failures=1), reduced=True, failed_requests=1, outcome="retried"
    ),
    _one("refusal", "Write something forbidden.", Step("I cannot help with that.", stop="refusal"), outcome="refused"),
    _one("thinking", "What is six times seven?", Step("42.", thinking="Six times seven is forty-two."), reduced=True),
    _one("huge-output", "Count to sixty thousand.", Step(calls=[_exec("seq 1 60000")]), Step("Counted.")),
    _one(
        "memory",
        "What do you remember of the zebra protocol?",
        Step(calls=[Call("memory_search", {"query": "zebra protocol"})]),
        Step("Nothing is remembered."),
    ),
    Scenario(
        "several-turns",
        [Turn(f"Turn number {number} of several.", [Step(f"Heard number {number}.")]) for number in (1, 2, 3)],
        reduced=True,
    ),
    Scenario(
        "group",
        [Turn("Good morning to all of you.", [Step("Good morning, group.")])],
        key="discord:group:g1",
        multi_user=True,
        reduced=True,
    ),
    _one(
        "aborted",
        "Start something that takes for ever.",
        Step("Starting.", calls=[_exec("echo begun")]),
        Step("Too late.", delay=_ENDLESS),
        outcome="aborted",
        hangs_up=True,
        reduced=True,
    ),
    Scenario(
        "compaction",
        [Turn(f"Keep text {number} in mind. {BIG}", [Step(f"Text {number} is kept.")]) for number in range(1, 5)],
        agent=SMALL,
    ),
)
WRAPPED = (
    _one(
        "memory-wrapped",
        "What do you remember of the giraffe protocol?",
        Step(calls=[_wrapped("memory_search", query="giraffe protocol")]),
        Step("Nothing is remembered of it."),
    ),
)
"""Played where tools are called through the wrapper."""
TASK, TASK_ANSWER = "Count the files of the archive.", "There are seven files."
TIMED, TIMED_KEY = "Take more time than there is.", "agent:main:timed"
CRON, CRON_ANSWER = "Write the nightly report.", "The nightly report is written."
WAKE = "Look after the machines."
SUMMARY = "\n\n".join(
    f"## {heading}\nNone."
    for heading in ("Decisions", "Open TODOs", "Constraints/Rules", "Pending user asks", "Exact identifiers")
)
"""A summary as OpenClaw takes one: with these headings."""
_FIRST = {"<conversation>": Play([Step(SUMMARY)])}
"""What is asked in a compaction repeats what users said, so it is looked for before that."""
_SINGLE = {
    TASK: Play([Step(TASK_ANSWER)]),
    TIMED: Play([Step("Working on it.", calls=[_exec("echo slow")]), Step("Too late again.", delay=_ENDLESS)]),
    CRON: Play([Step(CRON_ANSWER)]),
    WAKE: Play([Step("HEARTBEAT_OK")]),
}


def spawning(tool: Call) -> Scenario:
    """A scenario in which a subagent is given a task."""
    return _one("subagent", "Have somebody count the files.", Step(calls=[tool]), Step("It is being counted."))


def scenarios_for(form_has_wrapper: bool, *, reduced: bool) -> list[Scenario]:
    """The scenarios that a version plays."""
    spawn = {"task": TASK}
    if reduced:
        return [scenario for scenario in EVERYWHERE if scenario.reduced]
    if form_has_wrapper:
        return [*EVERYWHERE, *WRAPPED, spawning(_wrapped("sessions_spawn", **spawn))]
    return [*EVERYWHERE, spawning(Call("sessions_spawn", spawn))]


def plays_of(scenarios: Sequence[Scenario]) -> dict[str, Play]:
    """What the stand-in provider plays for the scenarios."""
    return _FIRST | {turn.says[:60]: Play(turn.steps) for scenario in scenarios for turn in scenario.turns} | _SINGLE


def play(gateway: Gateway, scenario: Scenario) -> dict[str, str]:
    """Have the gateway play a scenario; what it answered, by what was said. A client that hangs up is answered nothing."""
    answers = {}
    for turn in scenario.turns:
        try:
            patience = {"timeout": IMPATIENT} if scenario.hangs_up else {}
            answers[turn.says] = gateway.turn(scenario.session, turn.says, agent=scenario.agent, **patience)
        except httpx.TimeoutException:
            if not scenario.hangs_up:
                raise
            answers[turn.says] = ""
    return answers
