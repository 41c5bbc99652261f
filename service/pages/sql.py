"""The SQL page: an editor beside the views, the queries and the worked examples of the guide. Its script sends statements to the API."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.snapshots import load_catalog
from service.pages.rendering import page
from service.pages.viewing import Viewer
from service.read.queries.pool import SnapshotState
from service.read.queries.protocol import DEFAULT_ROWS, MAX_ROWS
from service.setup.access import Holder
from service.web.authentication import Querier
from service.web.models import MAX_SQL

router = APIRouter(include_in_schema=False)
_USUAL_VIEWS = frozenset({"turns", "runs", "session_summaries"})
"""Views that most questions need; they come first."""
INITIAL_STATEMENT = (
    "SELECT day, sum(exchanges) AS exchanges, sum(anomalies) AS anomalies\nFROM days\nGROUP BY day\nORDER BY day"
)
LIMITS = (100, 1000, DEFAULT_ROWS)
"""Row limits to choose from. A download has the limit of the API."""
Statement = Annotated[str, Query(max_length=MAX_SQL)]


@router.get("/sql")
async def sql(request: Request, viewer: Viewer, q: Statement = "", rows: int = 1000) -> HTMLResponse:
    """Show the editor with a statement; operators without the scope see why they may not use it.

    A snapshot is built in the background, so that it is ready for the first statement.
    """
    if "query" not in viewer.scopes:
        return page(request, "sql_closed.html", {}, 403)
    request.app.state.query_pool.prepare()
    values = _describe_snapshot(request, viewer) | {
        "statement": q or INITIAL_STATEMENT,
        "rows": rows if rows in LIMITS else LIMITS[1],
        "limits": LIMITS,
        "most": MAX_ROWS,
        "max_length": MAX_SQL,
        "catalogue": await anyio.to_thread.run_sync(load_catalog),
        "usual": _USUAL_VIEWS,
        "examples": worked_examples(),
    }
    return page(request, "sql.html", values)


@router.get("/sql/snapshot")
async def snapshot(request: Request, caller: Querier) -> HTMLResponse:
    """Show the age of the snapshot and the progress of the next one, as a part of the page. This does not start a build."""
    return page(request, "sql_snapshot.html", _describe_snapshot(request, caller))


def _describe_snapshot(request: Request, caller: Holder) -> dict[str, Any]:
    """Return the state of the snapshots, with the current one's age and the next one's build time so far, in seconds."""
    state: SnapshotState = request.app.state.query_pool.snapshot_state()
    if caller.projects_with("query") is not None:
        state = replace(state, progress="")  # it tells how many records all projects have
    now = request.app.state.context.engine.now()
    return {
        "state": state,
        "age": state.at and (now - state.at).total_seconds(),
        "taken": state.since and (now - state.since).total_seconds(),
    }


_HEADING = re.compile(r"^### \d+\. ", re.MULTILINE)
_STATEMENT = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"[`*]")
_VALUE = re.compile(r"(DATE )?'([^']*)' /\* \$([a-z_]+) \*/")
"""A value of an example that readers replace, with the name of its parameter."""


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A question, a text about it, and the statement that answers it."""

    title: str
    words: str
    sql: str
    """The statement, with `$name` in place of each named value of the guide."""
    parameters: Mapping[str, str]
    """The named values."""


@functools.cache
def worked_examples() -> tuple[WorkedExample, ...]:
    """Return the examples in the order of the guide; a question with two statements appears twice."""
    guide = (resources.files("service") / "worked_examples.md").read_text(encoding="utf-8")
    return tuple(example for part in _HEADING.split(guide)[1:] for example in _split_examples(part))


def _split_examples(part: str) -> list[WorkedExample]:
    """Return the examples of a section of the guide, which alternates texts and statements below its title."""
    title, _, rest = part.partition("\n")
    texts = _STATEMENT.split(rest)
    return [
        WorkedExample(title, _MARKS.sub("", words).strip(), _VALUE.sub(_name_parameter, sql).strip(), _read_parameters(sql))
        for words, sql in zip(texts[::2], texts[1::2], strict=False)
    ]


def _name_parameter(value: re.Match[str]) -> str:
    """Return the parameter that replaces a value; a date becomes a text with a cast."""
    return f"${value[3]}::DATE" if value[1] else f"${value[3]}"


def _read_parameters(sql: str) -> dict[str, str]:
    return {value[3]: value[2] for value in _VALUE.finditer(sql)}
