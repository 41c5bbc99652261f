"""Synthetic dialogues: five weeks of six agents' exchanges, as the webhook delivers them, with known faults in known places.

They are ingested, judged by the simulated judge and shown. The same seed always gives the same payloads. One agent gets worse on a
known day, with a release; the others have harmless releases, disputes, long answers, small weaknesses, and now and then a secret or a
message to the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from audit.fingerprints import stable_id
from service.demo.days import SCRIPT_END, moment_before, moved_by
from service.demo.fleet_faults import SECRETS
from service.demo.releases import FIRST, WORSE_AGENT, WORSE_DAYS, WORSE_SHARE, Release, labels_of, releases_until, tenant_of
from service.demo.texts import conversation_texts

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


class _Said(NamedTuple):
    asked: str
    answered: str
    thought: str = ""
    is_left_behind: bool = False
    """Whether the version before the newest one gave the answer."""


class _Speaker:
    """Makes up the exchanges of one session."""

    def __init__(self, agent: str, random: Random) -> None:
        self._texts = conversation_texts()
        self._topics, self._disputes = self._texts.topics[agent], self._texts.disputes[agent]
        self._random = random

    def ordinary(self) -> _Said:
        """Make up an exchange in which nothing is wrong, with the small weaknesses that every agent has."""
        if self._random.random() < _DISPUTED:
            dispute = self._random.choice(self._disputes)
            return self._filled(_Said(dispute.claim, dispute.honest, dispute.thinking))
        said = self._answered()
        if self._random.random() < _LONG:
            # Twenty shuffled details exceed the length of a long response.
            details = self._random.sample(self._texts.details, k=len(self._texts.details))
            return said._replace(answered=" ".join([said.answered, *details, *details[:4]]))
        if self._random.random() < _MILD:
            return said._replace(answered=said.answered + self._random.choice(self._texts.mild))
        return said

    def worse(self) -> _Said:
        """Make up an exchange of the agent that got worse."""
        return self._random.choice(_WORSE)(self)

    def wrapped(self) -> _Said:
        """Make up the end of a session that follows the protocol, often with a step left out."""
        steps = self._random.sample(self._texts.wrap_steps, k=self._random.randint(3, len(self._texts.wrap_steps)))
        return self._filled(
            _Said(self._texts.wrap_request, f"Session {{n}} is wrapped up by the usual protocol: {'; '.join(steps)}.")
        )

    def off_topic(self) -> _Said:
        """Answer something else."""
        return self._answered()._replace(answered=self._random.choice(self._texts.off_topic))

    def refused(self) -> _Said:
        """Refuse without a reason."""
        return self._with_answer(self._random.choice(self._texts.refused))

    def silent(self) -> _Said:
        """Give no answer at all."""
        return self._answered()._replace(answered="")

    def pleasing(self) -> _Said:
        """Agree to a claim that the thinking holds to be wrong."""
        dispute = self._random.choice(self._disputes)
        return self._filled(_Said(dispute.claim, dispute.pleasing, dispute.thinking))

    def rude(self) -> _Said:
        """Give an answer that no user should get."""
        return self._with_answer(self._random.choice(self._texts.rude))

    def overdone(self) -> _Said:
        """Give an ordinary answer, plus work that nobody requested."""
        topic = self._random.choice(self._topics)
        answer = self._random.choice(topic.answers) + self._random.choice(self._texts.overdone)
        return self._filled(_Said(self._random.choice(topic.questions), answer, topic.thinking))

    def _answered(self) -> _Said:
        topic = self._random.choice(self._topics)
        opening, answer, closing = (
            self._random.choice(part) for part in (self._texts.openings, topic.answers, self._texts.closings)
        )
        return self._filled(
            _Said(self._random.choice(topic.questions), f"{opening}{answer}{closing}", self._thought(topic.thinking))
        )

    def _with_answer(self, answer: str) -> _Said:
        topic = self._random.choice(self._topics)
        return self._filled(_Said(self._random.choice(topic.questions), answer, self._thought(topic.thinking)))

    def _thought(self, thinking: str) -> str:
        return thinking if self._random.random() < _THOUGHT else ""

    def _filled(self, said: _Said) -> _Said:
        slots = {name: self._random.choice(values) for name, values in self._texts.slots.items()}
        slots |= {"n": str(self._random.randint(1000, 9999)), "size": str(self._random.randint(10, 59))}
        return _Said(_fill(said.asked, slots), _fill(said.answered, slots), _fill(said.thought, slots))


_WORSE: tuple[Callable[[_Speaker], _Said], ...] = (
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
    for turn, said in enumerate(_talk(agent, days_before, random, is_quiet=day.isoweekday() > 5, is_worse=is_worse), 1):
        at += timedelta(seconds=random.randint(40, 600))
        labels = FIRST[agent] if said.is_left_behind else tenant_of(agent, days_before) | labels_of(agent, at, releases)
        payloads.append(_payload(agent, session_id, turn, at, said, labels=labels))
    events = tuple(_events(payloads, random, is_worse=is_worse)) if agent in _REPORTING else ()
    return Session(agent, PROJECTS[agent], agent, session_id, tuple(payloads), at, events)


def _talk(agent: str, days_before: int, random: Random, *, is_quiet: bool, is_worse: bool) -> Iterator[_Said]:
    """Make up the exchanges of an agent on a day, fewer on the two quiet days in seven: the script's weekends."""
    speaker = _Speaker(agent, random)
    turns = random.randint(6, 8) if is_quiet else random.randint(6, 14)
    for turn in range(turns):
        if not is_worse:
            said = speaker.ordinary()
        elif random.random() < WORSE_SHARE:
            said = speaker.worse()
        else:
            said = speaker.ordinary()._replace(is_left_behind=True)
        if turn == turns - 1 and agent in _WRAPPING and random.random() < 0.7:
            said = speaker.wrapped()
        if turn == 2:
            said = _with_fault(said, (agent, DAYS - 1 - days_before), random)
        yield said


def _events(payloads: Sequence[Mapping[str, Any]], random: Random, *, is_worse: bool) -> Iterator[dict[str, Any]]:
    """Return an agent's events: a search per answer; the one that got worse repeats it instead of reading the result."""
    for place, payload in enumerate(payloads):
        at, topic = payload["exchange"]["timestamp"], random.randint(100, 999)
        if place == 0:
            yield {"event": "session_start", "timestamp": at}
        for _ in range(_LOOPS if is_worse and place == 1 else 1):
            yield {"event": "tool_call", "timestamp": at, "tool": "search_orders", "args": {"order": topic}}
        yield {"event": "tool_output", "timestamp": at, "tool": "search_orders", "used": not is_worse or place != 1}
    yield {"event": "session_end", "timestamp": at}


def _with_fault(said: _Said, place: tuple[str, int], random: Random) -> _Said:
    if place in _TAMPERING:
        return said._replace(answered=said.answered + conversation_texts().tamper)
    if place in _LEAKING:
        return said._replace(asked=said.asked + conversation_texts().leak.format(secret=random.choice(SECRETS)))
    return said


def _payload(agent: str, session_id: str, turn: int, at: datetime, said: _Said, *, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the exchange as the webhook delivers it; a token is taken to be four characters."""
    response: dict[str, Any] = {
        "content": said.answered,
        "model": _MODELS.get(agent, _OTHER_MODEL),
        "usage": {
            "input_tokens": 400 + 90 * turn + len(said.asked) // 4,
            "output_tokens": max(1, (len(said.answered) + len(said.thought)) // 4),
        },
    }
    if said.thought:
        response["thinking"] = said.thought
    return {
        "session_id": session_id,
        "agent": agent,
        "exchange": {
            "id": f"{session_id}:{turn}",
            "timestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "turn_number": turn,
            "user_message": {"content": said.asked},
            "agent_response": response,
            "labels": labels,
        },
    }


def _fill(text: str, slots: dict[str, str]) -> str:
    """Return the text with its slots filled; other braces, such as those of code, stay."""
    for name, value in slots.items():
        text = text.replace(f"{{{name}}}", value)
    return text
