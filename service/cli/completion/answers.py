"""Answers to a shell: possible continuations of a typed command, as Typer would complete it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

ASK = "_complete"
"""The word that a shell's script puts before the typed words, of which the last is being completed."""
FILES = ":files"
"""The answer that makes the shell complete file names itself, if there is no other completion."""


def answer(command: Any, before: Sequence[str], last: str) -> None:
    """Print the completions of the last word, one per line, each followed by a tab and its description."""
    lines = [f"{word}\t{summary}\n" for word, summary in completions(command, before, last)]
    sys.stdout.write("".join(lines) or f"{FILES}\t\n")


def completions(command: Any, before: Sequence[str], last: str) -> list[tuple[str, str]]:
    """Return the words that begin with `last` and can follow the previous words, each with its description."""
    from typer._completion_classes import BashComplete  # noqa: PLC0415 - only completing needs it; Typer offers it by its own scripts alone

    name, equals, _ = last.partition("=")
    prefix = name + equals if equals and name.startswith("-") else ""
    # Bash splits --option=value into three words.
    items = BashComplete(command, {}, "driftline", "").get_completions([word for word in before if word != "="], last)
    return [(f"{prefix}{item.value}", " ".join((item.help or "").split())) for item in items]
