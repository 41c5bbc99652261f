"""The command `driftline`: it maps commands to their modules and expected errors to a clear line and an exit code.

Exit codes: 0 done; 1 a check failed or some input could not be read; 2 an error, 3 a fault of Driftline
itself.
"""

from __future__ import annotations

import contextlib
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
from service.cli.terminal import err, out, plain
from service.version import version as installed_version

_COMMANDS = {
    "import": "imports.app",
    "policy": "database.policy_app",
    "connections": "connections.connections_app",
    "operators": "connections.operators_app",
    "topics": "topics.topics_app",
    "dead-letters": "dead_letters.letters_app",
    "retention": "retaining.retention_app",
    "alerts": "alerts.alerts_app",
    "review": "reviewing.review_app",
    "anchors": "anchors.anchors_app",
    "deployments": "deployments.deployments_app",
    "incidents": "watching.incidents_app",
    "diagnose": "diagnosing.diagnose",
    "finalize": "sessions.finalize",
    "runs": "sessions.runs",
    "run": "sessions.run",
    "export-runs": "sessions.export",
    "check": "sessions.check",
    "tune": "tuning.tune",
    "check-drift": "watching.check_drift",
    "serve": "serving.serve",
    "worker": "working.worker",
    "scores": "sessions.scores",
    "costs": "judging.costs",
    "rejudge": "rejudging.rejudge",
    "evaluate": "evaluating.evaluate",
    "evaluations": "evaluations.evaluations",
    "replay": "replaying.replay",
    "replays": "replaying.replays",
    "compare": "comparing.compare",
    "banner": "judging.banner",
    "simulate-judge": "simulating.simulate_judge",
    "wrap-quality": "sessions.wrap_quality",
    "sql": "querying.sql",
    "rebuild": "database.rebuild",
    "erase": "retaining.erase",
    "compact": "retaining.compact",
    "agreement": "reviewing.agreement",
    "export": "exporting.export",
    "doctor": "doctor.doctor",
    "demo": "demo.demo",
}
"""Every command, and where it is below `service.cli.commands`: a function, or a group of commands."""


def application(names: Iterable[str] = tuple(_COMMANDS)) -> typer.Typer:
    """The command line with these commands; all of them, unless told otherwise."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Continuous audit of AI agent fleets: is it behaving, is it getting worse, why, and since when.",
    )
    app.callback()(options)
    for name in names:
        module, attribute = _COMMANDS[name].split(".")
        command = getattr(importlib.import_module(f"service.cli.commands.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _meant(arguments: Sequence[str]) -> Iterable[str]:
    """The command that is typed; all, where it is none. Loading them all takes longer than most commands do."""
    typed = next((argument for argument in arguments if not argument.startswith("-")), "")
    return [typed] if typed in _COMMANDS else _COMMANDS


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"driftline {installed_version()}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is done to the error output.")] = False,
) -> None:
    """Options that come before the command."""
    del version
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def main() -> None:
    """Run the command line and exit."""
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
    """Run one command; answers its exit code. Expected errors are printed as one line with a hint."""
    try:
        application(_meant(arguments))(arguments, prog_name="driftline")
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else 0
    except DriftlineError as error:
        return _show_error(str(error), error.hint)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _show_error(f"{place}{error.strerror or error}", "Check the path, its permissions and the space left.")
    return 0


def _show_error(message: str, hint: str) -> int:
    """Print an expected error; answers the exit code."""
    for line in message.splitlines():
        err.print(f"error: {plain(line, 1000)}", style="red", markup=False, soft_wrap=True)
    if hint:
        err.print(f"       {hint}", markup=False, soft_wrap=True)
    return 2


if __name__ == "__main__":
    main()
