"""Wiring: the one place where settings become a store, a policy, a redactor and a runner."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from analytics.store.store import Store
from audit.policy.policy import Policy, load_policy
from audit.redaction.redactor import DEFAULT_KEY, Redactor
from schemas.errors import SettingsError
from service.settings import Settings
from streams.engine.embedded import EmbeddedRunner, stage_progress
from streams.log.ownership import is_fed_by_kafka, log_folder, require_embedded
from streams.topology import TOPOLOGY

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The present, UTC. Everything below the service gets the time handed in."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Workspace:
    """What a command works with."""

    settings: Settings
    store: Store
    policy: Policy
    redactor: Redactor
    runner: EmbeddedRunner
    now: Clock


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
    settings: Settings, *, now: Clock = utc_now, create: bool = False, writes: bool = False
) -> Iterator[Workspace]:
    """Open the database and wire everything to it.

    SettingsError when there is none and `create` is not asked for, or when the embedded runner `writes` and it is filled from Kafka.
    """
    if not create:
        require_database(settings.database)
    policy = policy_of(settings)
    redactor = redactor_of(settings, policy)
    with Store(settings.database) as store:
        if writes:
            require_embedded(store)
        runner = EmbeddedRunner(store, policy, redactor, now, batch_positions=settings.batch_records)
        if log_folder(settings.database).exists():
            from streams.log.landing import recover_closed  # noqa: PLC0415 - RocksDB takes a while to load

            recover_closed(store, runner)
        yield Workspace(settings, store, policy, redactor, runner, now)


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
