"""Wiring: the one place where settings become a store, a policy, a redactor and a runner."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from analytics.store.connection import IN_USE
from analytics.store.store import Appended, Store
from audit.policy.policy import Policy, load_policy
from audit.redaction.redactor import DEFAULT_KEY, Redactor
from schemas.errors import SettingsError, StoreError
from schemas.records import ImportProgress
from service.remote.server_link import ServerLink
from service.settings import Settings
from streams.engine.embedded import EmbeddedRunner, stage_progress
from streams.log.admission import Accepted
from streams.log.ownership import is_fed_by_kafka, log_folder, require_embedded
from streams.log.store_log import Log, StoreLog
from streams.topology import TOPOLOGY

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The present, UTC. Everything below the service gets the time handed in."""
    return datetime.now(UTC)


class Runner(Protocol):
    """Takes records in and has the stages read them: in this process, or in a server that has the database."""

    def publish(self, accepted: Accepted, progress: Sequence[ImportProgress] = ()) -> Mapping[str, Appended]:
        """Publish accepted records, durable on return, and note the import's progress."""
        ...

    def run(self) -> object:
        """Return when the stages have read what is there."""
        ...


@dataclass(frozen=True)
class Workspace:
    """What a command works with."""

    settings: Settings
    store: Store
    policy: Policy
    redactor: Redactor
    runner: Runner
    log: Log
    """Takes records that no stage reads."""
    now: Clock
    server: ServerLink | None = None
    """The server that has the database; None where this process has it."""


def policy_of(settings: Settings) -> Policy:
    """The policy in force; PolicyError naming file and line when it cannot be used."""
    return load_policy(settings.policy) if settings.policy else Policy()


def redaction_key_of(settings: Settings) -> bytes:
    """The key of the markers that replace secrets."""
    return settings.redaction_key.get_secret_value().encode() if settings.redaction_key else DEFAULT_KEY


def redactor_of(settings: Settings, policy: Policy) -> Redactor:
    """What takes secrets out of texts."""
    return Redactor(policy.redaction, redaction_key_of(settings))


def require_database(path: Path) -> None:
    """SettingsError when there is no database to read from."""
    if not path.exists():
        raise SettingsError(f"there is no database at {path}", hint="Import something first, or name another with --db.")


@contextlib.contextmanager
def open_workspace(
    settings: Settings, *, now: Clock = utc_now, create: bool = False, writes: bool = False, alone: str = ""
) -> Iterator[Workspace]:
    """Open the database and wire everything to it, or to the server that has it.

    SettingsError when there is none and `create` is not asked for, or when the embedded runner `writes` and it is filled from Kafka.
    StoreError where another process has it that takes no commands; where one that does has it, and `alone` says what to do about that.
    """
    if not create:
        require_database(settings.database)
    with opened_store(settings.database, alone=alone) as (store, server):
        policy = policy_of(settings)
        redactor = redactor_of(settings, policy)
        if writes:
            require_embedded(store)
        if server is None:
            runner = embedded_runner(settings, store, policy, redactor, now)
            _land_left(store, runner)
            yield Workspace(settings, store, policy, redactor, runner, StoreLog(store, policy, now), now)
        else:
            from service.remote.remote_runner import RemoteLog, RemoteRunner  # noqa: PLC0415 - only beside a server

            remote, log = RemoteRunner(server, redactor, now), RemoteLog(server, store, policy, now)
            yield Workspace(settings, store, policy, redactor, remote, log, now, server)


@contextlib.contextmanager
def opened_store(database: Path, *, alone: str = "") -> Iterator[tuple[Store, ServerLink | None]]:
    """The database, opened by this process, or as the server shows it that has it; `alone` as `open_workspace`."""
    with contextlib.ExitStack() as stack:
        server = None
        try:
            store = stack.enter_context(Store(database))
        except StoreError as error:
            if error.hint != IN_USE or (server := ServerLink.to(database)) is None:
                raise
            stack.callback(server.close)
            if alone:
                raise StoreError(str(error), hint=alone) from error
            from service.remote.remote_store import RemoteStore  # noqa: PLC0415 - only beside a server

            store = RemoteStore(database, server)
        yield store, server


def embedded_runner(settings: Settings, store: Store, policy: Policy, redactor: Redactor, now: Clock) -> EmbeddedRunner:
    """What runs the stages in this process, over a database that it has."""
    return EmbeddedRunner(store, policy, redactor, now, batch_positions=settings.batch_records)


def _land_left(store: Store, runner: EmbeddedRunner) -> None:
    """Land what a server that was killed has left in its write-ahead log."""
    if store.path is not None and log_folder(store.path).exists():
        from streams.log.landing import recover_closed  # noqa: PLC0415 - RocksDB takes a while to load

        recover_closed(store, runner)


CATCH_UP = (
    "A server was stopped with work left: start it again, or run `driftline rejudge`. An import or a rebuild was cut short: "
    "run it again. Each with the same policy."
)
"""What to do about stages that have not read everything."""


def stages_behind(store: Store) -> str:
    """Which stages have not read their topic to its end, in words; nothing when all have, or where workers on Kafka do that."""
    if is_fed_by_kafka(store):
        return ""
    lagging = [progress for stage in TOPOLOGY if (progress := stage_progress(store, stage)).position < progress.end]
    return ", ".join(f"stage {one.stage} has read {one.position} of {one.end} records" for one in lagging)
