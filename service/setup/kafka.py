"""The connection to Kafka and the lake that the settings describe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from analytics.lake import Lake, require_lake
from schemas.errors import SettingsError
from service.setup.settings import PREFIX, Settings
from service.setup.text_key import load_text_key
from streams.kafka.connection import KafkaConnection
from streams.kafka.topics import TOPICS
from streams.upkeep.deletion import HotDays

if TYPE_CHECKING:
    from audit.policy import Policy
    from streams.kafka.schema_registry import RegistryFraming
    from streams.lake.history import LakeHistory

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


def connection_of(settings: Settings) -> KafkaConnection:
    """Return the connection.

    Raises SettingsError with the name of a variable that is missing, wrong or in conflict with another.
    """
    connection = KafkaConnection(
        bootstrap=_bootstrap(settings.kafka),
        prefix=settings.kafka_prefix,
        security_protocol=settings.kafka_security,
        sasl_mechanism=settings.kafka_mechanism,
        username=settings.kafka_username,
        password=None if settings.kafka_password is None else settings.kafka_password.reveal(),
        ca_file=settings.kafka_ca,
        text_secret=None if settings.text_key_file is None else load_text_key(settings.text_key_file),
    )
    _check_sasl(connection)
    if connection.ca_file is not None and not connection.uses_tls:
        hint = f"Set {PREFIX}KAFKA_SECURITY to SSL or SASL_SSL, or leave the file out."
        raise SettingsError(f"{PREFIX}KAFKA_CA: {connection.security_protocol} checks no certificates", hint=hint)
    return connection


def collector_topics(settings: Settings) -> dict[str, str]:
    """Return the topics of an OpenTelemetry Collector by their names on the cluster, each with its signal.

    Raises SettingsError for the name of one of our own topics, and for a topic listed for both signals.
    """
    named = {"traces": settings.kafka_otlp_spans, "logs": settings.kafka_otlp_logs}
    signals = {signal: [name for name in names.split(",") if name] for signal, names in named.items()}
    ours = {settings.kafka_prefix + name for name in TOPICS}
    for name in (name for names in signals.values() for name in names if name in ours):
        raise SettingsError(
            f"{PREFIX}KAFKA_OTLP_SPANS, …LOGS: {name} is a topic of Driftline", hint="Name the Collector's topics."
        )
    for name in set(signals["traces"]) & set(signals["logs"]):
        message = f"{PREFIX}KAFKA_OTLP_SPANS, …LOGS: {name} cannot hold both"
        raise SettingsError(message, hint="Let the Collector put spans and logs on topics of their own.")
    return {name: signal for signal, names in signals.items() for name in names}


def framing_of(settings: Settings) -> RegistryFraming | None:
    """Return the reader of framed values; None without a schema registry.

    Raises SettingsError for credentials without a registry.
    """
    auth = settings.schema_registry_auth
    if settings.schema_registry is None:
        if auth is not None:
            hint = f"Set {PREFIX}SCHEMA_REGISTRY, or leave the login out."
            raise SettingsError(f"{PREFIX}SCHEMA_REGISTRY_AUTH: there is no schema registry to log in to", hint=hint)
        return None
    from streams.kafka.schema_registry import RegistryFraming  # noqa: PLC0415 - most installations have no registry

    if auth is None:
        return RegistryFraming(settings.schema_registry)
    name, _, password = auth.reveal().partition(":")
    if not name or not password:
        raise SettingsError(f"{PREFIX}SCHEMA_REGISTRY_AUTH: not of the form name:password", hint="Put a colon between the two.")
    return RegistryFraming(settings.schema_registry, (name, password))


def lake_of(settings: Settings) -> Lake | None:
    """Return the lake beside the database. Raises SettingsError for a lake without Kafka, and if the extra is not installed."""
    if settings.lake is None:
        return None
    if settings.kafka is None:
        hint = f"Set {PREFIX}KAFKA=host:port too, or leave the lake out."
        raise SettingsError(f"{PREFIX}LAKE: a lake has the records of topics, and no Kafka cluster is named", hint=hint)
    require_lake()
    return Lake(settings.lake)


def history_of(settings: Settings) -> LakeHistory | None:
    """Return the records of the lake as a history of the topics. Raises SettingsError as `lake_of` does."""
    lake = lake_of(settings)
    if lake is None:
        return None
    from streams.lake.history import LakeHistory  # noqa: PLC0415 - most installations have no lake

    return LakeHistory(lake)


DAYS_BEFORE_BASELINE = 7
"""How many days beyond its baseline window a project keeps hot: an incident compares exchanges from before and after a change."""


def hot_days_of(settings: Settings, policy: Policy) -> HotDays | None:
    """Return the days that stay in the database.

    Raises SettingsError as `lake_of` does, for a limit without a lake, and for one that is too low for the baselines of a project.
    """
    lake = lake_of(settings)
    if settings.hot_days is None:
        return None
    if lake is None:
        hint = f"Set {PREFIX}LAKE, or leave the limit out: the policy's retentionDays deletes records for good."
        raise SettingsError(f"{PREFIX}HOT_DAYS: details leave the database only for a lake, and none is named", hint=hint)
    windows = [policy.for_project(name).settings.baseline_window_days for name in ("", *policy.projects)]
    least = max(windows) + DAYS_BEFORE_BASELINE
    if settings.hot_days < least:
        raise SettingsError(
            f"{PREFIX}HOT_DAYS: must be at least {least}, because incidents compare with a baseline of {max(windows)} days",
            hint="Raise it, or lower baselineWindowDays in the policy.",
        )
    return HotDays(settings.hot_days, lake)


def _bootstrap(addresses: str | None) -> str:
    """Return the checked addresses. Errors do not repeat them, because they may contain a password."""
    if not addresses:
        hint = f"Set {PREFIX}KAFKA=host:port, or give --kafka host:port."
        raise SettingsError(f"{PREFIX}KAFKA: no Kafka cluster is named", hint=hint)
    if not all(_is_address(address.strip()) for address in addresses.split(",")):
        hint = "Give host:port, several separated by commas, without a scheme; a port is 1 to 65535."
        raise SettingsError(f"{PREFIX}KAFKA: an address is not of the form host:port", hint=hint)
    return addresses


def _is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None and 0 < int(text.rpartition(":")[2]) < 2**16


def _check_sasl(connection: KafkaConnection) -> None:
    """Require name and password if and only if SASL is used: without the protocol setting they would silently not be sent."""
    parts = {
        "MECHANISM": connection.sasl_mechanism,
        "USERNAME": connection.username,
        "PASSWORD": connection.password,
    }
    for part, value in parts.items():
        name = f"{PREFIX}KAFKA_{part}"
        if connection.uses_sasl and value is None:
            hint = f"Set {name}, or {PREFIX}KAFKA_SECURITY to PLAINTEXT or SSL."
            raise SettingsError(f"{name}: {connection.security_protocol} needs it", hint=hint)
        if value is not None and not connection.uses_sasl:
            hint = f"Set {PREFIX}KAFKA_SECURITY to SASL_SSL, or leave {name} out."
            raise SettingsError(f"{name}: {connection.security_protocol} does not use it", hint=hint)
