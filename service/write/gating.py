"""Measuring the answers of a candidate build to frozen cases, with a judge only for what was not judged before.

1. An answer that is the recorded one has the recorded scores. Any other answer is judged as an exchange of the project, by the same cascade.
2. Every call is recorded in a file beside the cases, reservation first, before its answer is used (`JudgementFile`). The same question is
   never asked again, whatever becomes of the process; a call with an unknown outcome is charged in full.
3. All calls of a gate share one cap. Caps of sessions, days and projects are those of a server's database and do not apply.
4. Secrets are removed from the answers before anything else sees them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec
from pydantic import ValidationError

from audit.cost import Ledger, nano_of, usd_of
from audit.evaluation.cases import Answer, CandidateAnswer, Case, FrozenCases
from audit.evaluation.freezing import count_tokens, earlier_turns_of, measure_checks, scores_of
from audit.evaluation.gate import MeasuredAnswer
from audit.exchanges.context import OK, UNANSWERED
from audit.exchanges.outcomes import RULE_VERSION
from audit.exchanges.questions import ANSWERED
from audit.exchanges.states import SCORED
from audit.exchanges.tier1 import check_structure
from audit.fingerprints import digest_of_value
from audit.policy import Policy, ProjectPolicy
from audit.redaction import Redactor
from schemas.bounds import MAX_RECORD_BYTES
from schemas.codec.single_object import encode
from schemas.errors import BoundsError, InputError, SettingsError
from schemas.records import Exchange, Judgement, Reservation, Score, ScoringTask
from schemas.validation_messages import words_of
from service.setup.judge_setup import JUDGE_HINT, LIVE, OpenedJudge, open_judge
from service.setup.settings import Settings
from streams.judging.call_budget import interrupted_judgements
from streams.judging.judged_stages import SCORING
from streams.judging.judging_partition import TaskJudge
from streams.replay.rescoring import Estimate, Estimator
from streams.sources.exchange_builder import (
    DraftCall,
    ExchangeDraft,
    ExchangeSettings,
    RedactedTexts,
    build_exchange,
)

CONNECTION = "gate"
"""The connection of the candidates' exchanges, which are stored nowhere."""
_AT = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of every candidate's exchange, so that the same answer is the same question."""
MAX_LINE = MAX_RECORD_BYTES
_CALLS: Mapping[str, Any] = {"Judgement": Judgement, "Reservation": Reservation}
_MAX_FAULTS = 5
_RESULTS_HINT = (
    "Each line is a JSON object with case_id, agent_response and, if known, tool_calls and tokens; see docs/how-to/ci.md."
)


def read_results(path: Path, frozen: FrozenCases) -> dict[str, CandidateAnswer]:
    """Return the candidate's answers by case. Raises InputError with file and line of each problem, or for a missing answer."""
    answers: dict[str, CandidateAnswer] = {}
    faults: list[str] = []
    case_ids = {case.case_id for case in frozen.cases}
    for number, line in _read_lines(path):
        try:
            answer = CandidateAnswer.model_validate(_decode(line), strict=False)
        except ValidationError as error:
            faults += [
                f"{path}:{number}: {'.'.join(map(str, problem['loc'])) or 'line'}: {words_of(problem)}"
                for problem in error.errors(include_url=False)
            ]
            continue
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
            continue
        if answer.case_id not in case_ids:
            faults.append(f"{path}:{number}: case_id: there is no case {answer.case_id}")
        elif answer.case_id in answers:
            faults.append(f"{path}:{number}: case_id: {answer.case_id} has an answer already")
        else:
            answers[answer.case_id] = answer
    if faults:
        more = [f"… and {len(faults) - _MAX_FAULTS} more"] if len(faults) > _MAX_FAULTS else []
        raise InputError("\n".join([*faults[:_MAX_FAULTS], *more]), hint=_RESULTS_HINT)
    missing = [case.case_id for case in frozen.cases if case.case_id not in answers]
    if missing:
        raise InputError(
            f"{path}: {len(missing)} of {len(case_ids)} cases have no answer, the first is {missing[0]}",
            hint="Run the build on every case. An answer that failed is a line with an empty agent_response.",
        )
    return answers


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
                if len(line) > MAX_LINE:
                    raise InputError(f"{path}:{number}: the line has more than {MAX_LINE} bytes", hint=_RESULTS_HINT)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="Give the file with the candidate's answers.") from error


def _decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("is not JSON") from None


class JudgementFile:
    """The recorded judge calls of gates: JSON lines, appended and synced before an answer is used."""

    def __init__(self, path: Path) -> None:
        """Read the file, if it exists. Raises InputError for a line that is no record of a call."""
        self.path = path
        self._file: IO[bytes] | None = None
        self._pending: list[bytes] = []
        self._synced: asyncio.Future[None] | None = None
        self._judgements: dict[str, list[Judgement]] = defaultdict(list)
        reservations: dict[str, Reservation] = {}
        for number, line in self._read_complete_lines():
            record = _read_call(line, f"{path}:{number}")
            if isinstance(record, Reservation):
                reservations[record.reservation_id] = record
            else:
                self._judgements[record.subject_id].append(record)
                for reservation_id in record.reservation_ids:
                    reservations.pop(reservation_id, None)
        self._unsettled = list(reservations.values())

    async def settle_interrupted(self, now: datetime) -> None:
        """Record the calls of an earlier process whose outcome is unknown, at their full price."""
        for judgement in interrupted_judgements(self._unsettled, now):
            await self.publish(judgement)
        self._unsettled = []

    def answers_about(self, subject_id: str, *, takes_simulated: bool) -> list[Judgement]:
        """Return the recorded answers about a case. They were paid for by an earlier gate, so they cost nothing now."""
        return [
            msgspec.structs.replace(judgement, cost_usd=0.0, subject_revision=0)
            for judgement in self._judgements[subject_id]
            if judgement.outcome == ANSWERED and (takes_simulated or not judgement.simulated)
        ]

    async def publish(self, record: Judgement | Reservation) -> None:
        """Make a record durable; see `streams.judging.call_budget.Publish`. Concurrent records are synced together."""
        fields = {"record": type(record).__name__, **msgspec.to_builtins(record)}
        self._pending.append(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        if self._synced is None:
            loop = asyncio.get_running_loop()
            self._synced = loop.create_future()
            loop.call_soon(self._sync, self._synced)
        await asyncio.shield(self._synced)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _sync(self, synced: asyncio.Future[None]) -> None:
        lines = b"".join(self._pending)
        self._pending = []
        self._synced = None
        try:
            if self._file is None:
                self._file = self.path.open("ab")
            self._file.write(lines)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            hint = "Name a file that can be written with --judgements."
            synced.set_exception(SettingsError(f"{self.path}: {error.strerror}", hint=hint))
        else:
            synced.set_result(None)

    def _read_complete_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines. A last line without its end was being written when a process died; it is cut off."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}", hint="Name another file with --judgements.") from error
        end = data.rfind(b"\n") + 1
        if end < len(data):
            with self.path.open("r+b") as file:
                file.truncate(end)
        yield from enumerate(data[:end].splitlines(), 1)


def _read_call(line: bytes, position: str) -> Judgement | Reservation:
    record: Judgement | Reservation
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        record = msgspec.convert(fields, _CALLS[fields.pop("record")])
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{position}: is no recorded judge call", hint="Delete the file to judge everything again, or name another one."
        ) from error
    return record


@dataclass(frozen=True)
class GateInput:
    """A candidate's answer to a case as an exchange."""

    case: Case
    exchange: Exchange
    is_recorded: bool
    """True if the answer is the recorded one."""
    task: ScoringTask


@dataclass
class Gate:
    """The answers of a candidate build, to be measured under a policy."""

    frozen: FrozenCases
    policy: Policy
    redactor: Redactor
    judgements: JudgementFile
    inputs: list[GateInput] = field(default_factory=list)

    def read(self, answers: Mapping[str, CandidateAnswer]) -> None:
        """Take the candidate's answers. Raises InputError if the policy does not judge as the cases were judged."""
        source = self.frozen.source
        project = self.project
        current = (project.methodology.digest, _rules_of(project))
        if current != (source.methodology_digest, source.rule_version):
            raise InputError(
                f"the cases were judged by methodology {source.methodology_digest} and rules {source.rule_version}, and the policy "
                f"has {current[0]} and {current[1]} for project {source.project}",
                hint="Use the policy of the project with --policy, or freeze the cases again after a rescoring.",
            )
        for case in self.frozen.complete_cases:
            exchange = self._build_exchange(case, answers[case.case_id])
            recorded = case.recorded
            is_recorded = recorded is not None and _is_same(exchange, self._build_exchange(case, recorded))
            self.inputs.append(GateInput(case, exchange, is_recorded, _build_task(case, exchange, project)))

    @property
    def project(self) -> ProjectPolicy:
        """The policy of the project of the cases."""
        return self.policy.for_project(self.frozen.source.project)

    @property
    def is_judged(self) -> bool:
        """True if the cases have levels of a judge."""
        return self.frozen.source.judge_model is not None

    async def estimate(self, *, takes_simulated: bool) -> Estimate:
        """Return the calls that measuring needs, and their cost. No judge is asked."""
        estimator = Estimator(self.policy, batched=False, asks=True)
        for item in self._list_unmeasured():
            recorded = self.judgements.answers_about(item.case.case_id, takes_simulated=takes_simulated)
            await estimator.judge(item.task, recorded, Ledger(None))
        return estimator.result(len(self.inputs))

    def measure(self, scores: Mapping[str, Score]) -> list[MeasuredAnswer]:
        """Return the outcomes of all answers, given the scores of those that were judged."""
        return [self._measure(item, scores.get(item.case.case_id)) for item in self.inputs]

    async def judge(
        self, opened: OpenedJudge, ledger: Ledger, concurrency: int, now: Callable[[], datetime], report: Callable[[int], None]
    ) -> dict[str, Score]:
        """Judge the answers and return their scores by case; without a judge only recorded judgements count."""
        judge = TaskJudge(SCORING, self.policy, opened.judge, self.judgements.publish, now)
        slots = asyncio.Semaphore(concurrency)
        scores: dict[str, Score] = {}

        async def judge_item(item: GateInput) -> None:
            recorded = self.judgements.answers_about(item.case.case_id, takes_simulated=opened.name != LIVE)
            async with slots:
                score = await judge.judge(item.task, recorded, ledger)
            assert isinstance(score, Score)  # noqa: S101 - the record of the scoring stage
            scores[item.case.case_id] = score
            report(len(scores))

        async with asyncio.TaskGroup() as group:
            for item in self._list_unmeasured():
                group.create_task(judge_item(item))
        return scores

    def _list_unmeasured(self) -> list[GateInput]:
        return [item for item in self.inputs if not item.is_recorded] if self.is_judged else []

    def _measure(self, item: GateInput, score: Score | None) -> MeasuredAnswer:
        recorded = item.case.recorded
        assert recorded is not None  # noqa: S101 - a file of frozen cases has it in every case
        scores: Mapping[str, float] = {}
        is_anomalous: bool | None = None
        reasons: Sequence[str] = ()
        if item.is_recorded and self.is_judged:
            scores, is_anomalous = recorded.scores, recorded.anomalous
        elif score is not None and score.tier2_state == SCORED:
            scores, is_anomalous, reasons = scores_of(score), score.anomaly, score.anomaly_reasons
        return MeasuredAnswer(
            case_id=item.case.case_id,
            recorded=recorded,
            checks=measure_checks(item.case, item.exchange, self.project),
            scores=scores,
            is_anomalous=is_anomalous,
            tokens=count_tokens(item.exchange),
            reference_tokens=count_tokens(recorded),
            reasons=reasons,
        )

    def _build_exchange(self, case: Case, answer: Answer) -> Exchange:
        recorded = case.recorded
        draft = ExchangeDraft(
            exchange_id=case.case_id,
            session_id=case.case_id,
            at=_AT,
            question=case.input.messages[-1].content,
            answer=answer.agent_response,
            outcome="answered" if answer.agent_response.strip() else "no_response",
            thinking=answer.agent_thinking,
            agent=recorded.agent if recorded else None,
            turn_number=recorded.turn_number if recorded else 1,
            model=answer.agent_model,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            tool_calls=tuple(
                DraftCall(call.name, call.arguments, call.result, call.outcome or (UNANSWERED if call.result is None else OK))
                for call in answer.tool_calls
            ),
        )
        settings = ExchangeSettings(
            connection=CONNECTION, project=self.frozen.source.project, ingested_at=_AT, redact=self.redactor.redact
        )
        try:
            return build_exchange(draft, settings, _digest_texts)
        except BoundsError as error:
            raise InputError(f"case {case.case_id}: {error}", hint=_RESULTS_HINT) from error


def _digest_texts(texts: RedactedTexts) -> str:
    return digest_of_value(msgspec.to_builtins(texts))


def _is_same(exchange: Exchange, recorded: Exchange) -> bool:
    """Return whether two answers to a case are the same for the judge and the checks."""
    fields = ("agent_response", "agent_thinking", "tool_calls", "omitted_tool_calls")
    return all(getattr(exchange, name) == getattr(recorded, name) for name in fields)


def _rules_of(project: ProjectPolicy) -> str:
    return f"{RULE_VERSION}{'+combined' if project.combines_tiers else ''}"


def _build_task(case: Case, exchange: Exchange, project: ProjectPolicy) -> ScoringTask:
    result = check_structure(exchange.user_message, exchange.agent_response, project.methodology)
    recorded = case.recorded
    return ScoringTask(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=0,
        exchange=encode(exchange),
        turn_number=recorded.turn_number if recorded else 1,
        sampling_reason=recorded.sampling_reason if recorded else "",
        sampling_probability=1.0,
        tier1_score=result.score,
        tier1_flags=result.flags,
        methodology=project.methodology.name,
        rule_version=RULE_VERSION,
        policy_digest=project.digest,
        earlier_turns=earlier_turns_of(case),
    )


def judge_answers(
    gate: Gate, settings: Settings, cap_usd: float, now: Callable[[], datetime], report: Callable[[int], None]
) -> tuple[dict[str, Score], float]:
    """Judge what has no recorded judgement, for at most `cap_usd`; return the scores by case, and the cost in USD.

    Raises SettingsError if there is no judge, unless the settings choose none: then only recorded judgements count. Raises InputError if
    another judge answers than the one behind the cases.
    """
    return asyncio.run(_judge_answers(gate, settings, cap_usd, now, report))


async def _judge_answers(
    gate: Gate, settings: Settings, cap_usd: float, now: Callable[[], datetime], report: Callable[[int], None]
) -> tuple[dict[str, Score], float]:
    opened = await open_judge(settings, gate.policy, os.environ, list_judges(gate.project))
    is_missing = opened.judge is None and settings.judge != "none"
    if is_missing and (await gate.estimate(takes_simulated=opened.name != LIVE)).calls:
        raise SettingsError("there is no judge", hint=f"{JUDGE_HINT} With --judge none only the checks are compared.")
    ledger = Ledger(nano_of(cap_usd))
    try:
        await gate.judgements.settle_interrupted(now())
        scores = await gate.judge(opened, ledger, settings.judge_concurrency, now, report)
    finally:
        gate.judgements.close()
        if opened.judge is not None:
            await opened.judge.aclose()
    _check_judge(gate.frozen, scores.values())
    return scores, usd_of(ledger.spent)


def list_judges(project: ProjectPolicy) -> list[str]:
    """Return the names of the judges of a project's exchanges."""
    return sorted({judge.name for judge in project.judges.values()})


def _check_judge(frozen: FrozenCases, scores: Iterable[Score]) -> None:
    """Raise InputError if a score comes from another judge than the levels of the cases: their scores are not comparable."""
    expected = frozen.source.judge_model
    others = sorted({score.judge_model for score in scores if score.judge_model is not None} - {expected})
    if others:
        raise InputError(
            f"the cases were judged by {expected}, and the candidate by {others[0]}",
            hint="Configure the same judge, or freeze the cases again once it has judged the project for some days.",
        )
