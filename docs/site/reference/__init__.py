"""The reference, made from the code: each page is a function that answers Markdown, so nothing is written twice. They are committed, and checked to be up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reference.alerts import alerts
from reference.commands import command_pages
from reference.detectors import detectors
from reference.dialects import dialects
from reference.endpoints import endpoint_pages
from reference.errors import errors
from reference.metrics import metrics
from reference.model_fields import methodology, policy
from reference.overview import overview
from reference.packages import packages
from reference.queries import queries
from reference.records import records, topics
from reference.settings import settings
from reference.tiers import tiers

PAGES: Mapping[str, Callable[[], str]] = {
    "index": overview,
    **command_pages(),
    "settings": settings,
    "policy": policy,
    "methodology": methodology,
    **endpoint_pages(),
    "topics": topics,
    "records": records,
    "tiers": tiers,
    "detectors": detectors,
    "dialects": dialects,
    "queries": queries,
    "alerts": alerts,
    "metrics": metrics,
    "errors": errors,
    "packages": packages,
}
"""The pages by name."""
