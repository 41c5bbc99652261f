"""Every command with its arguments and options, from the command line itself: a page per topic, and one that lists them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, Literal, get_args, get_origin

import typer.main

from reference.markdown import code, page, table, words
from service.cli.command_groups import COMMANDS, GROUPS, CommandGroup
from service.cli.exit_codes import MEANINGS
from service.cli.main import application
from service.setup.version import GET_TRIAL, TRIAL

_PLACES = {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Path": "FILE"}


def command_pages() -> dict[str, Callable[[], str]]:
    """Return the pages by name."""
    return {"commands": commands, **{_page_name(group): partial(_group_page, group) for group in GROUPS}}


def commands() -> str:
    """Return the page that lists the commands by topic."""
    topics = [
        (
            f"[{group.title}]({_page_name(group)}.md)",
            ", ".join(f"[{name}]({_page_name(group)}.md#driftline-{name})" for name in group.commands),
        )
        for group in GROUPS
    ]
    return page(
        "Commands",
        "`driftline COMMAND --help` shows the same in a terminal. An option wins over its [setting](settings.md). Before the command "
        "stand `--verbose`, which logs what is done to the error output, and `--version`. Your shell completes commands, options and "
        "values: see [The command line](../how-to/shell.md).",
        table(("topic", "commands"), topics),
        "## Exit codes\n\n`driftline help exit-codes` prints the same. A command that can end with 1 says when.",
        table(("exit code", "what it says"), [(code(str(int(number))), words(said)) for number, said in MEANINGS.items()]),
    )


def _group_page(group: CommandGroup) -> str:
    command_line: Any = typer.main.get_command(application(group.commands))
    parts = [part for path, command in sorted(commands_of(command_line)) for part in _command(path, command)]
    return page(f"Commands: {group.title}", "[All commands](commands.md).", *parts)


def _page_name(group: CommandGroup) -> str:
    return f"commands-{re.sub('[^a-z]+', '-', group.title.lower())}"


def commands_of(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return every command that is shown, with what is typed for it, groups before their members."""
    shown = {name: command for name, command in group.commands.items() if not command.hidden}
    for name, command in shown.items():
        path = (*before, name)
        yield " ".join(path), command
        if hasattr(command, "commands"):
            yield from commands_of(command, path)


def _command(path: str, command: Any) -> Iterator[str]:
    yield f"## driftline {path}"
    yield "\n\n".join(words(part) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    if COMMANDS[path.partition(" ")[0]].package == TRIAL:
        yield f"It is in the package `driftline-trial`: {GET_TRIAL}."
    if not hasattr(command, "commands"):
        yield f"```sh\ndriftline {path}{''.join(_usage(one) for one in command.params)}\n```"
        rows = [(_names(one), words(one.help or ""), _about(one)) for one in command.params if not one.hidden]
        yield table(("option", "what it is", ""), rows)


def _is_argument(one: Any) -> bool:
    return bool(one.param_type_name == "argument")


def _usage(one: Any) -> str:
    """What is typed for it where it is needed, or stands alone."""
    if _is_argument(one):
        return f" {_place(one)}" if one.required or _place(one).startswith("[") else f" [{_place(one)}]"
    return f" {one.opts[0]} {_place(one)}" if one.required else ""


def _names(one: Any) -> str:
    if _is_argument(one):
        return code(_place(one))
    names = ", ".join(code(name) for name in (*one.opts, *one.secondary_opts))
    return names if one.is_flag else f"{names} {code(_place(one))}"


def _place(one: Any) -> str:
    """What stands for the value."""
    if one.metavar:
        return str(one.metavar)
    if _is_argument(one):
        return str(one.name).upper()
    return "|".join(_choices(one)) or _PLACES.get(_kind(one).__name__, "VALUE")


def _kind(one: Any) -> Any:
    annotation = one.type_descriptor.annotation
    return get_args(annotation)[0] if get_origin(annotation) is list else annotation


def _choices(one: Any) -> list[str]:
    kind = _kind(one)
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [str(choice.value) for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _about(one: Any) -> str:
    default = one.default.value if isinstance(one.default, Enum) else one.default
    bounds = [str(bound) for bound in (one.min, one.max) if bound is not None]
    said = [
        "required" if one.required else "",
        "may be repeated" if one.multiple or one.nargs == -1 else "",
        f"{'at least' if one.max is None else 'at most' if one.min is None else 'from'} {' to '.join(bounds)}"
        if bounds
        else "",
        f"default {code(default)}" if default not in (None, False, "", [], ()) and not callable(default) else "",
    ]
    return ", ".join(part for part in said if part)
