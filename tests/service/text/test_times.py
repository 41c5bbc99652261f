"""Times as they are typed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from schemas.bounds import EARLIEST
from schemas.errors import SettingsError
from service.text.window import moment_of

NOW = datetime(2026, 11, 8, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("7d", datetime(2026, 11, 1, 12, tzinfo=UTC)),
        ("24h", datetime(2026, 11, 7, 12, tzinfo=UTC)),
        ("30m", datetime(2026, 11, 8, 11, 30, tzinfo=UTC)),
        ("2w", datetime(2026, 10, 25, 12, tzinfo=UTC)),
        (" 0d ", NOW),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T12:30:00Z", datetime(2026, 11, 1, 12, 30, tzinfo=UTC)),
        ("2026-11-01T12:30:00+02:00", datetime(2026, 11, 1, 10, 30, tzinfo=UTC)),
        ("999999w", EARLIEST),
        ("999999d", EARLIEST),
    ],
)
def test_an_age_a_date_and_a_time_are_parsed(given: str, expected: datetime) -> None:
    """Nobody knows the date of a week ago by heart."""
    assert moment_of(given, "--since", NOW) == expected


@pytest.mark.parametrize("given", ["", "  ", "yesterday", "7 d", "-7d", "1.5h", "2026-13-01", "1999-01-01", "7y"])
def test_an_invalid_time_is_refused_with_the_option_and_the_formats(given: str) -> None:
    """The message names the option, and the hint the three formats."""
    with pytest.raises(SettingsError, match=r"^--since: ") as refused:
        moment_of(given, "--since", NOW)
    assert all(form in refused.value.hint for form in ("7d", "2026-11-01", "2026-11-01T12:00:00Z"))
