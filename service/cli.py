"""The command `driftline`: it maps commands to their modules and expected errors to a clear line and an exit code.

Exit codes: 0 done; 1 a check failed or some input could not be read; 2 an error, 3 a fault of Driftline
itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import DriftlineError
from service.commands import (
    alerts,
    anchors,
    comparing,
    connections,
    database,
    dead_letters,
    demo,
    diagnosing,
    doctor,
    evaluating,
    evaluations,
    exporting,
    imports,
    judging,
    querying,
    rejudging,
    replaying,
    retaining,
    reviewing,
    serving,
    sessions,
    simulating,
    topics,
    watching,
    working,
)
from service.terminal import err, out, plain
from service.version import version as installed_version

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Continuous audit of AI agent fleets: is it behaving, is it getting worse, why, and since when.",
)
app.add_typer(imports.app, name="import")
app.add_typer(database.policy_app, name="policy")
app.add_typer(connections.connections_app, name="connections")
app.add_typer(connections.operators_app, name="operators")
app.add_typer(topics.topics_app, name="topics")
app.add_typer(dead_letters.letters_app, name="dead-letters")
app.add_typer(retaining.retention_app, name="retention")
app.add_typer(alerts.alerts_app, name="alerts")
app.add_typer(reviewing.review_app, name="review")
app.add_typer(anchors.anchors_app, name="anchors")
app.add_typer(watching.incidents_app, name="incidents")
COMMANDS: dict[str, Callable[..., None]] = {
    "diagnose": diagnosing.diagnose,
    "finalize": sessions.finalize,
    "runs": sessions.runs,
    "run": sessions.run,
    "export-runs": sessions.export,
    "check": sessions.check,
    "check-drift": watching.check_drift,
    "serve": serving.serve,
    "worker": working.worker,
    "scores": sessions.scores,
    "costs": judging.costs,
    "rejudge": rejudging.rejudge,
    "evaluate": evaluating.evaluate,
    "evaluations": evaluations.evaluations,
    "replay": replaying.replay,
    "replays": replaying.replays,
    "compare": comparing.compare,
    "banner": judging.banner,
    "simulate-judge": simulating.simulate_judge,
    "wrap-quality": sessions.wrap_quality,
    "sql": querying.sql,
    "rebuild": database.rebuild,
    "erase": retaining.erase,
    "compact": retaining.compact,
    "agreement": reviewing.agreement,
    "export": exporting.export,
    "doctor": doctor.doctor,
    "demo": demo.demo,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"driftline {installed_version()}")
        raise typer.Exit


@app.callback()
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
        app(arguments, prog_name="driftline")
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
