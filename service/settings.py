"""Settings: where things are. The rules for judging agents are in the policy, a separate file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError

from audit.anchors.own_names import OwnName
from schemas.bounds.validation_messages import words_of
from schemas.errors import SettingsError
from service.alerts.quiet import quiet_hours_of
from streams.kafka.connection import SaslMechanism, SecurityProtocol

PREFIX = "DRIFTLINE_"
TopicNames = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9._-]{1,249}(,[A-Za-z0-9._-]{1,249})*)?$")]
TopicPrefix = Annotated[str, StringConstraints(pattern="^[A-Za-z0-9._-]{0,100}$")]

_ADDRESS = re.compile(r"https?://[^\s/@?#]+(?:@[^\s/@?#]+)?(?:[/?][^\s#]*)?")


def _address(url: SecretStr) -> SecretStr:
    if not _ADDRESS.fullmatch(url.get_secret_value()):
        raise ValueError("must be an address that begins with https:// or http://")
    return url


def _quiet_hours(text: str) -> str:
    quiet_hours_of(text)
    return text


CLIENT_GRACE = 20.0
RECORDING_SECONDS = 5.0
"""Seconds that recording the outcome of a call may take."""
SecretAddress = Annotated[SecretStr, AfterValidator(_address)]
"""An address that is a secret itself."""


class Settings(BaseModel):
    """Read from the environment (`DRIFTLINE_DATABASE`, …); a command's options win over it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    database: Path = Field(Path("driftline.duckdb"), description="The DuckDB file.")
    policy: Path | None = Field(None, description="The policy file; without one every default is in force.")
    redaction_key: SecretStr | None = Field(
        None, min_length=16, description="Key of the markers that replace secrets; without one a public default is used."
    )
    connection: OwnName = Field("local", description="Connection that imported records are filed under.")
    project: OwnName = Field("default", description="Project that imported records are filed under.")
    judge: Literal["auto", "live", "none"] = Field(
        "auto", description="The judge: `live` asks the Messages API, `none` asks no judge; `auto` is live if there is a key."
    )
    judge_concurrency: int = Field(16, ge=1, le=1024, description="Judge calls at once, at most.")
    judge_deadline: float = Field(120.0, gt=0, le=3600, description="Seconds one question may take, retries included.")
    host: str = Field("127.0.0.1", description="Address the server listens on.")
    port: int = Field(8377, ge=0, le=65535, description="Port the server listens on; 0 takes a free one.")
    otlp_grpc_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port on which the server takes OpenTelemetry's protocol over gRPC, by custom 4317; 0 takes a free one, and "
        "without it there is none.",
    )
    stop_grace: float | None = Field(
        None,
        ge=0,
        le=3600,
        description="Seconds a stop waits for calls of clients, and again for judge calls under way; without it 20 s for clients, "
        "and as long as a question may take for the judge.",
    )
    kafka: str | None = Field(None, description="Addresses of the Kafka cluster, `host:port`, separated by commas.")
    kafka_prefix: TopicPrefix = Field("", description="Prefix of every topic's name on the cluster.")
    kafka_security: SecurityProtocol = Field(
        "PLAINTEXT", description="Encryption and login: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL."
    )
    kafka_mechanism: SaslMechanism | None = Field(None, description="Login with SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")
    kafka_username: str | None = Field(None, min_length=1, description="Name at the login with SASL.")
    kafka_password: SecretStr | None = Field(None, min_length=1, description="Password at the login with SASL.")
    kafka_ca: Path | None = Field(
        None, description="Certificates (PEM) to check the brokers against; else those of the system."
    )
    kafka_otlp_spans: TopicNames = Field(
        "otlp_spans",
        description="Topics on which an OpenTelemetry Collector puts spans, separated by commas; their names have no prefix.",
    )
    kafka_otlp_logs: TopicNames = Field(
        "otlp_logs",
        description="Topics on which an OpenTelemetry Collector puts records of logs, separated by commas; empty for none.",
    )
    schema_registry: str | None = Field(
        None,
        pattern="^https?://[^/@]+(/.*)?$",
        description="Address of a schema registry; values in Confluent framing are then read.",
    )
    schema_registry_auth: SecretStr | None = Field(
        None, min_length=1, description="Name and password at the schema registry, `name:password`."
    )
    alert_webhook: SecretAddress | None = Field(None, description="Address that alerts are posted to as JSON.")
    alert_secret: SecretStr | None = Field(
        None, min_length=16, description="Secret that alerts to the webhook are signed with."
    )
    alert_slack: SecretAddress | None = Field(None, description="Address of an incoming webhook of Slack, for alerts.")
    quiet_hours: Annotated[str, AfterValidator(_quiet_hours)] | None = Field(
        None, description="Hours in which alerts wait, such as `22:00-07:00 Europe/Berlin`; UTC without a zone."
    )
    quiet_for: Literal["warning", "all"] = Field(
        "warning", description="Alerts that wait in quiet hours: `warning`, while critical alerts go out, or `all`."
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/@|<>]+(/[^\s|<>]*)?$",
        description="Address of the server for people: alerts link to it, and where it is https, cookies are for encrypted calls alone.",
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://[^/@]+(/.*)?$",
        description="Address of an OpenTelemetry collector (OTLP over HTTP) that scores are sent to as events.",
    )
    otlp_explanations: bool = Field(False, description="Whether the judge's words go to the collector, too.")
    batch_records: int = Field(20_000, ge=1, le=1_000_000, description="Records that are taken in or read by a stage at once.")

    @property
    def client_grace(self) -> float:
        """Seconds that a stop waits for calls of clients."""
        return CLIENT_GRACE if self.stop_grace is None else self.stop_grace

    @property
    def judge_grace(self) -> float:
        """Seconds that a stop waits for open judge calls: one that is cut off is paid for twice."""
        return self.judge_deadline + RECORDING_SECONDS if self.stop_grace is None else self.stop_grace


def load_settings(**given: object) -> Settings:
    """Return the settings from the environment, overridden by the command line; SettingsError naming the variable."""
    found = {name.lower(): value for name, value in os.environ.items()}
    values = {name: found[key] for name in Settings.model_fields if (key := f"{PREFIX}{name}".lower()) in found}
    try:
        return Settings.model_validate(values | {name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        raise SettingsError(f"{PREFIX}{name.upper()}: {words_of(first)}", hint="Correct the variable or the option.") from error
