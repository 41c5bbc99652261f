"""The audit log: append-only, complete or visibly cut short, bounded."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

import pytest
from support.clocks import ManualClock

from service.setup import access as access_module
from service.setup.access import LINE_RETENTION, AccessStore, Write

RETRY = Write(
    kind="operator", name="root", token="0f3a77c1b2d4", method="POST", route="/api/audit/{project}/rejudge", project="ops"
)


def test_an_interrupted_change_is_a_line_without_an_end(access: AccessStore) -> None:
    """After a kill, the log shows what was in progress."""
    begun = access.audit_log.begin(RETRY)
    [line] = access.audit_log.lines(10)
    assert line.id == begun
    assert line.name == "root"
    assert line.project == "ops"
    assert line.status is None
    assert line.outcome is None
    access.audit_log.end(begun, "done", 202)
    assert [(line.outcome, line.status) for line in access.audit_log.lines(10)] == [("done", 202)]


def test_a_complete_line_cannot_be_changed(access: AccessStore) -> None:
    """Completed lines cannot be changed by a statement."""
    access.audit_log.end(access.audit_log.begin(RETRY), "refused", 403)
    with sqlite3.connect(access.path) as connection, pytest.raises(sqlite3.IntegrityError, match="stays as it is"):
        connection.execute("UPDATE writes SET name = 'somebody', outcome = 'done'")
    connection.close()


def test_old_lines_are_deleted(access: AccessStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old lines must be deleted, so that the file does not grow without bound."""
    monkeypatch.setattr(access_module, "PRUNE_INTERVAL", 2)
    access.audit_log.begin(RETRY)
    clock.now += LINE_RETENTION + timedelta(seconds=1)
    access.audit_log.begin(RETRY)
    assert [line.id for line in access.audit_log.lines(10)] == [2]


def test_excess_lines_are_deleted(access: AccessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that writes forever must not fill the disk, and numbers are not reused."""
    monkeypatch.setattr(access_module, "PRUNE_INTERVAL", 2)
    monkeypatch.setattr(access_module, "MAX_LINES", 3)
    for _ in range(8):
        access.audit_log.begin(RETRY)
    assert [line.id for line in access.audit_log.lines(10)] == [8, 7, 6]
