"""`driftline diagnose`: files in, diagnoses out, without a database."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.commands.options import AsJson, print_json
from service.cli.entry.exit_codes import fails_when, leave
from service.cli.session_files import FaultReport, diagnose_files
from service.cli.terminal import out
from service.cli.views import diagnosis_view

FILES = "Sessions as JSON lines, a session.json, or an OpenClaw transcript; - reads standard input."


@fails_when("a line or a file cannot be read")
def diagnose(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help=FILES)],
    as_json: AsJson = False,
) -> None:
    """Diagnose sessions without a database: one diagnosis per session, in the order of the input.

    Sessions given event by event come last. An unreadable line is reported with its file and number; the rest is diagnosed.
    """
    report = FaultReport()
    for document in diagnose_files(files, report):
        if as_json:
            print_json(document, exact=True)
        else:
            out.print(diagnosis_view(document), "")
    leave(failed=bool(report.count))
