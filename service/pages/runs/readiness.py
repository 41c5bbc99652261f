"""Why a run is as ready as it is, in words: the rule of its readiness, told of one diagnosis."""

from __future__ import annotations

from audit.diagnosis.diagnosis import READY_TRUST, SAFE_TRUST
from schemas.records import Diagnosis

RULES = (("unsafe_for_production", SAFE_TRUST, "critical"), ("review_recommended", READY_TRUST, "high"))
"""A readiness level, the trust below which a run has it, and the severity of a failure that has the same effect."""
_FAILING = {
    "critical": ("a failure is critical", "{} failures are critical"),
    "high": ("a failure is of high severity", "{} failures are of high severity"),
}


def because(diagnosis: Diagnosis) -> str:
    """What put a run at its level of readiness, as a clause; nothing where nothing did, or the record does not say."""
    found = next((rule for rule in RULES if rule[0] == diagnosis.readiness_level), None)
    if found is None or diagnosis.trust_score is None:
        return ""
    _, least, severity = found
    failures = sum(cause.severity == severity for cause in diagnosis.failure_causes)
    low = [f"trust is below {least}"] if diagnosis.trust_score < least else []
    return " and ".join([*low, *([_FAILING[severity][failures > 1].format(failures)] if failures else [])])
