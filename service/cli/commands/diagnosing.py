"""`driftline diagnose`: sessions from files or standard input, one diagnosis each, without a database."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from audit.diagnosis.diagnosis import diagnose_events
from schemas.errors import InputError
from service.cli.commands.options import AsJson, print_json
from service.cli.exit_codes import fails_when, leave
from service.cli.terminal import err, out, warn_skipped
from service.cli.views import diagnosis_view
from service.text.formats import counted, plain
from service.write.input_files import SESSION_FORMAT, STANDARD_INPUT, check_input_stream, find_input_files
from streams.sources.event_files import read_sessions

FILES = "Sessions as JSON lines, a session.json or an OpenClaw transcript; - for standard input."


@fails_when("a line or a file cannot be read")
def diagnose(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help=FILES)],
    as_json: AsJson = False,
) -> None:
    """Diagnose sessions without a database. Print one diagnosis per session, in the order of the input.

    Sessions given as single events come last. An unreadable line is reported with its file and number, and the others are diagnosed.
    """
    report = FaultReport()
    for document in diagnose_files(files, report):
        if as_json:
            print_json(document, exact=True)
        else:
            out.print(diagnosis_view(document), "")
    leave(failed=bool(report.count))


MAX_FAULTS = 20
"""Maximum number of unreadable lines listed; the others are counted."""


class FaultReport:
    """Prints unreadable lines to standard error, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, name: str, line: int, detail: str) -> None:
        """Report one line."""
        self.count += 1
        if self.count <= MAX_FAULTS:
            source = "standard input" if name == STANDARD_INPUT else name
            err.say(f"{plain(source)}:{line}: {plain(detail, 400)}")

    def finish(self) -> None:
        """Report the number of lines that were not listed."""
        if self.count > MAX_FAULTS:
            err.print(f"… and {counted(self.count - MAX_FAULTS, 'more unreadable line')}")


def diagnose_files(names: Iterable[str], report: FaultReport) -> Iterator[dict[str, Any]]:
    """Yield one diagnosis per session, in the order of the input. Unreadable lines are reported and skipped.

    Raises InputError if a file cannot be opened, is empty or is of another kind.
    """
    for name in _expand_names(names, report):
        with _open_input(name) as stream:
            for session in read_sessions(stream, name, partial(report, name)):
                for fault in session.faults:
                    report(name, fault.line, fault.detail)
                try:
                    yield diagnose_events(session.session_id, session.events)
                except InputError as error:
                    report(name, session.line, str(error))
    report.finish()


def _expand_names(names: Iterable[str], report: FaultReport) -> list[str]:
    """Return the named files and the files in named folders, each once. Skipped files count as faults."""
    files: dict[str, None] = {}
    for name in names:
        if name == STANDARD_INPUT:
            files[name] = None
            continue
        inputs = find_input_files([Path(name)], SESSION_FORMAT)
        warn_skipped(inputs.rejected)
        report.count += len(inputs.rejected)
        files.update(dict.fromkeys(map(str, inputs.files)))
    return list(files)


@contextmanager
def _open_input(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD_INPUT:
        check_input_stream(sys.stdin.buffer, SESSION_FORMAT)
        yield sys.stdin.buffer
        return
    try:
        stream = Path(name).open("rb")  # noqa: SIM115 - closed below; an OSError of the reader is not about opening
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}", hint="Give a file, or - for standard input.") from error
    with stream:
        yield stream
