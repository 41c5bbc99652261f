"""The gate for builds: runs below the required level, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.diagnosis.diagnosis import LOWEST_TRUST, READY_TRUST, SAFE_TRUST
from schemas.errors import InputError, SettingsError

UNSAFE = "unsafe_for_production"
READINESS = (UNSAFE, "review_recommended", "ready_for_runtime")
"""Readiness levels a gate can require, lowest first. A run without evidence has none of them."""
USUAL_READINESS = "review_recommended"
"""The level that passes by default: every run that is not unsafe for production."""

Verdict = dict[str, Any]


def failures(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that have a reason to fail."""
    return [verdict for verdict in verdicts if verdict["reasons"]]


def never_fails(name: str, least: int) -> str:
    """Warn that a trust gate, named `name`, can never fail a run, because every run reaches `least`; suggest one that can."""
    return (
        f"{name} {least} never fails a run: trust is never below {LOWEST_TRUST}, however bad the run. "
        f"Require more than {LOWEST_TRUST}, or gate on readiness."
    )


@dataclass(frozen=True)
class Gate:
    """The requirements for a run: a readiness level, and a trust score from 0 to 100."""

    min_trust: int
    min_readiness: str

    @classmethod
    def of(cls, min_trust: int, min_readiness: str) -> Gate:
        """Return a gate; SettingsError if the level is unknown."""
        if min_readiness not in READINESS:
            raise SettingsError(f"--min-readiness: {min_readiness!r} is not a level", hint=f"Levels: {', '.join(READINESS)}.")
        return cls(min_trust, min_readiness)

    @property
    def warnings(self) -> list[str]:
        """Return a sentence for each requirement that can never fail a run."""
        warnings = [never_fails("--min-trust", self.min_trust)] if 0 < self.min_trust <= LOWEST_TRUST else []
        if self.min_readiness == UNSAFE and self.min_trust <= LOWEST_TRUST:
            warnings.append(
                f"--min-readiness {UNSAFE} fails no run with runtime events. Require {USUAL_READINESS}, the default, or more."
            )
        return warnings

    @property
    def requirement(self) -> str:
        """Describe what a run needs to pass."""
        levels = {
            UNSAFE: "runtime events",
            USUAL_READINESS: f"no critical failure and a trust of {max(SAFE_TRUST, self.min_trust)} or more",
            READINESS[-1]: f"no critical or high failure and a trust of {max(READY_TRUST, self.min_trust)} or more",
        }
        trust = f" and a trust of {self.min_trust} or more" if self.min_readiness == UNSAFE and self.min_trust else ""
        return f"A run passes with readiness {self.min_readiness} or better: {levels[self.min_readiness]}{trust}."

    def judge(self, run: Mapping[str, Any]) -> Verdict:
        """Return the run's session, level and trust, and every reason why it fails."""
        trust, level = run["trust_score"], run["readiness_level"]
        reasons = []
        if trust is None or level not in READINESS:
            reasons.append("no evidence: the session has no runtime events")
        else:
            if READINESS.index(level) < READINESS.index(self.min_readiness):
                reasons.append(f"{level} is below {self.min_readiness}{_critical(run)}")
            if trust < self.min_trust:
                reasons.append(f"trust {trust} is below {self.min_trust}")
        return {"session_id": run["session_id"], "readiness_level": level, "trust_score": trust, "reasons": reasons}

    def verdicts(self, runs: Iterable[Mapping[str, Any]], sessions: Sequence[str] | None) -> Iterator[Verdict]:
        """Return a verdict for each run, or for the named sessions; InputError if one of these has none."""
        wanted = set(sessions or ())
        for run in runs:
            if not sessions or run["session_id"] in sessions:
                wanted.discard(run["session_id"])
                yield self.judge(run)
        if wanted:
            raise InputError(f"no runs of session {', '.join(sorted(wanted))}", hint="`driftline runs` lists them.")


def _critical(run: Mapping[str, Any]) -> str:
    """Name the critical failures of a run (stored or diagnosed) as a reason; empty without any."""
    causes = run.get("failure_causes") or [{"type": run.get("primary_failure_type"), "severity": run.get("primary_severity")}]
    types = [cause["type"] for cause in causes if cause["severity"] == "critical"]
    return f" (critical: {', '.join(types)})" if types else ""
