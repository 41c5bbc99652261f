"""Audit trail: each change over HTTP has a line, written before the change and completed before the answer."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import anyio.to_thread
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schemas.errors import StoreError
from service.setup.access.access import AccessStore, Holder
from service.setup.access.audit_log import Outcome, Write
from service.web.bounds import DRY_RUNS
from service.web.context import ApiContext, durable_or_refused

log = logging.getLogger(__name__)
READS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_SUBJECT = 256
"""Characters that are kept of an id."""


async def keep_write(request: Request) -> None:
    """Begin a line for an operator's change; 503 if it cannot be written.

    Deliveries of connections have no line: records name their connection themselves.
    """
    caller: Holder | None = getattr(request.state, "caller", None)
    if request.method in READS or caller is None or caller.kind != "operator" or request.scope["route"].path in DRY_RUNS:
        return
    context: ApiContext = request.app.state.context
    subjects = [str(value) for name, value in request.path_params.items() if name != "project"]
    write = Write(
        kind="operator",
        name=caller.name,
        token=request.state.token,
        method=request.method,
        route=request.scope["route"].path,
        project=request.path_params.get("project", caller.project),
        subject="/".join(subjects)[:MAX_SUBJECT] or None,
        request_id=request.state.request_id,
    )
    with durable_or_refused():
        request.state.line = await anyio.to_thread.run_sync(context.access.audit_log.begin, write)


def name_subject(request: Request, subject: str) -> None:
    """Set the subject of a change that its address does not name."""
    request.state.subject = subject[:MAX_SUBJECT]


class AuditTrail:
    """Middleware that completes the line of a request that has one."""

    def __init__(self, app: ASGIApp, access: AccessStore) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, then record its outcome."""
        state = scope.setdefault("state", {}) if scope["type"] == "http" else {}

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._end(state, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            await self._end(state, int(HTTPStatus.INTERNAL_SERVER_ERROR))
            raise

    async def _end(self, state: dict[str, Any], status: int) -> None:
        line = state.pop("line", None)
        if line is None:
            return
        try:
            await anyio.to_thread.run_sync(self._access.audit_log.end, line, _outcome(status), status, state.get("subject"))
        except StoreError:
            # The change was made, so the answer says so. The line keeps no outcome, as if it had been interrupted.
            log.exception("the audit log could not record how a change ended")


def _outcome(status: int) -> Outcome:
    if status < HTTPStatus.BAD_REQUEST:
        return "done"
    return "refused" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "failed"
