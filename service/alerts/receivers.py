"""Receivers of alerts: which there are, where they are, and which alerts each one gets.

The file that `DRIFTLINE_ALERT_RECEIVERS` names has them; `DRIFTLINE_ALERT_WEBHOOK` and `DRIFTLINE_ALERT_SLACK` are two more, which get
every alert. Secrets are not in the file, which names the environment variables that hold them. The file is no part of the policy, which
admins may change over HTTP: only those who start the server decide where it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, StringConstraints, model_validator

from audit.policy import Policy
from audit.settings_files import Document, PolicyModel
from schemas.bounds import NAME
from schemas.records import Incident
from service.alerts.notices import Notice, Severity
from service.read.telemetry import AlertReceiver
from service.setup.settings import Key, Secret, SecretAddress, Settings
from streams.watch.lifecycle import CONFIRMED

FILE_HINT = "Correct the lines named above; the how-to guide on alerts explains every field."
EVERYTHING = "*"
"""The pattern that covers every project, and alerts about no project."""
_HOST = r"[A-Za-z0-9.:\[\]-]{1,253}"
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
BaseUrl = Annotated[str, StringConstraints(pattern=rf"^https?://{_HOST}(/[^\s?#]*)?$")]
MailAddress = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,253}$")]
ProjectPattern = Annotated[str, StringConstraints(pattern=r"^[a-z0-9*?._-]{1,64}$")]


class Selection(PolicyModel):
    """The alerts that a receiver gets."""

    projects: Annotated[tuple[ProjectPattern, ...], Field(min_length=1, max_length=1000)] = (EVERYTHING,)
    """Names of projects, or patterns with `*` and `?`. Alerts about no project, such as those on a judge, go to receivers with `*`."""
    alert_from: Severity | None = None
    """The lowest severity of its alerts. null sends what each project's policy says (`alertFrom`), and all alerts that are not on incidents."""
    alert_on_suspected: bool | None = None
    """Whether it also gets suspected incidents; null is as each project's policy says."""


class SlackReceiver(Selection):
    """An incoming webhook of Slack, or of a chat that understands its messages (Mattermost, Rocket.Chat)."""

    type: Literal["slack"]
    url_env: VariableName
    """Environment variable with the webhook's address."""


class TeamsReceiver(Selection):
    """A workflow of Microsoft Teams, "When a Teams webhook request is received"; it gets an Adaptive Card."""

    type: Literal["teams"]
    url_env: VariableName
    """Environment variable with the workflow's address."""


class WebhookReceiver(Selection):
    """An address of your own, which gets JSON."""

    type: Literal["webhook"]
    url_env: VariableName
    """Environment variable with the address."""
    key_env: VariableName | None = None
    """Environment variable with the secret that messages are signed with, 16 or more characters."""


class PagerDutyReceiver(Selection):
    """An integration of a PagerDuty service, by the Events API v2."""

    type: Literal["pagerduty"]
    key_env: VariableName
    """Environment variable with the integration key."""
    base_url: BaseUrl = "https://events.pagerduty.com"
    """Address of the API; accounts in Europe use `https://events.eu.pagerduty.com`."""


class OpsgenieReceiver(Selection):
    """An API integration of Opsgenie, by the Alert API."""

    type: Literal["opsgenie"]
    key_env: VariableName
    """Environment variable with the API key."""
    base_url: BaseUrl = "https://api.opsgenie.com"
    """Address of the API; accounts in Europe use `https://api.eu.opsgenie.com`."""


class EmailReceiver(Selection):
    """Mail over an SMTP server."""

    type: Literal["email"]
    host: Annotated[str, StringConstraints(pattern=f"^{_HOST}$")]
    """Name of the SMTP server."""
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    """Its port: usually 587 with `starttls`, 465 with `tls`."""
    encryption: Literal["starttls", "tls", "none"] = "starttls"
    """When the connection is encrypted: after a command, from the start, or never. Certificates are verified."""
    username: Annotated[str, StringConstraints(min_length=1, max_length=320)] | None = None
    """User name; null sends without signing in."""
    key_env: VariableName | None = None
    """Environment variable with the password."""
    sender: Annotated[MailAddress, Field(alias="from")]
    """Address of the sender."""
    to: Annotated[tuple[MailAddress, ...], Field(min_length=1, max_length=50)]
    """Addresses that get the mail."""

    @model_validator(mode="after")
    def _check_password(self) -> Self:
        if (self.username is None) != (self.key_env is None):
            raise ValueError("username and keyEnv are needed together")
        if self.username is not None and self.encryption == "none":
            raise ValueError("encryption: must be starttls or tls where there is a password")
        return self


ReceiverSettings = SlackReceiver | TeamsReceiver | WebhookReceiver | PagerDutyReceiver | OpsgenieReceiver | EmailReceiver
ReceiverName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]


class ReceiversFile(PolicyModel):
    """A file of receivers."""

    version: Literal[1]
    """Version of the file format."""
    receivers: Annotated[
        dict[ReceiverName, Annotated[ReceiverSettings, Field(discriminator="type")]], Field(min_length=1, max_length=100)
    ]
    """The receivers by name; alerts that wait for a name that is no longer there are given up."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver with its secrets, which are never shown."""

    name: str
    settings: ReceiverSettings
    url: Secret | None = None
    key: Secret | None = None

    @property
    def answer(self) -> AlertReceiver:
        """What pages show of it."""
        entry = self.settings
        return AlertReceiver(self.name, entry.type, list(entry.projects), entry.alert_from, entry.alert_on_suspected)

    @property
    def has_states(self) -> bool:
        """Whether it keeps each alert open under a key until it is closed."""
        return isinstance(self.settings, PagerDutyReceiver | OpsgenieReceiver)

    def wants(self, cause: Notice | Incident, policy: Policy) -> bool:
        """Return whether it gets alerts of a cause: by its project, its severity, and whether it is only suspected."""
        lowest, patterns = self.settings.alert_from, self.settings.projects
        if cause.project is None:
            return EVERYTHING in patterns and _is_severe(cause, lowest)
        if not any(fnmatchcase(cause.project, pattern) for pattern in patterns):
            return False
        if cause.confidence is None:
            return _is_severe(cause, lowest)
        project = policy.for_project(cause.project).settings
        takes_suspected = self.settings.alert_on_suspected
        if takes_suspected is None:
            takes_suspected = project.alert_on_suspected
        return _is_severe(cause, lowest or project.alert_from) and (cause.confidence == CONFIRMED or takes_suspected)


def _is_severe(cause: Notice | Incident, lowest: Severity | None) -> bool:
    return lowest != "critical" or cause.severity == "critical"


def load_receivers(settings: Settings, environ: Mapping[str, str]) -> tuple[Receiver, ...]:
    """Return the receivers of the settings and of their file.

    Raises PolicyError with each problem of the file, and each variable that is missing, as `FILE:LINE: field: reason`.
    """
    receivers = _receivers_of_settings(settings)
    if settings.alert_receivers is None:
        return receivers
    # A value may be a secret that was pasted instead of its variable's name.
    document = Document(settings.alert_receivers, hint=FILE_HINT, shows_values=False)
    file = document.validate(ReceiversFile)
    taken = {receiver.name for receiver in receivers}
    for name in taken & file.receivers.keys():
        document.problem(("receivers", name), f"is already the receiver of DRIFTLINE_ALERT_{name.upper()}; choose another name")
    loaded = [_read_secrets(document, name, entry, environ) for name, entry in file.receivers.items()]
    document.refuse_problems()
    return (*receivers, *loaded)


def _receivers_of_settings(settings: Settings) -> tuple[Receiver, ...]:
    receivers: list[Receiver] = []
    if settings.alert_webhook is not None:
        entry = WebhookReceiver(type="webhook", url_env="DRIFTLINE_ALERT_WEBHOOK")
        receivers.append(Receiver("webhook", entry, settings.alert_webhook, settings.alert_secret))
    if settings.alert_slack is not None:
        receivers.append(Receiver("slack", SlackReceiver(type="slack", url_env="DRIFTLINE_ALERT_SLACK"), settings.alert_slack))
    return tuple(receivers)


SecretKind = TypeVar("SecretKind", bound=Secret)


def _read_secrets(document: Document, name: str, entry: ReceiverSettings, environ: Mapping[str, str]) -> Receiver:
    def read(field: str, variable: str | None, kind: Callable[[str], SecretKind]) -> SecretKind | None:
        if variable is None:
            return None
        value = environ.get(variable, "").strip()
        try:
            if value:
                return kind(value)
            problem = "is not set"
        except ValueError as error:
            problem = str(error)
        document.problem(("receivers", name, field), f"the environment variable {variable} {problem}")
        return None

    url = read("urlEnv", getattr(entry, "url_env", None), SecretAddress)
    key = read("keyEnv", getattr(entry, "key_env", None), Key if isinstance(entry, WebhookReceiver) else Secret)
    return Receiver(name, entry, url, key)
