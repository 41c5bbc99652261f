"""`driftline help`: help on a command, and on exit codes."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.completion.values import completed
from service.cli.entry.exit_codes import MEANINGS, end_with
from service.cli.entry.groups import COMMANDS
from service.cli.terminal import out, table

EXIT_CODES = "exit-codes"


def help_on(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND…]",
            help=f"Command to explain, such as `incidents list`; or {EXIT_CODES}.",
            autocompletion=completed((EXIT_CODES, *COMMANDS)),
        ),
    ] = None,
) -> None:
    """Explain a command, or the exit codes of all of them; without a name, list every command."""
    if words == [EXIT_CODES]:
        out.print(table(["code", "meaning"], [[str(int(code)), meaning] for code, meaning in MEANINGS.items()]))
        return
    from service.cli.main import run  # noqa: PLC0415 - it loads this module

    end_with(run([*(words or ()), "--help"]))
