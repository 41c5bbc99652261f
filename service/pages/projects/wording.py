"""Wording of the reasons why a project is not healthy, and of its silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise

from service.pages.rendering import number, share
from service.read.project_checks import check_words, moment_words
from service.read.project_health import ENOUGH, Reason, Row, anomalous_share
from service.text.rounding import counted

_DAY = timedelta(days=1)


def newest_of(row: Row) -> datetime | None:
    """Return the time of a project's newest exchange or run; None without any.

    Exchanges may be older than the retention, and their scores not: then it is the beginning of the newest day with a score.
    """
    day = row["last_score_day"]
    scored = None if day is None else datetime.combine(day, time(), UTC)
    return max((at for at in (row["last_exchange_at"] or scored, row["last_run_at"]) if at is not None), default=None)


def age_words(newest: datetime | None, now: datetime) -> str:
    """Say how many days ago the newest record came; empty for one of the last day, and without any."""
    return "" if newest is None or now - newest < 2 * _DAY else f"{(now - newest).days} days ago"


def reason_words(row: Row, days: int, *, has_judge: bool) -> list[str]:
    """Explain why a project is not healthy, by the `reasons` of its row; its incidents are shown elsewhere."""
    return [_WORDS[one](row, f"{days} days", has_judge) for one in row["reasons"] if one in _WORDS]


def _unscored(row: Row, days: str, has_judge: bool) -> str:
    unscored = row["recent_unscored"]
    words = f"{number(unscored)} of {number(row['recent_scored'] + unscored)} exchanges due to be judged in {days} are unscored"
    return words if has_judge else f"{words}: this server has no judge"


def _unsafe(row: Row, days: str, _: bool) -> str:
    unsafe = row["recent_unsafe_runs"]
    return f"{number(unsafe)} of {counted(row['recent_runs'], 'run')} in {days} {'is' if unsafe == 1 else 'are'} unsafe for production"


def _anomalies(row: Row, days: str, _: bool) -> str:
    anomalies = row["recent_anomalies"]
    has = "has" if anomalies == 1 else "have"
    return f"{number(anomalies)} of {counted(row['recent_scores'], 'exchange')} in {days} {has} an anomaly, {share(anomalous_share(row))}"


def _few(row: Row, days: str) -> str:
    """Say how much of the required data there is: exchanges, or runs if there are only those."""
    if row["scores"] or not row["runs_with_evidence"]:
        return f"{number(row['recent_scores'])} of {ENOUGH} exchanges in {days}"
    return f"{number(row['runs_with_evidence'])} of {ENOUGH} runs"


_WORDS: Mapping[Reason, Callable[[Row, str, bool], str]] = {
    "unscored": _unscored,
    "unsafe_runs": _unsafe,
    "anomalies": _anomalies,
    "too_few": lambda row, days, _: f"Not enough data: {_few(row, days)}",
    "unchecked": lambda row, _days, _judge: check_words(row),
}


def silence_words(days: Sequence[datetime], last_at: datetime | None, now: datetime) -> str:
    """Say when the last exchange came and whether such a pause is usual, by the days that had exchanges; empty without one.

    An agent that works on weekdays, or once a month, is silent for a while without anything being wrong.
    """
    if not days:
        return ""
    # Exchanges may be older than the retention, and their scores not: then the day is all that is known.
    ago = now - (last_at or days[-1])
    came = f"The last exchange came {moment_words(last_at) or f'on {days[-1]:%Y-%m-%d}'}, {ago.days} days ago."
    pauses = [later - earlier for earlier, later in pairwise(days)]
    if not pauses:
        return f"{came} Whether that is usual is not known: no earlier day of that quarter has exchanges."
    longest = max(pauses)
    told = f"the longest time between two days with exchanges was {counted(longest.days, 'day')} that quarter"
    return f"{came} That is {'usual' if ago <= longest + _DAY else 'unusual'}: {told}."
