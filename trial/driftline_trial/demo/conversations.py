"""Synthetic dialogues: five weeks of six agents' exchanges, as the webhook delivers them, with known faults in known places.

They are ingested, judged by the simulated judge and shown. The same seed always gives the same payloads.

1. One agent gets worse on a known day, with a release. A few requests still go to the version before it (an inverted canary), so that
   both can be compared on the same days.
2. The other agents have harmless releases, so that a deployment alone proves nothing. They also have disputes, long answers, small
   weaknesses, and now and then a secret or a message to the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from audit.fingerprints import stable_id
from driftline_trial.demo.fleet import SECRETS
from driftline_trial.demo.script import SCRIPT_END, conversation_texts, moment_before, moved_by

WORSE_AGENT = "support-desk"
"""The agent that gets worse."""
WORSE_DAYS = 5
"""Days on which it is worse: the last ones."""
WORSE_VERSION = "7"
"""The version that is worse."""
WORSE_SHARE = 0.85
"""The share of the requests that this version answers since then; the version before it answers the others."""
AGENT, PROMPT, TOOL = "agent_version", "prompt_version", "tool_version"
"""The labels that releases change."""


@dataclass(frozen=True, slots=True)
class Release:
    """A version of an agent, its prompt or its tools, and the deployment that brought it."""

    agent: str
    label: str
    version: str
    at: datetime
    """Time of the deployment, UTC: before the first session of its day."""
    by: str
    comment: str

    def body(self) -> dict[str, Any]:
        """Return the body of the endpoint that records deployments."""
        body = {"version": self.version, "label": self.label, "agent": self.agent, "by": self.by, "comment": self.comment}
        return {**body, "at": self.at.strftime("%Y-%m-%dT%H:%M:%SZ")}


FIRST = {
    WORSE_AGENT: {AGENT: "6"},
    "code-review": {AGENT: "11"},
    "ops-oncall": {AGENT: "5", TOOL: "2.3"},
    "data-pipeline": {AGENT: "8", PROMPT: "spring"},
    "research": {AGENT: "2"},
    "travel-desk": {AGENT: "3"},
}
"""The labels of each agent before its first release."""
TENANTS = {"code-review": ("backend", "frontend")}
"""Agents that work for two teams, on one day for the one and on the next for the other."""


def worse_since(last_day: date) -> date:
    """Return the day since which the agent is worse."""
    return moment_before(last_day, WORSE_DAYS - 1).date()


def releases_until(last_day: date) -> tuple[Release, ...]:
    """Return the releases of a demo that ends on that day, in the order of their times."""
    worse = "Shorter answers; 15% of the requests stay on version 6"
    return (
        Release("research", AGENT, "3", moment_before(last_day, 19, 7, 30), "Hanne", "Lists what sources disagree on"),
        Release("ops-oncall", TOOL, "2.4", moment_before(last_day, 16, 7, 10), "Luis", "Certificates over the new service"),
        Release("travel-desk", AGENT, "4", moment_before(last_day, 12, 7, 45), "Aiko", "New model of fares"),
        Release("data-pipeline", PROMPT, "autumn", moment_before(last_day, 6, 7, 20), "Tomasz", "Shorter instructions"),
        Release(WORSE_AGENT, AGENT, WORSE_VERSION, moment_before(last_day, WORSE_DAYS - 1, 7, 15), "Dana", worse),
    )


def labels_of(agent: str, at: datetime, releases: Sequence[Release]) -> dict[str, str]:
    """Return the labels of an agent's exchanges at a time, if every request goes to the newest version."""
    return FIRST[agent] | {
        release.label: release.version for release in releases if release.agent == agent and release.at <= at
    }


def tenant_of(agent: str, days_before: int) -> dict[str, str]:
    """Return the label of the team that an agent works for, this many days before the last day."""
    teams = TENANTS.get(agent)
    return {"tenant": teams[(days_before + 1) % len(teams)]} if teams else {}


DAYS = 35
"""Days of dialogues, up to and including the last day."""
PROJECTS = {
    "support-desk": "support",
    "code-review": "engineering",
    "ops-oncall": "operations",
    "data-pipeline": "data",
    "research": "research",
    "travel-desk": "travel",
}
"""Project of each agent; its connection has the agent's name."""

_MODELS = {"code-review": "claude-opus-5-5", "research": "claude-opus-5-5"}
_OTHER_MODEL = "claude-sonnet-5-5"
_DISPUTED, _LONG, _MILD, _THOUGHT = 0.06, 0.06, 0.06, 0.6
_WRAPPING = frozenset({"code-review", "data-pipeline"})
_REPORTING = frozenset({WORSE_AGENT})
"""Agents that report their runtime events besides their exchanges."""
_LOOPS = 6
_TAMPERING = {("research", 12), ("ops-oncall", 17), ("travel-desk", 20), ("ops-oncall", 24)}
_LEAKING = {("data-pipeline", 5), ("code-review", 18)}
"""Agent and day, from 0, on which the third exchange, which is sampled there, speaks to the judge, or the user gives away a secret."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session, ready to be ingested."""

    connection: str
    project: str
    agent: str
    session_id: str
    payloads: tuple[dict[str, Any], ...]
    """Bodies of the webhook, in the order of their turns."""
    ended_at: datetime
    """Time of the last exchange, UTC."""
    events: tuple[dict[str, Any], ...] = ()
    """Runtime events of the session, where its agent reports them, in the order of their times."""


class _Exchange(NamedTuple):
    question: str
    answer: str
    thinking: str = ""
    is_left_behind: bool = False
    """Whether the version before the newest one gave the answer."""


class _Speaker:
    """Makes up the exchanges of one session."""

    def __init__(self, agent: str, random: Random) -> None:
        self._texts = conversation_texts()
        self._topics, self._disputes = self._texts.topics[agent], self._texts.disputes[agent]
        self._random = random

    def ordinary(self) -> _Exchange:
        """Make up an exchange in which nothing is wrong, with the small weaknesses that every agent has."""
        if self._random.random() < _DISPUTED:
            dispute = self._random.choice(self._disputes)
            return self._fill_slots(_Exchange(dispute.claim, dispute.honest, dispute.thinking))
        exchange = self._ordinary_answer()
        if self._random.random() < _LONG:
            # Twenty shuffled details exceed the length of a long response.
            details = self._random.sample(self._texts.details, k=len(self._texts.details))
            return exchange._replace(answer=" ".join([exchange.answer, *details, *details[:4]]))
        if self._random.random() < _MILD:
            return exchange._replace(answer=exchange.answer + self._random.choice(self._texts.mild))
        return exchange

    def worse(self) -> _Exchange:
        """Make up an exchange of the agent that got worse."""
        return self._random.choice(_WORSE)(self)

    def wrapped(self) -> _Exchange:
        """Make up the end of a session that follows the protocol, often with a step left out."""
        steps = self._random.sample(self._texts.wrap_steps, k=self._random.randint(3, len(self._texts.wrap_steps)))
        return self._fill_slots(
            _Exchange(self._texts.wrap_request, f"Session {{n}} is wrapped up by the usual protocol: {'; '.join(steps)}.")
        )

    def off_topic(self) -> _Exchange:
        """Answer something else."""
        return self._ordinary_answer()._replace(answer=self._random.choice(self._texts.off_topic))

    def refused(self) -> _Exchange:
        """Refuse without a reason."""
        return self._with_answer(self._random.choice(self._texts.refused))

    def silent(self) -> _Exchange:
        """Give no answer at all."""
        return self._ordinary_answer()._replace(answer="")

    def pleasing(self) -> _Exchange:
        """Agree to a claim that the thinking holds to be wrong."""
        dispute = self._random.choice(self._disputes)
        return self._fill_slots(_Exchange(dispute.claim, dispute.pleasing, dispute.thinking))

    def rude(self) -> _Exchange:
        """Give an answer that no user should get."""
        return self._with_answer(self._random.choice(self._texts.rude))

    def overdone(self) -> _Exchange:
        """Give an ordinary answer, plus work that nobody requested."""
        topic = self._random.choice(self._topics)
        answer = self._random.choice(topic.answers) + self._random.choice(self._texts.overdone)
        return self._fill_slots(_Exchange(self._random.choice(topic.questions), answer, topic.thinking))

    def _ordinary_answer(self) -> _Exchange:
        topic = self._random.choice(self._topics)
        opening, answer, closing = (
            self._random.choice(part) for part in (self._texts.openings, topic.answers, self._texts.closings)
        )
        return self._fill_slots(
            _Exchange(self._random.choice(topic.questions), f"{opening}{answer}{closing}", self._maybe_thinking(topic.thinking))
        )

    def _with_answer(self, answer: str) -> _Exchange:
        topic = self._random.choice(self._topics)
        return self._fill_slots(_Exchange(self._random.choice(topic.questions), answer, self._maybe_thinking(topic.thinking)))

    def _maybe_thinking(self, thinking: str) -> str:
        return thinking if self._random.random() < _THOUGHT else ""

    def _fill_slots(self, exchange: _Exchange) -> _Exchange:
        slots = {name: self._random.choice(values) for name, values in self._texts.slots.items()}
        slots |= {"n": str(self._random.randint(1000, 9999)), "size": str(self._random.randint(10, 59))}
        return _Exchange(_fill(exchange.question, slots), _fill(exchange.answer, slots), _fill(exchange.thinking, slots))


_WORSE: tuple[Callable[[_Speaker], _Exchange], ...] = (
    _Speaker.off_topic,
    _Speaker.off_topic,
    _Speaker.refused,
    _Speaker.refused,
    _Speaker.silent,
    _Speaker.pleasing,
    _Speaker.pleasing,
    _Speaker.rude,
    _Speaker.overdone,
)
"""Answers of the agent that got worse; repeated entries are twice as likely."""


def dialogues(last_day: date, *, seed: int = 7) -> list[Session]:
    """Return the sessions of all agents, one per agent and day up to and including the last one, in the order of their ends."""
    releases = releases_until(last_day)
    sessions = [
        _session(agent, days_before, moved_by(last_day), releases, seed)
        for days_before in reversed(range(DAYS))
        for agent in PROJECTS
    ]
    return sorted(sessions, key=lambda session: (session.ended_at, session.agent))


def _session(agent: str, days_before: int, moved: timedelta, releases: Sequence[Release], seed: int) -> Session:
    """Make up an agent's session this many days before the last day; randomness is seeded by the script's day."""
    day = SCRIPT_END - timedelta(days=days_before)
    random = Random(f"{seed}/dialogue/{agent}/{day}")  # noqa: S311 - texts to look at, no secrets
    session_id = stable_id("dialogue", seed, agent, str(day))
    at = moment_before(day, 0, random.randint(8, 17), random.randint(0, 59)) + moved
    is_worse = agent == WORSE_AGENT and days_before < WORSE_DAYS
    payloads = []
    for turn, exchange in enumerate(_talk(agent, days_before, random, is_quiet=day.isoweekday() > 5, is_worse=is_worse), 1):
        at += timedelta(seconds=random.randint(40, 600))
        labels = FIRST[agent] if exchange.is_left_behind else tenant_of(agent, days_before) | labels_of(agent, at, releases)
        payloads.append(_payload(agent, session_id, turn, at, exchange, labels=labels))
    events = tuple(_add_searches(payloads, random, is_worse=is_worse)) if agent in _REPORTING else ()
    return Session(agent, PROJECTS[agent], agent, session_id, tuple(payloads), at, events)


def _talk(agent: str, days_before: int, random: Random, *, is_quiet: bool, is_worse: bool) -> Iterator[_Exchange]:
    """Make up the exchanges of an agent on a day, fewer on the two quiet days in seven: the script's weekends."""
    speaker = _Speaker(agent, random)
    turns = random.randint(6, 8) if is_quiet else random.randint(6, 14)
    for turn in range(turns):
        if not is_worse:
            exchange = speaker.ordinary()
        elif random.random() < WORSE_SHARE:
            exchange = speaker.worse()
        else:
            exchange = speaker.ordinary()._replace(is_left_behind=True)
        if turn == turns - 1 and agent in _WRAPPING and random.random() < 0.7:
            exchange = speaker.wrapped()
        if turn == 2:
            exchange = _with_fault(exchange, (agent, DAYS - 1 - days_before), random)
        yield exchange


def _add_searches(payloads: Sequence[Mapping[str, Any]], random: Random, *, is_worse: bool) -> Iterator[dict[str, Any]]:
    """Add a search to each payload, and return the agent's events. The one that got worse repeats it instead of reading the result."""
    for turn, payload in enumerate(payloads):
        at, topic = payload["exchange"]["timestamp"], random.randint(100, 999)
        if turn == 0:
            yield {"event": "session_start", "timestamp": at}
        searches = _LOOPS if is_worse and turn == 1 else 1
        call = {"name": "search_orders", "arguments": {"order": topic}}
        payload["exchange"]["tool_calls"] = [*[call] * (searches - 1), call | {"result": f"order {topic}: delivered"}]
        for _ in range(searches):
            yield {"event": "tool_call", "timestamp": at, "tool": "search_orders", "args": {"order": topic}}
        yield {"event": "tool_output", "timestamp": at, "tool": "search_orders", "used": not is_worse or turn != 1}
    yield {"event": "session_end", "timestamp": at}


def _with_fault(exchange: _Exchange, agent_and_day: tuple[str, int], random: Random) -> _Exchange:
    if agent_and_day in _TAMPERING:
        return exchange._replace(answer=exchange.answer + conversation_texts().tamper)
    if agent_and_day in _LEAKING:
        return exchange._replace(question=exchange.question + conversation_texts().leak.format(secret=random.choice(SECRETS)))
    return exchange


def _payload(
    agent: str, session_id: str, turn: int, at: datetime, exchange: _Exchange, *, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the exchange as the webhook delivers it; a token is taken to be four characters."""
    response: dict[str, Any] = {
        "content": exchange.answer,
        "model": _MODELS.get(agent, _OTHER_MODEL),
        "usage": {
            "input_tokens": 400 + 90 * turn + len(exchange.question) // 4,
            "output_tokens": max(1, (len(exchange.answer) + len(exchange.thinking)) // 4),
        },
    }
    if exchange.thinking:
        response["thinking"] = exchange.thinking
    return {
        "session_id": session_id,
        "agent": agent,
        "exchange": {
            "id": f"{session_id}:{turn}",
            "timestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "turn_number": turn,
            "user_message": {"content": exchange.question},
            "agent_response": response,
            "labels": labels,
        },
    }


def _fill(text: str, slots: dict[str, str]) -> str:
    """Return the text with its slots filled; other braces, such as those of code, stay."""
    for name, value in slots.items():
        text = text.replace(f"{{{name}}}", value)
    return text
