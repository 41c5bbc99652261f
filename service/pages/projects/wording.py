"""Wording of reasons on a project's page: why exchanges were judged, and what to do if they were not."""

from __future__ import annotations

from collections.abc import Mapping

from service.documents.project_checks import check_words
from service.documents.project_health import ENOUGH, Reason, Row, anomalous_share
from service.pages.rendering import number, share

SAMPLING_REASONS: Mapping[str, str] = {
    "sampling_disabled": "Every exchange: sampling is off",
    "first_turns": "First turns of a session",
    "last_turns": "Last turns of a session",
    "tier1_flags": "Flagged by Tier 1",
    "disagreement": "The agent disagreed",
    "long_response": "Long response",
    "routine_sample": "Every n-th routine turn",
    "sampling_skip": "Routine, left out",
}
"""By the sampling reason of a score."""
_AGAIN = "Ask again: it may work this time."
REMEDIES: Mapping[str, str] = {
    "no_judge": "Give the server a judge, then judge them again.",
    "cost_cap": "Raise costCapPerSession in the policy, then ask again for the reason cost_cap.",
    "unknown_price": "Set judgeModel to a model with a known price, or remove the cap.",
    "refused": "Read the exchange; the judge would refuse the same question again.",
    "invalid": _AGAIN,
    "cut_off": _AGAIN,
    "provider_error": _AGAIN,
    "timeout": _AGAIN,
    "interrupted": _AGAIN,
}
"""Remedies by the reason of an unscored tier."""


def reason_words(row: Row, days: int, *, has_judge: bool) -> list[str]:
    """Explain why a project is not healthy, by the `reasons` of its row; its incidents are shown elsewhere."""
    unscored, unsafe = row["recent_unscored"], row["recent_unsafe_runs"]
    wanted = row["recent_scored"] + unscored
    words: Mapping[Reason, str] = {
        "unscored": f"{number(unscored)} of {number(wanted)} exchanges due to be judged are unscored"
        + ("" if has_judge else ": this server has no judge"),
        "unsafe_runs": f"{number(unsafe)} unsafe run{'' if unsafe == 1 else 's'} in {days} days",
        "anomalies": f"{number(row['recent_anomalies'])} anomalies, {share(anomalous_share(row))} of the exchanges",
        "too_few": f"Not enough data: {_few(row, days)}",
        "unchecked": check_words(row),
    }
    return [words[one] for one in row["reasons"] if one in words]


def _few(row: Row, days: int) -> str:
    """Say how much of the required data there is: exchanges, or runs if there are only those."""
    if row["scores"] or not row["runs"]:
        return f"{number(row['recent_scores'])} of {ENOUGH} exchanges in {days} days"
    return f"{number(row['runs'])} of {ENOUGH} runs"


WRAP_STEPS: Mapping[str, str] = {
    "version_bump": "Version bump",
    "changelog": "Changelog",
    "learnings": "Learnings",
    "next_session_prime": "Next session",
    "commit": "Commit",
}
"""The steps of a wrap-up."""
