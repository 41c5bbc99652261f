"""Two scorings of the same exchanges side by side, as one document, to show the effect of another policy or judge.

The comparison is exchange by exchange, over the exchanges that both sides have, each with the same weight. It estimates the change
among these exchanges, not among all of the fleet's, because sampling picks some kinds more often than others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analytics.queries import query_rows
from analytics.store.connection import attached, reading
from audit.comparison import CONFIDENCE, PairedSums, by_chance, paired_interval
from schemas.bounds import NAME
from schemas.errors import InputError, StoreError
from schemas.lazy import duckdb
from service.read.known_projects import unknown_project
from service.text.plain import plain
from streams.replay.plan import LIVE, folder_of
from streams.replay.result import outcome_in

Row = Mapping[str, Any]
Document = dict[str, Any]
_DIGITS = 9
"""Decimals of a mean: further ones depend on the order of summation."""
_SUMS = tuple(field.name for field in dataclasses.fields(PairedSums))
_SIDES = ("a", "b")


@dataclass(frozen=True)
class Side:
    """One scoring: its label and its file."""

    label: str
    path: Path


def side_of(label: str, database: Path) -> Side:
    """Return the scoring with a label, `live` or a replay's; InputError if there is none."""
    if label == LIVE:
        path = database
    elif re.fullmatch(NAME, label):
        path = folder_of(database) / f"{label}.duckdb"
    else:
        raise InputError(
            f"{plain(label, 64)!r} is not a valid label",
            hint="A label has a-z, 0-9, _ . - and at most 63 characters.",
        )
    if not path.exists():
        raise InputError(f"there are no scores labelled {label}: no file {path}", hint=_known_labels(database))
    return Side(label, path)


def compare(first: Side, second: Side, project: str | None, top: int) -> Document:
    """Compare two scorings; list at most `top` of the exchanges that changed most.

    InputError if they have no exchange in common; StoreError if a file cannot be read.
    """
    if first.path == second.path:
        raise InputError(f"{first.label} cannot be compared with itself", hint="Name two labels, or a label and live.")
    with _opened(first, second) as connection:
        sides = {name: reading(name, "scores") for name in _SIDES} | {"project": project}
        exchanges = query_rows(connection, "compared_exchanges", sides)
        if not any(row["in_both"] for row in exchanges):
            known = {row["project"] for row in query_rows(connection, "compared_exchanges", sides | {"project": None})}
            if project is not None and known and project not in known:
                raise unknown_project(project, sorted(known))
            where = "" if project is None else f" of project {plain(project, 64)}"
            raise InputError(
                f"{first.label} and {second.label} have no exchange{where} in common",
                hint="Replay the same projects and the same time under both labels.",
            )
        measures = [_measure(row) for row in query_rows(connection, "compared_measures", sides)]
        return {
            "a": _side(connection, first, "a", project),
            "b": _side(connection, second, "b", project),
            "exchanges": exchanges,
            "measures": measures,
            "intervals": _intervals(measures),
            "states": query_rows(connection, "compared_states", sides),
            "moved": query_rows(connection, "moved_exchanges", sides | {"limit": top}),
        }


@contextlib.contextmanager
def _opened(first: Side, second: Side) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open both files on one connection, as `a` and `b`; StoreError if one has no scores in this version's format."""
    with attached(dict(zip(_SIDES, (first.path, second.path), strict=True))) as connection:
        try:
            yield connection
        except (duckdb.CatalogException, duckdb.BinderException) as error:
            raise StoreError(
                f"{first.path} or {second.path}: {str(error).splitlines()[0]}",
                hint="One of them is from another version: `driftline doctor --db FILE` opens and upgrades it.",
            ) from error


def _side(connection: duckdb.DuckDBPyConnection, side: Side, name: str, project: str | None) -> Document:
    """Describe the policy and judge behind a side's scores, and the scope and calls of a replay."""
    origins = query_rows(connection, "score_origins", {"scores": reading(name, "scores"), "project": project})
    return {"label": side.label, "replay": None if side.label == LIVE else _replay(side.path), "origins": origins}


def _replay(path: Path) -> Document:
    """Describe the scope of a replay and its calls; StoreError if the file is not one."""
    outcome = outcome_in(path)
    scope = outcome.plan.scope
    return {
        "source": outcome.plan.origin.kind,
        "judge": outcome.plan.asking.value,
        "project": scope.project,
        "since": scope.since,
        "until": scope.until,
        "range": outcome.plan.range or None,
        "calls": outcome.calls,
        "cost_usd": outcome.cost_usd,
        "unknown_price": outcome.unknown_price,
    }


def _measure(row: Row) -> Document:
    """Return one measure with the interval of its change; there is no interval for a single session."""
    interval = paired_interval(PairedSums(**{name: row[name] for name in _SUMS}))
    told = {
        "project": row["project"],
        "tier": row["tier"],
        "dimension": row["dimension"],
        "exchanges": row["pairs"],
        "sessions": row["clusters"],
        "changed": row["changed"],
        "mean_a": round(row["mean_a"], _DIGITS),
        "mean_b": round(row["mean_b"], _DIGITS),
        "change": round(row["mean"], _DIGITS),
    }
    if interval is None:
        return told | {"low": None, "high": None, "excludes_zero": None, "few_sessions": True}
    ends = {"low": round(interval.low, _DIGITS), "high": round(interval.high, _DIGITS)}
    return told | ends | {"excludes_zero": interval.excludes_zero, "few_sessions": interval.is_rough}


def _intervals(measures: Sequence[Row]) -> Document:
    """Count the intervals that exclude zero, and the number expected to do so by chance.

    Intervals from few sessions do not count, nor do measures in which no exchange differs.
    """
    counted = [row for row in measures if row["changed"] and not row["few_sessions"]]
    return {
        "confidence": CONFIDENCE,
        "counted": len(counted),
        "exclude_zero": sum(row["excludes_zero"] for row in counted),
        "by_chance": round(by_chance(len(counted)), 2),
    }


def _known_labels(database: Path) -> str:
    labels = sorted(path.stem for path in folder_of(database).glob("*.duckdb"))
    if not labels:
        return "`driftline replay --label NAME` makes one; live means the scores of the database itself."
    return f"Use one of {LIVE}, {', '.join(labels)}."
