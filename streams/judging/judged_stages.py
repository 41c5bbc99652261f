"""The stages that ask a judge, their session state, the recorded judgements, and the task of one subject.

Each question of a task is settled by the first of these that applies: a recorded judgement; an answer from another subject; an unknown
price while there is a cap; the cap; the lack of a judge. A replay uses the same order, so that an unanswered question ends as it did
before. With a judge, a question is tried as long as the cap leaves room for the cheapest possible call, and the outcome is recorded.
Without a judge, the cap must leave room for one token per byte.

The state of a session has its position, its spending, and on Kafka the calls of its newest turns: topics have no index, so the calls of a
finished task cannot be looked up. A worker on Kafka keeps the answers about a turn as long as the turn may become one of the session's
last, so that they are not paid for twice. The embedded runner queries its store instead.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from analytics.queries import query_records
from analytics.store.store import Store
from audit.cost import Ledger, ModelPrice, max_cost, min_budget, nano_of, price_of
from audit.evaluation.evaluating import evaluating
from audit.evaluation.questions import EVALUATION as SIX_DIMENSIONS
from audit.evaluation.questions import NOT_BATCHED, Terms, request_id
from audit.exchanges.cascade import cascade, drive
from audit.exchanges.outcomes import NO_JUDGE, TierState
from audit.exchanges.prompts import TIER2, TIER2_5, TIER3
from audit.exchanges.questions import ANSWERED, COST_CAP, UNKNOWN_PRICE, Question, Reply, charged, recorded_reply
from audit.exchanges.sampling import LAST_TURNS, may_become_last
from audit.policy import Policy
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError
from schemas.records import EvaluationRequest, Judgement, Record, ScoringTask
from streams.stage_batches import RecordBatch, StageBatch, StepOutcome, decode_exchange
from streams.stage_progress import SOURCES

KEPT_BYTES = 1_000_000
"""Bytes of calls that are kept per session; beyond this limit, calls of the earliest turns are dropped and may be paid for again."""


class KeptCalls(msgspec.Struct, frozen=True, array_like=True):
    """The judgements of a turn that may be judged again as one of its session's last."""

    turn: int
    subject_id: str
    judgements: tuple[bytes, ...]
    """Encoded."""


class JudgedState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one session in a stage that asks a judge."""

    next_offset: int = 0
    spent: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The cost of its judge calls in nano-USD, if a single cap covers all of them."""
    kept: tuple[KeptCalls, ...] = ()
    """The judgements of its newest turns, which may be judged again when it closes, ascending; only if no store has them."""

    def recorded_of(self, subject_id: str) -> list[Judgement]:
        """Return the stored judgements of a subject.

        Unreadable judgements are ignored: at worst a question is asked again.
        """
        judgements: list[Judgement] = []
        for calls in self.kept:
            if calls.subject_id != subject_id:
                continue
            for message in calls.judgements:
                with contextlib.suppress(RecordError):
                    record = decode(message)
                    if isinstance(record, Judgement):
                        judgements.append(record)
        return judgements


STATE = msgspec.msgpack.Decoder(JudgedState)


def kept_after(
    kept: Sequence[KeptCalls], task: Record, judgements: Sequence[Judgement], policy: Policy
) -> tuple[KeptCalls, ...]:
    """Return the calls to keep after a task with these recorded judgements."""
    if not isinstance(task, ScoringTask):
        return tuple(kept)
    others = [calls for calls in kept if calls.subject_id != task.exchange_id]
    if task.sampling_reason == LAST_TURNS:
        # Last turns come in order, so no turn before this one comes again.
        return tuple(calls for calls in others if calls.turn >= task.turn_number)
    if not judgements or not may_become_last(task.sampling_reason):
        return tuple(kept)
    this = KeptCalls(task.turn_number, task.exchange_id, tuple(map(encode, judgements)))
    newest_first = sorted((*others, this), key=lambda calls: calls.turn, reverse=True)
    last = newest_first[: policy.for_project(task.project).settings.sampling.always_score_last]
    newest_kept: list[KeptCalls] = []
    size = 0
    for calls in last:
        size += sum(map(len, calls.judgements))
        if size > KEPT_BYTES:
            break
        newest_kept.append(calls)
    return tuple(reversed(newest_kept))


Subject = tuple[str, str]
"""Connection and id of the judged exchange or evaluation."""
Recorded = Callable[[Sequence[Subject]], Mapping[Subject, Sequence[Judgement]]]
"""The recorded judgements by subject, in the order of recording; subjects without any are missing."""


def nothing_recorded(_subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
    """Return a `Recorded` without judgements, for installations that never had a judge."""
    return {}


def recorded_in(store: Store) -> Recorded:
    """Return a `Recorded` that reads from a store."""

    def recorded(subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        by_subject: dict[Subject, list[Judgement]] = defaultdict(list)
        if not subjects or not store.end_of("judgements"):
            return by_subject
        wanted = [{"connection": connection, "subject_id": subject} for connection, subject in subjects]
        for judgement in query_records(store.cursor(), "judgements_of", Judgement, {"subjects": wanted}):
            by_subject[judgement.connection, judgement.subject_id].append(judgement)
        return by_subject

    return recorded


Judging = Generator[Question, Reply, Any]
"""Yields questions, receives a reply to each, and returns the record made from the replies."""
Task = TypeVar("Task", ScoringTask, EvaluationRequest)


class JudgingTask(msgspec.Struct, frozen=True, kw_only=True):
    """One subject to judge, with its recorded judgements and its budget."""

    connection: str
    project: str
    session_id: str
    subject_id: str
    """Id of the exchange or of the evaluation, unique within the connection."""
    revision: int
    """Revision of the resulting record."""
    price: ModelPrice | None
    """The price of the judge's model; None is unknown."""
    ledger: Ledger
    recorded: Sequence[Judgement]
    """The recorded judgements of the subject up to this revision, for any question, in order."""
    begin: Callable[[Sequence[Judgement]], Judging]
    """Starts the judging, given what was recorded."""
    batched: bool = False
    """True if its questions go through the batch API, at batch prices."""
    taken_over: Sequence[Judgement] = ()
    """Answers from another subject that this one reuses: they were paid for there."""
    unasked_state: TierState | None = None
    """The state of a question without a recorded answer if no judge is asked; None: the judge may be asked."""
    asked: list[Judgement] = msgspec.field(default_factory=list)
    """The judgements of the questions asked, in order."""

    def judging(self) -> Judging:
        """Return a generator of the questions about the subject; it returns the record."""
        return self.begin(self.recorded)

    def earlier(self, question: Question) -> tuple[Judgement, ...]:
        """Return the recorded judgements of this question."""
        return tuple(judgement for judgement in self.recorded if judgement.fingerprint == question.fingerprint)

    def settle(self, question: Question, earlier: Sequence[Judgement]) -> Reply | None:
        """Return the reply if no call is needed or worth trying; None if the judge must be asked.

        The exact worst case is computed later, just before the call; a call that the cap forbids then is recorded.
        """
        is_tried = not self.batched and self.unasked_state is None
        return self._settle(question, earlier, is_tried=is_tried)

    def unasked(self, question: Question) -> Reply:
        """Return the reply if there is no judge."""
        earlier = self.earlier(question)
        reply = self._settle(question, earlier, is_tried=False)
        if reply is not None:
            return reply
        return Reply(state=NO_JUDGE, judgements=earlier)

    def without_judge(self) -> Any:
        """Return the subject's record without asking a judge."""
        return drive(self.judging(), self.unasked)

    def _settle(self, question: Question, earlier: Sequence[Judgement], *, is_tried: bool) -> Reply | None:
        reply = recorded_reply(earlier, self.revision)
        if reply is not None:
            return reply
        for judgement in self.taken_over:
            if judgement.fingerprint == question.fingerprint:
                return Reply(text=judgement.answer or "", judgements=(*earlier, judgement))
        state = self._find_unasked_state(question, is_tried=is_tried)
        if state is None:
            return None
        return Reply(state=state, judgements=tuple(earlier))

    def _find_unasked_state(self, question: Question, *, is_tried: bool) -> TierState | None:
        """Return the state of a question that is not asked; None if the judge may be asked."""
        if question.fallback:
            return question.fallback
        forbidden = self._check_cap(question, is_tried=is_tried)
        if forbidden is not None:
            return forbidden
        return self.unasked_state

    def _check_cap(self, question: Question, *, is_tried: bool) -> TierState | None:
        """Return the reason why the cap forbids the call; None if it does not."""
        if self.ledger.cap is None:
            return None
        if self.price is None:
            return UNKNOWN_PRICE
        least = min_budget(question, self.price) if is_tried else max_cost(question, self.price, batched=self.batched)
        return None if self.ledger.can_reserve(least) else COST_CAP


class TaskSpec(NamedTuple):
    """A task, parsed."""

    begin: Callable[[Sequence[Judgement]], Judging]
    """Starts the judging, given what was recorded."""
    price: ModelPrice | None
    """The price of the judge's model; None is unknown."""
    cap: int | None
    """Nano-USD that may be spent; None means no cap."""
    batched: bool = False
    """True if its questions are asked in batches only."""
    takes_simulated: bool = True
    """True if the answers of a simulated judge count."""


class JudgedStage(ABC, Generic[Task]):
    """A stage whose tasks are judged and become one record each."""

    name: ClassVar[str]
    source: ClassVar[str]
    sink: ClassVar[str]
    task_type: ClassVar[type[Record]]
    purposes: ClassVar[frozenset[str]]
    """The purposes of its questions."""
    queue: ClassVar[str]
    """The name of the queue of its waiting tasks."""
    cap_is_shared: ClassVar[bool]
    """True if one cap holds for all tasks of a session; otherwise each subject has its own."""

    @abstractmethod
    def id_of(self, task: Task) -> str:
        """Return the id of a task's subject, unique within the connection."""

    @abstractmethod
    def revision_of(self, task: Task) -> int:
        """Return the revision of a task's record."""

    @abstractmethod
    def identity(self, connection: str, subject_id: str, revision: int) -> tuple[str, ...]:
        """Return the identity of the record of a subject's revision."""

    @abstractmethod
    def size_of(self, task: Task) -> int:
        """Return the approximate size of a task in bytes."""

    @abstractmethod
    def may_have_judgements(self, task: Task) -> bool:
        """Return whether a task may have recorded judgements when it first arrives."""

    @abstractmethod
    def may_reuse(self, task: Task, judgement: Judgement) -> bool:
        """Return whether a task may carry a judgement of another subject, as the answer to the same question."""

    @abstractmethod
    def read(self, task: Task, policy: Policy) -> TaskSpec:
        """Parse a task; raises any exception if it cannot be judged."""

    def subject_of(self, task: Task) -> Subject:
        """Return the subject of a task."""
        return task.connection, self.id_of(task)

    def known_of(self, task: Task, recorded: Sequence[Judgement]) -> list[Judgement]:
        """Return the judgements of a task's subject up to its revision, from the task and from `recorded`, each once.

        Raises RecordError if the task carries anything but judgements of its subject and judgements that it may reuse.
        """
        return self._select_own(task, (*self._read_carried(task), *recorded))

    def open(
        self,
        task: Task,
        policy: Policy,
        recorded: Sequence[Judgement],
        *,
        spent: int = 0,
        ledger: Ledger | None = None,
        batched: bool = False,
    ) -> JudgingTask:
        """Return the judging task of a task whose session has spent `spent`. Any exception means that the task cannot be judged.

        Recorded calls are charged to the session or subject that they were paid for, whatever their question: to `ledger`, if given.
        `batched` means that the caller asks in batches.
        """
        spec = self.read(task, policy)
        revision = self.revision_of(task)
        carried: list[Judgement] = self._read_carried(task)
        valid = [judgement for judgement in (*carried, *recorded) if spec.takes_simulated or not judgement.simulated]
        own = self._select_own(task, valid)
        if ledger is None:
            ledger = Ledger(spec.cap, spent)
        if self.cap_is_shared:
            # The session has already been charged for earlier revisions.
            ledger.charge(charged(own, revision))
        else:
            for charged_revision in {judgement.subject_revision for judgement in own}:
                ledger.charge(charged(own, charged_revision))
        return JudgingTask(
            connection=task.connection,
            project=task.project,
            session_id=task.session_id,
            subject_id=self.id_of(task),
            revision=revision,
            price=spec.price,
            ledger=ledger,
            recorded=own,
            begin=spec.begin,
            batched=batched or spec.batched,
            taken_over=[judgement for judgement in carried if not self._is_own(task, judgement)],
            unasked_state=NOT_BATCHED if spec.batched and not batched else None,
        )

    def spent_after(self, spent: int, judging_task: JudgingTask | None) -> int:
        """Return the amount that a session's state holds after a task, given the amount `spent` before it.

        A task that could not be opened has no judging task.
        """
        return judging_task.ledger.spent if judging_task is not None and self.cap_is_shared else spent

    def _read_carried(self, task: Task) -> list[Judgement]:
        """Return the judgements that the task carries. Raises RecordError for any other record."""
        if not task.earlier_judgements:
            return []
        carried: list[Judgement] = []
        for message in task.earlier_judgements:
            record = decode(message)
            if not isinstance(record, Judgement) or not self._may_carry(task, record):
                raise RecordError(
                    f"{self.task_type.__name__}.earlier_judgements: a record in it is not a judgement of {self.id_of(task)!r}",
                    hint="Request it again: the command fills the field.",
                )
            carried.append(record)
        return carried

    def _may_carry(self, task: Task, judgement: Judgement) -> bool:
        return self._is_own(task, judgement) or self.may_reuse(task, judgement)

    def _select_own(self, task: Task, recorded: Sequence[Judgement]) -> list[Judgement]:
        """Return the judgements of the task's subject up to its revision, each once."""
        revision = self.revision_of(task)
        own = {judgement.judgement_id: judgement for judgement in recorded if self._is_own(task, judgement)}
        return [judgement for judgement in own.values() if judgement.subject_revision <= revision]

    def _is_own(self, task: Task, judgement: Judgement) -> bool:
        return (judgement.connection, judgement.subject_id) == self.subject_of(task)


class ScoringStage(JudgedStage[ScoringTask]):
    """Scores sampled exchanges; all exchanges of a session share one cap."""

    name = "scoring"
    source = SOURCES["scoring"]
    sink = "scores"
    task_type = ScoringTask
    purposes = frozenset([TIER2, TIER2_5, TIER3])
    queue = "tasks"
    cap_is_shared = True

    def id_of(self, task: ScoringTask) -> str:
        """See `JudgedStage`."""
        return task.exchange_id

    def revision_of(self, task: ScoringTask) -> int:
        """See `JudgedStage`."""
        return task.revision

    def identity(self, connection: str, subject_id: str, revision: int) -> tuple[str, ...]:
        """See `JudgedStage`."""
        return connection, subject_id, str(revision)

    def size_of(self, task: ScoringTask) -> int:
        """See `JudgedStage`."""
        return len(task.exchange) + sum(map(len, task.earlier_judgements))

    def may_have_judgements(self, task: ScoringTask) -> bool:
        """See `JudgedStage`."""
        return task.revision > 0

    def may_reuse(self, task: ScoringTask, judgement: Judgement) -> bool:  # noqa: ARG002 - exchanges share no answers
        """See `JudgedStage`."""
        return False

    def read(self, task: ScoringTask, policy: Policy) -> TaskSpec:
        """See `JudgedStage`."""
        project = policy.for_project(task.project)
        exchange = decode_exchange(task.exchange)
        return TaskSpec(lambda recorded: cascade(task, exchange, project, recorded), project.price, project.cap)


class EvaluationStage(JudgedStage[EvaluationRequest]):
    """Evaluates sessions; each evaluation has its own cap."""

    name = "evaluation"
    source = SOURCES["evaluation"]
    sink = "evaluations"
    task_type = EvaluationRequest
    purposes = frozenset([SIX_DIMENSIONS])
    queue = "evaluations"
    cap_is_shared = False

    def id_of(self, task: EvaluationRequest) -> str:
        """See `JudgedStage`."""
        return task.evaluation_id

    def revision_of(self, task: EvaluationRequest) -> int:
        """See `JudgedStage`."""
        return task.attempt

    def identity(self, connection: str, subject_id: str, revision: int) -> tuple[str, ...]:  # noqa: ARG002 - see `request_id`
        """See `JudgedStage`."""
        return (request_id(subject_id, revision),)

    def size_of(self, task: EvaluationRequest) -> int:
        """See `JudgedStage`."""
        return len(task.user_prompt) + len(task.system_prompt) + sum(map(len, task.earlier_judgements))

    def may_have_judgements(self, task: EvaluationRequest) -> bool:  # noqa: ARG002 - true of every request
        """See `JudgedStage`. Judgements from a batch are recorded before the request exists."""
        return True

    def may_reuse(self, task: EvaluationRequest, judgement: Judgement) -> bool:
        """See `JudgedStage`. Answers about the same session count, whichever evaluation they were given for."""
        if (judgement.connection, judgement.session_id) != (task.connection, task.session_id):
            return False
        return judgement.purpose == SIX_DIMENSIONS and judgement.outcome == ANSWERED

    def read(self, task: EvaluationRequest, policy: Policy) -> TaskSpec:
        """See `JudgedStage`."""
        plan = Terms.of(task).plan
        return TaskSpec(
            lambda recorded: evaluating(task, recorded),
            price=price_of(plan.judge.model, policy.prices),
            cap=None if plan.cost_cap_usd is None else nano_of(plan.cost_cap_usd),
            batched=plan.judge.type == "batch",
            takes_simulated=plan.takes_simulated,
        )


SCORING = ScoringStage()
EVALUATION = EvaluationStage()
JUDGED: tuple[JudgedStage[Any], ...] = (SCORING, EVALUATION)


class JudgingStep:
    """The step of a judged stage without calls; see `streams.stage_batches.Step`.

    It answers tasks from recorded judgements. A question without one is unscored with the reason no_judge. An import therefore scores
    without paying, and a replay gives the same records as when the judge was asked.
    """

    def __init__(self, stage: JudgedStage[Any], policy: Policy, recorded: Recorded) -> None:
        self._stage = stage
        self._policy = policy
        self._recorded = recorded

    def __call__(self, batch: StageBatch | RecordBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Return one record for each task."""
        stage = self._stage
        tasks = [(offset, key, record) for offset, key, record in batch.records() if isinstance(record, stage.task_type)]
        recorded = self._recorded([stage.subject_of(task) for _, _, task in tasks])
        sessions = {key: STATE.decode(state) for key, state in states.items()}
        outcome = StepOutcome()
        for offset, key, task in tasks:
            session = sessions.get(key, JudgedState())
            if offset < session.next_offset:
                continue
            judging_task: JudgingTask | None = None
            try:
                judgements = recorded.get(stage.subject_of(task), ())
                judging_task = stage.open(task, self._policy, judgements, spent=session.spent)
                outcome.records.append((stage.sink, judging_task.without_judge()))
            except Exception as error:  # noqa: BLE001 - a failing task must not affect others, as with a judge
                outcome.failed.append((offset, task, error))
            sessions[key] = JudgedState(offset + 1, stage.spent_after(session.spent, judging_task))
        outcome.states = {key: msgspec.msgpack.encode(session) for key, session in sessions.items()}
        return outcome
