"""`driftline import exchanges`: what it prints, what it leaves in the database, and what it refuses."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.exchange_tables import EXPORTS, ROWS, write_lines, write_table

from driftline_trial.simulator import RunningJudge, running
from service.cli.commands import importing

Command = Callable[..., tuple[int, str, str]]
KEY = "sk-ant-api03-" + "A" * 40


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch, driftline: Command) -> Iterator[RunningJudge]:  # noqa: ARG001 - it clears the environment
    """A simulated judge, named in the environment."""
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "simulated")
        yield judge


def rows(database: Path, statement: str) -> list[tuple[Any, ...]]:
    """What a database answers."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(statement).fetchall()


def test_importing_twice_changes_nothing(driftline: Command, tmp_path: Path) -> None:
    """Neither the same file, nor a copy of it in another place and format."""
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    code, out, _ = driftline("import", "exchanges", "a.jsonl", "--json")
    first = json.loads(out)
    assert code == 0
    assert first["exchanges"] == len(ROWS)
    assert first["sessions"] == 2
    assert first["faults"] == 0
    before = rows(tmp_path / "driftline.duckdb", "SELECT * EXCLUDE (_offset) FROM log.exchanges ORDER BY ALL")
    assert json.loads(driftline("import", "exchanges", "a.jsonl", "--json")[1])["unchanged"] == 1
    os.utime(path, (1, 1))
    write_table(tmp_path / "b.csv", ROWS)
    again = json.loads(driftline("import", "exchanges", "a.jsonl", "b.csv", "--json")[1])
    assert again["exchanges"] == 0
    assert again["known"] == 2 * len(ROWS)
    assert again["faults"] == 0
    assert rows(tmp_path / "driftline.duckdb", "SELECT * EXCLUDE (_offset) FROM log.exchanges ORDER BY ALL") == before


def test_a_file_is_read_again_by_another_mapping(driftline: Command, tmp_path: Path) -> None:
    """Who corrects a mapping expects it to be used, although the file is the same."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    driftline("import", "exchanges", "a.jsonl")
    text = "version: 1\nfields: {session_id: model, occurred_at: timestamp, user_message: prompt, agent_response: response}\n"
    (tmp_path / "map.yaml").write_text(text)
    again = json.loads(driftline("import", "exchanges", "a.jsonl", "--map", "map.yaml", "--json")[1])
    assert again["unchanged"] == 0
    assert again["exchanges"] == len(ROWS)
    assert again["sessions"] == 1


def test_a_broken_row_is_set_aside_with_file_and_row(driftline: Command, tmp_path: Path) -> None:
    """The rest is taken, and the exit code says that something was not."""
    write_lines(tmp_path / "a.jsonl", [*ROWS[:3], "{", *ROWS[3:]])
    code, out, _ = driftline("import", "exchanges", "a.jsonl")
    assert code == 1
    assert "6 exchanges and 0 events imported" in out
    assert "1 record was rejected" in out
    assert "driftline dead-letters list" in out
    assert rows(tmp_path / "driftline.duckdb", "SELECT source, position, stage, reason FROM log.dead_letters") == [
        ("a.jsonl", 4, "import", "not_json")
    ]


def test_a_dry_run_stores_nothing_and_shows_what_would_be(driftline: Command, tmp_path: Path) -> None:
    """The first look is for whoever does not know yet whether the columns are understood."""
    write_table(tmp_path / "a.csv", ROWS * 5)
    code, out, _ = driftline("import", "exchanges", "a.csv", "--dry-run")
    assert code == 0
    assert out.startswith("a.csv: CSV\nversion: 1\nfields:\n  session_id: session_id\n  occurred_at: timestamp\n")
    assert out.count("Where is my order") == 10
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("options", [["--dry-run"], ["--dry-run", "--json"], ["--save-map", "MAP"], []])
def test_no_secret_is_shown_or_stored(driftline: Command, tmp_path: Path, options: list[str]) -> None:
    """Not in what would be stored, not in what is wrong with a row, and not where a table without a header has one in its first row."""
    write_lines(
        tmp_path / "a.jsonl",
        [{**ROWS[0], "response": KEY}, *ROWS[1:], {**ROWS[0], "timestamp": KEY}, {**ROWS[0], "prompt_tokens": KEY}, KEY],
    )
    (tmp_path / "headless.csv").write_text(f"s,2026-11-01T10:00:00Z,{KEY},b\ns,2026-11-01T10:00:00Z,a,b\n")
    shown = "".join(
        part
        for name in ("a.jsonl", "headless.csv")
        for part in map(
            str, driftline("import", "exchanges", name, *(f"{name}.yaml" if one == "MAP" else one for one in options))
        )
    )
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.suffix not in (".jsonl", ".csv"))
    assert KEY not in shown
    assert KEY.encode() not in stored
    assert "[SECRET:" in shown or "[SECRET:" in stored.decode("utf-8", "replace")


def test_a_proposal_can_be_written_corrected_and_used(driftline: Command, tmp_path: Path) -> None:
    """A table whose time has an odd name is one line of work."""
    write_lines(
        tmp_path / "a.jsonl",
        [{"when exactly" if name == "timestamp" else name: value for name, value in row.items()} for row in ROWS],
    )
    code, _, err = driftline("import", "exchanges", "a.jsonl")
    assert code == 2
    assert "no column gives occurred_at" in err
    code, _, err = driftline("import", "exchanges", "a.jsonl", "--save-map", "map.yaml")
    assert code == 0
    assert "name columns for occurred_at in it" in err
    text = (tmp_path / "map.yaml").read_text()
    code, _, err = driftline("import", "exchanges", "a.jsonl", "--map", "map.yaml")
    assert code == 2
    assert "map.yaml:5: fields.occurred_at" in err
    (tmp_path / "map.yaml").write_text(text.replace("occurred_at: null", "occurred_at: when exactly"))
    assert driftline("import", "exchanges", "a.jsonl", "--map", "map.yaml")[0] == 0
    code, _, err = driftline("import", "exchanges", "a.jsonl", "--save-map", "map.yaml")
    assert code == 2
    assert "exists already" in err


def test_a_folder_is_read_file_by_file_and_what_is_something_else_is_named(driftline: Command, tmp_path: Path) -> None:
    """As every import does."""
    folder = tmp_path / "exports"
    folder.mkdir()
    write_lines(folder / "a.jsonl", ROWS[:3])
    write_table(folder / "b.parquet", ROWS[3:])
    (folder / "empty.csv").touch()
    (folder / "notes.csv").write_text("title,author\nThe Trial,Kafka\n")
    code, out, err = driftline("import", "exchanges", "exports")
    assert code == 1
    assert "2 files, 2 sessions: 6 exchanges" in out
    assert re.search("exports/notes.csv: .*session_id, occurred_at, user_message, agent_response.*skipped", err)
    assert driftline("import", "exchanges", "exports/notes.csv")[0] == 2


def test_traces_and_observations_of_langfuse_are_not_taken_together(driftline: Command, tmp_path: Path) -> None:
    """Each exchange would count twice."""
    for name in ("langfuse_observations.jsonl", "langfuse_traces.json"):
        shutil.copy(EXPORTS / name, tmp_path)
    code, _, err = driftline("import", "exchanges", "langfuse_observations.jsonl", "langfuse_traces.json")
    assert code == 2
    assert "contain the same exchanges" in err
    assert not (tmp_path / "driftline.duckdb").exists()


def test_a_trace_that_gives_no_exchange_is_reported_with_its_reason(driftline: Command, tmp_path: Path) -> None:
    """Who counts the traces of an export and the exchanges of the import sees where the others went."""
    row = {
        "id": "o-1", "traceId": "t-1", "parentObservationId": None, "type": "GENERATION", "startTime": "2026-10-01T10:00:00Z",
        "environment": "langfuse-evaluation", "input": "Rate it.", "output": "4",
    }  # fmt: skip
    write_lines(tmp_path / "judged.jsonl", [json.dumps(row), json.dumps(row | {"id": "o-2", "traceId": "t-2"})])
    code, out, _ = driftline("import", "exchanges", "judged.jsonl")
    assert code == 0
    assert "2 traces" in out
    assert "langfuse-evaluation" in out
    os.utime(tmp_path / "judged.jsonl", (1, 1))
    told = json.loads(driftline("import", "exchanges", "judged.jsonl", "--json")[1])
    reason = {"state": "evaluation", "example": "langfuse.environment = langfuse-evaluation", "traces": 2}
    assert told["exchanges"] == 0
    assert told["left_out"] == [reason]


@pytest.mark.parametrize("options", [[], ["--by", "project,day"]])
def test_our_own_export_fills_an_empty_database_with_the_same_exchanges(
    driftline: Command, tmp_path: Path, options: list[str]
) -> None:
    """Connection, project, ids, labels, redactions and digests come back as they were."""
    shutil.copy(EXPORTS / "phoenix_spans.parquet", tmp_path)
    write_lines(tmp_path / "a.jsonl", [{**ROWS[0], "response": f"the key is {KEY}"}, *ROWS[1:]])
    driftline("import", "exchanges", "a.jsonl", "--connection", "mine", "--project", "ops")
    driftline("import", "exchanges", "phoenix_spans.parquet")
    driftline("export", "out", *options)
    code, out, err = driftline("import", "exchanges", "out", "--db", "other.duckdb")
    assert code == 0
    assert "9 exchanges" in out
    assert "other tables than exchanges" in err
    statement = "SELECT * EXCLUDE (_topic, _partition, _offset) FROM log.exchanges ORDER BY ALL"
    first, second = (rows(tmp_path / name, statement) for name in ("driftline.duckdb", "other.duckdb"))
    assert first == second
    assert len(first) == 9


def test_a_named_table_of_ours_without_exchanges_is_refused(driftline: Command, tmp_path: Path) -> None:
    """Its columns would pass for those of anything."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    driftline("import", "exchanges", "a.jsonl")
    driftline("export", "out")
    code, _, err = driftline("import", "exchanges", "out/scores.parquet")
    assert code == 2
    assert "table scores, not exchanges" in err


def test_judging_is_part_of_it_and_its_cost_comes_first(
    driftline: Command, simulator: RunningJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command from a file to what is wrong with it; a no costs nothing, and leaves what was imported."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, out, err = driftline("import", "exchanges", "a.jsonl", "--judge")
    assert code == 1
    assert simulator.requests == 0
    assert "6 unscored exchanges: about 6 calls and 0.0" in err
    assert "6 exchanges and 0 events imported" in out

    code, out, err = driftline("import", "exchanges", "a.jsonl", "--judge", "--yes", "--as-of", "2026-11-02T00:00:00Z")
    assert code == 0
    assert "6 exchanges judged again" in out
    assert "default: checked for drift on 2026-11-01" in out
    assert rows(tmp_path / "driftline.duckdb", "SELECT count(*) FROM log.scores WHERE tier2_state = 'scored'") == [(6,)]


def test_without_a_judge_nothing_is_imported_to_be_judged(driftline: Command, tmp_path: Path) -> None:
    """It is said before an hour of reading, and not after it."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    code, _, err = driftline("import", "exchanges", "a.jsonl", "--judge")
    assert code == 2
    assert "there is no judge" in err
    assert rows(tmp_path / "driftline.duckdb", "SELECT * FROM log.exchanges") == []


def test_an_import_that_a_judge_is_paid_for_says_what_it_costs(
    driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with a live judge scores what comes in: who agrees to it knows the sum, not only that it is paid."""
    monkeypatch.setattr(importing, "paid_note", lambda _: "the server has a live judge")
    write_lines(tmp_path / "a.jsonl", ROWS)
    code, _, err = driftline("import", "exchanges", "a.jsonl", "--yes")
    assert code == 0
    assert "live judge" in err
    assert f"{len(ROWS)} exchanges in the files" in err
    assert " USD at most, without Tier 3" in err
    monkeypatch.setattr(importing, "MAX_ESTIMATED_EXCHANGES", 2)
    assert "first 2 exchanges in the files" in driftline("import", "exchanges", "a.jsonl", "--yes")[2]
