"""Hourly sums of a series of scores: the same columns for ten sessions a day and for a hundred thousand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from schemas.lazy.numpy import np

if TYPE_CHECKING:
    from schemas.lazy.numpy import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Ints: TypeAlias = "NDArray[np.int64]"
Flags: TypeAlias = "NDArray[np.bool_]"
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Unit:
    """The scores of one session on one UTC day: what is independent of what came before, as far as anything is.

    Weights are 1 / sampling probability.
    """

    at: datetime
    """Time of the last of its exchanges, UTC, aware or naive but all of one kind."""
    scores: int
    """The number of scores it holds."""
    weight: float
    """Sum of the weights, above 0."""
    total: float
    """Sum of weight x score."""


class Cells(NamedTuple):
    """The sums of units by the hour in which they end: columns of one length, an hour each, oldest first.

    However many units there are, and however they are split into sums on their way, their cells are the same.
    """

    last: NDArray[np.datetime64]
    """Time of the last unit of the hour, UTC, in microseconds."""
    units: Floats
    scores: Floats
    weight: Floats
    total: Floats
    """Sum of weight x score."""
    squares: Floats
    """Sum of the squared weights of the units."""
    mixed: Floats
    """Sum of weight x total of the units."""
    totals: Floats
    """Sum of the squared totals of the units."""
    low: Floats
    """The least mean of a unit."""
    high: Floats
    """The greatest mean of a unit."""

    @property
    def days(self) -> Ints:
        """UTC days since 1970."""
        return self.last.astype("datetime64[D]").astype(np.int64)


def day_number(day: date) -> int:
    """A day as `Cells.days` counts it: UTC days since 1970."""
    return (day - _EPOCH).days


def date_of(number: float) -> date:
    """The day of a number of `Cells.days`."""
    return _EPOCH + timedelta(days=int(number))


def cells_of(units: Iterable[Unit]) -> Cells:
    """Add up units hour by hour, in whatever order they are given."""
    rows = sorted((_naive(one.at), one.weight, one.total, one.scores) for one in units)
    last = np.array([row[0] for row in rows], dtype="datetime64[us]")
    weight, total, scores = (np.array([row[column] for row in rows], dtype=np.float64) for column in (1, 2, 3))
    if not rows:
        return Cells(last, weight, weight, weight, weight, weight, weight, weight, weight, weight)
    starts = np.flatnonzero(np.diff(last.astype("datetime64[h]"), prepend=np.datetime64(0, "h")))
    starts = starts if starts.size and starts[0] == 0 else np.concatenate(([0], starts))
    columns = np.stack(_columns(scores, weight, total))
    count, *sums = np.add.reduceat(columns, starts, axis=1)
    mean = total / weight
    ends = np.append(starts[1:], len(rows)) - 1
    known, weights, totals, squares, mixed, squared = sums
    return Cells(
        last[ends],
        count,
        known,
        weights,
        totals,
        squares,
        mixed,
        squared,
        np.minimum.reduceat(mean, starts),
        np.maximum.reduceat(mean, starts),
    )


def _columns(scores: Floats, weight: Floats, total: Floats) -> tuple[Floats, ...]:
    return np.ones_like(weight), scores, weight, total, weight * weight, weight * total, total * total


def _naive(at: datetime) -> datetime:
    return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
