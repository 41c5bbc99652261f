"""Paths of the API, of OpenTelemetry's protocol and of forms, as routes, clients, links and limits name them."""

from __future__ import annotations

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
API = "/api/audit"
"""The beginning of every call's path."""
CALLS = ("/api/", "/v1/")
"""The beginnings of the paths that only somebody with a token may call: our API and OpenTelemetry's protocol."""
INGEST = f"{API}/ingest"
EVENTS = f"{API}/events"
EVENTS_BULK = f"{EVENTS}/bulk"
EXCHANGES = f"{API}/exchanges"
EVALUATIONS = f"{API}/evaluations"
POLICY = f"{API}/policy"
POLICY_TRIAL = f"{POLICY}/trial"
POLICY_TRIAL_PART = "/admin/policy/trial"
"""The same as a part of a page."""
TRACES, LOGS, METRICS = "/v1/traces", "/v1/logs", "/v1/metrics"
"""Paths of OpenTelemetry's protocol: exporters add them to an address by themselves."""
INBOX = f"{API}/incidents"
INBOX_BULK = f"{INBOX}/bulk"
INBOX_PAGE = "/incidents"
INBOX_VIEWS_PAGE = f"{INBOX_PAGE}/views"
