"""Wording of the reasons why a project is not healthy."""

from __future__ import annotations

from collections.abc import Mapping

from service.documents.project_checks import check_words
from service.documents.project_health import ENOUGH, Reason, Row, anomalous_share
from service.pages.rendering import number, share


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
