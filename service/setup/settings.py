"""Settings: paths and addresses, secrets that no log, error or repr shows, and quiet hours.

The rules for judging agents are in the policy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta
from msgspec.inspect import LiteralType, StructType, Type, UnionType, multi_type_info

from audit.anchors import refuse_reserved_name
from schemas.bounds import NAME
from schemas.errors import SettingsError
from schemas.validation_messages import place_and_words
from streams.kafka.connection import SaslMechanism, SecurityProtocol

_SECRET_ADDRESS = re.compile(r"https?://[^\s/@?#]+(?:@[^\s/@?#]+)?(?:[/?][^\s#]*)?")


class Secret:
    """A text hidden by its repr; only `reveal` returns it. Raises ValueError if it is too short."""

    __slots__ = ("_text",)
    SHORTEST = 1
    """Minimum length in characters."""

    def __init__(self, text: str) -> None:
        if len(text) < self.SHORTEST:
            raise ValueError(f"must have {self.SHORTEST} or more characters")
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}('**********')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Key(Secret):
    """A secret key for markers or signatures."""

    __slots__ = ()
    SHORTEST = 16


class SecretAddress(Secret):
    """An address that is itself a secret: anyone who knows it can post there. Raises ValueError if it is not an address."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if not _SECRET_ADDRESS.fullmatch(text):
            raise ValueError("must be an address that begins with https:// or http://")


_FORM = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})(?: ([A-Za-z0-9_+/-]{1,64}))?")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """The hours from `start` (inclusive) to `end` (exclusive); across midnight if the end is earlier than the start."""

    start: time
    end: time
    zone: tzinfo

    def over(self, moment: datetime) -> datetime:
        """Return the moment itself, or the end of the quiet hours in which it falls, UTC."""
        local = moment.astimezone(self.zone)
        clock = local.time()
        if not self._holds(clock):
            return moment
        day = local.date() + (_DAY if clock >= self.start > self.end else timedelta(0))
        end = datetime.combine(day, self.end, self.zone)
        # When clocks go back, a time of day occurs twice, and the first occurrence may have passed.
        return next((at for fold in (0, 1) if (at := end.replace(fold=fold).astimezone(UTC)) > moment), moment)

    def _holds(self, clock: time) -> bool:
        if self.start < self.end:
            return self.start <= clock < self.end
        return clock >= self.start or clock < self.end


def quiet_hours_of(text: str) -> QuietHours:
    """Parse quiet hours such as `22:00-07:00 Europe/Berlin`, in UTC without a zone.

    Raises ValueError with a description of the problem.
    """
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise ValueError("must be like 22:00-07:00 Europe/Berlin")
    try:
        start, end = time(int(form[1]), int(form[2])), time(int(form[3]), int(form[4]))
    except ValueError:
        raise ValueError("must be two times of the day, 00:00 to 23:59") from None
    if start == end:
        raise ValueError("must begin and end at different times")
    return QuietHours(start, end, _zone_of(form[5] or "UTC"))


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError(f"knows no time zone {name}; name one such as Europe/Berlin, or install tzdata") from None


PREFIX = "DRIFTLINE_"
_TOPICS = "^([A-Za-z0-9._-]{1,249}(,[A-Za-z0-9._-]{1,249})*)?$"
_TOPIC_PREFIX = "^[A-Za-z0-9._-]{0,100}$"
_ADDRESS = "^https?://[^/@]+(/.*)?$"
_PUBLIC_ADDRESS = r"^https?://[^\s/@|<>]+(/[^\s|<>]*)?$"

CLIENT_GRACE = 20.0
RECORDING_SECONDS = 5.0
"""Seconds that recording the outcome of a call may take."""
_RULES: Mapping[str, Callable[[str], object]] = {
    "connection": refuse_reserved_name,
    "project": refuse_reserved_name,
    "quiet_hours": quiet_hours_of,
}
"""Checks of texts beyond their pattern; each raises a ValueError that describes the problem."""
_AS_TEXT = ", not a string"
"""The end of msgspec's message for a wrong variable, which does not help users."""
_TRUTHS = {"yes": True, "y": True, "on": True, "t": True, "no": False, "n": False, "off": False, "f": False}
"""Words for true and false in variables, beside `true`, `false`, `1` and `0`, which msgspec reads."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings from the environment (`DRIFTLINE_DATABASE`, …); options of a command take precedence."""

    database: Path = Path("driftline.duckdb")
    """The DuckDB file."""
    policy: Path | None = None
    """The policy file; without one, the defaults apply."""
    redaction_key: Key | None = None
    """Key of the markers that replace secrets; without one a public default is used."""
    connection: Annotated[str, Meta(pattern=f"^{NAME}$")] = "local"
    """Connection that imported records are filed under."""
    project: Annotated[str, Meta(pattern=f"^{NAME}$")] = "default"
    """Project that imported records are filed under."""
    judge: Literal["auto", "live", "none"] = "auto"
    """The judge: `live` asks the Messages API, `none` asks no judge; `auto` is live if there is a key."""
    judge_concurrency: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Maximum number of concurrent judge calls."""
    judge_deadline: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    """Time limit for one question, including retries, in seconds."""
    host: str = "127.0.0.1"
    """Address the server listens on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8377
    """Port the server listens on; 0 picks a free one."""
    otlp_grpc_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Port on which the server accepts OTLP over gRPC, usually 4317; 0 picks a free one. Without it, OTLP over gRPC is not
    served."""
    stop_grace: Annotated[float, Meta(ge=0, le=3600)] | None = None
    """Seconds a stop waits for requests of clients, and again for judge calls in progress. By default, 20 s for clients and the
    time limit of a question for the judge."""
    kafka: str | None = None
    """Addresses of the Kafka cluster, `host:port`, separated by commas."""
    kafka_prefix: Annotated[str, Meta(pattern=_TOPIC_PREFIX)] = ""
    """Prefix of every topic's name on the cluster."""
    kafka_security: SecurityProtocol = "PLAINTEXT"
    """Encryption and authentication: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL."""
    kafka_mechanism: SaslMechanism | None = None
    """SASL mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    kafka_username: Annotated[str, Meta(min_length=1)] | None = None
    """User name for SASL."""
    kafka_password: Secret | None = None
    """Password for SASL."""
    kafka_ca: Path | None = None
    """Certificates (PEM) to verify the brokers; by default, the system's."""
    text_key_file: Path | None = None
    """File with the key that encrypts texts on the topics (`driftline text-key`); without one, they are not encrypted."""
    kafka_otlp_spans: Annotated[str, Meta(pattern=_TOPICS)] = "otlp_spans"
    """Topics to which an OpenTelemetry Collector writes spans, separated by commas; their names have no prefix."""
    kafka_otlp_logs: Annotated[str, Meta(pattern=_TOPICS)] = "otlp_logs"
    """Topics to which an OpenTelemetry Collector writes log records, separated by commas; empty for none."""
    lake: Annotated[str, Meta(min_length=1)] | None = None
    """Lake of Delta tables, a folder or a URL, from which the tables are filled before the topics; needs Kafka."""
    hot_days: Annotated[int, Meta(ge=1, le=3650)] | None = None
    """Days whose details stay in the database of a server with a lake; those of earlier days are in the lake only. By default, all stay."""
    schema_registry: Annotated[str, Meta(pattern=_ADDRESS)] | None = None
    """Address of a schema registry; values in Confluent framing are then read."""
    schema_registry_auth: Secret | None = None
    """Credentials for the schema registry, `name:password`."""
    alert_receivers: Path | None = None
    """File of receivers of alerts: chats, on-call services, mail, by project and severity."""
    alert_webhook: SecretAddress | None = None
    """Address that all alerts are posted to as JSON."""
    alert_secret: Key | None = None
    """Secret that alerts to the webhook are signed with."""
    alert_slack: SecretAddress | None = None
    """Address of an incoming webhook of Slack, for all alerts."""
    quiet_hours: str | None = None
    """Hours in which alerts wait, such as `22:00-07:00 Europe/Berlin`; UTC without a zone."""
    quiet_for: Literal["warning", "all"] = "warning"
    """Alerts that wait in quiet hours: `warning`, while critical alerts go out, or `all`."""
    public_url: Annotated[str, Meta(pattern=_PUBLIC_ADDRESS)] | None = None
    """Public address of the server: alerts link to it, and if it is https, cookies are sent over encrypted connections only."""
    oidc_issuer: str | None = None
    """Issuer of an OpenID Connect provider at which people sign in; needs `pip install 'driftline[oidc]'`."""
    oidc_client_id: Annotated[str, Meta(min_length=1)] | None = None
    """Client id of this server at the provider. The redirect address to register is `<public address>/sign-in/oidc/callback`."""
    oidc_client_secret: Secret | None = None
    """Client secret of this server at the provider; without one, the client is public and relies on PKCE."""
    oidc_scope: Annotated[str, Meta(pattern="^[!-~ ]*openid[!-~ ]*$")] = "openid profile email"
    """Scopes to request, separated by blanks. Some providers give groups only with a scope `groups`."""
    oidc_groups_claim: Annotated[str, Meta(min_length=1)] = "groups"
    """Claim with the groups of a person."""
    oidc_roles: str | None = None
    """Roles by group, such as `platform=admin, support-leads=reviewer@support`: group, role, and a project unless it is every one."""
    otlp_endpoint: Annotated[str, Meta(pattern=_ADDRESS)] | None = None
    """Address of an OpenTelemetry collector (OTLP over HTTP) that scores are sent to as events."""
    otlp_explanations: bool = False
    """Whether the judge's explanations are also sent to the collector."""
    batch_records: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000
    """Maximum number of records that intake or a stage processes in one batch."""

    @property
    def client_grace(self) -> float:
        """Seconds that a stop waits for clients' calls."""
        return CLIENT_GRACE if self.stop_grace is None else self.stop_grace

    @property
    def judge_grace(self) -> float:
        """Seconds that a stop waits for open judge calls: an interrupted call is paid for twice."""
        return self.judge_deadline + RECORDING_SECONDS if self.stop_grace is None else self.stop_grace


def load_settings(**options: object) -> Settings:
    """Return the settings from the environment, overridden by the command line.

    Raises SettingsError with the name of an invalid variable.
    """
    environment = {name.lower(): value for name, value in os.environ.items()}
    names = Settings.__struct_fields__
    values: dict[str, object] = {name: environment[key] for name in names if (key := f"{PREFIX}{name}".lower()) in environment}
    values |= {name: value for name, value in options.items() if value is not None}
    for name in values:
        if Settings.__annotations__.get(name) == "bool":
            values[name] = _TRUTHS.get(str(values[name]).lower(), values[name])
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=_convert_text)
    except msgspec.ValidationError as error:
        name, message = place_and_words(error)
        raise _build_error(name, _choices(name) or message.removesuffix(_AS_TEXT).replace(" or null", "")) from error
    for name, rule in _RULES.items():
        _check(name, rule, getattr(settings, name))
    return settings


def kinds_of_settings() -> dict[str, tuple[Type, ...]]:
    """Return the types of each setting, with their bounds, as `msgspec.inspect` reports them."""
    (kinds,) = multi_type_info([Settings])
    fields = kinds.fields if isinstance(kinds, StructType) else ()
    return {part.name: part.type.types if isinstance(part.type, UnionType) else (part.type,) for part in fields}


def _convert_text(kind: Callable[[Any], object], value: object) -> object:
    """Convert a text to a path or a secret."""
    return kind(value)


def _choices(name: str) -> str:
    """List the allowed values of a setting; empty if they cannot be listed."""
    for kind in kinds_of_settings()[name]:
        if isinstance(kind, LiteralType):
            *first, last = map(repr, kind.values)
            return f"must be {', '.join(first)} or {last}"
    return ""


def _check(name: str, rule: Callable[[str], object], value: str | None) -> None:
    try:
        if value is not None:
            rule(value)
    except ValueError as error:
        raise _build_error(name, str(error)) from error


def _build_error(name: str, message: str) -> SettingsError:
    return SettingsError(f"{PREFIX}{name.upper()}: {message}", hint="Correct the variable or the option.")
