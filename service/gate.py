"""The gate for builds: which runs are below what is asked for, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.errors import InputError, SettingsError

READINESS = ("unsafe_for_production", "review_recommended", "ready_for_runtime")
"""Readiness levels a gate can ask for, lowest first. A run without evidence has none of them."""

Verdict = dict[str, Any]


def failures(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts that have a reason to fail."""
    return [verdict for verdict in verdicts if verdict["reasons"]]


@dataclass(frozen=True)
class Gate:
    """What a run must reach: a trust score from 0 to 100 and a readiness level."""

    min_trust: int
    min_readiness: str

    @classmethod
    def of(cls, min_trust: int, min_readiness: str) -> Gate:
        """A gate; SettingsError when the level is none."""
        if min_readiness not in READINESS:
            raise SettingsError(f"--min-readiness: {min_readiness!r} is no level", hint=f"Levels: {', '.join(READINESS)}.")
        return cls(min_trust, min_readiness)

    def judge(self, run: Mapping[str, Any]) -> Verdict:
        """The run's session, trust and level, and every reason why it fails."""
        trust, level = run["trust_score"], run["readiness_level"]
        reasons = []
        if trust is None or level not in READINESS:
            reasons.append("no evidence: the session has no events")
        else:
            if trust < self.min_trust:
                reasons.append(f"trust {trust} is below {self.min_trust}")
            if READINESS.index(level) < READINESS.index(self.min_readiness):
                reasons.append(f"{level} is below {self.min_readiness}")
        return {"session_id": run["session_id"], "trust_score": trust, "readiness_level": level, "reasons": reasons}

    def verdicts(self, runs: Iterable[Mapping[str, Any]], sessions: Sequence[str] | None) -> Iterator[Verdict]:
        """A verdict for each run, or for those of the named sessions; InputError when one of these has none."""
        wanted = set(sessions or ())
        for run in runs:
            if not sessions or run["session_id"] in sessions:
                wanted.discard(run["session_id"])
                yield self.judge(run)
        if wanted:
            raise InputError(f"no run of session {', '.join(sorted(wanted))}", hint="`driftline runs` lists them.")
