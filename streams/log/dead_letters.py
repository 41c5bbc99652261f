"""Putting dead letters back: which ones can be put back, onto which topic and as which record, and how that is recorded.

1. A dead letter is put back only if its bytes are complete and unchanged, as its digest shows. A redacted or truncated record must be
   sent again by its source.
2. A record that no version could read so far is decoded again, and put back onto its original topic.
3. A record that a stage failed on is still on its topic, which accepts it only once. An exchange is put back as a request to judge it,
   with the next revision, and a request for an evaluation as another attempt. A stage that makes its results from whole sessions is
   rerun by a rebuild.
4. Putting a dead letter back is recorded, so that it is no longer open. The id of this record and the whole content of the one put back
   are derived from the dead letter, so putting it back twice has the same effect as once.
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
SAMPLED = "retried"
"""Sampling reason of an exchange that intake failed on and that a person put back, whatever sampling would have decided."""
BROUGHT = {
    "http": "its sender was told that it was refused",
    "otlp": "its exporter was told that it was refused",
    "import": "the line is no record",
    "collector": "it is what an OpenTelemetry Collector sent",
}
"""Stages whose dead letters were never records, and the reasons why they cannot be put back."""
STATE, NO_STATE = "state", "no_state"
"""Stage and reason of the dead letters of invalid values in a state topic."""
NEVER = {
    "conflicting_id": "the log holds its id with other content: give the record an id of its own and deliver it again",
    NO_STATE: "it is no record but what a worker keeps of a session, which went on without it: there is nothing to put back",
    "removed_by_retention": "the topic had removed the records before they were read: bring them again from where they came",
}
"""Reasons of dead letters that cannot be put back, and what to do instead."""
STAGES = frozenset(stage.name for stage in TOPOLOGY)


@dataclass(frozen=True)
class Return:
    """A dead letter that can be put back: the record, its bytes, and its topic."""

    letter: DeadLetter
    topic: str
    record: Record
    message: bytes

    def review(self, now: datetime) -> Review:
        """Return the review that records that the dead letter was put back."""
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
    """A dead letter that cannot be put back, with the reason and what to do instead."""

    letter: DeadLetter
    reason: str


def is_whole(letter: DeadLetter) -> bool:
    """Return whether the dead letter has its original bytes, neither truncated nor redacted."""
    return hashlib.sha256(letter.body).hexdigest() == letter.digest


def way_back(letter: DeadLetter, value: bytes | None = None, *, now: datetime | None = None) -> Return | Stays:
    """Return how a dead letter can be put back, or why it cannot.

    `value` is its body reframed with the help of a schema registry; `now` is the time when it would be on its topic again.
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
    """Return the reason why there is no record to put back; empty if there may be one."""
    if letter.reason in NEVER:
        return NEVER[letter.reason]
    if letter.stage in BROUGHT:
        return f"{BROUGHT[letter.stage]}: mend it there and bring it again"
    if is_whole(letter):
        return ""
    cut = f"only {len(letter.body)} of {letter.size} bytes were kept" if len(letter.body) < letter.size else ""
    return f"{cut or 'its bytes are not those that came, because secrets were taken out of them'}: {_elsewhere(letter)}"


def _elsewhere(letter: DeadLetter) -> str:
    """Return where else to get the record if the dead letter does not have it."""
    if letter.stage in STAGES:
        return f"the record is on the topic {letter.source}, and `driftline rebuild` takes it up again"
    return f"bring it again from {letter.source}"


def _record_of(body: bytes) -> Record:
    """Return the record in a body: in single-object encoding, or as JSON with the fields of exactly one record type. Raises RecordError otherwise."""
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
    """Return the request for the same work once more, on its topic; records of other types wait on theirs for a rebuild."""
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
    again = next_attempt(record, record.attempt + 1, ())
    return msgspec.structs.replace(again, requested_at=at, earlier_judgements=record.earlier_judgements)


_REQUESTS: dict[type[Record], Callable[..., Record]] = {
    Exchange: _of_exchange,
    ScoringTask: _of_task,
    JudgingRequest: _of_request,
    EvaluationRequest: _of_evaluation,
}
"""The request that repeats the failed stage's work, by record type. It has the time of the dead letter, so that it is always the same."""
