"""Wording of the reasons why a project is not healthy, and of its silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from service.pages.rendering import number, share
from service.read.project import ENOUGH, RECENT_DAYS, Project, Reason, check_words, moment_words
from service.text.rounding import counted

_DAY = timedelta(days=1)


def age_words(newest: datetime | None, now: datetime) -> str:
    """Describe the age of the newest record in days; empty if it came within the last day, and without records."""
    return "" if newest is None or now - newest < 2 * _DAY else f"{(now - newest).days} days ago"


def reason_words(project: Project, *, has_judge: bool) -> list[str]:
    """Explain why a project is not healthy; its incidents are shown elsewhere."""
    return [_WORDS[reason](project, has_judge) for reason in project.reasons if reason in _WORDS]


def _unscored(project: Project, has_judge: bool) -> str:
    recent = project.recent
    due = number(recent.scored + recent.unscored)
    words = f"{number(recent.unscored)} of {due} exchanges due to be judged in {RECENT_DAYS} days are unscored"
    return words if has_judge else f"{words}: this server has no judge"


def _unsafe(project: Project, _: bool) -> str:
    unsafe = project.recent.unsafe_runs
    verb = "is" if unsafe == 1 else "are"
    return f"{number(unsafe)} of {counted(project.recent.runs, 'run')} in {RECENT_DAYS} days {verb} unsafe for production"


def _anomalies(project: Project, _: bool) -> str:
    recent = project.recent
    has = "has" if recent.anomalies == 1 else "have"
    exchanges = f"{number(recent.anomalies)} of {counted(recent.scores, 'exchange')} in {RECENT_DAYS} days"
    return f"{exchanges} {has} an anomaly, {share(recent.anomaly_rate)}"


def _few(project: Project) -> str:
    """Describe how much of the required data exists: exchanges, or runs if there are only runs."""
    if project.scores or not project.runs_with_evidence:
        return f"{number(project.recent.scores)} of {ENOUGH} exchanges in {RECENT_DAYS} days"
    return f"{number(project.runs_with_evidence)} of {ENOUGH} runs"


_WORDS: Mapping[Reason, Callable[[Project, bool], str]] = {
    "unscored": _unscored,
    "unsafe_runs": _unsafe,
    "anomalies": _anomalies,
    "too_few": lambda project, _: f"Not enough data: {_few(project)}",
    "unchecked": lambda project, _: check_words(project),
}


def silence_words(days: Sequence[datetime], last_at: datetime | None, now: datetime) -> str:
    """Describe the time of the last exchange, and whether such a pause is usual by earlier days; empty without exchanges.

    An agent that works on weekdays, or once a month, is silent for a while without anything being wrong.
    """
    if not days:
        return ""
    # Retention may have deleted the exchanges and kept their sums: then only the day is known.
    ago = now - (last_at or days[-1])
    came = f"The last exchange came {moment_words(last_at) or f'on {days[-1]:%Y-%m-%d}'}, {ago.days} days ago."
    pauses = [later - earlier for earlier, later in pairwise(days)]
    if not pauses:
        return f"{came} Whether that is usual is not known: no earlier day of that quarter has exchanges."
    longest = max(pauses)
    told = f"the longest time between two days with exchanges was {counted(longest.days, 'day')} that quarter"
    return f"{came} That is {'usual' if ago <= longest + _DAY else 'unusual'}: {told}."
