"""The check of the history that an import brought (`streams.watch.history`): in this process, or in the server that has the database."""

from __future__ import annotations

import asyncio

from service.setup.workspace import Workspace, utc_now
from streams.watch.history import History, ProjectHistory, Report
from streams.watch.watching import Watch


def begin_history(workspace: Workspace, target: str) -> None:
    """Note that an import into a project, or into `EVERY_PROJECT`, begins."""
    if workspace.server is None:
        _history(workspace).begin(target)
    else:
        workspace.server.call("begin_history", type(None), target)


def check_history(workspace: Workspace, target: str, report: Report = lambda *_: None) -> list[ProjectHistory]:
    """Check the days that imports brought and that are over by the workspace's present, each as of its end.

    A server does not report how far it is.
    """
    if workspace.server is None:
        return asyncio.run(_history(workspace).check(target, workspace.now(), report))
    return workspace.server.call("check_history", list[ProjectHistory], target, workspace.now())


def resume_histories(workspace: Workspace, report: Report) -> list[ProjectHistory]:
    """Check what imports that were killed left unchecked, in a database that this process has."""
    history = _history(workspace)
    checked: list[ProjectHistory] = []
    for target in history.pending():
        checked += asyncio.run(history.check(target, workspace.now(), report))
    return checked


def _history(workspace: Workspace) -> History:
    return History(Watch(workspace.publisher), workspace.store, utc_now)
