"""Sessions straight from files or standard input, without a database: what `diagnose` and `check` read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from audit.diagnosis import diagnose_events
from schemas.errors import InputError
from service.terminal import counted, err, plain
from streams.sources.event_files import read_sessions

STANDARD_INPUT = "-"
FAULTS_SHOWN = 20
"""How many lines that could not be read are named; the rest are counted."""


class FaultReport:
    """Names lines that could not be read on the error output, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, name: str, line: int, detail: str) -> None:
        """Report one line."""
        self.count += 1
        if self.count <= FAULTS_SHOWN:
            place = "standard input" if name == STANDARD_INPUT else name
            err.print(f"{plain(place)}:{line}: {plain(detail, 400)}", markup=False, soft_wrap=True)

    def finish(self) -> None:
        """Say how many more there were than were named."""
        if self.count > FAULTS_SHOWN:
            err.print(f"… and {counted(self.count - FAULTS_SHOWN, 'line')} more that could not be read")


def diagnose_files(names: Iterable[str], report: FaultReport) -> Iterator[dict[str, Any]]:
    """One diagnosis a session, in the order of the input; lines that cannot be read are reported and the others go on.

    InputError when a file cannot be opened.
    """
    for name in names:
        with _opened(name) as stream:
            for session in read_sessions(stream, name, partial(report, name)):
                for fault in session.faults:
                    report(name, fault.line, fault.detail)
                try:
                    yield diagnose_events(session.session_id, session.events)
                except InputError as error:
                    report(name, session.line, str(error))
    report.finish()


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        stream = Path(name).open("rb")  # noqa: SIM115 - closed below; only what opening raises is about the file
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}", hint="Name a file, or - for standard input.") from error
    with stream:
        yield stream
