"""Scenarios for the real OpenClaw, and what an import must read from each.

A scenario is a conversation: the messages of a user, and what the model does after each. The expected records follow from the
scenario alone, never from the output of an importer. No two scenarios share a user message, so the message of an exchange
identifies its scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
from support.model_apis.messages import Call, Play, Step

from openclaw.instance import Gateway

WRAPPER_TOOL = "tool_call"
"""The tool that calls the tools of the catalog, since 2026.9."""
SMALL_CONTEXT_AGENT = "small"
SMALL_CONTEXT_TOKENS = 100_000
CLIENT_TIMEOUT_SECONDS = 6.0
"""How long a client waits before it hangs up, which aborts its run."""
LONG_MESSAGE = "The quick brown fox jumps over the lazy dog. " * 1999 + "The end."
"""A message of about 22,000 tokens."""


@dataclass(frozen=True)
class Turn:
    """One message of a user and the steps of the model after it."""

    message: str
    steps: Sequence[Step]

    @property
    def calls(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the called tools with their arguments, without the wrapper."""
        all_calls = (call for step in self.steps for call in step.calls)
        return [
            (call.arguments["id"], call.arguments["args"]) if call.tool == WRAPPER_TOOL else (call.tool, call.arguments)
            for call in all_calls
        ]

    @property
    def answer(self) -> str:
        """Return the last text of the model."""
        return self.steps[-1].text

    @property
    def thinking(self) -> str:
        """Return all reasoning of the model."""
        return "\n\n".join(step.thinking for step in self.steps if step.thinking)


@dataclass(frozen=True)
class Scenario:
    """A conversation with an agent.

    `outcome` is the outcome of its exchanges. `failed_requests` is the number of provider failures. A `reduced` scenario is played
    on every version, the others only on the oldest and the newest. With `hangs_up` the client disconnects before the last answer.
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
        """Return the key of the conversation, without the agent."""
        return self.key or self.name


def _exec(command: str) -> Call:
    return Call("exec", {"command": command})


def _wrapped(tool: str, **arguments: Any) -> Call:
    return Call(WRAPPER_TOOL, {"id": tool, "args": arguments})


def _single_turn(name: str, message: str, *steps: Step, **options: Any) -> Scenario:
    return Scenario(name, [Turn(message, steps)], **options)


_ENDLESS_DELAY = 600.0

COMMON_SCENARIOS = (
    _single_turn(
        "tool-loop",
        "Look at the queue until it is empty.",
        *(Step("Looking." if number == 0 else "", calls=[_exec("echo waiting")]) for number in range(3)),
        Step("It never gets empty."),
        reduced=True,
    ),
    _single_turn(
        "tool-error",
        "List the folder of last year.",
        Step(calls=[_exec("ls /no-such-folder")]),
        Step(calls=[_exec("ls /")]),
        Step("It is in the root folder."),
        reduced=True,
    ),
    _single_turn(
        "overload", "Are you there at all?", Step("I am back.", failures=1), reduced=True, failed_requests=1, outcome="retried"
    ),
    _single_turn("refusal", "Write something forbidden.", Step("I cannot help with that.", stop="refusal"), outcome="refused"),
    _single_turn("thinking", "What is six times seven?", Step("42.", thinking="Six times seven is forty-two."), reduced=True),
    _single_turn("huge-output", "Count to sixty thousand.", Step(calls=[_exec("seq 1 60000")]), Step("Counted.")),
    _single_turn(
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
    _single_turn(
        "aborted",
        "Start something that takes for ever.",
        Step("Starting.", calls=[_exec("echo begun")]),
        Step("Too late.", delay=_ENDLESS_DELAY),
        outcome="aborted",
        hangs_up=True,
        reduced=True,
    ),
    Scenario(
        "compaction",
        [Turn(f"Keep text {number} in mind. {LONG_MESSAGE}", [Step(f"Text {number} is kept.")]) for number in range(1, 5)],
        agent=SMALL_CONTEXT_AGENT,
    ),
)
WRAPPED_SCENARIOS = (
    _single_turn(
        "memory-wrapped",
        "What do you remember of the giraffe protocol?",
        Step(calls=[_wrapped("memory_search", query="giraffe protocol")]),
        Step("Nothing is remembered of it."),
    ),
)
"""Played on versions that call tools through the wrapper."""
SUBAGENT_TASK = "Count the files of the archive."
SUBAGENT_ANSWER = "There are seven files."
TIMED_OUT_MESSAGE = "Take more time than there is."
TIMED_OUT_SESSION_KEY = "agent:main:timed"
CRON_MESSAGE = "Write the nightly report."
CRON_ANSWER = "The nightly report is written."
WAKE_MESSAGE = "Look after the machines."
SUMMARY = "\n\n".join(
    f"## {heading}\nNone."
    for heading in ("Decisions", "Open TODOs", "Constraints/Rules", "Pending user asks", "Exact identifiers")
)
"""A summary with the headings that OpenClaw requires."""
_COMPACTION_PLAYS = {"<conversation>": Play([Step(SUMMARY)])}
"""The prompt of a compaction quotes the users, so it must be matched before their messages."""
_BACKGROUND_PLAYS = {
    SUBAGENT_TASK: Play([Step(SUBAGENT_ANSWER)]),
    TIMED_OUT_MESSAGE: Play(
        [Step("Working on it.", calls=[_exec("echo slow")]), Step("Too late again.", delay=_ENDLESS_DELAY)]
    ),
    CRON_MESSAGE: Play([Step(CRON_ANSWER)]),
    WAKE_MESSAGE: Play([Step("HEARTBEAT_OK")]),
}


def scenarios_for(*, has_wrapper: bool, reduced: bool) -> list[Scenario]:
    """Return the scenarios that a version plays."""
    if reduced:
        return [scenario for scenario in COMMON_SCENARIOS if scenario.reduced]
    if has_wrapper:
        spawn = _wrapped("sessions_spawn", task=SUBAGENT_TASK)
        return [*COMMON_SCENARIOS, *WRAPPED_SCENARIOS, _subagent_scenario(spawn)]
    spawn = Call("sessions_spawn", {"task": SUBAGENT_TASK})
    return [*COMMON_SCENARIOS, _subagent_scenario(spawn)]


def _subagent_scenario(spawn: Call) -> Scenario:
    return _single_turn("subagent", "Have somebody count the files.", Step(calls=[spawn]), Step("It is being counted."))


def build_plays(scenarios: Sequence[Scenario]) -> dict[str, Play]:
    """Return what the stand-in provider plays, by the beginning of the message that starts it."""
    turn_plays = {turn.message[:60]: Play(turn.steps) for scenario in scenarios for turn in scenario.turns}
    return _COMPACTION_PLAYS | turn_plays | _BACKGROUND_PLAYS


def play(gateway: Gateway, scenario: Scenario) -> dict[str, str]:
    """Play a scenario on the gateway and return its answers by message; the answer to a client that hung up is empty."""
    answers = {}
    for turn in scenario.turns:
        try:
            options = {"timeout": CLIENT_TIMEOUT_SECONDS} if scenario.hangs_up else {}
            answers[turn.message] = gateway.turn(scenario.session, turn.message, agent=scenario.agent, **options)
        except httpx.TimeoutException:
            if not scenario.hangs_up:
                raise
            answers[turn.message] = ""
    return answers
