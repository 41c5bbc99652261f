"""The table in docs/openclaw.md of what was tried with which version, made from the scenarios that the tests play."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw.install import NEWEST, VERSIONS
from openclaw.played import scenarios_of

TRIED, NOT_TRIED = "yes", "no"
ON_THE_NEWEST = (
    "fork, rewind, reset, compaction by command, deletion",
    "cron, heartbeat, a run that times out",
    "import beside a running gateway, `--follow`",
    "import killed and taken up again",
)
"""What is tried with the newest version alone, besides the scenarios."""
NOWHERE = ("rollover by time, cold archives, Telegram topics, channels with several people",)
"""What no real version was made to do: it needs days, or services of others."""


def table() -> list[str]:
    """The lines of the table."""
    played = {version: [scenario.name for scenario in scenarios_of(version)] for version in VERSIONS}
    names = dict.fromkeys(name for scenarios in played.values() for name in scenarios)
    rows = [_row(name, [name in played[version] for version in VERSIONS]) for name in names]
    rows += [_row(what, [version == NEWEST for version in VERSIONS]) for what in ON_THE_NEWEST]
    rows += [_row(what, [False] * len(VERSIONS)) for what in NOWHERE]
    versions = " | ".join(f"{version.name} ({version.form})" for version in VERSIONS)
    return [f"| tried | {versions} |", "|".join(["", " --- ", *[" --- "] * len(VERSIONS), ""]), *rows]


def _row(what: str, tried: Sequence[bool]) -> str:
    return f"| {what} | {' | '.join(TRIED if one else NOT_TRIED for one in tried)} |"
