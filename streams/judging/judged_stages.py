"""The stages that ask a judge: their tasks, their session state, and the recorded judgements.

Each question of a task is settled by the first of these that applies: a recorded judgement, an answer about another subject, an unknown
price under a cap, the cap, or the lack of a judge. A replay uses the same order, so that an unanswered question gets the same state as in
the first run. With a judge, a question is asked as long as the cap leaves room for the cheapest possible call, and the outcome is
recorded. Without a judge, the cap must leave room for one token per byte.

The state of a session holds its position and its spending. On Kafka it also holds the judgements of the newest turns, as long as a turn
may become one of the session's last ones and be judged again: topics have no index, so the calls of a finished task cannot be looked up,
and would be paid for twice. The embedded runner queries its store instead.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from analytics.queries import query_records
from analytics.store.store import Store
from audit.cost import Ledger, ModelPrice, max_cost, min_budget, nano_of
from audit.evaluation.evaluating import evaluating
from audit.evaluation.questions import EVALUATION as SIX_DIMENSIONS
from audit.evaluation.questions import NOT_BATCHED, Terms, request_id
from audit.exchanges.cascade import INVALID, cascade, drive, is_urgent, questions_about
from audit.exchanges.outcomes import NO_JUDGE, TierState
from audit.exchanges.questions import (
    ANSWERED,
    AWAITING_BATCH,
    BATCH_REVISIONS,
    COST_CAP,
    UNKNOWN_PRICE,
    Question,
    Reply,
    charged,
    recorded_reply,
)
from audit.exchanges.sampling import LAST_TURNS, may_become_last
from audit.exchanges.states import TIER2, TIER2_5, TIER3, TIERS_2_AND_3
from audit.policy import Policy, ProjectPolicy
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError
from schemas.records import EvaluationRequest, Exchange, Judgement, Record, ScoringTask
from streams.stage_batches import RecordBatch, StageBatch, StepOutcome, decode_exchange
from streams.stage_progress import SOURCES

KEPT_BYTES = 1_000_000
"""Maximum size of the judgements in a session's state. Beyond it, those of the earliest turns are dropped and may be paid for again."""


class KeptCalls(msgspec.Struct, frozen=True, array_like=True):
    """The judgements of a turn that may be judged again as one of its session's last."""

    turn: int
    subject_id: str
    judgements: tuple[bytes, ...]
    """Encoded records."""


class HeldAmount(msgspec.Struct, frozen=True, array_like=True):
    """The largest possible cost of the batch that an exchange waits for."""

    subject_id: str
    amount: int
    """Nano-USD."""


class JudgedState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one session in a stage that asks a judge."""

    next_offset: int = 0
    spent: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The cost of its judge calls in nano-USD, if one cap covers all of them."""
    kept: tuple[KeptCalls, ...] = ()
    """The judgements of its newest turns, oldest turn first; empty if a store has them."""
    held: tuple[HeldAmount, ...] = ()
    """Amounts that its cap keeps for batches."""

    def held_for_others(self, subject_id: str) -> int:
        """Return what is kept for batches of other subjects, in nano-USD."""
        return sum(held.amount for held in self.held if held.subject_id != subject_id)

    def judgements_of(self, subject_id: str) -> list[Judgement]:
        """Return the kept judgements of a subject. Unreadable ones are ignored; at worst, their questions are asked again."""
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


def update_kept_calls(
    kept: Sequence[KeptCalls], task: Record, judgements: Sequence[Judgement], policy: Policy
) -> tuple[KeptCalls, ...]:
    """Return the calls to keep after a task with these recorded judgements."""
    if not isinstance(task, ScoringTask):
        return tuple(kept)
    other_calls = [calls for calls in kept if calls.subject_id != task.exchange_id]
    if task.sampling_reason == LAST_TURNS:
        # Last turns are judged in order, so no earlier turn is judged again.
        return tuple(calls for calls in other_calls if calls.turn >= task.turn_number)
    if not judgements or not may_become_last(task.sampling_reason):
        return tuple(kept)
    task_calls = KeptCalls(task.turn_number, task.exchange_id, tuple(map(encode, judgements)))
    newest_first = sorted((*other_calls, task_calls), key=lambda calls: calls.turn, reverse=True)
    candidates = newest_first[: policy.for_project(task.project).settings.sampling.always_score_last]
    newest: list[KeptCalls] = []
    size = 0
    for calls in candidates:
        size += sum(map(len, calls.judgements))
        if size > KEPT_BYTES:
            break
        newest.append(calls)
    return tuple(reversed(newest))


Subject = tuple[str, str]
"""The connection and the id of a judged exchange or evaluation."""
JudgementReader = Callable[[Sequence[Subject]], Mapping[Subject, Sequence[Judgement]]]
"""Returns the recorded judgements by subject, in the order of recording. Subjects without judgements may be missing."""


def read_no_judgements(_subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
    """Return no judgements: a `JudgementReader` for stages whose store has none."""
    return {}


def judgement_reader(store: Store) -> JudgementReader:
    """Return a function that reads the recorded judgements from a store."""

    def read_judgements(subjects: Sequence[Subject]) -> Mapping[Subject, Sequence[Judgement]]:
        by_subject: dict[Subject, list[Judgement]] = defaultdict(list)
        if not subjects or not store.end_of("judgements"):
            return by_subject
        keys = [{"connection": connection, "subject_id": subject_id} for connection, subject_id in subjects]
        for judgement in query_records(store.cursor(), "judgements_of", Judgement, {"subjects": keys}):
            by_subject[judgement.connection, judgement.subject_id].append(judgement)
        return by_subject

    return read_judgements


def find_beginning(judgements: Sequence[Judgement]) -> Judgement | None:
    """Return the record that a subject began to wait for a batch; None if it did not."""
    return next((judgement for judgement in judgements if judgement.outcome == AWAITING_BATCH.reason), None)


Judging = Generator[Question, Reply, Any]
"""A generator that yields questions, receives the reply to each, and returns the record."""
Task = TypeVar("Task", ScoringTask, EvaluationRequest)


class JudgingTask(msgspec.Struct, frozen=True, kw_only=True):
    """A subject to judge, with its recorded judgements and its ledger."""

    connection: str
    project: str
    session_id: str
    subject_id: str
    """The id of the exchange or evaluation, unique within the connection."""
    revision: int
    """The revision of the resulting record."""
    price_of: Callable[[str], ModelPrice | None]
    """Returns the price of a question's judge by its name; None if unknown."""
    ledger: Ledger
    recorded: Sequence[Judgement]
    """The subject's recorded judgements up to this revision, of all questions, in order."""
    begin: Callable[[Sequence[Judgement]], Judging]
    """Starts the judging, given the recorded judgements."""
    batched: bool = False
    """True if its questions go through the batch API, at batch prices."""
    has_shared_cap: bool = False
    """True if its calls count toward a cap of the project or of the installation."""
    reused: Sequence[Judgement] = ()
    """Answers about another subject that count for this one; they were charged to that subject."""
    unasked_state: TierState | None = None
    """The state of questions without a recorded answer if the judge must not be asked; None if it may be asked."""
    may_wait: bool = False
    """True if the subject may wait for a batch from now on: it is routine, and has neither waited nor been asked about."""
    batch_bound: Callable[[], int | None] = lambda: None
    """Returns the largest possible cost of all its questions in batches, in nano-USD; None if a price is unknown."""
    asked: list[Judgement] = msgspec.field(default_factory=list)
    """The judgements of the questions asked so far, in order."""

    @property
    def waits(self) -> bool:
        """Whether it waits for a batch."""
        return self.unasked_state == AWAITING_BATCH

    def waiting(self, beginning: Judgement) -> JudgingTask:
        """Return the task as it waits for a batch, given the record that it began to."""
        return msgspec.structs.replace(self, recorded=(*self.recorded, beginning), unasked_state=AWAITING_BATCH)

    def hold(self, held: Sequence[HeldAmount]) -> tuple[HeldAmount, ...]:
        """Return the amounts that its session keeps for batches after the task, given those before it."""
        own = [amount for amount in held if amount.subject_id == self.subject_id]
        others = [amount for amount in held if amount.subject_id != self.subject_id]
        if self.waits and not own:
            own = [HeldAmount(self.subject_id, self.batch_bound() or 0)]
        return (*others, *own) if self.waits else tuple(others)

    def settled_questions(self) -> tuple[Any, list[tuple[Question, Reply | None]]]:
        """Return the record without the open questions, and all questions, each with its reply, or None if the judge must be asked.

        An open question does not stop the cascade, so that later questions are found, too.
        """
        questions: list[tuple[Question, Reply | None]] = []

        def reply(question: Question) -> Reply:
            earlier = self.earlier(question)
            settled = self.settle(question, earlier)
            questions.append((question, settled))
            return settled or Reply(state=INVALID, judgements=earlier)

        record = drive(self.judging(), reply)
        return record, questions

    def open_questions(self) -> list[Question]:
        """Return the questions to ask now: Tiers 2 and 2.5 first, then a Tier 3 of its own, which depends on their answers."""
        open_questions = [question for question, reply in self.settled_questions()[1] if reply is None]
        return [question for index, question in enumerate(open_questions) if question.purpose != TIER3 or index == 0]

    def judging(self) -> Judging:
        """Start the judging: return a generator of questions that returns the record."""
        return self.begin(self.recorded)

    def earlier(self, question: Question) -> tuple[Judgement, ...]:
        """Return the recorded judgements of a question."""
        return tuple(judgement for judgement in self.recorded if judgement.fingerprint == question.fingerprint)

    def settle(self, question: Question, earlier: Sequence[Judgement]) -> Reply | None:
        """Return the reply if no call is needed or allowed; None if the judge must be asked.

        The largest possible cost is not known exactly until just before the call. If the cap forbids the call only then, that outcome is
        recorded.
        """
        may_ask = not self.batched and self.unasked_state is None
        return self._settle(question, earlier, may_ask=may_ask)

    def reply_without_judge(self, question: Question) -> Reply:
        """Return the reply to a question if there is no judge."""
        earlier = self.earlier(question)
        reply = self._settle(question, earlier, may_ask=False)
        if reply is not None:
            return reply
        return Reply(state=NO_JUDGE, judgements=earlier)

    def without_judge(self) -> Any:
        """Return the subject's record without asking a judge."""
        return drive(self.judging(), self.reply_without_judge)

    def _settle(self, question: Question, earlier: Sequence[Judgement], *, may_ask: bool) -> Reply | None:
        reply = recorded_reply(earlier, self.revision)
        if reply is not None:
            return reply
        for judgement in self.reused:
            if judgement.fingerprint == question.fingerprint:
                return Reply(text=judgement.answer or "", judgements=(*earlier, judgement))
        state = self._find_unasked_state(question, may_ask=may_ask)
        if state is None:
            return None
        return Reply(state=state, judgements=tuple(earlier))

    def _find_unasked_state(self, question: Question, *, may_ask: bool) -> TierState | None:
        """Return the state of a question that must not be asked; None if it may be asked."""
        if question.fallback:
            return question.fallback
        if self.unasked_state == AWAITING_BATCH:
            return AWAITING_BATCH
        cap_state = self._check_cap(question, may_ask=may_ask)
        if cap_state is not None:
            return cap_state
        return self.unasked_state

    def _check_cap(self, question: Question, *, may_ask: bool) -> TierState | None:
        """Return the reason why the cap forbids the call; None if it does not."""
        if self.ledger.cap is None and not self.has_shared_cap:
            return None
        price = self.price_of(question.model)
        if price is None:
            return UNKNOWN_PRICE
        amount = min_budget(question, price) if may_ask else max_cost(question, price, batched=self.batched)
        return None if self.ledger.can_reserve(amount) else COST_CAP


class TaskSpec(NamedTuple):
    """A parsed task."""

    begin: Callable[[Sequence[Judgement]], Judging]
    """Starts the judging, given the recorded judgements."""
    price_of: Callable[[str], ModelPrice | None]
    """Returns the price of a question's judge by its name; None if unknown."""
    cap: int | None
    """Nano-USD that may be spent; None means no cap."""
    batched: bool = False
    """True if its questions may only be asked in batches."""
    takes_simulated: bool = True
    """True if answers of a simulated judge count."""
    is_routine: bool = False
    """True if the policy lets it wait for a batch."""
    batch_bound: Callable[[], int | None] = lambda: None
    """Returns the largest possible cost of all its questions in batches, in nano-USD; None if a price is unknown."""


class JudgedStage(ABC, Generic[Task]):
    """A stage that judges tasks and makes one record of each."""

    name: ClassVar[str]
    source: ClassVar[str]
    sink: ClassVar[str]
    task_type: ClassVar[type[Record]]
    purposes: ClassVar[frozenset[str]]
    """The purposes of its questions."""
    queue: ClassVar[str]
    """The name under which its pending tasks are reported."""
    cap_is_shared: ClassVar[bool]
    """True if all tasks of a session share a cap; False if each subject has its own."""

    @abstractmethod
    def id_of(self, task: Task) -> str:
        """Return the id of the task's subject, unique within the connection."""

    @abstractmethod
    def revision_of(self, task: Task) -> int:
        """Return the revision of the task's record."""

    @abstractmethod
    def identity(self, connection: str, subject_id: str, revision: int) -> tuple[str, ...]:
        """Return the identity of the task about a revision of a subject."""

    @abstractmethod
    def size_of(self, task: Task) -> int:
        """Return the approximate size of the task in bytes."""

    @abstractmethod
    def may_have_judgements(self, task: Task) -> bool:
        """Return whether the subject may have recorded judgements before the task is first processed."""

    @abstractmethod
    def may_reuse(self, task: Task, judgement: Judgement) -> bool:
        """Return whether the task may carry this judgement of another subject, as an answer to the same question."""

    @abstractmethod
    def read(self, task: Task, policy: Policy) -> TaskSpec:
        """Parse the task. Any exception means that it cannot be judged."""

    def subject_of(self, task: Task) -> Subject:
        """Return the subject of the task."""
        return task.connection, self.id_of(task)

    def select_judgements(self, task: Task, recorded: Sequence[Judgement]) -> list[Judgement]:
        """Return the judgements of the task's subject up to its revision, from the task and from `recorded`, without duplicates.

        Raises RecordError if the task carries a record that is not a judgement of its subject or one that it may reuse.
        """
        return self._select_own(task, (*self._read_carried(task), *recorded))

    def open(
        self,
        task: Task,
        policy: Policy,
        recorded: Sequence[Judgement],
        *,
        state: JudgedState | None = None,
        ledger: Ledger | None = None,
        batched: bool = False,
    ) -> JudgingTask:
        """Parse a task, and charge its recorded calls to its ledger. Any exception means that the task cannot be judged.

        The ledger is `ledger`, or else a new one for a session in this state. `batched` means that the caller asks in batches.
        """
        spec = self.read(task, policy)
        revision = self.revision_of(task)
        carried: list[Judgement] = self._read_carried(task)
        usable = [judgement for judgement in (*carried, *recorded) if spec.takes_simulated or not judgement.simulated]
        own = self._select_own(task, usable)
        if ledger is None:
            ledger = Ledger(spec.cap, 0 if state is None else state.spent + state.held_for_others(self.id_of(task)))
        if self.cap_is_shared:
            # The session's spending already includes the earlier revisions.
            ledger.charge(charged(own, revision))
        else:
            for charged_revision in {judgement.subject_revision for judgement in own}:
                ledger.charge(charged(own, charged_revision))
        beginning = find_beginning(own)
        unasked_state = NOT_BATCHED if spec.batched and not batched else None
        if beginning is not None and revision < beginning.subject_revision + BATCH_REVISIONS:
            unasked_state = AWAITING_BATCH
        return JudgingTask(
            connection=task.connection,
            project=task.project,
            session_id=task.session_id,
            subject_id=self.id_of(task),
            revision=revision,
            price_of=spec.price_of,
            ledger=ledger,
            recorded=own,
            begin=spec.begin,
            batched=batched or spec.batched,
            has_shared_cap=policy.for_project(task.project).has_shared_cap,
            reused=[judgement for judgement in carried if not self._is_own(task, judgement)],
            unasked_state=unasked_state,
            may_wait=spec.is_routine
            and beginning is None
            and not any(judgement.subject_revision == revision for judgement in own),
            batch_bound=spec.batch_bound,
        )

    def state_after(self, state: JudgedState, offset: int, task: Task, judging_task: JudgingTask | None) -> JudgedState:
        """Return the session's state after a task. A task that cannot be judged has no judging task."""
        if judging_task is None or not self.cap_is_shared:
            return msgspec.structs.replace(state, next_offset=offset + 1)
        spent = judging_task.ledger.spent - state.held_for_others(self.id_of(task))
        return JudgedState(offset + 1, spent, state.kept, judging_task.hold(state.held))

    def _read_carried(self, task: Task) -> list[Judgement]:
        """Return the judgements that the task carries. Raises RecordError for a record that it must not carry."""
        if not task.earlier_judgements:
            return []
        carried: list[Judgement] = []
        for message in task.earlier_judgements:
            record = decode(message)
            if not isinstance(record, Judgement) or not self._may_carry(task, record):
                raise RecordError(
                    f"{self.task_type.__name__}.earlier_judgements: it contains a record that is not a judgement of {self.id_of(task)!r}",
                    hint="Request the task again with the command, which fills this field.",
                )
            carried.append(record)
        return carried

    def _may_carry(self, task: Task, judgement: Judgement) -> bool:
        return self._is_own(task, judgement) or self.may_reuse(task, judgement)

    def _select_own(self, task: Task, recorded: Sequence[Judgement]) -> list[Judgement]:
        """Return the judgements of the task's subject up to its revision, without duplicates."""
        revision = self.revision_of(task)
        own = {judgement.judgement_id: judgement for judgement in recorded if self._is_own(task, judgement)}
        return [judgement for judgement in own.values() if judgement.subject_revision <= revision]

    def _is_own(self, task: Task, judgement: Judgement) -> bool:
        return (judgement.connection, judgement.subject_id) == self.subject_of(task)


class ScoringStage(JudgedStage[ScoringTask]):
    """Scores sampled exchanges. All exchanges of a session share a cap."""

    name = "scoring"
    source = SOURCES["scoring"]
    sink = "scores"
    task_type = ScoringTask
    purposes = frozenset([TIER2, TIER2_5, TIER3, TIERS_2_AND_3])
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
        return TaskSpec(
            lambda recorded: cascade(task, exchange, project, recorded),
            project.price_of,
            project.cap,
            is_routine=project.settings.judge_within_hours is not None and not is_urgent(task, exchange),
            batch_bound=cache(partial(_bound_batch, task, exchange, project)),
        )


def _bound_batch(task: ScoringTask, exchange: Exchange, project: ProjectPolicy) -> int | None:
    """Return the largest possible cost of asking everything about an exchange in batches; None if a price is unknown.

    Second questions without masked passages are left out: few exchanges need them. What the cap then has no room for is asked live.
    """
    costs: dict[tuple[str, int], int] = {}
    for question in questions_about(exchange, project, task.earlier_turns):
        price = project.price_of(question.model)
        if price is None:
            return None
        # Tier 3 comes twice, with and without the dimensions of a flagged exchange. It is asked once.
        key = question.purpose, question.part
        costs[key] = max(costs.get(key, 0), max_cost(question, price, batched=True))
    separate = sum(cost for (purpose, _), cost in costs.items() if purpose != TIERS_2_AND_3)
    combined = sum(cost for (purpose, _), cost in costs.items() if purpose not in {TIER2, TIER3})
    return max(separate, combined)


class EvaluationStage(JudgedStage[EvaluationRequest]):
    """Evaluates sessions. Each evaluation has its own cap."""

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
        """See `JudgedStage`. The judgements of a batch are recorded before the request."""
        return True

    def may_reuse(self, task: EvaluationRequest, judgement: Judgement) -> bool:
        """See `JudgedStage`. Answers from any evaluation of the same session may be reused."""
        if (judgement.connection, judgement.session_id) != (task.connection, task.session_id):
            return False
        return judgement.purpose == SIX_DIMENSIONS and judgement.outcome == ANSWERED

    def read(self, task: EvaluationRequest, policy: Policy) -> TaskSpec:
        """See `JudgedStage`."""
        plan = Terms.of(task).plan
        return TaskSpec(
            lambda recorded: evaluating(task, recorded),
            price_of=lambda model: policy.resolve_judge(model).price,
            cap=None if plan.cost_cap_usd is None else nano_of(plan.cost_cap_usd),
            batched=plan.judge.type == "batch",
            takes_simulated=plan.takes_simulated,
        )


SCORING = ScoringStage()
EVALUATION = EvaluationStage()
JUDGED: tuple[JudgedStage[Any], ...] = (SCORING, EVALUATION)


class JudgingStep:
    """The step of a judged stage that makes no calls; see `streams.stage_batches.Step`.

    It answers questions from recorded judgements; a question without one is unscored with the reason no_judge. So an import scores
    without paying, and a replay gives the same records as the run that asked the judge.
    """

    def __init__(self, stage: JudgedStage[Any], policy: Policy, read_judgements: JudgementReader) -> None:
        self._stage = stage
        self._policy = policy
        self._read_judgements = read_judgements

    def __call__(self, batch: StageBatch | RecordBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Return one record for each task."""
        stage = self._stage
        tasks = [(offset, key, record) for offset, key, record in batch.records() if isinstance(record, stage.task_type)]
        recorded = self._read_judgements([stage.subject_of(task) for _, _, task in tasks])
        session_states = {key: STATE.decode(state) for key, state in states.items()}
        outcome = StepOutcome()
        for offset, key, task in tasks:
            state = session_states.get(key, JudgedState())
            if offset < state.next_offset:
                continue
            judging_task: JudgingTask | None = None
            try:
                judgements = recorded.get(stage.subject_of(task), ())
                judging_task = stage.open(task, self._policy, judgements, state=state)
                outcome.records.append((stage.sink, judging_task.without_judge()))
            except Exception as error:  # noqa: BLE001 - a failing task must not affect others, as with a judge
                outcome.failed.append((offset, task, error))
            session_states[key] = stage.state_after(state, offset, task, judging_task)
        outcome.states = {key: msgspec.msgpack.encode(state) for key, state in session_states.items()}
        return outcome
