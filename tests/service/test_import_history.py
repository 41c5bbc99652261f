"""Imports of months-old files: each day that they brought is checked as of its end, once, whatever interrupts it."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
from support.exchange_tables import write_lines
from support.servers import LONG, Child, Home, nursery

from service.cli.commands.incidents import check_projects
from service.setup.settings import load_settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import open_workspace
from service.write.importing import Importer, begin_history
from service.write.input_files import exchange_source, profile_files
from streams.sources.transcript_sources import SOURCES

Command = Callable[..., tuple[int, str, str]]
FIRST = datetime(2026, 8, 3, 9, tzinfo=UTC)
DAYS = 21
FALLS = 17
"""The number of the first day on which answers are worse."""
NOW = "2026-11-28T12:00:00Z"
INCIDENTS = "SELECT * EXCLUDE (_offset, _topic, _partition) FROM log.incidents ORDER BY incident_id, revision"


def exchanges(days: int = DAYS, *, falls: int = FALLS, first: datetime = FIRST, name: str = "s") -> list[dict[str, Any]]:
    """Twelve exchanges a day, each a session of its own; from one day on most answers deny being an AI."""
    chance = random.Random(3)
    rows = []
    for day in range(days):
        for number in range(12):
            is_bad = chance.random() < (0.8 if day >= falls else 0.05)
            answer = "No, I am not an AI, I am a human being." if is_bad else "Yes, I am an AI."
            at = first + timedelta(days=day, minutes=20 * number)
            rows.append(
                {"session_id": f"{name}-{day}-{number}", "turn": 1, "timestamp": at.isoformat(), "agent": "desk", "model": "m"}
                | {"prompt": "Are you an AI?", "response": answer}
            )
    return rows


def transcripts(folder: Path) -> None:
    """Three sessions a day of Claude Code; from one day on each repeats one call six times."""
    folder.mkdir(parents=True)
    for day in range(DAYS):
        for number in range(3):
            session, at = f"s-{day:02}-{number}", FIRST + timedelta(days=day, hours=number)
            lines = [line(session, at, 0, "user", "Is the site up?")]
            calls = 6 if day >= FALLS else 1
            for call in range(calls):
                use = {"type": "tool_use", "id": f"{session}-{call}", "name": "Bash", "input": {"command": "curl -sI site"}}
                tool_result = {"type": "tool_result", "tool_use_id": f"{session}-{call}", "content": "200"}
                lines += [
                    line(session, at, 2 * call + 1, "assistant", [use]),
                    line(session, at, 2 * call + 2, "user", [tool_result]),
                ]
            lines.append(line(session, at, 2 * calls + 1, "assistant", [{"type": "text", "text": "It answers 200."}]))
            (folder / f"{session}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), "utf-8")


def line(session: str, at: datetime, second: int, role: str, content: object) -> dict[str, Any]:
    """A line of a transcript of Claude Code."""
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        message |= {"id": f"m-{session}-{second}", "model": "claude-sonnet-4-5", "stop_reason": "end_turn"}
    own = {"type": role, "uuid": f"{session}-{second}", "parentUuid": f"{session}-{second - 1}" if second else None}
    stamp = (at + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")
    return own | {"sessionId": session, "timestamp": stamp, "cwd": "/srv", "version": "2.0.0", "message": message}


def rows(database: str, statement: str = INCIDENTS) -> list[tuple[Any, ...]]:
    """What a database answers."""
    with duckdb.connect(database, read_only=True) as connection:
        return connection.execute(statement).fetchall()


def day_by_day(database: str, fill: Callable[[Importer], object]) -> list[tuple[Any, ...]]:
    """The incidents that `check-drift --as-of` makes of an import without checks, as of the end of one day after the other."""
    present = [datetime.fromisoformat(NOW)]
    with open_workspace(load_settings(database=Path(database)), now=lambda: present[0], create=True) as workspace:
        fill(Importer(workspace))
        for number in range(1, DAYS + 7):
            present[0] = datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC) + timedelta(days=number)
            check_projects(workspace, ["default"])
    return rows(database)


def import_table(importer: Importer, path: Path) -> object:
    """Take in a table as the command does, and check nothing."""
    settings = load_settings()
    redactor = redactor_of(settings, policy_of(settings))
    layouts = profile_files([path], None, redactor, require_columns=True).layouts(redactor)
    return importer.import_exchanges(exchange_source(layouts, []), layouts)


def test_an_old_table_gets_the_incidents_of_daily_checks(driftline: Command, tmp_path: Path) -> None:
    """The projects used to be unchecked, although a check as of each day found the problem."""
    path = write_lines(tmp_path / "a.jsonl", exchanges())
    code, out, error = driftline("import", "exchanges", "a.jsonl", "--db", "a.duckdb", "--as-of", NOW)
    assert code == 0, error

    expected = day_by_day("b.duckdb", lambda importer: import_table(importer, path))
    assert expected
    assert rows("a.duckdb") == expected
    assert "2026-08-03 to 2026-08-23, 21 days with data: " in out, out
    assert "since 2026-08-20" in out
    assert "not checked" not in out.lower()


def test_old_transcripts_get_the_incidents_of_daily_checks(driftline: Command, tmp_path: Path) -> None:
    """Runs are compared like scores."""
    transcripts(tmp_path / "projects" / "site")
    code, out, error = driftline("import", "claude-code", "projects", "--db", "a.duckdb", "--as-of", NOW)
    assert code == 0, error
    source = SOURCES["claude-code"]
    expected = day_by_day("b.duckdb", lambda importer: importer.import_transcripts(source, source.files_in([Path("projects")])))
    assert expected
    assert rows("a.duckdb") == expected
    assert "2026-08-03 to 2026-08-23, 21 days with data: " in out, out


def test_a_repeated_import_checks_nothing_and_says_so(driftline: Command, tmp_path: Path) -> None:
    """Repeating changes nothing, and "not checked" would be wrong."""
    write_lines(tmp_path / "a.jsonl", exchanges(4))
    first = json.loads(driftline("import", "exchanges", "a.jsonl", "--as-of", NOW, "--json")[1])["history"]
    assert [
        (one["project"], one["days"], one["first_day"], one["last_day"], one["checks"], one["incidents"]) for one in first
    ] == [("default", 4, "2026-08-03", "2026-08-06", 9, [])]
    before = rows("driftline.duckdb", "SELECT * FROM log.baselines ORDER BY ALL")
    (tmp_path / "a.jsonl").touch()
    code, out, _ = driftline("import", "exchanges", "a.jsonl", "--as-of", NOW)
    assert code == 0
    assert "no new record is from a past day" in out
    assert rows("driftline.duckdb", "SELECT * FROM log.baselines ORDER BY ALL") == before


def test_a_history_that_is_too_short_is_reported(driftline: Command, tmp_path: Path) -> None:
    """Without enough data, no finding is no good news."""
    write_lines(tmp_path / "a.jsonl", exchanges(4))
    _, out, _ = driftline("import", "exchanges", "a.jsonl", "--as-of", NOW)
    assert "it has 4 days with data since 2026-08-03" in out


def test_the_next_import_completes_the_checks_of_a_killed_one(tmp_path: Path) -> None:
    """The records are already stored, so the next import finds nothing new in the file."""
    write_lines(tmp_path / "a.jsonl", exchanges())
    command = ("import", "exchanges", str(tmp_path / "a.jsonl"), "--as-of", NOW)
    with nursery() as children:

        def start(database: str, before: str = "") -> Child:
            return children.start(Home(tmp_path), *command, environment={"DRIFTLINE_DATABASE": database}, before=before)

        undisturbed, killed = str(tmp_path / "a.duckdb"), str(tmp_path / "b.duckdb")
        assert start(undisturbed).wait(LONG) == 0
        for _ in range(2):
            assert start(killed, KILLED).wait(LONG) == -signal.SIGKILL
        assert start(killed).wait(LONG) == 0
    expected = rows(undisturbed)
    assert expected
    assert rows(killed) == expected
    baselines = "SELECT * EXCLUDE (_offset, _topic, _partition) FROM log.baselines ORDER BY ALL"
    assert rows(undisturbed, baselines) == rows(killed, baselines)


def test_check_drift_completes_the_checks_of_a_killed_import(driftline: Command, tmp_path: Path) -> None:
    """Nobody repeats an import that looks complete."""
    path = write_lines(tmp_path / "a.jsonl", exchanges(4, first=datetime.now(UTC) - timedelta(days=60)))
    with open_workspace(load_settings(), create=True) as workspace:
        begin_history(workspace, "default")
        import_table(Importer(workspace), path)
    assert driftline("check-drift")[0] == 0
    ((baselines,),) = rows("driftline.duckdb", "SELECT count(*) FROM log.baselines")
    assert baselines >= 4
    before = rows("driftline.duckdb", "SELECT * FROM log.baselines ORDER BY ALL")
    assert driftline("check-drift")[0] == 0
    assert rows("driftline.duckdb", "SELECT * FROM log.baselines ORDER BY ALL") == before


KILLED = """
import os, signal
from streams.watch.watching import Watch
check, calls = Watch.check, []
async def killed(self, *arguments):
    calls.append(1)
    if len(calls) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return await check(self, *arguments)
Watch.check = killed
"""
"""Python that has a process killed before the ninth check that it makes."""
