"""The command `driftline`: finds the typed command and turns expected errors into one clear line and an exit code.

Exit codes are defined in `service.cli.exit_codes`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from schemas.errors import DriftlineError, SettingsError
from service.cli.command_groups import COMMANDS, group_of, place_of, start_page
from service.cli.completion import ASK, answer
from service.cli.exit_codes import ExitCode
from service.cli.terminal import err, out
from service.setup.version import GET_TRIAL, TRIAL, trial_version
from service.setup.version import version as installed_version
from service.text.formats import plain

OBJECTS_PER_COLLECTION = 50_000
"""New objects per garbage collection: with Python's 700, loading takes a sixth longer although it creates no garbage."""


class _InOrder(TyperGroup):
    """Lists commands in the order of their groups."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """The names in order."""
        return [name for name in COMMANDS if name in self.commands]


def application(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """Build the command line with these commands; with all of them by default."""
    app = _without_commands()
    for name in names:
        module, attribute = place_of(name)
        panel = group_of(name).title
        if COMMANDS[name].package == TRIAL and trial_version() is None:
            # Whatever its arguments are, the answer is the same.
            any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
            app.command(name, rich_help_panel=panel, context_settings=any_arguments)(_refuse_without_trial)
            continue
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)
    return app


def _refuse_without_trial(context: typer.Context) -> None:
    """Not installed: this command is in the package driftline-trial."""
    raise SettingsError(f"{context.info_name}: its package, driftline-trial, is not installed", hint=GET_TRIAL)


def _listing() -> typer.Typer:
    """Build the command line for a call without a known command, which lists all commands and loads none."""
    app = _without_commands()
    for name, command in COMMANDS.items():
        app.command(name, short_help=command.summary, rich_help_panel=group_of(name).title)(lambda: None)
    return app


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        cls=_InOrder,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Continuous audit of AI agent fleets: which agents got worse, since when, and why.",
    )
    app.callback()(options)
    return app


def _meant(arguments: Sequence[str]) -> typer.Typer:
    """Build the command line with the typed command only, because loading all takes longer than most commands run."""
    typed = next((argument for argument in arguments if not argument.startswith("-")), "")
    return application([typed]) if typed in COMMANDS else _listing()


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"driftline {installed_version()}")
        raise typer.Exit


def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log each step to standard error.")] = False,
) -> None:
    """Options that come before the command."""
    del version
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if context.invoked_subcommand is None:
        out.print(start_page(), markup=False)


def main() -> None:
    """Run the command line and exit."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    # We have no entry points, and searching for them reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # An output closed before the start is None, which printing code does not expect.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - as above
    try:
        code = run(sys.argv[1:])
    except BaseException:  # noqa: BLE001 - a fault of ours is shown whole, under an exit code of its own
        traceback.print_exc()
        code = ExitCode.FAULT
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # DuckDB's bindings print a page about leaked references at interpreter shutdown, although everything is closed by now.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run one command; return its exit code. Expected errors are printed as one line with a hint."""
    if arguments[:1] == [ASK]:
        *before, last = arguments[1:] or [""]
        return _ended(lambda: answer(typer.main.get_command(_meant(before)), before, last))
    command = typer.main.get_command(_meant(arguments))
    return _ended(lambda: command.main(arguments, prog_name="driftline", standalone_mode=False))


def _ended(command: Callable[[], object]) -> int:
    """Run a command; return its exit code."""
    try:
        code = command()
    except SystemExit as finished:
        code = finished.code
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except typer.TyperException as error:
        message = usage_message(error)
        return _show_error(message, usage_hint(error)) if message else ExitCode.ERROR
    except DriftlineError as error:
        return _show_error(str(error), error.hint)
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        return _show_error(f"{path}{error.strerror or error}", "Check the path, its permissions and the space left.")
    return code if isinstance(code, int) else ExitCode.DONE


def _show_error(message: str, hint: str) -> int:
    """Print an expected error; return the exit code."""
    for line in message.splitlines():
        err.say(f"error: {plain(line, 1000)}", style="red")
    if hint:
        err.say(f"       {hint}")
    return ExitCode.ERROR


if __name__ == "__main__":
    main()


def usage_message(error: typer.TyperException) -> str:
    """Return the problem with its option or argument; empty if the error has already shown the help."""
    cause: Any = error.__cause__
    parameter = getattr(error, "param", None)
    if parameter is not None and hasattr(cause, "errors"):
        from schemas.validation_messages import words_of  # noqa: PLC0415 - help needs no schemas, which take a while to load

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
