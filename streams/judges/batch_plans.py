"""Plans of batches, and the journal that keeps them across restarts. This module does not import the API's client.

Each batch is planned before it is created. The custom id of each request contains the plan's id, so that a batch that was created but
never recorded can be recognized by its results.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from audit.exchanges.questions import Question
from schemas.errors import StoreError
from streams.judges.protocol import CallBudget

CANCELLED = "the batch was cancelled before the question was asked"
"""The error of a question that was not asked because its batch was cancelled."""
_FINGERPRINT_LENGTH = 47
"""Characters of the fingerprint in a custom id. The API allows 64 characters in all, and 188 bits are enough to avoid collisions."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchQuestion:
    """A question for the batch judge, its call budget, and a tag that is returned with the verdict."""

    question: Question
    budget: CallBudget
    tag: object = None


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is about to be created, or was created."""

    plan_id: str
    """16 random hexadecimal digits."""
    fingerprints: tuple[str, ...]
    """The fingerprints of its questions."""
    planned_at: datetime
    """In UTC, by this machine's clock."""
    batch_id: str | None = None
    """The API's id of the batch; None while it is unknown whether the batch exists."""


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a new plan, or a change of an earlier one."""

    plan: BatchPlan | None = None
    plan_id: str | None = None
    batch_id: str | None = None
    """The API's id of the batch; None if the plan is finished."""


_ENTRY = msgspec.json.Decoder(_Entry)


class BatchJournal:
    """The batches of one run, including its resumptions, in a file of JSON lines, one per change.

    Each change is durable when its method returns. Only one process at a time may use the file. Each run needs its own journal, so that
    a question that is asked again on purpose does not get the answer from an earlier run.
    """

    def __init__(self, path: Path) -> None:
        """Read an existing journal. Raises StoreError if it cannot be read."""
        self._path = path
        self._plans: dict[str, BatchPlan] = {}
        self._valid_bytes = 0
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            raise StoreError(
                f"{path}: the journal of batches cannot be read: {error}", hint="Check the file's permissions."
            ) from error
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):  # a crash may truncate the last line, which nothing relies on yet
                self._apply_line(line, number)
                self._valid_bytes += len(line)

    async def record_planned(self, plan: BatchPlan) -> None:
        """Record that a batch is about to be created."""
        self._write(_Entry(plan=plan))
        self._plans[plan.plan_id] = plan

    async def record_created(self, plan_id: str, batch_id: str) -> None:
        """Record that a batch was created, with its id."""
        self._write(_Entry(plan_id=plan_id, batch_id=batch_id))
        self._plans[plan_id] = msgspec.structs.replace(self._plans[plan_id], batch_id=batch_id)

    async def record_finished(self, plan_id: str) -> None:
        """Record that a batch was never created, or that all of its verdicts are durable."""
        self._write(_Entry(plan_id=plan_id))
        self._plans.pop(plan_id, None)

    async def unfinished(self) -> Sequence[BatchPlan]:
        """Return the unfinished plans, oldest first."""
        return tuple(self._plans.values())

    def fingerprints(self) -> set[str]:
        """Return the fingerprints of the questions in unfinished plans."""
        return {fingerprint for plan in self._plans.values() for fingerprint in plan.fingerprints}

    def _apply_line(self, line: bytes, number: int) -> None:
        try:
            entry = _ENTRY.decode(line)
        except msgspec.DecodeError as error:
            hint = "Restore the file from a backup. If you remove it instead, the questions of its batches are paid for again."
            raise StoreError(f"{self._path}:{number}: invalid line in the journal of batches: {error}", hint=hint) from error
        if entry.plan is not None:
            self._plans[entry.plan.plan_id] = entry.plan
            return
        plan = self._plans.get(entry.plan_id or "")
        if plan is None:
            return
        if entry.batch_id is None:
            del self._plans[plan.plan_id]
        else:
            self._plans[plan.plan_id] = msgspec.structs.replace(plan, batch_id=entry.batch_id)

    def _write(self, entry: _Entry) -> None:
        """Append a line and sync it to disk. A line that a crash truncated is overwritten."""
        with self._path.open("r+b" if self._path.exists() else "xb") as file:
            file.truncate(self._valid_bytes)
            file.seek(self._valid_bytes)
            self._valid_bytes += file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def custom_id(fingerprint: str, plan_id: str) -> str:
    """Return the id of a question's request within a batch: at most 64 characters of a-z, A-Z, 0-9, _ and -."""
    return f"{fingerprint[:_FINGERPRINT_LENGTH]}-{plan_id}"


def has_plan(request_id: str, plan_id: str) -> bool:
    """Return whether a custom id belongs to a request of this plan."""
    return request_id.endswith(f"-{plan_id}")


def newest_plans(plans: Iterable[BatchPlan]) -> dict[str, BatchPlan]:
    """Return the last of the plans for each fingerprint."""
    return {fingerprint: plan for plan in plans for fingerprint in plan.fingerprints}
