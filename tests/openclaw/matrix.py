"""The table in docs/openclaw.md of what was tested with which version, generated from the scenarios of the tests."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw.install import NEWEST, VERSIONS
from openclaw.played import scenarios_of

TESTED = "yes"
NOT_TESTED = "no"
TESTED_ON_NEWEST = (
    "fork, rewind, reset, compaction by command, deletion",
    "cron, heartbeat, a run that times out",
    "import beside a running gateway, `--follow`",
    "import killed and taken up again",
)
"""Features that are tested only with the newest version, besides the scenarios."""
UNTESTED = ("rollover by time, cold archives, Telegram topics, channels with several people",)
"""Features that no test uses on a real version, because they need days or services of third parties."""


def table() -> list[str]:
    """Return the lines of the table."""
    played = {version: [scenario.name for scenario in scenarios_of(version)] for version in VERSIONS}
    names = dict.fromkeys(name for scenarios in played.values() for name in scenarios)
    rows = [_format_row(name, [name in played[version] for version in VERSIONS]) for name in names]
    rows += [_format_row(feature, [version == NEWEST for version in VERSIONS]) for feature in TESTED_ON_NEWEST]
    rows += [_format_row(feature, [False] * len(VERSIONS)) for feature in UNTESTED]
    versions = " | ".join(f"{version.name} ({version.form})" for version in VERSIONS)
    return [f"| tried | {versions} |", "|".join(["", " --- ", *[" --- "] * len(VERSIONS), ""]), *rows]


def _format_row(feature: str, tested: Sequence[bool]) -> str:
    cells = [TESTED if is_tested else NOT_TESTED for is_tested in tested]
    return f"| {feature} | {' | '.join(cells)} |"
