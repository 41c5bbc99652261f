"""The command `driftline`: it maps commands to their modules and expected errors to a clear line and an exit code.

Exit codes: 0 done; 1 a check failed or some input could not be read; 2 an error, 3 a fault of Driftline
itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import DriftlineError
from service.cli.command_summaries import summary_of
from service.cli.terminal import err, out, plain
from service.version import version as installed_version

OBJECTS_PER_COLLECTION = 50_000
"""New objects per garbage collection: with Python's 700, loading takes a sixth longer, and nothing loaded is garbage."""
_COMMANDS = {
    "diagnose": "runs.diagnosing.diagnose",
    "finalize": "runs.sessions.finalize",
    "runs": "runs.listing.runs",
    "run": "runs.sessions.run",
    "export-runs": "runs.sessions.export",
    "check": "runs.sessions.check",
    "tune": "runs.tuning.tune",
    "check-drift": "drift.watching.check_drift",
    "serve": "server.serving.serve",
    "worker": "server.working.worker",
    "scores": "runs.listing.scores",
    "costs": "drift.costs.costs",
    "rejudge": "records.rejudging.rejudge",
    "evaluate": "runs.evaluating.evaluate",
    "evaluations": "runs.evaluations.evaluations",
    "replay": "records.replaying.replay",
    "replays": "records.replaying.replays",
    "compare": "drift.comparing.compare",
    "banner": "drift.costs.banner",
    "simulate-judge": "server.simulating.simulate_judge",
    "wrap-quality": "runs.sessions.wrap_quality",
    "sql": "drift.querying.sql",
    "rebuild": "records.database.rebuild",
    "erase": "records.retaining.erase",
    "compact": "records.retaining.compact",
    "agreement": "drift.reviewing.agreement",
    "export": "records.exporting.export",
    "backup": "records.backing_up.backup",
    "doctor": "server.doctor.doctor",
    "demo": "server.demo.demo",
    "import": "records.imports.app",
    "policy": "records.database.policy_app",
    "connections": "server.connections.connections_app",
    "operators": "server.connections.operators_app",
    "topics": "records.topics.topics_app",
    "dead-letters": "records.dead_letters.letters_app",
    "retention": "records.retaining.retention_app",
    "alerts": "server.alerts.alerts_app",
    "review": "drift.reviewing.review_app",
    "anchors": "drift.anchors.anchors_app",
    "deployments": "drift.deployments.deployments_app",
    "incidents": "drift.watching.incidents_app",
}
"""Every command, and its place below `service.cli.commands`: a function, or a group of commands."""


def application(names: Iterable[str] = tuple(_COMMANDS)) -> typer.Typer:
    """Build the command line with these commands; with all of them by default."""
    app = _without_commands()
    for name in names:
        module, attribute = _place(name)
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _listing() -> typer.Typer:
    """Build the command line for a call without a command: it lists all commands, and loads none."""
    app = _without_commands()
    for name in _COMMANDS:
        app.command(name, help=summary_of(*_place(name)))(lambda: None)
    return app


def _place(name: str) -> tuple[str, str]:
    """Return the module of a command, and its name there."""
    module, attribute = _COMMANDS[name].rsplit(".", 1)
    return f"service.cli.commands.{module}", attribute


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Continuous audit of AI agent fleets: which agents got worse, since when, and why.",
    )
    app.callback()(options)
    return app


def _meant(arguments: Sequence[str]) -> typer.Typer:
    """Build the command line with the typed command only: loading them all takes longer than most commands do."""
    typed = next((argument for argument in arguments if not argument.startswith("-")), "")
    return application([typed]) if typed in _COMMANDS else _listing()


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"driftline {installed_version()}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log each step to the error output.")] = False,
) -> None:
    """Options that come before the command."""
    del version
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def main() -> None:
    """Run the command line and exit."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    # An output that was closed before we were started is None, and nothing that prints expects that.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - as above
    try:
        code = run(sys.argv[1:])
    except BaseException:  # noqa: BLE001 - a fault of ours is shown whole, under an exit code of its own
        traceback.print_exc()
        code = 3
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # DuckDB's bindings print a page about leaked references when the interpreter is torn down; everything is closed by now.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run one command; return its exit code. Expected errors are printed as one line with a hint."""
    try:
        _meant(arguments)(arguments, prog_name="driftline")
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else 0
    except DriftlineError as error:
        return _show_error(str(error), error.hint)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _show_error(f"{place}{error.strerror or error}", "Check the path, its permissions and the space left.")
    return 0


def _show_error(message: str, hint: str) -> int:
    """Print an expected error; return the exit code."""
    for line in message.splitlines():
        err.say(f"error: {plain(line, 1000)}", style="red")
    if hint:
        err.say(f"       {hint}")
    return 2


if __name__ == "__main__":
    main()
