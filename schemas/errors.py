"""The one tree of expected errors. Each says what is wrong and carries a hint that says what to do."""

from __future__ import annotations


class DriftlineError(Exception):
    """An error that a user can understand and correct.

    `hint` says what to do about it; `str(error)` is what went wrong, on one line.
    """

    hint: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class InputError(DriftlineError):
    """Input that does not keep the contract; the message names the field and the place."""


class RecordError(InputError):
    """A record that cannot be decoded or breaks its contract; goes to dead-letters with its bytes."""

    code = "record"


class FramingError(RecordError):
    """The bytes do not start with the marker of Avro's single-object encoding."""

    code = "framing"
    hint = "Produce values as C3 01, the 8-byte little-endian CRC-64-AVRO fingerprint, then the Avro body."


class RegistryFramingError(FramingError):
    """The bytes are framed for a schema registry, and were not brought into our framing."""

    code = "registry_framing"
    hint = "Set DRIFTLINE_SCHEMA_REGISTRY, and register a published schema of the record, or one that it can read."


class UnknownSchemaError(RecordError):
    """The fingerprint is of no schema this version knows."""

    code = "unknown_schema"
    hint = "Upgrade Driftline, or check that the producer uses a published schema."


class MalformedBodyError(RecordError):
    """The body is truncated, over-long or not of its schema."""

    code = "malformed_body"
    hint = "The bytes were damaged or written with another schema; the dead letter keeps them."


class BoundsError(RecordError):
    """A value lies outside what a record may hold."""

    code = "bounds"
    hint = "Correct the value at the source and send the record again."


class UnexpectedTypeError(RecordError):
    """A record of a type that does not travel on the topic it came on."""

    code = "unexpected_type"
    hint = "Produce the record to a topic of its type; its schema names them under topics."


class WrongKeyError(RecordError):
    """A record of a session that came under another key than the session's, so perhaps on another partition."""

    code = "wrong_key"
    hint = (
        "Produce it with the key connection/session_id, which decides the partition; the dead letter can be put back as it is."
    )


class WrongPartitionError(RecordError):
    """A record of a session that came on another partition than the one of the session's key."""

    code = "wrong_partition"
    hint = "Produce it with the partitioner murmur2, with librdkafka partitioner=murmur2_random; the dead letter can be put back as it is."


class SchemaError(DriftlineError):
    """A schema file breaks a rule of this project."""


class SettingsError(DriftlineError):
    """A setting is missing or cannot be used."""


class PolicyError(InputError):
    """A file of settings (policy, methodology, test case, profile) that cannot be used; the message names file and line."""


class StoreError(DriftlineError):
    """The DuckDB file cannot be used."""


class StoredRecordError(DriftlineError):
    """A record that was stored cannot be read: damage, or a fault of ours, but not the caller's."""


class QueryError(DriftlineError):
    """A query that cannot be answered."""


class BusyError(DriftlineError):
    """Overloaded: nothing was written."""

    hint = "Try again later."


class BrokerError(DriftlineError):
    """Kafka did not take or give what was asked of it; the message names the topic."""

    hint = "Check that the brokers run, are reachable and have the topics; then send the refused records again."


def first_line(error: BaseException | None) -> str:
    """Return the first line of what an error says: DuckDB adds a stack trace to some."""
    return str(error).partition("\n")[0]
