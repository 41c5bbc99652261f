"""`driftline diagnose`: files in, diagnoses out. It needs no database and leaves none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from audit.diagnosis import diagnose_events
from schemas.errors import InputError
from service.commands.options import AsJson, print_json
from service.terminal import err, out, plain
from service.views import diagnosis_view
from streams.sources.event_files import read_sessions

STANDARD_INPUT = "-"
FAULTS_SHOWN = 20
"""How many lines that could not be read are named; the rest are counted."""


def diagnose(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…", help="Sessions as JSON lines, a session.json, an OpenClaw transcript; - reads standard input."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Diagnose sessions without a database: one diagnosis a session, in the order of the input.

    A line that cannot be read is reported with file and line; the others go on, and the exit code is 1.
    """
    faults = 0

    def report(name: str, line: int, detail: str) -> None:
        nonlocal faults
        faults += 1
        if faults <= FAULTS_SHOWN:
            err.print(f"{plain(name)}:{line}: {plain(detail, 400)}", markup=False, soft_wrap=True)

    for name in files:
        with _opened(name) as stream:
            for session in read_sessions(stream, name, partial(report, name)):
                for fault in session.faults:
                    report(name, fault.line, fault.detail)
                try:
                    document = diagnose_events(session.session_id, session.events)
                except InputError as error:
                    report(name, session.line, str(error))
                    continue
                _show(document, as_json=as_json)
    if faults > FAULTS_SHOWN:
        err.print(f"… and {faults - FAULTS_SHOWN} lines more that could not be read")
    raise typer.Exit(1 if faults else 0)


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        out.print(diagnosis_view(document), "")


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as stream:
            yield stream
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}", hint="Name a file, or - for standard input.") from error
