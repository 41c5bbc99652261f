"""Writes the table of commands that completion and `--help` read.

python -m service.cli.completion.generate             write service/cli/completion/commands.json
python -m service.cli.completion.generate --check     change nothing, exit 1 if it is out of date
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import typer.main

from schemas.generated import bring_up_to_date
from service.cli.completion.commands import TABLE, KnownCommand, Option, Value
from service.cli.completion.values import Completion, completion_of
from service.cli.main import application

FILE = Path(__file__).with_name(TABLE)
FILES = frozenset({"FILE", "DIR", "PATH…", "FILE…", "[FILE…]", "FILE.png"})
"""What stands for a file or a folder in the help."""
COMMAND = "python -m service.cli.completion.generate (make generate)"


def table() -> dict[str, KnownCommand]:
    """Return every command that is shown, by name, from the command line itself."""
    whole: Any = typer.main.get_command(application())
    return dict(_members(whole))


def _members(group: Any) -> Iterator[tuple[str, KnownCommand]]:
    for name, command in group.commands.items():
        if not command.hidden:
            yield name, _known(command)


def _known(command: Any) -> KnownCommand:
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    said = _completions(command.callback)
    return KnownCommand(
        help=inspect.cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " "),
        options=tuple(_option(one, said.get(one.name)) for one in shown if one.param_type_name == "option"),
        arguments=tuple(_value(one, said.get(one.name)) for one in shown if one.param_type_name == "argument"),
        commands=dict(_members(command)) if hasattr(command, "commands") else {},
    )


def _completions(callback: Any) -> dict[str, Completion]:
    """Return how the parameters of a command are completed, by their names in Python, where it is said."""
    if callback is None:
        return {}
    parameters = inspect.signature(callback, eval_str=True).parameters.values()
    declared = [(one.name, said) for one in parameters for said in getattr(one.annotation, "__metadata__", ())]
    found = {name: completion_of(getattr(said, "autocompletion", None)) for name, said in declared}
    return {name: said for name, said in found.items() if said is not None}


def _option(one: Any, said: Completion | None) -> Option:
    names = (*one.opts, *one.secondary_opts)
    return Option(names, one.help or "", None if one.is_flag else _value(one, said), many=bool(one.multiple))


def _value(one: Any, said: Completion | None) -> Value:
    many = bool(one.multiple or one.nargs == -1)
    if said is not None:
        return Value(words=said.words, kind=said.kind, many=many)
    if choices := _choices(one):
        return Value(words=choices, many=many)
    return Value(kind="file" if one.metavar in FILES else "", many=many)


def _choices(one: Any) -> tuple[str, ...]:
    annotation = one.type_descriptor.annotation
    kind = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    return tuple(str(choice.value) for choice in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ()


def main(arguments: Sequence[str]) -> int:
    """Write the table, or check it; return the exit code."""
    text = msgspec.json.format(msgspec.json.encode(table()), indent=1).decode() + "\n"
    return bring_up_to_date({FILE: text}, FILE.parents[3], COMMAND, check="--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
