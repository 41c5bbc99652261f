"""The start page, which `driftline` alone prints: first steps, and every command by topic."""

from __future__ import annotations

from collections.abc import Iterator

from service.cli.entry.groups import GROUPS

FIRST_STEPS = (
    ("driftline demo", "audit a fleet that is made up: offline, no key, a minute"),
    ("driftline import claude-code ~/.claude", "or openclaw, codex, exchanges, events: your own sessions"),
    ("driftline serve", "the pages in a browser, and an address that agents send to"),
    ("driftline doctor", "what is set, what is missing, what to do"),
)
"""Commands to begin with, each with its purpose."""
_WIDTH = max(len(command) for command, _ in FIRST_STEPS)
_TITLES = max(len(group.title) for group in GROUPS)


def start_page() -> str:
    """Return first steps, and every command by topic."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "Driftline tells you which of your agents got worse, since when, and why."
    yield ""
    yield "Begin with one of these:"
    yield from (f"  {command:<{_WIDTH}}  {words}" for command, words in FIRST_STEPS)
    yield ""
    yield "Commands by topic:"
    yield from (f"  {group.title:<{_TITLES}}  {'  '.join(group.commands)}" for group in GROUPS)
    yield ""
    yield "`driftline help COMMAND` explains one; `driftline --help` says what each is for."
    yield "`driftline completion bash` (or zsh, fish) lets your shell complete them."
