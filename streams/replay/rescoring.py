"""Scoring a part's history again, by rules 3 to 7 of `README.md`: the intake step over each window, and the cascade over its tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Protocol

import msgspec

from audit.cost.session_ledger import Ledger
from audit.exchanges.judgements import charged
from audit.exchanges.question_rebuild import questions_about
from audit.policy.policy import Policy, ProjectPolicy
from audit.redaction.redactor import Redactor
from schemas.codec.single_object import encode
from schemas.records import Exchange, Judgement, Record, Score, ScoringTask
from streams.engine.stage_runs import StageRuns, stage_failed
from streams.judging.call_budget import StoppedError
from streams.judging.judged_stages import SCORING
from streams.judging.judged_state import STATE, JudgedState
from streams.judging.recorded_judgements import Recorded, Subject, nothing_recorded
from streams.log.admission import Accepted, Admission, Place
from streams.replay.history.history import History, Window
from streams.replay.part_file import WindowResult
from streams.replay.plan import Asking, Scope
from streams.stage_batches import encoded_exchange, session_key
from streams.topology import stage_named

INTAKE = stage_named("intake")
log = logging.getLogger(__name__)


class Court(Protocol):
    """Scores a task, or only looks at it: then there is no score."""

    async def judge(self, task: ScoringTask, recorded: Sequence[Judgement], ledger: Ledger) -> Record | None:
        """The score of a task; what it cost is in its session's ledger."""
        ...


class Kept(Protocol):
    """The place where states and results are kept."""

    @property
    def position(self) -> int:
        """The position from which reading goes on."""
        ...

    def states(self, stage: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The states of a stage for those of the sessions that have one."""
        ...

    def commit(self, result: WindowResult) -> None:
        """Keep the result of a window, all of it or nothing."""
        ...


Report = Callable[[int, int], None]
"""Called with the position that was reached, and how many more exchanges of the scope were seen."""


class Rescoring:
    """Scores windows of history by a policy, within a scope. `now` stamps dead letters and nothing else."""

    def __init__(
        self,
        policy: Policy,
        scope: Scope,
        redactor: Redactor,
        now: Callable[[], datetime],
        *,
        asking: Asking,
        side_by_side: bool = False,
    ) -> None:
        """`asking` says what of the recorded judgements counts. `side_by_side`: sessions are scored at the same time."""
        self._policy = policy
        self._scope = scope
        self._redactor = redactor
        self._now = now
        self._asking = asking
        self._side_by_side = side_by_side
        self._withdrawn: Collection[Subject] = ()
        self._intake = StageRuns(policy, nothing_recorded, redactor, now)

    async def run(self, history: History, kept: Kept, court: Court, recorded: Recorded, report: Report) -> None:
        """Score a part from where it stands to its end. StoppedError when the court makes no more calls."""
        self._withdrawn = history.withdrawn
        async with aclosing(history.windows(kept.position)) as windows:
            async for window in windows:
                result, seen = await self._window(window, kept, court, recorded)
                kept.commit(result)
                report(window.end, seen)

    async def _window(self, window: Window, kept: Kept, court: Court, recorded: Recorded) -> tuple[WindowResult, int]:
        """Score a window; return its result, and the number of its exchanges that are in scope."""
        keys = window.batch.keys()
        outcome = self._intake.run(INTAKE, window.batch, kept.states(INTAKE.name, keys))
        result = WindowResult(window.end, outcome.dead, {INTAKE.name: outcome.states})
        tasks: dict[str, list[ScoringTask]] = {}
        encoded = iter(outcome.made.messages.get("scores", ()))
        seen = 0
        for topic, record in outcome.records:
            if topic == "scores":
                message = next(encoded)
                is_there = isinstance(record, Score) and (record.connection, record.exchange_id) not in self._withdrawn
                if isinstance(record, Score) and is_there and self._scope.holds(record.project, record.exchange_at):
                    result.made.add(topic, message)
                    seen += record.revision == 0
            elif isinstance(record, ScoringTask):
                tasks.setdefault(session_key(record), []).append(record)
                seen += record.revision == 0 and self._is_wanted(record)
        await self._score(tasks, kept, court, recorded, result)
        return result, seen

    async def _score(
        self, tasks: Mapping[str, list[ScoringTask]], kept: Kept, court: Court, recorded: Recorded, result: WindowResult
    ) -> None:
        """Score the tasks, session by session or sessions side by side, and add what came of it."""
        before = kept.states(SCORING.name, list(tasks))
        subjects = [SCORING.subject_of(task) for session in tasks.values() for task in session]
        known = {} if self._asking is Asking.NONE else recorded(subjects)

        def session(key: str) -> Coroutine[Any, Any, tuple[JudgedState, Accepted]]:
            state = STATE.decode(before[key]) if key in before else JudgedState()
            return self._session(tasks[key], state, court, known, result.end)

        if self._side_by_side:
            outcomes = await _all_of([session(key) for key in tasks])
        else:
            outcomes = [await session(key) for key in tasks]
        result.states[SCORING.name] = {}
        # In the order of the tasks, whichever session was done first.
        for key, (state, made) in zip(tasks, outcomes, strict=True):
            result.states[SCORING.name][key] = msgspec.msgpack.encode(state)
            result.made.extend(made)

    async def _session(
        self,
        tasks: Sequence[ScoringTask],
        state: JudgedState,
        court: Court,
        known: Mapping[Subject, Sequence[Judgement]],
        end: int,
    ) -> tuple[JudgedState, Accepted]:
        """Score the tasks of one session, one after the other."""
        spent, made = state.spent, Accepted()
        for task in tasks:
            ledger = self._ledger(task, spent)
            try:
                counted = self._counted(task, known.get(SCORING.subject_of(task), ()))
                if self._is_wanted(task):
                    score = await court.judge(_bare(task), counted, ledger)
                    if isinstance(score, Score) and _leaves_unused(score, counted):
                        ledger = self._ledger(task, spent)
                        score = await court.judge(_bare(task), self._answers(task, counted), ledger)
                    if score is not None:
                        made.add("scores", encode(score))
                else:
                    ledger.charge(charged(counted, task.revision))
            except StoppedError:
                raise
            except Exception as error:
                log.exception("exchange %s could not be scored; it is set aside", task.exchange_id)
                place = Place(SCORING.source, end - 1, 0)
                Admission(self._redactor, self._now()).set_aside(made, place, stage_failed(SCORING.name, error), encode(task))
            spent = ledger.spent
        return JudgedState(0, spent), made

    def _counted(self, task: ScoringTask, found: Sequence[Judgement]) -> list[Judgement]:
        """Return the known judgements of a task's exchange that count: those that it carries and those that were found.

        A paying replay looks only for answers to the present questions. A recorded replay takes all recorded judgements,
        because nearly always all of them answer these questions; see `_leaves_unused`.
        """
        if self._asking is Asking.NONE:
            return []
        known = SCORING.known_of(task, found)
        if not known or not self._asking.pays:
            return known
        return self._answers(task, known)

    def _answers(self, task: ScoringTask, known: Sequence[Judgement]) -> list[Judgement]:
        """Return the known judgements that answer a question of the policy in force, and those of what the exchange was before.

        What was judged before a revision came was asked about an earlier one: it was paid for, whatever the texts are now.
        """
        exchange = encoded_exchange(task.exchange)
        earlier = [one for one in known if exchange.revision and one.judged_at < exchange.ingested_at]
        current = [one for one in known if one not in earlier] if earlier else known
        return [*earlier, *of_these_questions(exchange, self._policy.for_project(task.project), current)]

    def _ledger(self, task: ScoringTask, spent: int) -> Ledger:
        return Ledger(self._policy.for_project(task.project).cap, spent)

    def _is_wanted(self, task: ScoringTask) -> bool:
        scope = self._scope
        if SCORING.subject_of(task) in self._withdrawn:
            return False
        if scope.since is None and scope.until is None:
            return scope.project is None or scope.project == task.project
        return scope.holds(task.project, encoded_exchange(task.exchange).occurred_at)


def _leaves_unused(score: Score, known: Sequence[Judgement]) -> bool:
    """Tell whether a known judgement answers no question of the score.

    It may be another policy's, and is then not to be charged.
    """
    unused = [one for one in known if one.judgement_id not in score.judgement_ids]
    if not unused:
        return False
    used = {one.fingerprint for one in known if one.judgement_id in score.judgement_ids}
    return any(one.fingerprint not in used for one in unused)


def _bare(task: ScoringTask) -> ScoringTask:
    """The task without the judgements that it carries: what of them counts is handed over beside it."""
    return msgspec.structs.replace(task, earlier_judgements=()) if task.earlier_judgements else task


async def _all_of(sessions: Sequence[Awaitable[tuple[JudgedState, Accepted]]]) -> list[tuple[JudgedState, Accepted]]:
    """Every session's outcome; when one fails, the others come to their end before that is raised: calls are under way."""
    done = await asyncio.gather(*sessions, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]


def of_these_questions(exchange: Exchange, policy: ProjectPolicy, recorded: Sequence[Judgement]) -> list[Judgement]:
    """The judgements of questions that the policy asks, whatever the answers come to.

    Another policy's were paid for, too, but not for these scores: they neither use up a session's cap nor count as what a score cost.
    """
    asked = {question.fingerprint for question in questions_about(exchange, policy)}
    return [one for one in recorded if one.fingerprint in asked]
