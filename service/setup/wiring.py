"""Wiring: builds the parts of commands that judge, redact or write from the settings and a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from analytics.store.store import AppendResult, Store
from audit.policy import Policy, load_policy
from audit.redaction import DEFAULT_KEY, Redactor
from schemas.records import ImportProgress
from service.setup.server_link import ServerLink, ServerPublisher, ServerRunner
from service.setup.settings import Settings
from streams.engine.embedded import EmbeddedRunner
from streams.log.admission import EncodedRecords
from streams.log.log import log_folder
from streams.log.sink import Publisher, StorePublisher


class Runner(Protocol):
    """Publishes records and runs the stages over them, in this process or in the server that has the database."""

    def publish(
        self, accepted: EncodedRecords, progress: Sequence[ImportProgress] = (), *, are_own: bool = False
    ) -> Mapping[str, AppendResult]:
        """Publish accepted records, durable on return, and record the import's progress. `are_own`: this process has just encoded them."""
        ...

    def run(self) -> object:
        """Run until the stages have read all present records."""
        ...


@dataclass(frozen=True)
class Wiring:
    """The wired parts; see the module's docstring."""

    policy: Policy
    redactor: Redactor
    runner: Runner
    publisher: Publisher


def policy_of(settings: Settings) -> Policy:
    """Return the policy in force. Raises PolicyError with file and line if it is invalid."""
    return load_policy(settings.policy) if settings.policy else Policy()


def redaction_key_of(settings: Settings) -> bytes:
    """Return the key of the markers that replace secrets."""
    return settings.redaction_key.reveal().encode() if settings.redaction_key else DEFAULT_KEY


def redactor_of(settings: Settings, policy: Policy) -> Redactor:
    """Return the redactor, which removes secrets from texts."""
    return Redactor(policy.redaction, redaction_key_of(settings))


def embedded_runner(
    settings: Settings, store: Store, policy: Policy, redactor: Redactor, now: Callable[[], datetime]
) -> EmbeddedRunner:
    """Return the runner of the stages in this process, over a database that this process has."""
    return EmbeddedRunner(store, policy, redactor, now, batch_positions=settings.batch_records)


def wire(settings: Settings, store: Store, server: ServerLink | None, now: Callable[[], datetime]) -> Wiring:
    """Wire everything to a database in this process, or to the server that has it. Raises PolicyError or StoreError on failure.

    Records that a killed server left in its write-ahead log are flushed first.
    """
    policy = policy_of(settings)
    redactor = redactor_of(settings, policy)
    if server is not None:
        return Wiring(policy, redactor, ServerRunner(server, now), ServerPublisher(server, store, policy, now))
    runner = embedded_runner(settings, store, policy, redactor, now)
    if store.path is not None and log_folder(store.path).exists():
        from streams.log.local_log import recover_closed  # noqa: PLC0415 - RocksDB takes a while to load

        recover_closed(store)
    return Wiring(policy, redactor, runner, StorePublisher(store, policy, now))
