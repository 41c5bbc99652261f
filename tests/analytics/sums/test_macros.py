"""Macros that queries over evaluations share: quantiles of Student's t, as the rest of the program has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import duckdb
import pytest

from analytics.store.store import Store
from analytics.sums.macros import QUANTILES
from audit.comparison import CONFIDENCE, t_quantile


@pytest.fixture(scope="module")
def cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    """A cursor of an empty store."""
    with Store(None) as store, closing(store.cursor()) as opened:
        yield opened


def quantile(cursor: duckdb.DuckDBPyConnection, freedom: float) -> float | None:
    """The quantile for a 95% interval."""
    ((quantile,),) = cursor.execute("SELECT log.t_quantile(?)", [freedom]).fetchall()
    return quantile  # type: ignore[no-any-return]


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 29, 30, 31, 45.5, 120, 10_000])
def test_quantiles_equal_those_of_the_intervals_in_python(freedom: float, cursor: duckdb.DuckDBPyConnection) -> None:
    """A mean has one interval, whichever code computes it."""
    assert quantile(cursor, freedom) == pytest.approx(t_quantile(0.975, freedom), abs=1e-4)


@pytest.mark.parametrize("freedom", [1.5, 2.01, 7.9, 29.999])
def test_between_whole_degrees_an_interval_is_slightly_too_wide(freedom: float, cursor: duckdb.DuckDBPyConnection) -> None:
    """The error is on the safe side: a reported difference is one."""
    assert quantile(cursor, freedom) == pytest.approx(t_quantile(0.975, int(freedom)), abs=1e-9)


@pytest.mark.parametrize("freedom", [0, -1, 0.5, None])
def test_too_few_scores_have_no_quantile(freedom: float | None, cursor: duckdb.DuckDBPyConnection) -> None:
    """A single score does not show how scores vary."""
    assert quantile(cursor, freedom) is None  # type: ignore[arg-type]


def test_rounding_of_sums_does_not_change_whole_degrees(cursor: duckdb.DuckDBPyConnection) -> None:
    """An interval must not depend on the order of addition."""
    assert quantile(cursor, 6.0) == quantile(cursor, 6.0 - 1e-12)


def test_stored_quantiles_equal_the_computed_ones() -> None:
    """Other values would give other intervals than the checks."""
    worked_out = [t_quantile((1 + CONFIDENCE) / 2, freedom) for freedom in range(1, QUANTILES.count(",") + 2)]
    assert ", ".join(f"{one:.12f}" for one in worked_out) == QUANTILES
