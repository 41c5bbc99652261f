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
    """A copy in another place and format changes nothing either."""
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
    repeated = json.loads(driftline("import", "exchanges", "a.jsonl", "b.csv", "--json")[1])
    assert repeated["exchanges"] == 0
    assert repeated["known"] == 2 * len(ROWS)
    assert repeated["faults"] == 0
    assert rows(tmp_path / "driftline.duckdb", "SELECT * EXCLUDE (_offset) FROM log.exchanges ORDER BY ALL") == before


def test_a_file_is_read_again_with_another_mapping(driftline: Command, tmp_path: Path) -> None:
    """A corrected mapping must be used although the file is unchanged."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    driftline("import", "exchanges", "a.jsonl")
    text = "version: 1\nfields: {session_id: model, occurred_at: timestamp, user_message: prompt, agent_response: response}\n"
    (tmp_path / "map.yaml").write_text(text)
    remapped = json.loads(driftline("import", "exchanges", "a.jsonl", "--map", "map.yaml", "--json")[1])
    assert remapped["unchanged"] == 0
    assert remapped["exchanges"] == len(ROWS)
    assert remapped["sessions"] == 1


def test_a_broken_row_is_a_dead_letter_with_file_and_row(driftline: Command, tmp_path: Path) -> None:
    """The rest is imported, and the exit code reports the fault."""
    write_lines(tmp_path / "a.jsonl", [*ROWS[:3], "{", *ROWS[3:]])
    code, out, _ = driftline("import", "exchanges", "a.jsonl")
    assert code == 1
    assert "6 exchanges and 0 events imported" in out
    assert "1 record was rejected" in out
    assert "driftline dead-letters list" in out
    assert rows(tmp_path / "driftline.duckdb", "SELECT source, position, stage, reason FROM log.dead_letters") == [
        ("a.jsonl", 4, "import", "not_json")
    ]


def test_a_dry_run_stores_nothing_and_shows_a_preview(driftline: Command, tmp_path: Path) -> None:
    """Users first check whether the columns are understood."""
    write_table(tmp_path / "a.csv", ROWS * 5)
    code, out, _ = driftline("import", "exchanges", "a.csv", "--dry-run")
    assert code == 0
    assert out.startswith("a.csv: CSV\nversion: 1\nfields:\n  session_id: session_id\n  occurred_at: timestamp\n")
    assert out.count("Where is my order") == 10
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("options", [["--dry-run"], ["--dry-run", "--json"], ["--save-map", "MAP"], []])
def test_no_secret_is_shown_or_stored(driftline: Command, tmp_path: Path, options: list[str]) -> None:
    """This includes previews, faults, and a first row that is mistaken for a header."""
    write_lines(
        tmp_path / "a.jsonl",
        [{**ROWS[0], "response": KEY}, *ROWS[1:], {**ROWS[0], "timestamp": KEY}, {**ROWS[0], "prompt_tokens": KEY}, KEY],
    )
    (tmp_path / "headless.csv").write_text(f"s,2026-11-01T10:00:00Z,{KEY},b\ns,2026-11-01T10:00:00Z,a,b\n")
    output = "".join(
        part
        for name in ("a.jsonl", "headless.csv")
        for part in map(
            str, driftline("import", "exchanges", name, *(f"{name}.yaml" if one == "MAP" else one for one in options))
        )
    )
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.suffix not in (".jsonl", ".csv"))
    assert KEY not in output
    assert KEY.encode() not in stored
    assert "[SECRET:" in output or "[SECRET:" in stored.decode("utf-8", "replace")


def test_a_field_is_set_without_a_mapping_file(driftline: Command, tmp_path: Path) -> None:
    """One unusual column name should cost one option, whose time format is recognized as in a proposed mapping."""
    rows_of_file = [
        {("asked" if name == "timestamp" else name): value for name, value in row.items()} | {"asked": "30/11/2026 10:00:00"}
        for row in ROWS
    ]
    write_lines(tmp_path / "a.jsonl", rows_of_file)
    code, out, _ = driftline(
        "import", "exchanges", "a.jsonl", "--set", "occurred_at=asked", "--set", "labels.llm=model", "--json"
    )
    assert (code, json.loads(out)["exchanges"]) == (0, len(ROWS))
    assert rows(tmp_path / "driftline.duckdb", "SELECT DISTINCT occurred_at::VARCHAR, labels[1].name FROM log.exchanges") == [
        ("2026-11-30 10:00:00", "llm")
    ]
    for option, problem in {"asked": "--set asked: is not FIELD=COLUMN", "occurred_at=when": "no column when"}.items():
        code, _, err = driftline("import", "exchanges", "a.jsonl", "--set", option)
        assert code == 2
        assert problem in err


def test_a_proposed_mapping_can_be_written_corrected_and_used(driftline: Command, tmp_path: Path) -> None:
    """A table with an unusual time column needs one corrected line."""
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


def test_a_folder_is_read_file_by_file_and_other_files_are_named(driftline: Command, tmp_path: Path) -> None:
    """Every import works this way."""
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


def test_traces_and_observations_of_langfuse_are_not_combined(driftline: Command, tmp_path: Path) -> None:
    """Each exchange would count twice."""
    for name in ("langfuse_observations.jsonl", "langfuse_traces.json"):
        shutil.copy(EXPORTS / name, tmp_path)
    code, _, err = driftline("import", "exchanges", "langfuse_observations.jsonl", "langfuse_traces.json")
    assert code == 2
    assert "contain the same exchanges" in err
    assert not (tmp_path / "driftline.duckdb").exists()


def test_a_trace_without_an_exchange_is_reported_with_its_reason(driftline: Command, tmp_path: Path) -> None:
    """Users compare the number of traces with the number of exchanges."""
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
    report = json.loads(driftline("import", "exchanges", "judged.jsonl", "--json")[1])
    reason = {"state": "evaluation", "example": "langfuse.environment = langfuse-evaluation", "traces": 2}
    assert report["exchanges"] == 0
    assert report["left_out"] == [reason]


@pytest.mark.parametrize("options", [[], ["--by", "project,day"]])
def test_our_own_export_restores_the_same_exchanges(driftline: Command, tmp_path: Path, options: list[str]) -> None:
    """Connections, projects, ids, labels, redactions and digests are unchanged."""
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


def test_our_own_table_without_exchanges_is_refused(driftline: Command, tmp_path: Path) -> None:
    """Its columns could be mistaken for others."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    driftline("import", "exchanges", "a.jsonl")
    driftline("export", "out")
    code, _, err = driftline("import", "exchanges", "out/scores.parquet")
    assert code == 2
    assert "table scores, not exchanges" in err


def test_judging_may_follow_the_import_after_an_estimate(
    driftline: Command, simulator: RunningJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command leads from a file to findings; declining costs nothing and keeps the import."""
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


def test_without_a_judge_an_import_with_judging_is_refused(driftline: Command, tmp_path: Path) -> None:
    """The error comes before an hour of reading."""
    write_lines(tmp_path / "a.jsonl", ROWS)
    code, _, err = driftline("import", "exchanges", "a.jsonl", "--judge")
    assert code == 2
    assert "there is no judge" in err
    assert rows(tmp_path / "driftline.duckdb", "SELECT * FROM log.exchanges") == []


def test_an_import_that_will_be_judged_for_money_shows_the_cost(
    driftline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a server with a live judge, the user must agree to a sum."""
    monkeypatch.setattr(importing, "paid_note", lambda _: "the server has a live judge")
    write_lines(tmp_path / "a.jsonl", ROWS)
    code, _, err = driftline("import", "exchanges", "a.jsonl", "--yes")
    assert code == 0
    assert "live judge" in err
    assert f"{len(ROWS)} exchanges in the files" in err
    assert " USD at most, without Tier 3" in err
    monkeypatch.setattr(importing, "MAX_ESTIMATED_EXCHANGES", 2)
    assert "first 2 exchanges in the files" in driftline("import", "exchanges", "a.jsonl", "--yes")[2]
