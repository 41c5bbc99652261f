"""An impossible replay is refused with a line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.replays import Command

from analytics.store.store import Store


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "yesterday"], "--since: 'yesterday' is neither ISO 8601"),
        (["--since", "2026-11-02", "--until", "2026-11-01"], "--since must be before --until"),
        (["--since", "2031-01-01"], "there are no exchanges in this period"),
        (["--project", "nobody"], "--project: there is no project 'nobody'"),
        (["--label", "Über"], "is not a valid label"),
        (["--label", ""], "is not a valid label"),
        (["--label", "live"], "is not a valid label"),
        (["--policy", "missing.yaml"], "missing.yaml"),
        (["--from", "nowhere"], "nowhere has no exchanges.parquet"),
        (["--from", "topics"], "DRIFTLINE_KAFKA: "),
        (["--from-offset", "5"], "need --from topics"),
        (
            ["--from", "topics", "--kafka", "127.0.0.1:1", "--from-offset", "soon"],
            "--from-offset: 'soon' is neither an offset nor a time",
        ),
        (
            ["--from", "topics", "--kafka", "127.0.0.1:1", "--to-offset", "0:10,0:20"],
            "--to-offset: partition 0 is given twice",
        ),
        (
            ["--from", "topics", "--kafka", "127.0.0.1:1", "--from-offset", "5, 1:7,5"],
            "--from-offset: every partition that is not named",
        ),
        (["--db", "none.duckdb"], "there is no database at none.duckdb"),
    ],
)
def test_a_refusal_says_what_is_wrong(driftline: Command, database: Path, arguments: list[str], words: str) -> None:
    """Nothing was started, so nothing needs cleaning up."""
    code, out, err = driftline("replay", *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert not list(database.parent.glob("*.replays/*"))


def test_a_database_in_use_is_refused_with_the_alternatives(driftline: Command, database: Path) -> None:
    """A server uses the file: without stopping it, the topics or an export can be replayed."""
    holding = "import sys, duckdb; held = duckdb.connect(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        code, _, err = driftline("replay")
        holder.communicate()
    assert code == 2
    assert "driftline backup" in err
    assert "--from topics" in err


def test_a_table_that_is_not_an_export_is_refused(driftline: Command, database: Path, tmp_path: Path) -> None:
    """Other Parquet files lack the columns that a replay needs."""
    (tmp_path / "other").mkdir()
    with Store(database) as store:
        store.cursor().execute(f"COPY (SELECT exchange_id FROM log.exchanges) TO '{tmp_path}/other/exchanges.parquet'")
    code, _, err = driftline("replay", "--from", "other")
    assert code == 2
    assert "table exchanges: column connection" in err
