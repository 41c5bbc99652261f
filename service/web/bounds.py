"""Bounds of the server: sizes, times and numbers, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from service.read.queries.protocol import QueryLimits
from service.setup.oidc import IdentityProvider
from service.text.links import (
    API,
    EVALUATIONS,
    EVENTS,
    EVENTS_BULK,
    EXCHANGES,
    INBOX_BULK,
    INBOX_PAGE,
    INBOX_VIEWS_PAGE,
    INGEST,
    LOGS,
    LOOPBACK_NAMES,
    METRICS,
    POLICY,
    POLICY_TRIAL,
    POLICY_TRIAL_PART,
    TRACES,
)

BODY_LIMITS = {
    INGEST: 512 * 1024,
    EXCHANGES: 16 * 1024 * 1024,
    EVENTS: 4 * 1024 * 1024,
    EVENTS_BULK: 16 * 1024 * 1024,
    EVALUATIONS: 4 * 1024 * 1024,
    POLICY: 2 * 1024 * 1024,
    POLICY_TRIAL: 2 * 1024 * 1024,
    POLICY_TRIAL_PART: 2 * 1024 * 1024,
    TRACES: 16 * 1024 * 1024,
    LOGS: 16 * 1024 * 1024,
    METRICS: 16 * 1024 * 1024,
    INBOX_BULK: 256 * 1024,
    INBOX_PAGE: 256 * 1024,
}
"""Bytes of the largest body, by path."""
DRY_RUNS = frozenset({POLICY_TRIAL, POLICY_TRIAL_PART, f"{API}/retention/plan", f"{API}/erasures/plan"})
"""Paths of dry runs, which change nothing and have no line in the audit log."""
LINES = frozenset({EXCHANGES, EVENTS_BULK})
"""Paths whose bodies may also be lines, each a JSON value."""
FORMS = frozenset({INBOX_PAGE, INBOX_VIEWS_PAGE})
"""Paths of pages whose forms work without a script: bodies are HTML forms with the page's mark as a field."""
OTLP = frozenset({TRACES, LOGS, METRICS})
"""Paths whose bodies may also be protobuf, and compressed."""
OTLP_LETTERS = "otlp"
"""Stage of the dead letters of refused spans, and the beginning of their source, before the connection and the signal."""
MAX_UNPACKED = 64 * 1024 * 1024
"""Bytes that a compressed body may unpack to."""
MAX_SPANS = 10_000
"""Spans, or records of a log, in one call."""
DEFAULT_BODY_LIMIT = 64 * 1024
MAX_BULK = 1_000
"""Exchanges or events of any sessions in one call."""
MAX_SELECTED = 500
"""Incidents that are changed in one call."""
MAX_EVENTS = 10_000
"""Events of one session in one call."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Settings of a deployment."""

    allowed_hosts: frozenset[str] = LOOPBACK_NAMES
    """Names by which the server may be called (the Host header without its port)."""
    encrypted_hosts: frozenset[str] = frozenset()
    """Hosts, with the port unless it is 443, under which a TLS proxy serves the server: secure cookies are set only for them."""
    max_in_flight: int = 64
    """Maximum number of calls in progress; further ones are answered 503."""
    read_timeout: float = 10.0
    """Seconds within which a whole body has to arrive, and the head of a connection's request."""
    max_failures: int = 10
    """Maximum number of wrong tokens per minute and address that are answered 401; further ones are answered 429."""
    max_readers: int = 4
    """Maximum number of concurrent queries; others wait."""
    queries: QueryLimits = field(default_factory=QueryLimits)
    """The bounds of analysts' statements."""
    policy_file: Path | None = None
    """The policy file, which admins may change; None if the defaults are in force."""
    public_url: str | None = None
    """Public address of the server; None: that of the call."""
    identity_provider: IdentityProvider | None = None
    """The provider at which people sign in; None without one."""
