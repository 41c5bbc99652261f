"""The audit log: changes by operators over HTTP and by commands on access, one line each, in the file of tokens.

1. A line is written before the change is made, and completed with the outcome. A line without an outcome was interrupted, for example
   by a kill: look up whether its change was made.
2. A line names the author, the time, the token (by its public prefix), the action (method and route template, or command), the project
   and the subject. Bodies are not kept.
3. A completed line cannot be changed. Lines are deleted by age, and the oldest ones if there are too many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from msgspec import Meta

from service.setup.access.shared_file import SharedFile, stamped
from service.text.answers import Answer, Moment

Outcome = Literal["done", "refused", "failed"]
KEPT = timedelta(days=400)
"""The time that lines are kept: a year, plus some time to review it."""
MAX_LINES = 1_000_000
PRUNED_EVERY = 1000
_COLUMNS = "id, at, kind, name, 'dl_' || token, method, route, project, subject, request_id, status, outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A requested change."""

    kind: Literal["operator", "command"]
    name: str
    """The operator, or the account of the machine that ran the command."""
    token: str | None = None
    method: str
    route: str
    project: str | None = None
    subject: str | None = None
    request_id: str | None = None


class AuditLine(Answer, frozen=True):
    """A requested change."""

    id: int
    at: Moment
    kind: Annotated[Literal["operator", "command"], Meta(description="Over HTTP, or by a command on the server's machine.")]
    name: Annotated[str, Meta(description="The operator, or the account of the machine.", examples=["root"])]
    token: Annotated[str | None, Meta(description="Public prefix of the token.", examples=["dl_0f3a77c1b2d4"])]
    method: Annotated[str, Meta(examples=["POST"])]
    route: Annotated[
        str, Meta(description="Template of the address, or the command.", examples=["/api/audit/{project}/rejudge"])
    ]
    project: str | None
    subject: Annotated[str | None, Meta(description="Subject of the change: an id or a name.")]
    request_id: Annotated[str | None, Meta(description="As in X-Request-Id and in the server's log.")]
    status: Annotated[int | None, Meta(description="Status of the HTTP answer.", examples=[202])]
    outcome: Annotated[Outcome | None, Meta(description="null: not finished, or interrupted.")]


class AuditLog:
    """The table `writes` of the file."""

    def __init__(self, file: SharedFile, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    def begin(self, write: Write) -> int:
        """Record a requested change; return the number of its line. StoreError on failure."""
        values = [
            stamped(self._now()),
            write.kind,
            write.name,
            write.token,
            write.method,
            write.route,
            write.project,
            write.subject,
            write.request_id,
        ]
        with self._file.transaction() as cursor:
            cursor.execute(
                "INSERT INTO writes (at, kind, name, token, method, route, project, subject, request_id) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            line = cursor.lastrowid or 0
            if line % PRUNED_EVERY == 0:
                oldest = [stamped(self._now() - KEPT), line - MAX_LINES]
                cursor.execute("DELETE FROM writes WHERE at < ? OR id <= ?", oldest)
            return line

    def end(self, line: int, outcome: Outcome, status: int | None = None, subject: str | None = None) -> None:
        """Complete a line: the outcome, the status over HTTP, and its subject if that was not known before."""
        with self._file.transaction() as cursor:
            cursor.execute(
                "UPDATE writes SET outcome = ?, status = ?, subject = coalesce(subject, ?) WHERE id = ?",
                [outcome, status, subject, line],
            )

    def lines(
        self, limit: int, before: int | None = None, *, name: str | None = None, project: str | None = None
    ) -> list[AuditLine]:
        """Return lines, newest first, optionally before a line number, of one name, and of one project."""
        rows = self._file.rows(
            f"SELECT {_COLUMNS} FROM writes WHERE (:before IS NULL OR id < :before) AND (:name IS NULL OR name = :name) "  # noqa: S608 - a literal
            "AND (:project IS NULL OR project = :project) ORDER BY id DESC LIMIT :limit",
            {"before": before, "limit": limit, "name": name, "project": project},
        )
        return [AuditLine(number, datetime.fromisoformat(at), *others) for number, at, *others in rows]
