"""The table of commands, options and values that completion and `--help` read. It is made by `make generate`."""

from __future__ import annotations

import functools
from importlib import resources

import msgspec

TABLE = "commands.json"


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """Possible values of an argument or an option."""

    words: tuple[str, ...] = ()
    """The values, if they are known beforehand."""
    kind: str = ""
    """The kind of thing otherwise: `file`, or a kind of `service.cli.completion.values`; empty for free text."""
    many: bool = False
    """It may be given several times."""


class Option(msgspec.Struct, frozen=True, omit_defaults=True):
    """An option: its names and its value; None for a flag."""

    names: tuple[str, ...]
    help: str
    value: Value | None = None
    many: bool = False


class KnownCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command, or a group of commands."""

    help: str
    options: tuple[Option, ...] = ()
    arguments: tuple[Value, ...] = ()
    commands: dict[str, KnownCommand] = {}


@functools.cache
def known_commands() -> dict[str, KnownCommand]:
    """Return every command that is shown, by name."""
    table = (resources.files("service.cli.completion") / TABLE).read_bytes()
    return msgspec.json.decode(table, type=dict[str, KnownCommand])
