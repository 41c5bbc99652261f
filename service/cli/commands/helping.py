"""`driftline help` explains commands and exit codes; `driftline completion` prints the script that lets a shell complete them."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.command_groups import COMMANDS
from service.cli.completion import Shell, completed, script_of
from service.cli.exit_codes import MEANINGS, end_with
from service.cli.terminal import out, print_text, table

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


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help=f"{', '.join(Shell)}.")],
) -> None:
    """Print the script that lets a shell complete commands, options and values, such as names of projects.

    For bash, put into ~/.bashrc: source <(driftline completion bash). For zsh, into ~/.zshrc after compinit: source <(driftline
    completion zsh). For fish: driftline completion fish > ~/.config/fish/completions/driftline.fish.
    """
    print_text(script_of(shell))
