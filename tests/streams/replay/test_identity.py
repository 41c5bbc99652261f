"""With recorded answers and the same policy, a replay gives the live scores, byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.replays import Command, read_scores, read_tables, replay_path, run_replay

from analytics.store.store import Store
from schemas.records import Score

BORDER = "2026-10-01T09:10:00Z"


def test_the_recorded_history_is_varied_enough(database: Path) -> None:
    """The history must contain failures, revisions, several tiers and costs, or the tests would prove nothing."""
    with_all = read_tables(database)
    assert all(with_all[table] for table in with_all), {table: len(rows) for table, rows in with_all.items()}


@pytest.mark.parametrize(("workers", "window"), [("1", 2000), ("1", 60), ("3", 2000)])
def test_scores_equal_the_live_ones_however_the_work_is_split(
    driftline: Command, database: Path, monkeypatch: pytest.MonkeyPatch, workers: str, window: int
) -> None:
    """Scores must not depend on the number of processes or the size of windows."""
    monkeypatch.setattr("streams.replay.history.WINDOW_RECORDS", window)
    before = read_tables(database)
    document = run_replay(driftline, "--workers", workers, "--label", "again")
    assert document["equal"]
    assert document["digest"] == document["live_digest"]
    assert read_scores(database) == read_scores(replay_path(database, "again"))
    assert read_tables(database) == before
    assert not replay_path(database, "again").with_suffix(".parts").exists()


def test_parquet_gives_the_same(driftline: Command, database: Path, tmp_path: Path) -> None:
    """An export is enough to score again on any machine."""
    assert driftline("export", "exported")[0] == 0
    tables = run_replay(driftline, "--label", "tables", "--workers", "1")
    (tmp_path / "elsewhere").mkdir()
    document = run_replay(
        driftline, "--from", "exported", "--db", "elsewhere/none.duckdb", "--workers", "2", "--label", "parquet"
    )
    assert document["equal"]
    assert tables["digest"] == document["digest"]
    assert database.exists()


def test_without_a_judge_recorded_answers_are_not_used(driftline: Command, database: Path) -> None:
    """The results of the rules alone need no answers and cost nothing."""
    document = run_replay(driftline, "--judge", "none", "--label", "rules", "--workers", "1")
    assert not document["equal"]
    assert set(document["dispositions"]) <= {"unscored", "sampling_skip"}
    with_scores = read_scores(replay_path(database, "rules"))
    assert document["scores"] == len(with_scores)


@pytest.mark.parametrize(("option", "value"), [("--project", "shop"), ("--since", BORDER), ("--until", BORDER)])
def test_a_replay_of_a_part_scores_it_as_in_the_full_history(
    driftline: Command, database: Path, option: str, value: str
) -> None:
    """Sampling and budgets need a session from its beginning, even if only a part is scored."""
    within: dict[str, Callable[[Score], bool]] = {
        "--project": lambda score: score.project == value,
        "--since": lambda score: f"{score.exchange_at:%Y-%m-%dT%H:%M:%SZ}" >= value,
        "--until": lambda score: f"{score.exchange_at:%Y-%m-%dT%H:%M:%SZ}" < value,
    }
    document = run_replay(driftline, option, value, "--label", "part", "--workers", "1")
    assert document["equal"]
    replayed = read_scores(replay_path(database, "part"))
    assert 0 < len(replayed) < len(read_scores(database))
    assert read_scores(database, within[option]) == replayed


def test_tables_filled_by_a_sink_are_read_partition_by_partition(driftline: Command, database: Path) -> None:
    """On Kafka each partition has its own offsets, with gaps."""
    with Store(database) as store:
        cursor = store.cursor()
        for table in ("exchanges", "session_closings", "judging_requests", "judgements", "scores"):
            cursor.execute(
                f"UPDATE log.{table} SET _partition = length(session_id) + ascii(right(session_id, 1)) % 3, _offset = 3 * _offset"
            )
    document = run_replay(driftline, "--label", "landed", "--workers", "2")
    assert document["equal"]
    assert read_scores(database) == read_scores(replay_path(database, "landed"))
