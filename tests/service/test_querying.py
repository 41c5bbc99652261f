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


def test_every_query_is_listed_with_its_parameters(driftline: Command) -> None:
    """Users need not read the files, and no database is needed."""
    code, out, _ = driftline("sql", "--list", "--json")
    rows = {row["name"]: row for row in map(json.loads, out.splitlines())}

    assert code == 0
    assert set(rows) == set(queries())
    assert rows["trends"]["parameters"].startswith("$project (NULL")
    code, out, _ = driftline("sql", "--list")
    assert all(f"\n{name}\n" in f"\n{out}" for name in queries())


@pytest.mark.usefixtures("scored")
def test_a_query_can_be_run_by_name(driftline: Command) -> None:
    """It takes a project, a present time, and its own parameters."""
    arguments = ("sql", "trends", "--project", "ops", "--as-of", "2026-10-10T13:00:00Z")
    code, out, _ = driftline(*arguments, "--set", "days=2", "--json")

    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["day"], row["tier1_mean"]) for row in rows] == [("2026-10-09", 0.75), ("2026-10-10", 1.0)]
    code, out, _ = driftline(*arguments, "--limit", "1")
    assert code == 0
    assert "2026-10-08" in out
    assert "1 row, cut at --limit 1" in out


@pytest.mark.usefixtures("scored")
def test_without_a_project_a_query_covers_all(driftline: Command) -> None:
    """A parameter whose NULL is documented may be omitted."""
    _, out, _ = driftline("sql", "baseline", "--as-of", "2026-10-10T13:00:00Z", "--json")

    assert [json.loads(line)["project"] for line in out.splitlines()] == ["ops", "web"]


def test_daily_sums_are_refreshed_first(driftline: Command, scored: Path) -> None:
    """The next query is fast, whoever runs it."""
    driftline("sql", "baseline")

    with duckdb.connect(str(scored), read_only=True) as connection:
        assert connection.execute("SELECT sum(exchanges)::INTEGER FROM log.daily_scores").fetchall() == [(4,)]


@pytest.mark.usefixtures("scored")
def test_a_read_only_file_can_be_queried(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is only slower, and says why."""
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
def test_a_result_can_be_written_in_every_format(driftline: Command, tmp_path: Path, form: str, asked: tuple[str, ...]) -> None:
    """Users continue in their own tools."""
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
def test_a_mistake_is_explained(driftline: Command, arguments: tuple[str, ...], expected: str) -> None:
    """The message names the wrong word and the valid ones."""
    code, _, error = driftline("sql", *arguments)

    assert code == 2
    assert expected in error.replace("\n", " ")
    assert "error:" in error


def test_a_parameter_is_required_unless_its_header_documents_null() -> None:
    """A forgotten parameter must not look like an empty result."""
    assert queries()["runs"].optional == (
        "project",
        "since",
        "until",
        "agent",
        "failure",
        "tool",
        "version",
        "tool_error",
        "newest",
    )
    assert queries()["session_events"].optional == ()
    assert set(queries()["trends"].parameters) == {"project", "as_of", "days"}
