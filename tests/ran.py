"""What tests of the drift of runs share: histories of finished runs of which it is known what happened in them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from finished import diagnosed
from watched import END

from schemas.records import Diagnosis, FailureCause

UNSAFE = "unsafe_for_production"


def failure(name: str) -> FailureCause:
    """A cause of a type."""
    return FailureCause(
        type=name, severity="critical", impact_score=-20, causal_chain=(), description="", evidence_count=1, evidence=(), remediation=""
    )  # fmt: skip


def ended_run(name: str, at: datetime, *, bad: bool = False, kind: str = "cost_explosion", **fields: Any) -> Diagnosis:
    """The diagnosis of a run that ended at a time; a bad one is unsafe and has a failure."""
    values: dict[str, Any] = {"ended_at": at, "closed_at": at, "agent": "desk"}
    if bad:
        values |= {
            "trust_score": 88,
            "readiness_level": UNSAFE,
            "failure_causes": (failure(kind),),
            "failure_cause_count": 1,
            "primary_failure_type": kind,
            "primary_severity": "critical",
        }
    return diagnosed(name, **(values | fields))


def runs(
    share: Callable[[int], float], days: int = 30, a_day: int = 2, *, name: str = "r", seed: int = 5, **fields: Any
) -> list[Diagnosis]:
    """Runs of so many days up to the end of the history, of which a share (by days before the end) is bad."""
    chance = random.Random(seed)
    return [
        ended_run(
            f"{name}-{back}-{number}",
            END - timedelta(days=back, minutes=30 * number + 5),
            bad=chance.random() < share(back),
            **fields,
        )
        for back in range(days, -1, -1)
        for number in range(a_day)
    ]


def worse_since(back: int, share: float = 0.9, before: float = 0.05) -> Callable[[int], float]:
    """A share of bad runs that rose so many days before the end."""
    return lambda days: share if days < back else before


def session_ids(found: Iterable[Any]) -> set[str]:
    """Which sessions some records are about."""
    return {one["sessionId"] for one in found}
