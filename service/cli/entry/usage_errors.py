"""Usage errors: an unknown command or option, or an invalid value, each with a pointer to the help."""

from __future__ import annotations

from typing import Any

import typer

from schemas.validation_messages import words_of


def usage_message(error: typer.TyperException) -> str:
    """Return the problem with its option or argument; empty if the error has already shown the help."""
    cause: Any = error.__cause__
    parameter = getattr(error, "param", None)
    if parameter is not None and hasattr(cause, "errors"):
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
        return f"{name}: {words_of(cause.errors()[0])}"
    return error.format_message()


def usage_hint(error: typer.TyperException) -> str:
    """Return a pointer to the help of the typed command."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "driftline"
    listed = "lists what there is" if context is None or hasattr(context.command, "commands") else "shows its options"
    return f"`{path} --help` {listed}."
