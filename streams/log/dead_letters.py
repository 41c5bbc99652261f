"""Dead letters on their way back: which can go, onto what topic and as what record, and how that is remembered.

1. Only bytes that are whole and as they came go back: their digest says so. What was redacted or cut is brought again by its source.
2. A record that no version could read so far is decoded again, and goes onto the topic that it was found on.
3. A record that a stage could not get over is still on its topic, which takes it only once. An exchange goes on as a request to
   judge it, with the next revision, and a request for an evaluation as another attempt; a stage that makes its results of whole
   sessions is run again by a rebuild.
4. That a letter went back is a record itself, so that it is open no more. Its id comes from the letter, and so does all that the
   record says that goes back: going back twice is going back once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec

from audit.evaluation.evaluating import asked_again
from audit.fingerprints import stable_id
from schemas.bounds.contract import check_record
from schemas.bounds.limits import MAX_ADMITTED_BYTES
from schemas.bounds.validation_messages import decoding_words
from schemas.codec.single_object import decode, encode, record_from, registry_schema_id
from schemas.errors import RecordError
from schemas.records import RECORD_TYPES, DeadLetter, EvaluationRequest, Exchange, JudgingRequest, Record, Review, ScoringTask
from schemas.registry import MARKER, schema_of, topics
from streams.topology import TOPOLOGY

KIND = "dead_letter"
RETRIED = "retried"
SAMPLED = "retried"
"""Why an exchange is sampled that intake could not get over: a person put it back, whatever sampling would have said."""
BROUGHT = {
    "http": "its sender was told that it was refused",
    "otlp": "its exporter was told that it was refused",
    "import": "the line is no record",
    "collector": "it is what an OpenTelemetry Collector sent",
}
"""Who sets aside what never was a record, and why it cannot go back."""
STATE, NO_STATE = "state", "no_state"
"""Stage and reason of the letters of what stood in a state topic and is no state."""
NEVER = {
    "conflicting_id": "the log holds its id with other content: give the record an id of its own and deliver it again",
    NO_STATE: "it is no record but what a worker keeps of a session, which went on without it: there is nothing to put back",
    "removed_by_retention": "the topic had removed the records before they were read: bring them again from where they came",
}
"""Reasons for which nothing can go back, and what to do."""
STAGES = frozenset(stage.name for stage in TOPOLOGY)


@dataclass(frozen=True)
class Return:
    """A letter that can go back: the record, its bytes, and the topic it goes onto."""

    letter: DeadLetter
    topic: str
    record: Record
    message: bytes

    def review(self, now: datetime) -> Review:
        """The record that says it went back."""
        return Review(
            review_id=stable_id("retried-letter", self.letter.dead_letter_id),
            project=getattr(self.record, "project", ""),
            kind=KIND,
            subject_id=self.letter.dead_letter_id,
            reviewer="dead-letters retry",
            status=RETRIED,
            comment=f"{type(self.record).__name__} onto {self.topic}",
            occurred_at=now,
            ingested_at=now,
        )


@dataclass(frozen=True)
class Stays:
    """A letter that cannot go back, and why, with what to do instead."""

    letter: DeadLetter
    reason: str


def is_whole(letter: DeadLetter) -> bool:
    """Whether the letter has its bytes as they came: none cut off, none redacted."""
    return hashlib.sha256(letter.body).hexdigest() == letter.digest


def way_back(letter: DeadLetter, value: bytes | None = None, *, now: datetime | None = None) -> Return | Stays:
    """How a letter can go back, or why it cannot.

    `value` is its body where a schema registry has told how that is read; `now` is when it would come on its topic again.
    """
    value = letter.body if value is None else value
    if why := _is_no_record(letter):
        return Stays(letter, why)
    try:
        record = _record_of(value)
        check_record(record, now)
        if letter.stage in STAGES:
            return _past_the_stage(letter, record)
        message = value if value.startswith(MARKER) else encode(record)
    except RecordError as error:
        return Stays(letter, f"{error}. {error.hint}".strip())
    if len(message) > MAX_ADMITTED_BYTES:
        return Stays(
            letter, f"{len(message)} bytes encoded, {MAX_ADMITTED_BYTES} allowed: make the record smaller at its source"
        )
    travels = schema_of(type(record).__name__).topics
    if letter.source in topics():
        travels = tuple(topic for topic in travels if topic == letter.source)
    if len(travels) != 1:
        return Stays(
            letter, f"no topic takes a record of the type {type(record).__name__} from {letter.source}: mend what put it there"
        )
    return Return(letter, travels[0], record, message)


def _is_no_record(letter: DeadLetter) -> str:
    """Why there is no record to put back, in words; nothing where there may be one."""
    if letter.reason in NEVER:
        return NEVER[letter.reason]
    if letter.stage in BROUGHT:
        return f"{BROUGHT[letter.stage]}: mend it there and bring it again"
    if is_whole(letter):
        return ""
    cut = f"only {len(letter.body)} of {letter.size} bytes were kept" if len(letter.body) < letter.size else ""
    return f"{cut or 'its bytes are not those that came, because secrets were taken out of them'}: {_elsewhere(letter)}"


def _elsewhere(letter: DeadLetter) -> str:
    """Where the record is to be had from when the letter does not have it."""
    if letter.stage in STAGES:
        return f"the record is on the topic {letter.source}, and `driftline rebuild` takes it up again"
    return f"bring it again from {letter.source}"


def _record_of(body: bytes) -> Record:
    """The record in a body: single-object encoding, or a record as JSON, of the type that has these fields. RecordError."""
    if body.startswith(MARKER) or registry_schema_id(body) is not None:
        return decode(body)
    try:
        fields = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise RecordError(
            f"the bytes are no record: {decoding_words(error)}", hint="Mend them at the source and bring them again."
        ) from error
    types = [record_type for record_type in RECORD_TYPES.values() if set(fields) == set(record_type.__struct_fields__)]
    if len(types) != 1:
        raise RecordError("the bytes are of no record type of this version", hint="Bring the record again from its source.")
    return record_from(types[0], fields)


def _past_the_stage(letter: DeadLetter, record: Record) -> Return | Stays:
    """What asks for the same once more, on its topic; other records are waiting on theirs for a rebuild."""
    ask = _REQUESTS.get(type(record))
    if ask is None:
        return Stays(letter, f"stage {letter.stage} makes its results of whole sessions: {_elsewhere(letter)}")
    request = ask(record, letter.rejected_at)
    (topic,) = schema_of(type(request).__name__).topics
    return Return(letter, topic, request, encode(request))


def _of_exchange(record: Exchange, at: datetime) -> JudgingRequest:
    return JudgingRequest(
        connection=record.connection,
        project=record.project,
        session_id=record.session_id,
        exchange_id=record.exchange_id,
        revision=1,
        exchange=encode(record),
        turn_number=record.turn_number or 0,
        sampling_reason=SAMPLED,
        sampling_probability=1.0,
        ingested_at=at,
    )


def _of_task(record: ScoringTask, at: datetime) -> JudgingRequest:
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
    )


def _of_request(record: JudgingRequest, at: datetime) -> JudgingRequest:
    return msgspec.structs.replace(record, revision=record.revision + 1, ingested_at=at)


def _of_evaluation(record: EvaluationRequest, at: datetime) -> EvaluationRequest:
    again = asked_again(record, record.attempt + 1, ())
    return msgspec.structs.replace(again, requested_at=at, earlier_judgements=record.earlier_judgements)


_REQUESTS: dict[type[Record], Callable[..., Record]] = {
    Exchange: _of_exchange,
    ScoringTask: _of_task,
    JudgingRequest: _of_request,
    EvaluationRequest: _of_evaluation,
}
"""The request that takes each type of record past the stage that failed on it. Its time is the letter's, so that it is always the same."""
