"""Dead letters for the command line: selecting them by filter or id, and retrying them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from analytics.queries import query_rows
from analytics.store.store import Store
from schemas.codec.single_object import record_from
from schemas.errors import InputError, SettingsError
from schemas.records import DeadLetter
from service.read.installation import EVERY, open_letters
from service.setup.kafka import connection_of, framing_of
from service.setup.settings import Settings
from service.setup.workspace import Workspace, open_workspace, utc_now
from service.text.formats import plain
from streams.kafka.connection import KafkaConnection
from streams.log.admission import encode_all
from streams.log.dead_letters import Retry, RetryRefusal, plan_retry
from streams.log.log import is_fed_by_kafka

if TYPE_CHECKING:
    from streams.kafka.schema_registry import RegistryFraming

READ_BATCH_SIZE = 200
"""Number of dead letters that are read and retried in one step."""
NO_LIMIT = 1_000_000_000
USE_KAFKA_HINT = (
    "Records that are retried in the file would be missing on the topics. Give --kafka to retry them on the topics."
)


@dataclass(frozen=True)
class StoredDeadLetter:
    """A dead letter with the time of its retry, if any."""

    letter: DeadLetter
    retried_at: datetime | None


@dataclass(frozen=True)
class Filters:
    """Filters of dead letters; None matches all."""

    stage: str | None = None
    reason: str | None = None
    source: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filters match all dead letters."""
        return self == Filters()


@dataclass(frozen=True)
class DeadLetterSource:
    """The source of the dead letters: a database, or the topics of a cluster."""

    store: Store
    """The store with the dead letters and their reviews; for a cluster, a copy in memory."""
    workspace: Workspace | None = None
    connection: KafkaConnection | None = None
    framing: RegistryFraming | None = None
    """Reads values that are framed for a schema registry, if one is configured."""

    def republish(self, retries: Sequence[Retry]) -> None:
        """Publish the records again to their topics, and record the retries. Both are durable on return.

        Raises BrokerError if the broker rejects them.
        """
        now = utc_now()
        if self.connection is not None:
            asyncio.run(_produce(self.connection, retries, now))
        elif self.workspace is not None:
            accepted = encode_all([("reviews", retry.review(now)) for retry in retries])
            for retry in retries:
                accepted.add(retry.topic, retry.message)
            self.workspace.runner.publish(accepted)

    def plan_retries(self, letters: Sequence[DeadLetter]) -> list[Retry | RetryRefusal]:
        """Return for each dead letter the record to publish again, or the obstacle.

        Raises RegistryUnavailableError if a schema cannot be read.
        """
        values: Sequence[bytes] = [letter.body for letter in letters]
        if self.framing is not None:
            values = asyncio.run(self.framing.reframe(values))
        now = utc_now()
        return [plan_retry(letter, value, now=now) for letter, value in zip(letters, values, strict=True)]

    def run_stages(self) -> None:
        """Run the stages of a database over the retried records, without a judge. On a cluster, workers run the stages."""
        if self.workspace is not None:
            self.workspace.runner.run()


@contextlib.contextmanager
def open_dead_letters(settings: Settings) -> Iterator[DeadLetterSource]:
    """Open the dead letters of the cluster if one is configured, otherwise those of the database."""
    if settings.kafka is not None:
        from streams.kafka.dead_letters import copy_dead_letters  # noqa: PLC0415 - Kafka's client is loaded only if it is used

        connection = connection_of(settings)
        with Store(None) as store:
            asyncio.run(copy_dead_letters(connection, store))
            yield DeadLetterSource(store, connection=connection, framing=framing_of(settings))
        return
    with open_workspace(settings) as workspace:
        yield DeadLetterSource(workspace.store, workspace)


def find_dead_letter(store: Store, start: str) -> StoredDeadLetter:
    """Return the only dead letter whose id begins with this text. Raises InputError if there is none, or several."""
    matches = _read_letters(store, [start]) if start else []
    for match in matches:
        if match.letter.dead_letter_id == start:
            return match
    if not matches:
        raise InputError(f"there is no dead letter {plain(start, 64)!r}", hint="`driftline dead-letters list` lists them.")
    if len(matches) > 1:
        ids = ", ".join(match.letter.dead_letter_id for match in matches[:3])
        raise InputError(
            f"the ids of {len(matches)} dead letters begin with {plain(start, 64)!r}: {ids}", hint="Give more of the id."
        )
    return matches[0]


def select_for_retry(store: Store, starts: Sequence[str], filters: Filters, limit: int) -> tuple[list[str], list[str]]:
    """Return the ids of the open dead letters that are named or match, oldest first, and the named ones already retried."""
    if not starts:
        letters = open_letters(store.cursor(), vars(filters), NO_LIMIT)
        return [letter.id for letter in reversed(letters)][:limit], []
    to_retry: dict[str, None] = {}
    retried: dict[str, None] = {}
    for start in starts:
        stored = find_dead_letter(store, start)
        ids = to_retry if stored.retried_at is None else retried
        ids[stored.letter.dead_letter_id] = None
    return list(to_retry)[:limit], list(retried)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a retry."""

    returned: list[Retry]
    stays: list[RetryRefusal]
    rejected_again: int
    """Number of new dead letters after the retry."""


def retry(box: DeadLetterSource, ids: Sequence[str]) -> Outcome:
    """Retry the dead letters that can be retried, in batches.

    Raises SettingsError for a database that is filled from Kafka.
    """
    if box.workspace is not None and is_fed_by_kafka(box.store):
        raise SettingsError(f"{box.store.path} is filled from Kafka", hint=USE_KAFKA_HINT)
    open_before = _open_ids(box.store)
    returned: list[Retry] = []
    stays: list[RetryRefusal] = []
    for start in range(0, len(ids), READ_BATCH_SIZE):
        batch = _read_letters(box.store, ids[start : start + READ_BATCH_SIZE])
        plans = box.plan_retries([stored.letter for stored in batch])
        returns = [plan for plan in plans if isinstance(plan, Retry)]
        if returns:
            box.republish(returns)
        returned += returns
        stays += [plan for plan in plans if isinstance(plan, RetryRefusal)]
    if returned:
        box.run_stages()
    return Outcome(returned, stays, len(_open_ids(box.store) - open_before))


async def _produce(connection: KafkaConnection, retries: Sequence[Retry], now: datetime) -> None:
    from streams.kafka.dead_letters import produce_retries  # noqa: PLC0415 - as above
    from streams.kafka.encryption import open_encryption  # noqa: PLC0415 - as above
    from streams.kafka.producing import RecordProducer  # noqa: PLC0415 - as above

    async with open_encryption(connection) as encryption:
        producer = RecordProducer(connection, encryption=encryption)
        await producer.start()
        try:
            await produce_retries(producer, retries, now)
        finally:
            await producer.stop()


def _read_letters(store: Store, starts: Sequence[str]) -> list[StoredDeadLetter]:
    """Return the dead letters whose ids begin with these texts."""
    letters = []
    for row in query_rows(store.cursor(), "letter_records", {"starts": list(starts)}):
        fields = {name: row[name] for name in DeadLetter.__struct_fields__}
        letters.append(StoredDeadLetter(record_from(DeadLetter, fields), row["retried_at"]))
    return letters


def _open_ids(store: Store) -> set[str]:
    return {letter.id for letter in open_letters(store.cursor(), EVERY, NO_LIMIT)}
