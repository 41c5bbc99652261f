"""The synthetic dialogues hold what they are said to hold: one agent gets worse on a known day, and the others do not."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from statistics import fmean

import pytest
from support.builders import exchange

from audit.exchanges.prompts import thinking_question, tier2_question, tier3_question
from audit.exchanges.questions import Question
from audit.exchanges.sampling import Candidate, SamplingState, close, decide
from audit.exchanges.tier1 import check_structure
from audit.exchanges.wrap_quality import wrap_quality
from audit.injection import tamper_reasons
from audit.policy import Policy, RedactionSettings, shipped_methodologies
from audit.redaction import Redactor
from audit.times import parse_timestamp
from driftline_trial.demo.conversations import (
    AGENT,
    DAYS,
    FIRST,
    PROJECTS,
    WORSE_AGENT,
    WORSE_VERSION,
    Session,
    dialogues,
    releases_until,
    worse_since,
)
from driftline_trial.demo.fleet import SECRETS
from driftline_trial.demo.script import SCRIPT_END
from driftline_trial.simulator.answers import simulated_answer
from schemas.bounds import NAME
from schemas.records import Exchange

METHODOLOGY = shipped_methodologies()["default"]
POLICY = Policy().for_project("any")
MAX_BODY = 512 * 1024


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    """The dialogues of the demo."""
    return dialogues(SCRIPT_END)


def _exchanges(session: Session) -> Iterator[Exchange]:
    """The session's exchanges as records, as far as rules read them."""
    for payload in session.payloads:
        said = payload["exchange"]
        answer = said["agent_response"]
        yield exchange(
            session.session_id,
            said["turn_number"],
            answer["content"],
            user_message=said["user_message"]["content"],
            agent_thinking=answer.get("thinking"),
            output_tokens=answer["usage"]["output_tokens"],
            occurred_at=parse_timestamp(said["timestamp"]),
        )


def _is_worse(session: Session) -> bool:
    return session.agent == WORSE_AGENT and session.ended_at.date() >= worse_since(SCRIPT_END)


def _rated(question: Question, *names: str) -> float:
    """Mean of the dimensions of the simulated answer, or the number of the name."""
    materials = {one.name: json.loads(one.literal) for one in question.materials}
    answer = simulated_answer(question.schema, materials, model=question.model)
    return float(answer[names[0]]) if names else fmean(one["score"] for one in answer["dimensions"].values())


def test_one_seed_gives_the_same_payloads_and_another_gives_others(sessions: list[Session]) -> None:
    """Documentation and tests quote numbers from them."""
    assert dialogues(SCRIPT_END) == sessions
    assert dialogues(SCRIPT_END, seed=8) != sessions


def test_they_are_of_the_size_and_shape_that_was_promised(sessions: list[Session]) -> None:
    """The webhook must take every payload as it is."""
    assert len(sessions) == len({session.session_id for session in sessions}) == len(PROJECTS) * DAYS
    payloads = [payload for session in sessions for payload in session.payloads]
    assert 1500 <= len(payloads) <= 2000
    assert len(payloads) == len({payload["exchange"]["id"] for payload in payloads})
    assert max(len(json.dumps(payload).encode()) for payload in payloads) < MAX_BODY
    assert min(len(session.payloads) for session in sessions) >= 6
    assert max(len(session.payloads) for session in sessions) <= 14
    # What no slot has filled would be seen on every page.
    assert "{n}" not in str(payloads)
    assert "{size}" not in str(payloads)


def test_sessions_are_in_order_and_belong_to_their_agents(sessions: list[Session]) -> None:
    """They are ingested as they come, a session closed where it ends."""
    assert sorted(session.ended_at for session in sessions) == [session.ended_at for session in sessions]
    first = datetime.combine(SCRIPT_END - timedelta(days=DAYS - 1), datetime.min.time(), UTC)
    for session in sessions:
        times = [said.occurred_at for said in _exchanges(session)]
        assert sorted(times) == times
        assert times[-1] == session.ended_at
        assert times[0] >= first
        assert max(later - earlier for earlier, later in itertools.pairwise(times)) < timedelta(minutes=30)
        assert {(one["agent"], one["session_id"]) for one in session.payloads} == {(session.agent, session.session_id)}
        assert PROJECTS[session.agent] == session.project
    assert sessions[-1].ended_at.date() == SCRIPT_END
    assert all(re.fullmatch(NAME, name) for pair in PROJECTS.items() for name in pair)


def test_the_worse_agent_is_rated_worse_since_its_day_and_the_others_are_not(sessions: list[Session]) -> None:
    """What the demo shows must be there to be found, in every judged tier, and nowhere else."""
    ratings: dict[tuple[str, str, bool], list[float]] = {}
    for session in sessions:
        late = session.ended_at.date() >= worse_since(SCRIPT_END)
        for said in _exchanges(session):
            found = {
                "tier2": _rated(tier2_question(said, POLICY)),
                "tier3": (_rated(tier3_question(said, POLICY, METHODOLOGY.tier3)) - 1) / 4,
            }
            if said.agent_thinking:
                found["tier2_5"] = _rated(thinking_question(said, POLICY), "alignment")
            for tier, rating in found.items():
                ratings.setdefault((session.agent, tier, late), []).append(rating)
    for agent in PROJECTS:
        for tier in ("tier2", "tier2_5", "tier3"):
            fall = fmean(ratings[agent, tier, False]) - fmean(ratings[agent, tier, True])
            if agent == WORSE_AGENT:
                assert fall > 0.2, (agent, tier)
            else:
                assert abs(fall) < 0.05, (agent, tier)


def test_the_worse_version_answers_worse_and_the_one_before_it_as_ever(sessions: list[Session]) -> None:
    """Both answer on the same days, so that the version is told from the days."""
    ratings: dict[str, list[float]] = {}
    for session in filter(_is_worse, sessions):
        for payload, said in zip(session.payloads, _exchanges(session), strict=True):
            ratings.setdefault(payload["exchange"]["labels"][AGENT], []).append(_rated(tier2_question(said, POLICY)))
    before = FIRST[WORSE_AGENT][AGENT]
    assert set(ratings) == {before, WORSE_VERSION}
    assert 5 <= len(ratings[before]) < len(ratings[WORSE_VERSION])
    assert fmean(ratings[before]) - fmean(ratings[WORSE_VERSION]) > 0.4
    assert fmean(ratings[before]) > 0.85


def test_every_release_is_in_the_labels_since_its_day_and_not_before(sessions: list[Session]) -> None:
    """A deployment is marked where the exchanges changed their label; the others are of the version before."""
    assert sorted(releases_until(SCRIPT_END), key=lambda one: one.at) == list(releases_until(SCRIPT_END))
    for release in releases_until(SCRIPT_END):
        found: dict[bool, set[str]] = {False: set(), True: set()}
        for session in sessions:
            for payload in session.payloads if session.agent == release.agent else ():
                said = payload["exchange"]
                found[parse_timestamp(said["timestamp"]) >= release.at].add(said["labels"][release.label])
        before = FIRST[release.agent][release.label]
        assert found[False] == {before}
        assert found[True] - {before} == {release.version}
        assert (release.agent == WORSE_AGENT) == (before in found[True])


def test_structural_flags_are_raised_by_the_worse_agent_alone(sessions: list[Session]) -> None:
    """Tier 1 must have something to say, too, and nothing of the ordinary talk."""
    flags: Counter[str] = Counter()
    for session in sessions:
        for said in _exchanges(session):
            found = check_structure(said.user_message, said.agent_response, METHODOLOGY).flags
            assert _is_worse(session) or not found
            flags.update(found)
    assert set(flags) == {"constraint_disclosure", "silent_refusal"}
    assert flags.total() >= 8


def test_every_reason_for_sampling_occurs(sessions: list[Session]) -> None:
    """A demonstration must show each of them, and that most of the rest is skipped."""
    reasons: Counter[str] = Counter()
    settings = POLICY.settings.sampling
    for session in sessions:
        state = SamplingState()
        for said in _exchanges(session):
            flags = check_structure(said.user_message, said.agent_response, METHODOLOGY).flags
            candidate = Candidate.of(
                said, session=session.session_id, tier1_flags=flags, is_tampering=bool(tamper_reasons(said)), record=b"exchange"
            )
            decision, state = decide(state, candidate, settings)
            reasons[decision.reason] += 1
        reasons["last_turns"] += len(close(state, settings)[0])
    wanted = {"first_turns", "last_turns", "tier1_flags", "disagreement", "long_response", "routine_sample", "sampling_skip"}
    assert set(reasons) == wanted
    assert min(reasons.values()) >= 3


def test_secrets_attempts_on_the_judge_and_wrapping_up_are_where_they_were_planted(sessions: list[Session]) -> None:
    """Redaction, the anomaly of a swayed judge and wrap quality need a case each, and must not fire elsewhere."""
    redactor = Redactor(RedactionSettings())
    said = [(session.agent, one) for session in sessions for one in _exchanges(session)]
    leaked = [agent for agent, one in said if any(secret in one.user_message for secret in SECRETS)]
    assert sorted(leaked) == ["code-review", "data-pipeline"]
    assert len(leaked) == sum(bool(redactor.redact(one.user_message + one.agent_response)[1]) for _, one in said)
    attempts = [agent for agent, one in said if tamper_reasons(one)]
    assert sorted(attempts) == ["ops-oncall", "ops-oncall", "research", "travel-desk"]
    wrapped = [session for session in sessions if "wrap up session" in str(session.payloads[-1])]
    assert {session.agent for session in wrapped} == {"code-review", "data-pipeline"}
    found = [wrap_quality([one.agent_response for one in _exchanges(session)]).score for session in wrapped]
    assert max(found) == 1.0
    assert 0.0 < min(found) < 1.0
