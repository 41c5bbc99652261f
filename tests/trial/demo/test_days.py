"""The demo ends on the day that is wanted, and the same happens in it on whatever day that is."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from driftline_trial.demo import command as demo
from driftline_trial.demo import shop
from driftline_trial.demo.conversations import DAYS, Session, dialogues, releases_until, worse_since
from driftline_trial.demo.fleet import write_fleet
from driftline_trial.demo.judge_change import JudgeSchedule
from driftline_trial.demo.script import SCRIPT_END, present_of
from service.cli.main import run

LAST_DAYS = (
    *(SCRIPT_END + timedelta(days=days) for days in range(1, 8)),
    date(2024, 2, 29),
    date(2024, 3, 1),
    date(2025, 12, 31),
    date(2026, 1, 1),
    date(2027, 2, 28),
    date(2028, 3, 31),
)
"""Every day of the week, a leap day and the one after it, ends of months, and both sides of a new year."""
STAMP = re.compile(r"\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2} GMT-3\] ")
"""The time that a channel puts before a message: its weekday is that of the calendar."""


def moved(value: Any, by: timedelta) -> Any:
    """Return a JSON value with every time in it moved; text that a person wrote stays, except for a channel's stamp."""
    if isinstance(value, dict):
        return {name: moved_time(inner, by) if name == "timestamp" else moved(inner, by) for name, inner in value.items()}
    if isinstance(value, list):
        return [moved(inner, by) for inner in value]
    return STAMP.sub("", value) if isinstance(value, str) else value


def moved_time(value: str | int, by: timedelta) -> Any:
    """Return a time, ISO 8601 or in milliseconds, moved."""
    return value + by // timedelta(milliseconds=1) if isinstance(value, int) else datetime.fromisoformat(value) + by


def content(session: Session, by: timedelta) -> tuple[object, ...]:
    """Return all that a session holds, its times moved."""
    bodies = moved([*session.payloads, *session.events], by)
    return session.connection, session.project, session.agent, session.session_id, bodies, session.ended_at + by


def lines(root: Path, by: timedelta) -> Iterator[tuple[str, Any]]:
    """Yield the lines of a fleet's files, their times moved; a line that is damaged stands as it is."""
    for file in sorted(root.rglob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            try:
                yield file.name, moved(json.loads(line), by)
            except ValueError:
                yield file.name, line


@pytest.mark.parametrize("last_day", LAST_DAYS, ids=str)
def test_the_same_is_said_on_whatever_day_the_demo_ends(last_day: date) -> None:
    """What the documents say of the demo holds on any day: only its dates differ, by as many days as the last day does."""
    by = SCRIPT_END - last_day
    there = [content(session, timedelta()) for session in dialogues(SCRIPT_END)]
    assert there == [content(session, by) for session in dialogues(last_day)]


@pytest.mark.parametrize("last_day", [date(2024, 2, 29), date(2026, 1, 2)], ids=str)
def test_the_same_transcripts_are_written_on_whatever_day_the_demo_ends(last_day: date, tmp_path: Path) -> None:
    """An import finds the same failures in them, as many days before the end."""
    planned = write_fleet(tmp_path / "there", SCRIPT_END)
    plan = write_fleet(tmp_path / "here", last_day)
    assert last_day - plan.degraded_from == SCRIPT_END - planned.degraded_from
    assert planned.sessions == plan.sessions
    there = list(lines(tmp_path / "there", timedelta()))
    assert there == list(lines(tmp_path / "here", SCRIPT_END - last_day))
    written = {file.stat().st_mtime for file in (tmp_path / "here" / "agents").rglob("*.jsonl")}
    assert {datetime.fromtimestamp(at, UTC).date() for at in written} == {last_day}


@pytest.mark.parametrize("last_day", LAST_DAYS, ids=str)
def test_releases_and_the_change_of_the_judge_are_as_many_days_before_the_end(last_day: date) -> None:
    """A deployment belongs to the day on which its version first answers, and the judge's rounds to the exchanges of their days."""
    by = last_day - SCRIPT_END
    there, here = JudgeSchedule(SCRIPT_END), JudgeSchedule(last_day)
    assert [release.at + by for release in releases_until(SCRIPT_END)] == [release.at for release in releases_until(last_day)]
    assert list(here.rounds) == [at + by for at in there.rounds]
    assert there.since + by == here.since
    assert there.chosen_at + by == here.chosen_at
    assert last_day - timedelta(days=4) == worse_since(last_day)
    assert releases_until(last_day)[-1].at < present_of(last_day)


@pytest.mark.parametrize("last_day", LAST_DAYS, ids=str)
def test_every_record_lies_between_the_first_and_the_last_day(last_day: date, tmp_path: Path) -> None:
    """Nothing is of the future, and the last day has sessions of every agent: no page begins with the age of the newest record."""
    ends = [session.ended_at for session in dialogues(last_day)]
    assert present_of(last_day) > max(ends)
    assert {last_day - timedelta(days=days) for days in range(DAYS)} == {at.date() for at in ends}
    assert sum(at.date() == last_day for at in ends) == 6
    shop.write_table(tmp_path / shop.TABLE, last_day)
    with (tmp_path / shop.TABLE).open(encoding="utf-8") as table:
        requests = [datetime.fromisoformat(row["occurred_at"]) for row in csv.DictReader(table)]
    assert {at.date() for at in requests} == {at.date() for at in ends}
    assert present_of(last_day) > max(requests)


def last_day_of_demo(monkeypatch: pytest.MonkeyPatch, folder: Path, now: datetime, *options: str) -> date | None:
    """Return the last day of the demo that a command makes at that time; None if it makes none."""
    made: list[date] = []

    def note(_folder: Path, _settings: object, last_day: date) -> None:
        made.append(last_day)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_import_transcripts", note)
    monkeypatch.setattr(demo, "utc_now", lambda: now)
    run(["demo", "--dir", str(folder), *options])
    return made[0] if made else None


@pytest.mark.parametrize(
    ("options", "last_day"),
    [
        ((), date(2027, 2, 28)),
        (("--last-day", "2026-11-01"), date(2026, 11, 1)),
        (("--last-day", "2027-02-28"), date(2027, 2, 28)),
        (("--last-day", "2000-02-05"), date(2000, 2, 5)),
    ],
    ids=["yesterday", "a fixed day", "the latest", "the earliest"],
)
def test_the_demo_ends_yesterday_or_on_the_day_that_is_named(
    options: tuple[str, ...], last_day: date, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four weeks after a last day that is fixed every page would begin with the age of the newest record."""
    assert last_day_of_demo(monkeypatch, tmp_path / "demo", datetime(2027, 3, 1, 0, 0, 1, tzinfo=UTC), *options) == last_day


@pytest.mark.parametrize("day", ["2027-03-01", "2031-01-01", "2000-02-04", "0001-01-01"])
def test_a_last_day_that_is_not_over_or_too_early_is_refused(
    day: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages would show exchanges of the future, and a server refuses records of before the year 2000. Nothing is emptied for it."""
    now = datetime(2027, 3, 1, 23, 59, tzinfo=UTC)
    assert last_day_of_demo(monkeypatch, tmp_path / "demo", now, "--last-day", day) is None
    assert f"--last-day {day}" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
