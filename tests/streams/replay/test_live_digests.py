"""Scores of a source that a replay has come to, too, have the digests of the replay's: however little another one differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import builders
import msgspec
import polars as pl
import pytest

from analytics.store.store import Store
from schemas.codec.single_object import encode
from schemas.records import DimensionScore, Score
from streams.replay.digests import digests_of
from streams.replay.history import live_digests as module
from streams.replay.history.live_digests import live_digests
from streams.replay.history.table_history import Tables, origin_of_tables
from streams.replay.plan import Scope

DIMENSIONS = (DimensionScore(dimension="tone", score=0.0, reasoning="None."), DimensionScore(dimension="care", score=1.0))
SCORES = [
    builders.score(session, number, tier2_dimensions=DIMENSIONS, tier1_score=0.0, tier2_flag_reason=None)
    for session in ("a", "b")
    for number in range(4)
]


def digests(folder: Path, live: Sequence[Score], made: Sequence[Score]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The digests of the source's scores beside those that were made, and as they are without them."""
    paths = [folder / "live.duckdb", folder / "made.duckdb"]
    for path, scores in zip(paths, (live, made), strict=True):
        with Store(path, is_browsed=path == paths[0]) as store, store.transaction() as transaction:
            transaction.append("scores", [encode(one) for one in scores])
    with Tables(origin_of_tables(paths[1])) as tables:
        of_made = digests_of(tables.scores(Scope()))
    with Tables(origin_of_tables(paths[0])) as tables:
        expected = digests_of(tables.scores(Scope()))
        found = live_digests(tables, Scope(), None, paths[1], of_made)
    return found.sort("score_id", "revision", "sha256"), expected.sort("score_id", "revision", "sha256")


def other(value: Any) -> Any:
    """A value that differs from one as little as it can."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return -value if value == 0 else value + 0.5
    if isinstance(value, int):
        return value + 1
    if isinstance(value, tuple):
        if value and isinstance(value[0], DimensionScore):
            return (msgspec.structs.replace(value[0], score=other(value[0].score)), *value[1:])
        return (*value, *value) if value else ("other",)
    return value + timedelta(microseconds=1) if isinstance(value, timedelta | type(SCORES[0].scored_at)) else f"{value or ''}!"


OPTIONAL = {"tier2_score": 0.5, "tier3_score": 0.5, "tier2_5_alignment": 0.5, "tier3_dimensions": DIMENSIONS}
OPTIONAL |= dict.fromkeys(["tier2_flagged", "tier3_anomaly", "tier2_5_sycophancy", "tier2_5_advocacy_suppression"], True)
"""Values of fields that are not given in `SCORES`, where a text will not do."""


def changed(score: Score, name: str) -> Score:
    """A score with another value in a field."""
    return msgspec.structs.replace(score, **{name: OPTIONAL.get(name) or other(getattr(score, name))})


def test_a_score_that_differs_in_one_field_has_its_own_digest(tmp_path: Path) -> None:
    """0.0 and -0.0 are equal for a database and not for a digest; nothing is not an empty text."""
    names = Score.__struct_fields__
    live = [
        msgspec.structs.replace(SCORES[0], score_id=f"{place:02}", exchange_id=f"{place:02}") for place in range(len(names))
    ]
    made = [changed(score, name) for score, name in zip(live, names, strict=True)]
    assert all(encode(one) != encode(score) for one, score in zip(made, live, strict=True))
    found, expected = digests(tmp_path, live, made)
    assert expected.equals(found)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda scores: scores, id="all"),
        pytest.param(lambda scores: scores[::-1], id="in another order"),
        pytest.param(lambda scores: scores[:3], id="some"),
        pytest.param(lambda _: [], id="none"),
        pytest.param(lambda scores: [*scores, msgspec.structs.replace(scores[0], revision=1)], id="more"),
    ],
)
@pytest.mark.parametrize("at_once", [3, 20_000])
def test_the_digests_are_those_of_the_scores_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[list[Score]], list[Score]], at_once: int
) -> None:
    """Neither what else was made nor how many are compared at once may be seen in a digest."""
    monkeypatch.setattr(module, "SCORES_AT_ONCE", at_once)
    found, expected = digests(tmp_path, SCORES, made(SCORES))
    assert expected.equals(found)


def test_scores_that_are_the_same_are_not_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a tenth of a replay."""
    monkeypatch.setattr(module, "digests_of", pytest.fail)
    found, expected = digests(tmp_path, SCORES, SCORES)
    assert expected.equals(found)
