"""Retrying dead letters: which ones can be retried, on which topic and as which record, and how a retry is recorded.

1. A dead letter can be retried only if its bytes are complete and unchanged, as its digest shows. A redacted or truncated record must be
   sent again by its source.
2. A record that no earlier version could read is decoded again, and appended to its original topic.
3. A record on which a stage failed is still on its topic, which accepts it only once. So an exchange is retried as a request to judge it,
   with the next revision, and a request for an evaluation as another attempt. A stage that works on whole sessions needs a rebuild.
4. A review records the retry, so that the dead letter is no longer open. The review's id and the content of the retried record are
   derived from the dead letter, so a second retry changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec

from audit.evaluation.evaluating import next_attempt
from audit.fingerprints import stable_id
from schemas.bounds import MAX_ADMITTED_BYTES
from schemas.codec.single_object import decode, encode, record_from, registry_schema_id
from schemas.contract import check_record
from schemas.errors import RecordError
from schemas.records import RECORD_TYPES, DeadLetter, EvaluationRequest, Exchange, JudgingRequest, Record, Review, ScoringTask
from schemas.registry import MARKER, schema_of, topics
from schemas.validation_messages import decoding_words
from streams.topology import TOPOLOGY

KIND = "dead_letter"
RETRIED = "retried"
RETRY_SAMPLING_REASON = "retried"
"""Sampling reason of a retried exchange on which intake had failed: it is judged regardless of sampling."""
UNRETRYABLE_STAGES = {
    "http": "the server refused it and told its sender",
    "otlp": "the server refused it and told its exporter",
    "import": "the line is not a record",
    "collector": "it is a message of an OpenTelemetry Collector, not a record",
}
"""Stages whose dead letters were never records, and the reasons why they cannot be retried."""
STATE = "state"
"""Stage of the dead letters of invalid values in a state topic."""
NO_STATE = "no_state"
"""Reason of these dead letters."""
UNRETRYABLE_REASONS = {
    "conflicting_id": "the log has its id with other content: give the record its own id and send it again",
    NO_STATE: "it is not a record but a worker's state of a session, which continued without it: there is nothing to retry",
    "removed_by_retention": "the records were removed from the topic before they were read: send them again from their source",
}
"""Reasons of dead letters that cannot be retried, and what to do instead."""
STAGES = frozenset(stage.name for stage in TOPOLOGY)


@dataclass(frozen=True)
class Retry:
    """The retry of a dead letter: the record to append, its bytes, and its topic."""

    dead_letter: DeadLetter
    topic: str
    record: Record
    message: bytes

    def review(self, now: datetime) -> Review:
        """Return the review that records the retry."""
        return Review(
            review_id=stable_id("retried-letter", self.dead_letter.dead_letter_id),
            project=getattr(self.record, "project", ""),
            kind=KIND,
            subject_id=self.dead_letter.dead_letter_id,
            reviewer="dead-letters retry",
            status=RETRIED,
            comment=f"{type(self.record).__name__} onto {self.topic}",
            occurred_at=now,
            ingested_at=now,
        )


@dataclass(frozen=True)
class RetryRefusal:
    """A dead letter that cannot be retried, with the reason and what to do instead."""

    dead_letter: DeadLetter
    reason: str


def is_whole(dead_letter: DeadLetter) -> bool:
    """Return whether the dead letter has its original bytes, neither truncated nor redacted."""
    return hashlib.sha256(dead_letter.body).hexdigest() == dead_letter.digest


def plan_retry(dead_letter: DeadLetter, value: bytes | None = None, *, now: datetime | None = None) -> Retry | RetryRefusal:
    """Return the retry of a dead letter, or the reason why there is none.

    `value` is its body, converted with the help of a schema registry; `now` is the time of the retry.
    """
    value = dead_letter.body if value is None else value
    obstacle = _find_obstacle(dead_letter)
    if obstacle:
        return RetryRefusal(dead_letter, obstacle)
    try:
        record = _decode_record(value)
        check_record(record, now)
        if dead_letter.stage in STAGES:
            return _plan_stage_retry(dead_letter, record)
        message = value if value.startswith(MARKER) else encode(record)
    except RecordError as error:
        return RetryRefusal(dead_letter, f"{error}. {error.hint}".strip())
    if len(message) > MAX_ADMITTED_BYTES:
        return RetryRefusal(
            dead_letter, f"{len(message)} bytes encoded, {MAX_ADMITTED_BYTES} allowed: make the record smaller at its source"
        )
    candidates = schema_of(type(record).__name__).topics
    if dead_letter.source in topics():
        candidates = tuple(topic for topic in candidates if topic == dead_letter.source)
    if len(candidates) != 1:
        return RetryRefusal(
            dead_letter,
            f"no topic accepts a record of the type {type(record).__name__} from {dead_letter.source}: "
            "correct the program that put it there",
        )
    return Retry(dead_letter, candidates[0], record, message)


def _find_obstacle(dead_letter: DeadLetter) -> str:
    """Return the reason why the dead letter holds no record to retry; empty if it may hold one."""
    if dead_letter.reason in UNRETRYABLE_REASONS:
        return UNRETRYABLE_REASONS[dead_letter.reason]
    if dead_letter.stage in UNRETRYABLE_STAGES:
        return f"{UNRETRYABLE_STAGES[dead_letter.stage]}: correct it at its source and send it again"
    if is_whole(dead_letter):
        return ""
    if len(dead_letter.body) < dead_letter.size:
        damage = f"only {len(dead_letter.body)} of {dead_letter.size} bytes were kept"
    else:
        damage = "secrets were removed from its bytes"
    return f"{damage}: {_suggest_source(dead_letter)}"


def _suggest_source(dead_letter: DeadLetter) -> str:
    """Return the advice where to get the record from if the dead letter does not have it."""
    if dead_letter.stage in STAGES:
        return f"the record is on the topic {dead_letter.source}, and `driftline rebuild` processes it again"
    return f"send it again from {dead_letter.source}"


def _decode_record(body: bytes) -> Record:
    """Decode a body: in single-object encoding, or as JSON with the fields of exactly one record type. Raises RecordError otherwise."""
    if body.startswith(MARKER) or registry_schema_id(body) is not None:
        return decode(body)
    try:
        fields = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise RecordError(
            f"the bytes are not a record: {decoding_words(error)}", hint="Correct them at the source and send them again."
        ) from error
    types = [record_type for record_type in RECORD_TYPES.values() if set(fields) == set(record_type.__struct_fields__)]
    if len(types) != 1:
        raise RecordError(
            "the fields are those of no record type of this version", hint="Send the record again from its source."
        )
    return record_from(types[0], fields)


def _plan_stage_retry(dead_letter: DeadLetter, record: Record) -> Retry | RetryRefusal:
    """Return the request to repeat a stage's work on a record. Records without such a request need a rebuild."""
    build_request = _REQUESTS.get(type(record))
    if build_request is None:
        reason = f"stage {dead_letter.stage} works on whole sessions: {_suggest_source(dead_letter)}"
        return RetryRefusal(dead_letter, reason)
    request = build_request(record, dead_letter.rejected_at)
    (topic,) = schema_of(type(request).__name__).topics
    return Retry(dead_letter, topic, request, encode(request))


def _judge_exchange(record: Exchange, at: datetime) -> JudgingRequest:
    return JudgingRequest(
        connection=record.connection,
        project=record.project,
        session_id=record.session_id,
        exchange_id=record.exchange_id,
        revision=1,
        exchange=encode(record),
        turn_number=record.turn_number or 0,
        sampling_reason=RETRY_SAMPLING_REASON,
        sampling_probability=1.0,
        ingested_at=at,
    )


def repeat_task(record: ScoringTask, at: datetime) -> JudgingRequest:
    """Return the request for the next revision of a task's score."""
    return JudgingRequest(
        connection=record.connection,
        project=record.project,
        session_id=record.session_id,
        exchange_id=record.exchange_id,
        revision=record.revision + 1,
        exchange=record.exchange,
        turn_number=record.turn_number,
        sampling_reason=record.sampling_reason,
        sampling_probability=record.sampling_probability,
        ingested_at=at,
        earlier_judgements=record.earlier_judgements,
        earlier_turns=record.earlier_turns,
    )


def _repeat_request(record: JudgingRequest, at: datetime) -> JudgingRequest:
    return msgspec.structs.replace(record, revision=record.revision + 1, ingested_at=at)


def _repeat_evaluation(record: EvaluationRequest, at: datetime) -> EvaluationRequest:
    attempt = next_attempt(record, record.attempt + 1, ())
    return msgspec.structs.replace(attempt, requested_at=at, earlier_judgements=record.earlier_judgements)


_REQUESTS: dict[type[Record], Callable[..., Record]] = {
    Exchange: _judge_exchange,
    ScoringTask: repeat_task,
    JudgingRequest: _repeat_request,
    EvaluationRequest: _repeat_evaluation,
}
"""Builds the request that repeats a failed stage's work, by record type. Its time is that of the dead letter, so that it never differs."""
