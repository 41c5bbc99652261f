"""Anchors as documents: the anchors, their rounds, and their finding about the judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from audit.anchors.judge_change import JudgeChange
from audit.exchanges.states import SCORED
from audit.times import iso_time
from schemas.lazy.duckdb import duckdb
from schemas.records import Anchor
from service.text.members import Document, members
from streams.upkeep.anchors import anchors_of, changes, rounds_of

_SHOWN = 100
"""Rounds that are shown, newest first."""


def anchors_document(cursor: duckdb.DuckDBPyConnection, project: str) -> Document:
    """Return the anchors of a project, their rounds, newest first, and the finding about the judge of each tier."""
    return {
        "anchors": [anchor_document(one) for one in anchors_of(cursor, project)],
        "rounds": _rounds(rounds_of(cursor, project)),
        "judge": [judge_document(tier, change) for tier, change in changes(cursor, project).items()],
    }


def anchor_document(anchor: Anchor) -> Document:
    """Return an anchor, without the texts of its exchange."""
    return members(anchor, "id=anchor_id connection exchange_id active chosen_by chosenAt=occurred_at")


def judge_document(tier: str, change: JudgeChange) -> Document:
    """Return the anchors' finding about the judge of a tier."""
    return {"tier": tier, **dataclasses.asdict(change), "since": iso_time(change.since)}


def _rounds(rows: Iterable[Mapping[str, Any]]) -> list[Document]:
    rounds: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        rounds.setdefault(row["round_at"], []).append(row)
    newest = sorted(rounds.items(), reverse=True)[:_SHOWN]
    return [
        {
            "at": iso_time(at),
            "anchors": len(judged),
            "scored": sum(row["disposition"] == SCORED for row in judged),
            "costUsd": None if any(row["cost_usd"] is None for row in judged) else sum(row["cost_usd"] for row in judged),
        }
        for at, judged in newest
    ]
