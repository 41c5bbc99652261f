"""The stages that ask a judge, as data: what a task is about, what may be spent on it, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from audit.cascade import cascade
from audit.evaluation.evaluating import evaluating
from audit.evaluation.questions import EVALUATION as SIX_DIMENSIONS
from audit.evaluation.questions import Terms, request_id
from audit.judgements import charged
from audit.ledger import Ledger
from audit.policy import Policy
from audit.prices import ModelPrice, nano_of, price_of
from audit.prompts import TIER2, TIER2_5, TIER3
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.records import EvaluationRequest, Judgement, ScoringTask
from streams.batches import encoded_exchange
from streams.docket import Docket, Judging
from streams.recorded import Subject

Task = TypeVar("Task", ScoringTask, EvaluationRequest)


class Matter(NamedTuple):
    """A task as it was read."""

    begin: Callable[[Sequence[Judgement]], Judging]
    """Starts the judging, told what was recorded."""
    price: ModelPrice | None
    """What the judge's model costs; None is unknown."""
    cap: int | None
    """Nano-USD that may be spent; None is no cap."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedStage(Generic[Task]):
    """A stage each of whose tasks is judged and becomes one record."""

    name: str
    source: str
    sink: str
    task_type: type[Task]
    purposes: frozenset[str]
    """Of the questions that it asks."""
    queue: str
    """What the tasks that wait are called."""
    id_of: Callable[[Task], str]
    """Id of what a task is about, unique within the connection."""
    revision_of: Callable[[Task], int]
    identity: Callable[[str, str, int], tuple[str, ...]]
    """What tells a task from others of its type, as the identity of its record has it; of the connection, id and revision."""
    size_of: Callable[[Task], int]
    """Bytes of a task, as far as they count."""
    may_be_known: Callable[[Task], bool]
    """Whether anything can have been recorded of a task that has only just come."""
    cap_is_shared: bool
    """Whether one cap holds for all tasks of a session; else each subject has one of its own."""
    read: Callable[[Task, Policy], Matter]
    """Raises what is wrong with a task that cannot be judged."""

    def subject_of(self, task: Task) -> Subject:
        """What a task is about."""
        return task.connection, self.id_of(task)

    def known_of(self, task: Task, found: Sequence[Judgement]) -> list[Judgement]:
        """What is known of a task's subject up to its revision: what the task carries and what was found elsewhere, each once.

        RecordError when the task carries something that is no judgement of its subject.
        """
        carried: list[Judgement] = [self._carried(task, message) for message in task.earlier_judgements]
        known = {one.judgement_id: one for one in (*carried, *found)}
        return [one for one in known.values() if one.subject_revision <= self.revision_of(task)]

    def open(
        self,
        task: Task,
        policy: Policy,
        recorded: Sequence[Judgement],
        *,
        spent: int = 0,
        ledger: Ledger | None = None,
        batched: bool = False,
    ) -> Docket:
        """The docket of a task whose session's state says `spent`. What is raised is wrong with the task: it cannot be judged.

        What was recorded is charged to whom it was paid for, whatever was asked then: to `ledger`, where the caller has one.
        """
        matter, known, revision = self.read(task, policy), self.known_of(task, recorded), self.revision_of(task)
        ledger = Ledger(matter.cap, spent) if ledger is None else ledger
        # A session has been charged for earlier revisions already.
        for one in {revision} if self.cap_is_shared else {paid.subject_revision for paid in known}:
            ledger.charge(charged(known, one))
        return Docket(
            connection=task.connection,
            project=task.project,
            session_id=task.session_id,
            subject_id=self.id_of(task),
            revision=revision,
            price=matter.price,
            ledger=ledger,
            recorded=known,
            begin=matter.begin,
            batched=batched,
        )

    def spent_after(self, spent: int, docket: Docket | None) -> int:
        """What a session's state says after a task, where it said `spent` before; no docket for a task that could not be opened."""
        return docket.ledger.spent if docket is not None and self.cap_is_shared else spent

    def _carried(self, task: Task, message: bytes) -> Judgement:
        record = decode(message)
        if not isinstance(record, Judgement) or (record.connection, record.subject_id) != self.subject_of(task):
            raise RecordError(
                f"{self.task_type.__name__}.earlier_judgements: {self.id_of(task)!r} carries what is no judgement of it",
                hint="Ask for it again: whoever asks fills the field.",
            )
        return record


def _scoring(task: ScoringTask, policy: Policy) -> Matter:
    project, exchange = policy.for_project(task.project), encoded_exchange(task.exchange)
    return Matter(lambda recorded: cascade(task, exchange, project, recorded), project.price, project.cap)


def _evaluation(request: EvaluationRequest, policy: Policy) -> Matter:
    plan = Terms.of(request).plan
    cap = None if plan.cost_cap_usd is None else nano_of(plan.cost_cap_usd)
    return Matter(lambda recorded: evaluating(request, recorded), price_of(plan.judge.model, policy.prices), cap)


SCORING = JudgedStage(
    name="scoring",
    source="scoring-tasks",
    sink="scores",
    task_type=ScoringTask,
    purposes=frozenset([TIER2, TIER2_5, TIER3]),
    queue="tasks",
    id_of=lambda task: task.exchange_id,
    revision_of=lambda task: task.revision,
    identity=lambda connection, exchange_id, revision: (connection, exchange_id, str(revision)),
    size_of=lambda task: len(task.exchange) + sum(map(len, task.earlier_judgements)),
    may_be_known=lambda task: task.revision > 0,
    cap_is_shared=True,
    read=_scoring,
)
EVALUATION = JudgedStage(
    name="evaluation",
    source="evaluation-requests",
    sink="evaluations",
    task_type=EvaluationRequest,
    purposes=frozenset([SIX_DIMENSIONS]),
    queue="evaluations",
    id_of=lambda request: request.evaluation_id,
    revision_of=lambda request: request.attempt,
    identity=lambda _, evaluation_id, attempt: (request_id(evaluation_id, attempt),),
    size_of=lambda request: len(request.user_prompt) + len(request.system_prompt) + sum(map(len, request.earlier_judgements)),
    # Those of a batch are recorded before the request is there.
    may_be_known=lambda _: True,
    cap_is_shared=False,
    read=_evaluation,
)
JUDGED: tuple[JudgedStage[Any], ...] = (SCORING, EVALUATION)
