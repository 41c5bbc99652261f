"""A time in a table is read as its program means it, or rejected with the reason; it never becomes another instant."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.bounds import EARLIEST, LATEST
from schemas.errors import InputError
from streams.sources.exchange_files.mapping import TimeSource, read_time
from streams.sources.exchange_files.profiling import profile_file
from streams.sources.source import Reading, ReadingContext

Read = Callable[..., Reading]
AT = datetime(2026, 3, 6, 17, 5, 9, tzinfo=UTC)
HALF = AT + timedelta(seconds=0.5)
BERLIN = "Europe/Berlin"


def read(text: str, zone: str | None = None) -> datetime | None:
    """Return the time in a cell."""
    return read_time(text, TimeSource(column="t", zone=zone))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        pytest.param("2026-03-06 17:05:09 UTC", AT, id="BigQuery"),
        pytest.param("2026-03-06 17:05:09.500000 UTC", HALF, id="BigQuery with a fraction"),
        pytest.param("2026-03-06 17:05:09.5 UTC", HALF, id="ClickHouse and Athena"),
        pytest.param("2026-03-06 18:05:09.500 Europe/Berlin", HALF, id="Trino"),
        pytest.param("2026-03-06 09:05:09.500 -0800", HALF, id="Snowflake"),
        pytest.param("2026-03-06 17:05:09.500000000 +0000 UTC m=+0.000012345", HALF, id="Go, with its monotonic clock"),
        pytest.param("2026-03-06 18:05:09.5 +0100 CET", HALF, id="Go"),
        pytest.param("2026-03-06 20:05:09 +0300 +03", AT, id="Go in a zone without a name"),
        pytest.param("Fri, 06 Mar 2026 17:05:09 GMT", AT, id="RFC 2822 of HTTP"),
        pytest.param("Fri, 6 Mar 2026 18:05:09 +0100", AT, id="RFC 2822 of a mail"),
        pytest.param("6 Mar 2026 12:05:09 -0500 (EST)", AT, id="RFC 2822 with a comment"),
        pytest.param("Fri Mar 06 17:05:09 UTC 2026", AT, id="Java's Date"),
        pytest.param("Fri Mar 06 19:05:09 GMT+02:00 2026", AT, id="Java's Date with an offset"),
        pytest.param("Fri Mar  6 17:05:09 2026", AT, id="C's ctime"),
        pytest.param("Fri Mar 06 17:05:09 +0000 2026", AT, id="Ruby"),
        pytest.param("2026-03-06T18:05:09.5+01:00[Europe/Berlin]", HALF, id="Java's ZonedDateTime"),
        pytest.param("2026-03-06T17:05:09Z[UTC]", AT, id="Java's ZonedDateTime of UTC"),
        pytest.param("Fri Mar 06 2026 18:05:09 GMT+0100 (Central European Standard Time)", AT, id="JavaScript's Date"),
        pytest.param("2026-03-06 17:05:09,500", HALF, id="Python's logging"),
        pytest.param("2026-03-06 17:05:09,500 +0000", HALF, id="Log4j"),
        pytest.param("1.7728167095e9", HALF, id="seconds with an exponent"),
        pytest.param("1.7728167095E12", HALF, id="milliseconds of a Java double"),
        pytest.param("1.7728167095e+18", HALF, id="nanoseconds with an exponent"),
    ],
)
def test_a_time_is_parsed_as_its_program_means_it(text: str, moment: datetime) -> None:
    """A standard database export should need no mapping."""
    assert read(text) == moment


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_a_zone_in_the_text_overrides_that_of_the_mapping(zone: str | None) -> None:
    """The mapping's zone applies to times without one."""
    texts = ("2026-03-06 17:05:09 UTC", "Fri, 06 Mar 2026 18:05:09 +0100", "2026-03-06 18:05:09 Europe/Berlin")
    assert [read(text, zone) for text in texts] == [AT] * 3


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-06 18:05:09", AT),
        ("Fri Mar  6 18:05:09 2026", AT),
        ("2026-03-06 18:05:09 CET", AT),
        ("Fri Mar 06 18:05:09 CET 2026", AT),
        ("2026-10-25 02:30:00 CEST", datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        ("2026-10-25 02:30:00 CET", datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
    ],
)
def test_a_zone_of_the_mapping_resolves_ambiguous_texts(text: str, moment: datetime) -> None:
    """`CET` alone is ambiguous; with a zone it even distinguishes the repeated hour in October."""
    assert read(text, BERLIN) == moment


@pytest.mark.parametrize(
    ("text", "zone", "reason"),
    [
        pytest.param("2026-03-06 17:05:09 EST", None, "EST", id="an abbreviation of several zones"),
        pytest.param("2026-03-06 17:05:09 EST", BERLIN, "EST", id="one that the zone does not have"),
        pytest.param("2026-03-06 17:05:09 CEST", BERLIN, "CEST", id="one that the zone has in summer"),
        pytest.param("2026-10-25 02:30:00", BERLIN, "twice", id="an hour that comes twice"),
        pytest.param("2026-03-29 02:30:00", BERLIN, "skipped", id="an hour that there is not"),
        pytest.param("2026-10-25 02:30:00 Europe/Berlin", None, "twice", id="the same by the zone in the text"),
        pytest.param("2026-03-06 17:05:09 Atlantis/Capital", None, "Atlantis", id="a zone that there is not"),
        pytest.param("Thu, 06 Mar 2026 17:05:09 GMT", None, "day of the week", id="a day of the week that the date is not"),
        pytest.param("03/06/2026 5:05 PM", None, "%m/%d/%Y %I:%M %p", id="day or month first"),
        pytest.param("3.6.26 17:05", None, "%d.%m.%y %H:%M", id="day or month first, by points"),
        pytest.param("2026-03-06 05:05:09 PM", None, "PM", id="half a day after ISO's date"),
        pytest.param("2026-03-06 17:05:60 UTC", None, "17:05:60", id="a leap second"),
        pytest.param("2026-02-30 17:05:09 UTC", None, "02-30", id="a day that there is not"),
        pytest.param("2026-03-06 17:05:09 +2500", None, r"\+2500", id="an offset that there is not"),
        pytest.param("1.77282E+12", None, "rounded", id="a spreadsheet's number"),
        pytest.param("1.77282e+09", None, "rounded", id="a number by C's %g"),
        pytest.param("46087.7119", None, "spreadsheet", id="a spreadsheet's day"),
        pytest.param("1999-12-31 23:59:59 UTC", None, "1999", id="before the first year"),
        pytest.param("0001-01-01T00:00:00+14:00", None, "0001", id="before the first time"),
        pytest.param("Fri Mar 06 17:05:09 UTC 2026" + " " * 200 + "x", None, "form", id="a long text"),
    ],
)  # fmt: skip
def test_an_ambiguous_time_is_refused_with_its_reason(text: str, zone: str | None, reason: str) -> None:
    """A wrong time moves an exchange to another day unnoticed; a rejected one is reported with its value."""
    with pytest.raises(ValueError, match=reason):
        read(text, zone)


@given(st.datetimes(min_value=EARLIEST.replace(tzinfo=None), max_value=(LATEST - timedelta(days=1)).replace(tzinfo=None)))
def test_every_format_gives_the_instant_that_was_written(at: datetime) -> None:
    """This covers one and two digits, leap days and all weekdays."""
    plain, moment = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond:06}", at.replace(tzinfo=UTC)
    assert [read(text) for text in (f"{plain} UTC", f"{plain}000 +0000 UTC m=+1.5", f"{plain.replace('.', ',')}")] == [
        moment
    ] * 3
    seconds = moment.replace(microsecond=0)
    forms = (
        f"{at:%a, %d %b %Y %H:%M:%S} GMT",
        f"{at:%a %b %d %H:%M:%S} UTC {at:%Y}",
        f"{at:%a %b %d %Y %H:%M:%S} GMT+0000 (UTC)",
    )
    assert [read(text) for text in forms] == [seconds] * 3


@given(st.text(alphabet="0123456789-:/+., TZUGMCETPmonFri[]()=e", max_size=90))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    """Cells may contain anything."""
    with contextlib.suppress(ValueError):
        moment = read(text)
        assert moment is None or EARLIEST <= moment < LATEST


def table(tmp_path: Path, cells: str, name: str = "rows.csv") -> Path:
    """Return a file with these lines."""
    path = tmp_path / name
    path.write_text(cells, "utf-8")
    return path


def test_a_table_with_such_times_needs_no_mapping(tmp_path: Path, read_file: Read) -> None:
    """The column is proposed by its name."""
    rows = "session_id,created,question,answer\ns-1,2026-03-06 17:05:09.500000 UTC,Hi,Hello\n"
    (exchange,) = read_file(table(tmp_path, rows)).exchanges
    assert exchange.occurred_at == HALF


def test_an_unreadable_time_is_reported_with_column_and_format(tmp_path: Path, redacting: ReadingContext) -> None:
    """The user learns which column to map and what to write."""
    rows = "session_id,created,question,answer\ns-1,03/06/2026 17:05,Hi,Hello\n"
    with pytest.raises(InputError) as raised:
        profile_file(table(tmp_path, rows)).layout(redacting.redactor)
    assert "column created" in str(raised.value.hint)
    assert '"%m/%d/%Y %H:%M"' in str(raised.value.hint)
