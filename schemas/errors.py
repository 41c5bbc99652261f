"""The hierarchy of expected errors. Each describes the problem, and its hint says what to do."""

from __future__ import annotations


class DriftlineError(Exception):
    """An error that a user can understand and correct.

    `hint` says what to do; `str(error)` describes the problem on one line.
    """

    hint: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class InputError(DriftlineError):
    """Input that breaks the contract. The message names the field and its location."""


class RecordError(InputError):
    """A record that cannot be decoded or breaks its contract. It becomes a dead letter with its bytes."""

    code = "record"


class FramingError(RecordError):
    """The bytes do not start with the marker of Avro's single-object encoding."""

    code = "framing"
    hint = "Produce values as C3 01, the 8-byte little-endian CRC-64-AVRO fingerprint, then the Avro body."


class RegistryFramingError(FramingError):
    """The bytes are framed for a schema registry and could not be converted."""

    code = "registry_framing"
    hint = "Set DRIFTLINE_SCHEMA_REGISTRY, and register a published schema of the record, or one that it can read."


class UnknownSchemaError(RecordError):
    """The fingerprint belongs to no schema of this version."""

    code = "unknown_schema"
    hint = "Upgrade Driftline, or check that the producer uses a published schema."


class MalformedBodyError(RecordError):
    """The body is too short, too long or does not match its schema."""

    code = "malformed_body"
    hint = "The bytes were damaged or written with another schema. The dead letter has them."


class BoundsError(RecordError):
    """A value of a record is out of bounds."""

    code = "bounds"
    hint = "Correct the value at the source and send the record again."


class UnexpectedTypeError(RecordError):
    """A record on a topic that is not for its type."""

    code = "unexpected_type"
    hint = "Produce the record to a topic of its type; its schema names them under topics."


class WrongKeyError(RecordError):
    """A record of a session with a key other than the session's, so possibly on another partition."""

    code = "wrong_key"
    hint = (
        "Produce it with the key connection/session_id, which decides the partition; the dead letter can be put back as it is."
    )


class WrongPartitionError(RecordError):
    """A record of a session on a partition other than that of the session's key."""

    code = "wrong_partition"
    hint = "Produce it with the partitioner murmur2, with librdkafka partitioner=murmur2_random; the dead letter can be put back as it is."


class SchemaError(DriftlineError):
    """A schema file breaks a rule of this project."""


class SettingsError(DriftlineError):
    """A setting is missing or invalid."""


class PolicyError(InputError):
    """An invalid settings file (policy, methodology, test case, profile). The message names file and line."""


class StoreError(DriftlineError):
    """The DuckDB file cannot be used."""


class LakeError(DriftlineError):
    """A table of the lake cannot be read or written. The message names the table's address."""


class StoredRecordError(DriftlineError):
    """A stored record cannot be read, because of damage or a bug, not because of the caller."""


class QueryError(DriftlineError):
    """A query that cannot be answered."""


class BusyError(DriftlineError):
    """The server is overloaded, and nothing was written."""

    hint = "Try again later."


class BrokerError(DriftlineError):
    """A request to Kafka failed. The message names the topic."""

    hint = "Check that the brokers run, are reachable and have the topics; then send the refused records again."


def first_line(error: BaseException | None) -> str:
    """Return the first line of an error's message, because DuckDB adds a stack trace to some."""
    return str(error).partition("\n")[0]
