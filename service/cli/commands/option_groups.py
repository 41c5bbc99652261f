"""Related options, declared once as a dataclass and passed to a command as one value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., Any])


def with_option_group(command: Command) -> Command:
    """Turn the last parameter of a command, a dataclass, into one option per field.

    Typer reads a command's signature, so each field becomes a parameter, in order, with its annotation and default.
    """
    hints = get_type_hints(command, include_extras=True)
    *own, last = inspect.signature(command).parameters.values()
    group: Any = hints[last.name]
    if not (isinstance(group, type) and is_dataclass(group)):
        raise TypeError(f"{command.__name__}: the last parameter must be a dataclass of options")
    types = get_type_hints(group, include_extras=True)
    names = [field.name for field in fields(group)]

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        return command(**{last.name: group(**{name: given.pop(name) for name in names})}, **given)

    taken = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=types[field.name],
        )
        for field in fields(group)
    ]
    mine = [one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    called.__signature__ = inspect.Signature([*mine, *taken])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*mine, *taken)}
    return called  # type: ignore[return-value]
