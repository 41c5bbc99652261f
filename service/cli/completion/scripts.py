"""The scripts that make a shell ask for completions."""

from __future__ import annotations

from enum import StrEnum
from importlib import resources


class Shell(StrEnum):
    """Shells that can complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def script_of(shell: Shell) -> str:
    """Return the script for a shell."""
    return (resources.files("service.cli.completion") / f"driftline.{shell}").read_text(encoding="utf-8")
