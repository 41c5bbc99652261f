"""`driftline diagnose`: files in, diagnoses out. It needs no database and leaves none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from audit.diagnosis import diagnose_events
from schemas.errors import InputError
from service.commands.options import AsJson, json_line
from service.terminal import out
from service.views import diagnosis_view
from streams.sources.event_files import read_sessions

STANDARD_INPUT = "-"


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
    faulty = False
    for name in files:
        with _opened(name) as stream:
            for session in read_sessions(stream, name):
                document = diagnose_events(session.session_id, session.events)
                if as_json:
                    sys.stdout.write(json_line(document) + "\n")
                else:
                    out.print(diagnosis_view(document), "")
    raise typer.Exit(1 if faulty else 0)


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
