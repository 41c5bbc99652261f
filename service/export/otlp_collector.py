"""The OpenTelemetry collector that scores are sent to: our own setting, else OpenTelemetry's variables."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.errors import SettingsError
from service.setup.settings import Settings

PATH = "/v1/logs"
"""The path of a collector that takes log records, which events are."""


@dataclass(frozen=True, slots=True)
class Collector:
    """The address and headers of a collector, and whether to send the judge's words."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    explain: bool = False


def collector_of(settings: Settings, environment: Mapping[str, str]) -> Collector | None:
    """Return the collector of the settings, else of OpenTelemetry's own variables; None without one.

    SettingsError for an address or headers that are none.
    """
    whole = environment.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "")
    base = settings.otlp_endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    url = whole if whole and not settings.otlp_endpoint else base and base.rstrip("/") + PATH
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_ENDPOINT: is not an address", hint="Give one that begins with http:// or https://."
        )
    given = environment.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    return Collector(url, _headers(given), settings.otlp_explanations)


def _headers(text: str) -> dict[str, str]:
    """Return the headers in OpenTelemetry's form, `name=value,name=value`, percent-encoded."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise SettingsError(
                "OTEL_EXPORTER_OTLP_HEADERS: must have the form name=value,name=value", hint="Correct the variable."
            )
        found[name.strip().lower()] = urllib.parse.unquote(value.strip())
    return found
