"""Plans of batches, and the journal in which they outlive the process. Nothing here loads the client of a model's API.

A batch has a plan before it exists. The plan's id is in the custom id of each of its requests, so a batch that was made but never
recorded is recognised by its results.
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
"""Error of a question that was not asked because its batch was cancelled."""


_FINGERPRINT_CHARACTERS = 47
"""Of a fingerprint in a custom id, which has room for 64 characters; 188 bits tell questions apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A question for the judge, the call budget that pays for it, and whatever the caller wants to have back with the verdict."""

    question: Question
    budget: CallBudget
    tag: object = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is to be made, or was made."""

    plan_id: str
    """16 hexadecimal digits, drawn for this plan."""
    fingerprints: tuple[str, ...]
    """Of its questions."""
    planned_at: datetime
    """UTC, by this machine's clock."""
    batch_id: str | None = None
    """As the API calls it; None while it is not known whether there is one."""


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a plan, or what became of one."""

    plan: Plan | None = None
    plan_id: str | None = None
    batch_id: str | None = None
    """None: it is finished."""


_ENTRY = msgspec.json.Decoder(_Entry)


class BatchJournal:
    """Remembers batches for one run and its resumptions, in a file of its own: a line of JSON for each thing that happened.

    What a method was given is durable when it returns. One process at a time uses the file. Plans of another run are not in it: a
    question that is asked again on purpose must not find the answer of then.
    """

    def __init__(self, path: Path) -> None:
        """StoreError when the file is there and cannot be read."""
        self._path = path
        self._plans: dict[str, Plan] = {}
        self._sound = 0
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            raise StoreError(
                f"{path}: the journal of batches cannot be read: {error}", hint="Give it back its rights."
            ) from error
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):  # the last line may be torn by a kill; nothing was done on its strength
                self._take(line, number)
                self._sound += len(line)

    async def planned(self, plan: Plan) -> None:
        """The batch is about to be made."""
        self._write(_Entry(plan=plan))
        self._plans[plan.plan_id] = plan

    async def created(self, plan_id: str, batch_id: str) -> None:
        """It was made, and is called this."""
        self._write(_Entry(plan_id=plan_id, batch_id=batch_id))
        self._plans[plan_id] = msgspec.structs.replace(self._plans[plan_id], batch_id=batch_id)

    async def finished(self, plan_id: str) -> None:
        """It was never made, or all of its verdicts are durable."""
        self._write(_Entry(plan_id=plan_id))
        self._plans.pop(plan_id, None)

    async def unfinished(self) -> Sequence[Plan]:
        """Plans that are not finished, in the order in which they were made."""
        return tuple(self._plans.values())

    def _take(self, line: bytes, number: int) -> None:
        try:
            entry = _ENTRY.decode(line)
        except msgspec.DecodeError as error:
            hint = "Restore the file, or remove it: what the batches in it have answered is then paid for again."
            raise StoreError(f"{self._path}:{number}: this is no line of a journal of batches: {error}", hint=hint) from error
        if entry.plan is not None:
            self._plans[entry.plan.plan_id] = entry.plan
        elif entry.batch_id is None:
            self._plans.pop(entry.plan_id or "", None)
        elif (plan := self._plans.get(entry.plan_id or "")) is not None:
            self._plans[plan.plan_id] = msgspec.structs.replace(plan, batch_id=entry.batch_id)

    def _write(self, entry: _Entry) -> None:
        """Append a line and wait until the disk has it; what a kill tore off is overwritten."""
        with self._path.open("r+b" if self._path.exists() else "xb") as file:
            file.truncate(self._sound)
            file.seek(self._sound)
            self._sound += file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def custom_id(fingerprint: str, plan_id: str) -> str:
    """Return the name of a question in a batch: at most 64 of the characters a-z, A-Z, 0-9, _ and -."""
    return f"{fingerprint[:_FINGERPRINT_CHARACTERS]}-{plan_id}"


def is_of(name: str, plan_id: str) -> bool:
    """Tell whether a custom id belongs to a request of this plan."""
    return name.endswith(f"-{plan_id}")


def newest(plans: Iterable[Plan]) -> dict[str, Plan]:
    """Each fingerprint's last plan."""
    return {fingerprint: plan for plan in plans for fingerprint in plan.fingerprints}
