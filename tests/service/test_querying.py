"""The command `sql` with the queries that come with the program: by name, with their parameters, in every format."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
from support.builders import score

from analytics.queries import queries
from analytics.store.store import Store
from schemas.codec.single_object import encode
from service.cli.commands import querying

Command = Callable[..., tuple[int, str, str]]
NOON = datetime(2026, 10, 10, 12, tzinfo=UTC)


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A database with scores of three days of one project, and one of another."""
    path = tmp_path / "driftline.duckdb"
    scores = [score("s", day, exchange_at=NOON - timedelta(days=day), tier1_score=1 - day / 4) for day in range(3)]
    with Store(path) as store, store.transaction() as transaction:
        transaction.append("scores", [encode(one) for one in [*scores, score("t", 1, exchange_at=NOON, project="web")]])
    return path


def test_every_query_is_listed_with_what_it_takes(driftline: Command) -> None:
    """Nobody should have to read the files to find a query; there need not be a database yet."""
    code, out, _ = driftline("sql", "--list", "--json")
    rows = {row["name"]: row for row in map(json.loads, out.splitlines())}

    assert code == 0
    assert set(rows) == set(queries())
    assert rows["trends"]["parameters"].startswith("$project (NULL for all")
    code, out, _ = driftline("sql", "--list")
    assert all(f"\n{name}\n" in f"\n{out}" for name in queries())


@pytest.mark.usefixtures("scored")
def test_a_query_is_asked_by_its_name(driftline: Command) -> None:
    """With a project, the present as it is told, and parameters of its own."""
    asked = ("sql", "trends", "--project", "ops", "--as-of", "2026-10-10T13:00:00Z")
    code, out, _ = driftline(*asked, "--set", "days=2", "--json")

    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["day"], row["tier1_mean"]) for row in rows] == [("2026-10-09", 0.75), ("2026-10-10", 1.0)]
    code, out, _ = driftline(*asked, "--limit", "1")
    assert code == 0
    assert "2026-10-08" in out
    assert "1 row, cut at --limit 1" in out


@pytest.mark.usefixtures("scored")
def test_without_a_project_all_are_meant(driftline: Command) -> None:
    """What the header says NULL is for need not be said."""
    _, out, _ = driftline("sql", "baseline", "--as-of", "2026-10-10T13:00:00Z", "--json")

    assert [json.loads(line)["project"] for line in out.splitlines()] == ["ops", "web"]


def test_the_days_are_added_up_first(driftline: Command, scored: Path) -> None:
    """So the second question is quick, whoever asks it."""
    driftline("sql", "baseline")

    with duckdb.connect(str(scored), read_only=True) as connection:
        assert connection.execute("SELECT sum(exchanges)::INTEGER FROM log.daily_scores").fetchall() == [(4,)]


@pytest.mark.usefixtures("scored")
def test_a_file_that_cannot_be_written_to_is_still_asked(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy on a read-only disk has its answers, only later; and it says why."""
    from schemas.errors import StoreError

    def refused(_: Path) -> Store:
        raise StoreError("it cannot be written to")

    monkeypatch.setattr(querying, "Store", refused)
    code, out, error = driftline("sql", "baseline", "--as-of", "2026-10-10T13:00:00Z", "--json")

    assert code == 0
    assert len(out.splitlines()) == 2
    assert "daily sums are not up to date" in error


READERS: dict[str, Callable[[bytes], pl.DataFrame]] = {
    "jsonl": pl.read_ndjson,
    "json": lambda content: pl.DataFrame(json.loads(content)),
    "csv": pl.read_csv,
    "arrow": lambda content: pl.read_ipc(io.BytesIO(content)),
    "parquet": lambda content: pl.read_parquet(io.BytesIO(content)),
}


@pytest.mark.usefixtures("scored")
@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize(
    "asked", [("trends", "--as-of", "2026-10-10T13:00:00Z"), ("SELECT project, tier1_score AS tier1_mean FROM scores",)]
)
def test_an_answer_is_written_in_every_format(driftline: Command, tmp_path: Path, form: str, asked: tuple[str, ...]) -> None:
    """What follows works on it in the tool it is used to."""
    code, out, error = driftline("sql", *asked, "--format", form, "-o", "answer")

    frame = READERS[form]((tmp_path / "answer").read_bytes())
    assert code == 0
    assert out == ""
    assert "wrote 4 rows to answer" in error
    assert sorted(frame["project"].to_list()) == ["ops", "ops", "ops", "web"]
    assert sorted(frame["tier1_mean"].to_list()) == [0.5, 0.75, 1.0, 1.0]


@pytest.mark.usefixtures("scored")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "no statement given"),
        (("trend",), "Did you mean trends"),
        (("trends", "--set", "dys=3"), "query trends has no parameter dys"),
        (("trends", "--set", "days"), "--set days: no value"),
        (("trends", "--set", "days=three"), "--set days=three: must be a number"),
        (("session_events", "--set", "session=s"), "query session_events needs connection"),
        (("latest_baselines", "--set", "projects=[ops]"), "must be a list in JSON"),
        (("trends", "--as-of", "yesterday"), "--as-of"),
        (("tier_change", "--set", "since=yesterday"), "yesterday"),
        (("SELECT 1", "--project", "ops"), "need a named query"),
        (("trends", "-o", "answer"), "a file needs a format other than table"),
        (("trends", "--format", "csv", "-o", "nowhere/answer"), "nowhere/answer"),
    ],
)
def test_a_mistake_is_told(driftline: Command, arguments: tuple[str, ...], expected: str) -> None:
    """Which word is wrong, and what would be right."""
    code, _, error = driftline("sql", *arguments)

    assert code == 2
    assert expected in error.replace("\n", " ")
    assert "error:" in error


def test_what_a_header_says_of_null_decides_what_must_be_given() -> None:
    """A parameter that is forgotten must not mean that nothing is found."""
    assert queries()["runs"].optional == ("project", "since", "newest")
    assert queries()["session_events"].optional == ()
    assert set(queries()["trends"].parameters) == {"project", "as_of", "days"}
