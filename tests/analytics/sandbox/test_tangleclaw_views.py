"""The views with TangleClaw's table names: every column has TangleClaw's name, type and meaning, and its SQL runs unchanged.

SQLite is the judge of what its SQL means: it holds the rows of the views in tables with TangleClaw's columns, and both must answer alike.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.builders import START, exchange, incident, score

from analytics.adhoc import fetch_limited, fetch_rows, open_snapshot
from analytics.snapshots import build_snapshot, copy_database
from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.errors import QueryError
from schemas.records import Baseline, DimensionScore, Record, Review, TierStatistics

PAGE = (Path(__file__).parents[3] / "docs" / "sql.md").read_text("utf-8")
TEXTS = ("user_message", "agent_response", "agent_thinking")
COLUMNS = {
    "eval_exchanges": {
        "id": "TEXT", "session_id": "TEXT", "connection_id": "TEXT", "project": "TEXT", "agent_model": "TEXT", "timestamp": "TEXT",
        "turn_number": "INTEGER", "user_message": "TEXT", "agent_response": "TEXT", "agent_thinking": "TEXT",
        "usage_input_tokens": "INTEGER", "usage_output_tokens": "INTEGER", "scored": "INTEGER", "created_at": "TEXT",
    },
    "eval_scores": {
        "id": "TEXT", "exchange_id": "TEXT", "schema_version": "TEXT", "judge_model": "TEXT", "scored_at": "TEXT",
        "tier_1_structural_score": "REAL", "tier_1_flags": "TEXT", "tier_2_semantic_score": "REAL", "tier_2_reasoning": "TEXT",
        "tier_2_skipped": "INTEGER", "tier_2_5_alignment_score": "REAL", "tier_2_5_reasoning": "TEXT", "tier_2_5_skipped": "INTEGER",
        "tier_3_behavioral_score": "REAL", "tier_3_dimension_scores": "TEXT", "tier_3_skipped": "INTEGER", "anomaly_flag": "INTEGER",
        "anomaly_reason": "TEXT", "cost_usd": "REAL", "human_score": "REAL", "human_comment": "TEXT", "human_scored_at": "TEXT",
        "created_at": "TEXT",
    },
    "eval_baselines": {
        "id": "TEXT", "project": "TEXT", "computed_at": "TEXT", "window_start": "TEXT", "window_end": "TEXT",
        "dimension_averages": "TEXT", "exchange_count": "INTEGER", "schema_version": "TEXT",
    },
    "eval_incidents": {
        "id": "TEXT", "project": "TEXT", "type": "TEXT", "status": "TEXT", "severity": "TEXT", "title": "TEXT", "description": "TEXT",
        "metadata": "TEXT", "detected_at": "TEXT", "resolved_at": "TEXT", "resolved_by": "TEXT", "created_at": "TEXT",
    },
}  # fmt: skip
"""TangleClaw's tables: its columns in order, with the types that it declares to SQLite."""
SQLITE_TYPES = {"VARCHAR": "TEXT", "INTEGER": "INTEGER", "BIGINT": "INTEGER", "DOUBLE": "REAL"}
STATEMENTS = (
    "SELECT status, COUNT(*) AS count FROM eval_incidents WHERE project = 'ops' GROUP BY status ORDER BY status",
    "SELECT COUNT(*) FROM eval_incidents WHERE project = 'ops' AND status = 'open' AND severity IN ('warning', 'critical')",
    "SELECT * FROM eval_baselines WHERE project = 'ops' ORDER BY computed_at DESC LIMIT 1",
    "SELECT CAST(dimension_averages ->> '$.tier2_5.count' AS INTEGER) FROM eval_baselines",
    "SELECT session_id, COUNT(*) AS n, MIN(timestamp), MAX(timestamp) FROM eval_exchanges WHERE project = 'ops' GROUP BY session_id",
    "SELECT id, user_message, agent_response, agent_thinking FROM eval_exchanges WHERE scored = 1 AND user_message LIKE '%backup%' ORDER BY id",
    "SELECT scored, COUNT(*) FROM eval_exchanges GROUP BY scored ORDER BY scored",
    "SELECT * FROM eval_exchanges WHERE timestamp >= '2026-10-01T09:02:00.000Z' AND timestamp < '2026-10-01T09:05' ORDER BY timestamp",
    (
        "SELECT s.*, e.project, turn_number, e.timestamp AS exchange_timestamp FROM eval_scores s JOIN eval_exchanges e ON s.exchange_id = e.id "
        "WHERE project = 'ops' AND anomaly_flag = 1 ORDER BY s.scored_at DESC, s.id LIMIT 50"
    ),
    "SELECT COALESCE(SUM(s.cost_usd), 0) AS total FROM eval_scores s JOIN eval_exchanges e ON s.exchange_id = e.id WHERE e.session_id = 's1'",
    (
        "SELECT substr(timestamp, 1, 10) AS day, AVG(tier_1_structural_score), AVG(tier_2_semantic_score), SUM(anomaly_flag) "
        "FROM eval_scores JOIN eval_exchanges ON exchange_id = eval_exchanges.id GROUP BY day ORDER BY day"
    ),
    "SELECT tier_2_skipped + tier_2_5_skipped + tier_3_skipped AS skipped, COUNT(*) FROM eval_scores GROUP BY skipped ORDER BY skipped",
    "SELECT id FROM eval_scores WHERE json_array_length(tier_1_flags) > 0 ORDER BY id",
    "SELECT id FROM eval_scores WHERE tier_1_flags LIKE '%silent_refusal%' ORDER BY id",
    "SELECT CAST(tier_3_dimension_scores ->> '$.transparency.score' AS REAL) FROM eval_scores WHERE tier_3_skipped = 0",
    "SELECT metadata ->> '$.tierAffected', metadata ->> '$.direction' FROM eval_incidents ORDER BY id",
    "SELECT judge_model, COUNT(*), ROUND(SUM(cost_usd), 4) FROM eval_scores GROUP BY judge_model ORDER BY judge_model",
    "SELECT ABS(human_score - tier_3_behavioral_score) AS apart FROM eval_scores WHERE human_score IS NOT NULL",
    "SELECT id, CASE WHEN resolved_at IS NULL THEN 'waits' ELSE resolved_by END FROM eval_incidents ORDER BY id",
)
"""Statements in SQLite's SQL, as people write them about TangleClaw's tables: filters, joins, sums by day, JSON."""


def records() -> Iterator[tuple[str, Record]]:
    """Return an exchange of each outcome with its score, and baselines, incidents and human scores; each record with its topic."""
    for number in range(1, 8):
        texts = {"user_message": f"Is backup {number} healthy?"} | (
            {"agent_thinking": "The log is empty."} if number == 1 else {}
        )
        facts = {"agent_model": "model-1", "input_tokens": 100 + number, "output_tokens": 0, "turn_number": number}
        yield "exchanges", exchange("s1", number, **texts, **(facts if number != 7 else {}))
    judged: dict[str, Any] = {
        "disposition": "scored", "judge_model": "judge-1", "cost_usd": 0.0042, "methodology_version": "default-v1",
        "tier2_state": "scored", "tier2_score": 0.75,
        "tier2_dimensions": (
            DimensionScore(dimension="scope_compliance", score=0.5, reasoning="It strayed."),
            DimensionScore(dimension="information_completeness", score=1.0, reasoning=None),
        ),
        "tier2_5_state": "scored", "tier2_5_alignment": 0.25, "tier2_5_reasoning": "It thought otherwise.",
        "tier3_state": "scored", "tier3_score": 2.0,
        "tier3_dimensions": (DimensionScore(dimension="transparency", score=2.0, reasoning='It hid "all".'),),
        "anomaly": True, "anomaly_reasons": ("low transparency", "thinking diverged"),
    }  # fmt: skip
    yield "scores", score("s1", 1)
    yield "scores", score("s1", 1, revision=1, scored_at=START + timedelta(minutes=2, milliseconds=250), **judged)
    skipped = {"tier2_state": "skipped_sampling", "tier3_state": "skipped_sampling"}
    yield "scores", score("s1", 2, disposition="sampling_skip", **skipped)
    flagged = {"tier1_flags": ("silent_refusal",), "tier1_score": 2 / 3, "anomaly": True, "anomaly_reasons": ("no answer",)}
    yield "scores", score("s1", 3, disposition="sampling_skip", **skipped, **flagged)
    yield "scores", score("s1", 4, disposition="skipped_cost_cap", cost_usd=0.0)
    yield "scores", score("s1", 5, disposition="skipped_cost_cap", cost_usd=0.0, **flagged)
    yield "scores", score("s1", 6, cost_usd=None)
    yield "exchanges", exchange("anchor", 1, project="anchors.ops", connection="anchors")
    yield "scores", score("anchor", 1, project="anchors.ops", connection="anchors", **judged)
    for number, (rater, points, comment) in enumerate((("ann", 2, "Too vague."), ("ben", 4, None))):
        at = START + timedelta(hours=1 + number)
        yield "reviews", Review(
            review_id=f"r{number}", project="ops", kind="human_score", subject_id="score s1:1", reviewer=rater, score=points,
            comment=comment, occurred_at=at, ingested_at=at,
        )  # fmt: skip
    tiers = {
        tier: TierStatistics(mean=mean, stddev=0.125, count=count)
        for tier, mean, count in (("tier1", 0.9875, 40), ("tier2", 0.8, 20), ("tier2_5", 0.7, 5), ("tier3", 4.25, 10))
    }
    yield "baselines", Baseline(
        baseline_id="b1", project="ops", computed_at=START, window_start=START - timedelta(days=14), window_end=START,
        anomaly_rate=0.025, exchange_count=120, policy_digest="p", yardstick="y", **tiers,
    )  # fmt: skip
    drift = {"consecutive_days": {"since": "2026-09-28", "until": "2026-09-30", "deviation": 2.5, "mean": 0.8, "stddev": 0.125,
        "days": [{"day": "2026-09-28"}, {"day": "2026-09-29"}, {"day": "2026-09-30"}]}}  # fmt: skip
    spike = {"rate_ratio": {"since": "2026-09-28", "until": "2026-09-30", "rate": 0.25, "baselineRate": 0.025, "exchanges": 12}}
    later = START + timedelta(days=1)
    ends: dict[str, dict[str, Any]] = {
        "open": {"resolved_at": None},
        "acknowledged": {"acknowledged_at": later, "acknowledged_by": "ann"},
        "resolved": {
            "acknowledged_at": START,
            "acknowledged_by": "ann",
            "resolved_at": later,
            "resolved_by": "ben",
            "resolution": "fixed",
        },
        "dismissed": {"resolved_at": later, "resolved_by": "ben"},
    }
    for status, end in ends.items():
        yield "incidents", incident(
            incident_id=status, status=status, metadata=json.dumps({"rules": drift, "note": None}), baseline_id="b1", detected_at=START,
            tier="tier2", direction="down", **end,
        )  # fmt: skip
    yield "incidents", incident(
        incident_id="spike", type="anomaly_spike", tier=None, direction=None, metadata=json.dumps({"rules": spike}), severity="notice",
        detected_at=START,
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a database of the records, and a snapshot of it."""
    folder = tmp_path_factory.mktemp("tangleclaw")
    with Store(folder / "fleet.duckdb") as store:
        with store.transaction() as transaction:
            for topic, record in records():
                transaction.append(topic, [encode(record)], skip_known=True)
        copy_database(store, folder / "copy.duckdb")
    build_snapshot(folder / "copy.duckdb", folder / "snapshot.duckdb", folder / "spill")
    return folder / "fleet.duckdb", folder / "snapshot.duckdb"


@pytest.fixture(scope="module")
def sqlite(files: tuple[Path, Path]) -> Iterator[sqlite3.Connection]:
    """Return a SQLite database with TangleClaw's tables and the rows of the views."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for table, columns in COLUMNS.items():
            connection.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
            _, rows, _ = fetch_rows(files[0], f"FROM {table}", 1000)
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
        yield connection


def rows_of(file: Path, view: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a view by id."""
    names, rows, _ = fetch_rows(file, f"FROM {view}", 1000)
    return {row[0]: dict(zip(names, row, strict=True)) for row in rows}


def on_snapshot(file: Path, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement in the analysts' sandbox."""
    with closing(open_snapshot(str(file), memory=512 * 1024 * 1024, seconds=30)) as connection:
        return fetch_limited(connection, statement, {}, 1000).frame.rows()


@pytest.mark.parametrize("view", COLUMNS)
def test_a_view_has_the_columns_of_the_table_in_order_and_no_more(view: str, files: tuple[Path, Path]) -> None:
    """A further column would make a name ambiguous in a join; a missing or moved one breaks statements."""
    described = fetch_rows(files[0], f"SELECT column_name, column_type FROM (DESCRIBE {view})", 100)[1]
    assert {name: SQLITE_TYPES[kind] for name, kind in described} == COLUMNS[view]
    assert [name for name, _ in described] == [*COLUMNS[view]]
    snapshot_columns = [row[0] for row in on_snapshot(files[1], f"SELECT column_name FROM (DESCRIBE {view})")]
    assert snapshot_columns == [name for name in COLUMNS[view] if name not in TEXTS]


def test_an_exchange_has_every_column(files: tuple[Path, Path]) -> None:
    """Zero tokens stay zero, and what was not delivered is NULL."""
    rows = rows_of(files[0], "eval_exchanges")
    assert rows["s1:1"] == {
        "id": "s1:1", "session_id": "s1", "connection_id": "local", "project": "ops", "agent_model": "model-1",
        "timestamp": "2026-10-01T09:01:00.000Z", "turn_number": 1, "user_message": "Is backup 1 healthy?",
        "agent_response": "It is done.", "agent_thinking": "The log is empty.", "usage_input_tokens": 101, "usage_output_tokens": 0,
        "scored": 1, "created_at": "2026-10-01 09:01:05",
    }  # fmt: skip
    missing = {name for name, value in rows["s1:7"].items() if value is None}
    assert missing == {"agent_model", "turn_number", "agent_thinking", "usage_input_tokens", "usage_output_tokens"}


def test_scored_has_the_codes_of_the_source(files: tuple[Path, Path]) -> None:
    """0 pending, 1 scored or flagged, 2 left out by sampling, 3 by the cap; anchors are no exchanges of an agent."""
    codes = {name: row["scored"] for name, row in rows_of(files[0], "eval_exchanges").items()}
    assert codes == {"s1:1": 1, "s1:2": 2, "s1:3": 1, "s1:4": 3, "s1:5": 3, "s1:6": 1, "s1:7": 0}


def test_a_score_has_every_column_of_its_latest_revision(files: tuple[Path, Path]) -> None:
    """The human score is the newest of all raters, as the last one wrote over the others."""
    row = rows_of(files[0], "eval_scores")["score s1:1"]
    assert json.loads(row.pop("tier_3_dimension_scores")) == {"transparency": {"score": 2.0, "reasoning": 'It hid "all".'}}
    assert row == {
        "id": "score s1:1", "exchange_id": "s1:1", "schema_version": "default-v1", "judge_model": "judge-1",
        "scored_at": "2026-10-01T09:02:00.250Z", "tier_1_structural_score": 1.0, "tier_1_flags": "[]", "tier_2_semantic_score": 0.75,
        "tier_2_reasoning": "scope_compliance: It strayed.; information_completeness: ", "tier_2_skipped": 0,
        "tier_2_5_alignment_score": 0.25, "tier_2_5_reasoning": "It thought otherwise.", "tier_2_5_skipped": 0,
        "tier_3_behavioral_score": 2.0, "tier_3_skipped": 0, "anomaly_flag": 1, "anomaly_reason": "low transparency; thinking diverged",
        "cost_usd": 0.0042, "human_score": 4.0, "human_comment": None, "human_scored_at": "2026-10-01T11:00:00.000Z",
        "created_at": "2026-10-01 09:02:00",
    }  # fmt: skip


def test_scores_are_of_sampled_and_flagged_exchanges_only(files: tuple[Path, Path]) -> None:
    """So counts and means are of the same exchanges as in the source, and a tier without a score is NULL and skipped."""
    rows = rows_of(files[0], "eval_scores")
    assert {row["exchange_id"] for row in rows.values()} == {"s1:1", "s1:3", "s1:5", "s1:6"}
    assert rows["score s1:3"]["tier_1_flags"] == '["silent_refusal"]'
    tiers = ("judge_model", "tier_2_semantic_score", "tier_2_reasoning", "tier_2_skipped", "tier_2_5_skipped", "tier_3_skipped")
    assert [rows["score s1:6"][name] for name in tiers] == ["structural", None, None, 1, 1, 1]
    assert rows["score s1:6"]["tier_3_dimension_scores"] is None
    assert rows["score s1:6"]["cost_usd"] is None


def test_a_baseline_has_every_column(files: tuple[Path, Path]) -> None:
    """The averages are the JSON object of the source."""
    row = rows_of(files[0], "eval_baselines")["b1"]
    assert json.loads(row.pop("dimension_averages")) == {
        "tier1": {"avg": 0.9875, "stddev": 0.125, "count": 40}, "tier2": {"avg": 0.8, "stddev": 0.125, "count": 20},
        "tier2_5": {"avg": 0.7, "stddev": 0.125, "count": 5}, "tier3": {"avg": 4.25, "stddev": 0.125, "count": 10}, "anomalyRate": 0.025,
    }  # fmt: skip
    assert row == {
        "id": "b1", "project": "ops", "computed_at": "2026-10-01T09:00:00.000Z", "window_start": "2026-09-17T09:00:00.000Z",
        "window_end": "2026-10-01T09:00:00.000Z", "exchange_count": 120, "schema_version": "1",
    }  # fmt: skip


def test_an_incident_has_every_column(files: tuple[Path, Path]) -> None:
    """The evidence keeps its own members, nulls included, beside those of the source."""
    row = rows_of(files[0], "eval_incidents")["resolved"]
    metadata = json.loads(row.pop("metadata"))
    assert metadata.keys() - {"rules", "note"} == {
        "tierAffected", "direction", "baselineId", "deviationAmount", "dayCount", "baselineAvg", "baselineStddev",
    }  # fmt: skip
    assert (metadata["note"], metadata["rules"]["consecutive_days"]["deviation"]) == (None, 2.5)
    numbers = ("tierAffected", "direction", "baselineId", "deviationAmount", "dayCount", "baselineAvg", "baselineStddev")
    assert [metadata[name] for name in numbers] == ["tier2", "down", "b1", 0.3125, 3, 0.8, 0.125]
    title, description = row.pop("title"), row.pop("description")
    assert row == {
        "id": "resolved", "project": "ops", "type": "drift", "status": "accepted", "severity": "critical",
        "detected_at": "2026-10-01T09:00:00.000Z", "resolved_at": "2026-10-02T09:00:00.000Z", "resolved_by": "ben",
        "created_at": "2026-10-01 09:00:00",
    }  # fmt: skip
    assert fetch_rows(files[0], "SELECT title, description FROM incidents WHERE incident_id = 'resolved'", 1)[1] == [
        (title, description)
    ]
    spike = json.loads(rows_of(files[0], "eval_incidents")["spike"]["metadata"])
    assert [spike[name] for name in ("recentAnomalyRate", "baselineAnomalyRate", "recentExchangeCount")] == [0.25, 0.025, 12]


def test_states_of_an_incident_are_those_of_the_source(files: tuple[Path, Path]) -> None:
    """Acknowledging is accepting, with its time and person; an open incident has neither."""
    rows = rows_of(files[0], "eval_incidents")
    states = {name: (row["status"], row["resolved_by"], row["resolved_at"] is None) for name, row in rows.items()}
    assert states == {
        "open": ("open", None, True), "spike": ("open", None, True), "acknowledged": ("accepted", "ann", False),
        "resolved": ("accepted", "ben", False), "dismissed": ("dismissed", "ben", False),
    }  # fmt: skip


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_for_sqlite_gives_the_same_rows(
    statement: str, files: tuple[Path, Path], sqlite: sqlite3.Connection
) -> None:
    """People who come from the source keep their SQL."""
    rows = sqlite.execute(statement).fetchall()
    assert rows
    assert fetch_rows(files[0], statement, 1000)[1] == rows


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_sandbox_gives_the_same_rows_unless_a_text_is_named(
    statement: str, files: tuple[Path, Path], sqlite: sqlite3.Connection
) -> None:
    """A snapshot has no texts: there the statement fails, and the hint says where the texts are."""
    if "user_message" in statement:
        with pytest.raises(QueryError) as error:
            on_snapshot(files[1], statement)
        assert "driftline sql" in (error.value.hint or "")
    elif statement.startswith("SELECT * FROM eval_exchanges"):
        texts = [[*COLUMNS["eval_exchanges"]].index(name) for name in TEXTS]
        rows = [tuple(value for index, value in enumerate(row) if index not in texts) for row in sqlite.execute(statement)]
        assert on_snapshot(files[1], statement) == rows
    else:
        assert on_snapshot(files[1], statement) == sqlite.execute(statement).fetchall()


REPLACEMENTS = re.findall(r"^\| `(eval_\w+)` \| `(.+?)` \| `(.+?)` \|", PAGE, re.MULTILINE)
"""The guide's table: a view, an expression of SQLite, and its equivalent."""


@pytest.mark.parametrize(("view", "there", "here"), REPLACEMENTS)
def test_a_replacement_of_the_guide_means_the_same(
    view: str, there: str, here: str, files: tuple[Path, Path], sqlite: sqlite3.Connection
) -> None:
    """The guide lists an expression only if DuckDB refuses it or understands something else."""
    rows = sqlite.execute(f"SELECT id, {there} FROM {view} ORDER BY id").fetchall()
    assert fetch_rows(files[0], f"SELECT id, {here} FROM {view} ORDER BY id", 1000)[1] == rows
    try:
        unchanged = fetch_rows(files[0], f"SELECT id, {there} FROM {view} ORDER BY id", 1000)[1]
    except QueryError:
        return
    assert unchanged != rows


def test_the_guide_lists_every_view_and_replacement() -> None:
    """The table of replacements is read by a pattern, which must match it."""
    assert len(REPLACEMENTS) >= 6
    assert {view for view in COLUMNS if f"`{view}`" in PAGE} == {*COLUMNS}
