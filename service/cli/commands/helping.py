"""`driftline help`, which explains commands and exit codes, and `driftline completion`, which prints a shell's completion script."""

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
            metavar="COMMAND",
            help=f"Command to explain, for example `incidents list`, or {EXIT_CODES}.",
            autocompletion=completed((EXIT_CODES, *COMMANDS)),
        ),
    ] = None,
) -> None:
    """Explain a command or the exit codes. Without a name, list all commands."""
    if words == [EXIT_CODES]:
        out.print(table(["code", "meaning"], [[str(int(code)), meaning] for code, meaning in MEANINGS.items()]))
        return
    from service.cli.main import run  # noqa: PLC0415 - it loads this module

    end_with(run([*(words or ()), "--help"]))


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help=f"One of {', '.join(Shell)}.")],
) -> None:
    """Print the script with which a shell completes commands, options and values such as project names.

    For bash, add this line to ~/.bashrc: source <(driftline completion bash). For zsh, add this line to ~/.zshrc after compinit:
    source <(driftline completion zsh). For fish, run: driftline completion fish > ~/.config/fish/completions/driftline.fish.
    """
    print_text(script_of(shell))
