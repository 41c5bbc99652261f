"""Dead letters for the command line: selected by filter or id, and retried."""

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
from service.text.formats import counted, plain
from streams.kafka.connection import KafkaConnection
from streams.log.admission import encode_all
from streams.log.dead_letters import Return, Stays, way_back
from streams.log.log import is_fed_by_kafka

if TYPE_CHECKING:
    from streams.kafka.schema_registry import RegistryFraming

READ_BATCH_SIZE = 200
"""Number of letters read and put back in one step."""
ALL = 1_000_000_000
FROM_KAFKA = "Letters that are put back into the file would not be on the topics. Give --kafka to put them back on the topics."


@dataclass(frozen=True)
class Found:
    """A dead letter, and the time of its retry, if any."""

    letter: DeadLetter
    retried_at: datetime | None


@dataclass(frozen=True)
class Filters:
    """Filters of dead letters; None is no bound."""

    stage: str | None = None
    reason: str | None = None
    source: str | None = None
    since: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filters match all letters."""
        return self == Filters()


@dataclass(frozen=True)
class LetterBox:
    """The source of the dead letters: a database, or the topics of a cluster."""

    store: Store
    """The store with the dead letters and their reviews; for a cluster, a copy in memory."""
    workspace: Workspace | None = None
    connection: KafkaConnection | None = None
    framing: RegistryFraming | None = None
    """Reads values that are framed for a schema registry, if one is named."""

    def put_back(self, returns: Sequence[Return]) -> None:
        """Put records back on their topics and record that; durable on return.

        Raises BrokerError if the broker refuses them.
        """
        now = utc_now()
        if self.connection is not None:
            asyncio.run(_produce(self.connection, returns, now))
        elif self.workspace is not None:
            accepted = encode_all([("reviews", letter.review(now)) for letter in returns])
            for letter in returns:
                accepted.add(letter.topic, letter.message)
            self.workspace.runner.publish(accepted)

    def ways_back(self, letters: Sequence[DeadLetter]) -> list[Return | Stays]:
        """Yield for each letter how it can be put back, or the obstacle.

        Raises RegistryUnavailableError if a schema cannot be read.
        """
        values: Sequence[bytes] = [letter.body for letter in letters]
        if self.framing is not None:
            values = asyncio.run(self.framing.reframe(values))
        now = utc_now()
        return [way_back(letter, value, now=now) for letter, value in zip(letters, values, strict=True)]

    def let_stages_run(self) -> None:
        """Run the stages of a database over the retried records, without a judge; on a cluster, workers do that."""
        if self.workspace is not None:
            self.workspace.runner.run()


@contextlib.contextmanager
def letter_box(settings: Settings) -> Iterator[LetterBox]:
    """Open the dead letters of the cluster if one is named, otherwise those of the database."""
    if settings.kafka is not None:
        from streams.kafka.dead_letters import keep_letters  # noqa: PLC0415 - Kafka's client is loaded where there is Kafka

        connection = connection_of(settings)
        with Store(None) as store:
            asyncio.run(keep_letters(connection, store))
            yield LetterBox(store, connection=connection, framing=framing_of(settings))
        return
    with contextlib.ExitStack() as stack:
        workspace = stack.enter_context(open_workspace(settings))
        yield LetterBox(workspace.store, workspace)


def letter_of(store: Store, start: str) -> Found:
    """Return the one letter whose id starts with this text. Raises InputError if no letter or several letters match."""
    matches = _records(store, [start]) if start else []
    exact = [match for match in matches if match.letter.dead_letter_id == start] or matches
    if not exact:
        raise InputError(f"there is no dead letter {plain(start, 64)!r}", hint="`driftline dead-letters list` lists them.")
    if len(exact) > 1:
        named = ", ".join(match.letter.dead_letter_id for match in exact[:3])
        raise InputError(
            f"{counted(len(exact), 'dead letter')} start with {plain(start, 64)!r}: {named}", hint="Give more of the id."
        )
    return exact[0]


def ids_to_retry(store: Store, starts: Sequence[str], filters: Filters, limit: int) -> tuple[list[str], list[str]]:
    """Return the ids of the open letters that are named or match, oldest first, and the named letters already retried."""
    if not starts:
        letters = open_letters(store.cursor(), vars(filters), ALL)
        return [letter.id for letter in reversed(letters)][:limit], []
    named = {stored.letter.dead_letter_id: stored for stored in (letter_of(store, start) for start in starts)}
    done = [name for name, stored in named.items() if stored.retried_at is not None]
    return [name for name in named if name not in done][:limit], done


@dataclass(frozen=True)
class Outcome:
    """The outcome of a retry."""

    returned: list[Return]
    stays: list[Stays]
    again: int
    """New open letters after the retry: records that failed again."""


def retry(box: LetterBox, ids: Sequence[str]) -> Outcome:
    """Retry the letters that can be put back, a few hundred at a time.

    Raises SettingsError for a database that is filled from Kafka.
    """
    if box.workspace is not None and is_fed_by_kafka(box.store):
        raise SettingsError(f"{box.store.path} is filled from Kafka", hint=FROM_KAFKA)
    before = _open_ids(box.store)
    returned, stays = list[Return](), list[Stays]()
    for start in range(0, len(ids), READ_BATCH_SIZE):
        ways = box.ways_back([stored.letter for stored in _records(box.store, ids[start : start + READ_BATCH_SIZE])])
        going = [way for way in ways if isinstance(way, Return)]
        if going:
            box.put_back(going)
        returned += going
        stays += [way for way in ways if isinstance(way, Stays)]
    if returned:
        box.let_stages_run()
    return Outcome(returned, stays, len(_open_ids(box.store) - before))


async def _produce(connection: KafkaConnection, returns: Sequence[Return], now: datetime) -> None:
    from streams.kafka.dead_letters import put_back  # noqa: PLC0415 - as above
    from streams.kafka.producing import RecordProducer  # noqa: PLC0415 - as above

    producer = RecordProducer(connection)
    await producer.start()
    try:
        await put_back(producer, returns, now)
    finally:
        await producer.stop()


def _records(store: Store, starts: Sequence[str]) -> list[Found]:
    rows = query_rows(store.cursor(), "letter_records", {"starts": list(starts)})
    return [
        Found(record_from(DeadLetter, {name: row[name] for name in DeadLetter.__struct_fields__}), row["retried_at"])
        for row in rows
    ]


def _open_ids(store: Store) -> set[str]:
    return {letter.id for letter in open_letters(store.cursor(), EVERY, ALL)}
