"""`driftline completion`: the script that lets a shell complete commands, options and values."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.completion.scripts import Shell, script_of
from service.cli.terminal import print_text


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help=f"{', '.join(Shell)}.")],
) -> None:
    """Print the script that lets a shell complete commands, options and values, such as names of projects.

    For bash, put into ~/.bashrc: source <(driftline completion bash). For zsh, into ~/.zshrc after compinit: source <(driftline
    completion zsh). For fish: driftline completion fish > ~/.config/fish/completions/driftline.fish.
    """
    print_text(script_of(shell))
