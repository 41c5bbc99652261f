"""Exit codes: their meanings, and the commands that can end with `FAILED`.

A command never raises an exit itself. It declares with `fails_when` in which case it ends with `FAILED`, and it ends through `leave`
or `agree`, so that its help, the reference and its behaviour cannot differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import typer

from schemas.errors import SettingsError
from service.cli.terminal import err

Command = TypeVar("Command", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    ERROR = 2
    FAULT = 3
    INTERRUPTED = 130


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "Done.",
    ExitCode.FAILED: "The command ran, but a check or gate failed, some input was rejected, or you declined. "
    "The help of each command describes the case.",
    ExitCode.ERROR: "Nothing was done, because an option, setting, file or name is wrong. The message says what to do.",
    ExitCode.FAULT: "A bug in Driftline. Please report it with the printed traceback.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C (SIGTERM: 143).",
}
"""The meaning of each exit code."""
_ATTRIBUTE = "fails_when"


def fails_when(condition: str) -> Callable[[Command], Command]:
    """Declare when a command ends with `FAILED`. The condition follows "Exit 1 if …" in its help."""

    def declare(command: Command) -> Command:
        setattr(command, _ATTRIBUTE, condition)
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\nExit {ExitCode.FAILED} if {condition}."
        return command

    return declare


def failure_condition(command: Callable[..., Any] | None) -> str | None:
    """Return the condition under which a command ends with `FAILED`; None if it never does."""
    return getattr(command, _ATTRIBUTE, None)


def leave(*, failed: bool) -> NoReturn:
    """End the command: with `FAILED`, or with `DONE`."""
    raise typer.Exit(ExitCode.FAILED if failed else ExitCode.DONE)


def leave_interrupted() -> NoReturn:
    """End a command that was interrupted."""
    raise typer.Exit(ExitCode.INTERRUPTED)


def agree(question: str, *, yes: bool) -> None:
    """Ask for consent unless `yes` is set, and end with `FAILED` on a no. Raises SettingsError if there is no input."""
    if yes:
        return
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        err.say("")  # the question is still on the line
        if isinstance(error.__context__, KeyboardInterrupt):
            leave_interrupted()
        raise SettingsError("cannot ask for consent: the input has ended", hint="Use --yes to agree beforehand.") from None
    if not agreed:
        err.say("declined: nothing was done")
        leave(failed=True)


def end_with(code: int) -> NoReturn:
    """End the command with the exit code of a command that it ran."""
    raise typer.Exit(code)
