"""The command `driftline`: finds the typed command, and turns expected errors into a message and an exit code.

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
from service.cli.command_groups import COMMANDS, group_of, location_of, start_page
from service.cli.completion import COMPLETE, print_completions
from service.cli.exit_codes import ExitCode
from service.cli.terminal import err, out
from service.setup.version import GET_TRIAL, TRIAL, trial_version
from service.setup.version import version as installed_version
from service.text.formats import plain

OBJECTS_PER_COLLECTION = 50_000
"""New objects per garbage collection. With Python's default of 700, loading takes a sixth longer, although it creates no garbage."""


class _OrderedGroup(TyperGroup):
    """Lists commands in the order of their groups."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names of the commands in order."""
        return [name for name in COMMANDS if name in self.commands]


def application(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """Build the command line with these commands; with all of them by default."""
    app = _without_commands()
    for name in names:
        module, attribute = location_of(name)
        panel = group_of(name).title
        if COMMANDS[name].package == TRIAL and trial_version() is None:
            # The error is the same for all arguments.
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


def _command_list() -> typer.Typer:
    """Build the command line for a call without a known command. It lists all commands and loads none."""
    app = _without_commands()
    for name, command in COMMANDS.items():
        app.command(name, short_help=command.summary, rich_help_panel=group_of(name).title)(lambda: None)
    return app


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        cls=_OrderedGroup,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Continuous audit of AI agent fleets: which agents got worse, since when, and why.",
    )
    app.callback()(options)
    return app


def _application_for(arguments: Sequence[str]) -> typer.Typer:
    """Build the command line with the typed command only: loading all commands takes longer than most commands run."""
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    return application([name]) if name in COMMANDS else _command_list()


def command_of(app: typer.Typer) -> Any:
    """Return the command of an app. Its help shows no type for a flag, which takes no value, nor beside the name of an argument."""
    command = typer.main.get_command(app)
    _hide_types(command)
    return command


def _hide_types(command: Any) -> None:
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None  # noqa: ARG005 - the name of a parameter that is passed by name
    for member in getattr(command, "commands", {}).values():
        _hide_types(member)


def _print_version(is_set: bool) -> None:
    if is_set:
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
    # A stream that was closed before the start is None, which printing code does not expect.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - as above
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while a command loads
        code = ExitCode.INTERRUPTED
    except BaseException:  # noqa: BLE001 - a bug is shown with its traceback, under a separate exit code
        traceback.print_exc()
        code = ExitCode.FAULT
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # A normal interpreter shutdown makes DuckDB's bindings print a page about leaked references, although all is closed by now.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. Expected errors are printed as one line with a hint."""
    if arguments[:1] == [COMPLETE]:
        *before, last = arguments[1:] or [""]
        return _exit_code_of(lambda: print_completions(command_of(_application_for(before)), before, last))
    command = command_of(_application_for(arguments))
    return _exit_code_of(lambda: command.main(arguments, prog_name="driftline", standalone_mode=False))


def _exit_code_of(command: Callable[[], object]) -> int:
    """Run a command and return its exit code. Expected errors are printed."""
    try:
        code = command()
    except SystemExit as system_exit:
        code = system_exit.code
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
    """Print an expected error and return its exit code."""
    for line in message.splitlines():
        err.say(f"error: {plain(line, 1000)}", style="red")
    if hint:
        err.say(f"       {hint}")
    return ExitCode.ERROR


if __name__ == "__main__":
    main()


def usage_message(error: typer.TyperException) -> str:
    """Return the problem with its option or argument; empty if the error has already printed the help."""
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
    has_commands = context is None or hasattr(context.command, "commands")
    return f"`{path} --help` {'lists the commands' if has_commands else 'shows its options'}."
