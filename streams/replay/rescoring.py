"""Scoring a part's history again, by rules 3 to 7 of `README.md`: the intake step over each window, and the cascade over its tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from audit.cost import Ledger
from audit.exchanges.cascade import questions_about
from audit.exchanges.questions import charged
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Judgement, Record, Score, ScoringTask
from streams.engine.stage_runs import StageRuns, stage_failed
from streams.judging.call_budget import StoppedError
from streams.judging.judged_stages import SCORING, STATE, JudgedState, Recorded, Subject, nothing_recorded
from streams.log.admission import Accepted, Admission, Place
from streams.replay.history import History, Window
from streams.replay.plan import Asking, Plan
from streams.stage_batches import encoded_exchange, session_key
from streams.topology import stage_named

INTAKE = stage_named("intake")
Report = Callable[[int, int], None]
"""Called with the position reached, and the number of further exchanges in scope."""
log = logging.getLogger(__name__)


class ReplayJudge(Protocol):
    """Judges a task, or only inspects it and gives no score."""

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> Record | None:
        """The score of a task; its cost is in the ledger of its session."""
        ...


@dataclass
class WindowResult:
    """The result of a window: encoded scores and dead letters, and the changed states by stage and session."""

    end: int
    """The position after the window."""
    made: Accepted = field(default_factory=Accepted)
    states: dict[str, dict[str, bytes]] = field(default_factory=dict)


class SessionStates:
    """Session states in memory, for a pass over history that stores nothing; `PartFile` keeps them on disk."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, bytes]] = {}

    @property
    def position(self) -> int:
        """The position where reading continues."""
        return 0

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The states of a stage by session; sessions without a state are missing."""
        states = self._states.get(stage, {})
        return {key: states[key] for key in keys if key in states}

    def commit(self, result: WindowResult) -> None:
        """Store the whole result of a window, or nothing."""
        for stage, states in result.states.items():
            self._states.setdefault(stage, {}).update(states)


class Rescoring:
    """Scores windows of history by the plan. `now` stamps dead letters and nothing else."""

    def __init__(self, plan: Plan, policy: Policy, redactor: Redactor, now: Callable[[], datetime]) -> None:
        self._plan = plan
        self._policy = policy
        self._redactor = redactor
        self._now = now
        self._withdrawn: Collection[Subject] = ()
        self._intake = StageRuns(policy, nothing_recorded, redactor, now)

    async def run(self, history: History, store: SessionStates, judge: ReplayJudge, recorded: Recorded, report: Report) -> int:
        """Score a part from the store's position to its end; returns the number of exchanges in scope that it saw.

        StoppedError when the judge makes no more calls.
        """
        total = 0
        self._withdrawn = history.withdrawn
        async with aclosing(history.windows(store.position)) as windows:
            async for window in windows:
                result, seen = await self._score_window(window, store, judge, recorded)
                store.commit(result)
                report(window.end, seen)
                total += seen
        return total

    async def _score_window(
        self, window: Window, store: SessionStates, judge: ReplayJudge, recorded: Recorded
    ) -> tuple[WindowResult, int]:
        """Score a window; return its result, and the number of its exchanges that are in scope."""
        outcome = self._intake.run(INTAKE, window.batch, store.states(INTAKE.name, window.batch.keys()))
        result = WindowResult(window.end, outcome.dead, {INTAKE.name: outcome.states, SCORING.name: {}})
        sessions: dict[str, list[ScoringTask]] = {}
        seen = 0
        for topic, record in outcome.records:
            if isinstance(record, Score):
                if self._is_wanted(record):
                    result.made.add(topic, encode(record))
                    seen += record.revision == 0
            elif isinstance(record, ScoringTask):
                sessions.setdefault(session_key(record), []).append(record)
                seen += record.revision == 0 and self._is_wanted(record)
        states = store.states(SCORING.name, list(sessions))
        subjects = [SCORING.subject_of(task) for tasks in sessions.values() for task in tasks]
        judgements = {} if self._plan.asking is Asking.NONE else recorded(subjects)
        done = await asyncio.gather(
            *(
                self._score_session(
                    tasks, STATE.decode(states[key]).spent if key in states else 0, judge, judgements, result.end
                )
                for key, tasks in sessions.items()
            ),
            return_exceptions=True,
        )
        # In the order of the tasks, not of completion. If a session fails, the others have still finished, because calls cost money.
        for key, session in zip(sessions, done, strict=True):
            if isinstance(session, BaseException):
                raise session
            spent, made = session
            result.states[SCORING.name][key] = msgspec.msgpack.encode(JudgedState(0, spent))
            result.made.extend(made)
        return result, seen

    async def _score_session(
        self,
        tasks: Sequence[ScoringTask],
        spent: int,
        judge: ReplayJudge,
        judgements: Mapping[Subject, Sequence[Judgement]],
        end: int,
    ) -> tuple[int, Accepted]:
        """Score the tasks of a session one after another, given its spending."""
        made, asking = Accepted(), self._plan.asking
        for task in tasks:
            cap = self._policy.for_project(task.project).cap
            ledger = Ledger(cap, spent)
            try:
                recorded = judgements.get(SCORING.subject_of(task), ())
                counted = [] if asking is Asking.NONE else SCORING.known_of(task, recorded)
                if asking.pays:
                    counted = self._of_these_questions(task, counted)
                if self._is_wanted(task):
                    bare = msgspec.structs.replace(task, earlier_judgements=())  # the judgements that count are in `counted`
                    score = await judge.judge(bare, counted, ledger)
                    if isinstance(score, Score) and not asking.pays and not _is_of_all(score, counted):
                        ledger = Ledger(cap, spent)
                        score = await judge.judge(bare, self._of_these_questions(task, counted), ledger)
                    if score is not None:
                        made.add(SCORING.sink, encode(score))
                else:
                    ledger.charge(charged(counted, task.revision))
            except StoppedError:
                raise
            except Exception as error:
                log.exception("exchange %s could not be scored; it is set aside", task.exchange_id)
                admission, place = Admission(self._redactor, self._now()), Place(SCORING.source, end - 1, 0)
                admission.set_aside(made, place, stage_failed(SCORING.name, error), encode(task))
            spent = ledger.spent
        return spent, made

    def _of_these_questions(self, task: ScoringTask, judgements: Sequence[Judgement]) -> list[Judgement]:
        """Return the judgements of questions that the policy asks, whatever the answers, and those of the exchange's earlier revisions.

        Judgements of another policy were not paid for these scores: they neither use up a session's cap nor count as the cost of a
        score. A judgement from before the present revision was about an earlier one: it counts, even if the texts have changed.
        """
        if not judgements:
            return []
        exchange = encoded_exchange(task.exchange)
        fingerprints = {question.fingerprint for question in questions_about(exchange, self._policy.for_project(task.project))}
        return [
            judgement
            for judgement in judgements
            if judgement.fingerprint in fingerprints or (exchange.revision and judgement.judged_at < exchange.ingested_at)
        ]

    def _is_wanted(self, record: Score | ScoringTask) -> bool:
        """Tell whether an exchange is to be scored, given its score or its task."""
        scope = self._plan.scope
        if (record.connection, record.exchange_id) in self._withdrawn:
            return False
        if scope.since is None and scope.until is None:
            return scope.project in {None, record.project}
        occurred_at = record.exchange_at if isinstance(record, Score) else encoded_exchange(record.exchange).occurred_at
        return scope.holds(record.project, occurred_at)


def _is_of_all(score: Score, judgements: Sequence[Judgement]) -> bool:
    """Tell whether every judgement is of a question that the score rests on. It nearly always is, so this is checked first."""
    fingerprints = {judgement.fingerprint for judgement in judgements if judgement.judgement_id in score.judgement_ids}
    return all(judgement.fingerprint in fingerprints for judgement in judgements)
