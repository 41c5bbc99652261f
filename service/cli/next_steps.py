"""Next steps after a command: commands to copy."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path

PROGRAM = "driftline"


def pages_steps(program: str, database: Path, policy: Path | None, as_of: date | None = None) -> list[str]:
    """Return commands that lead to the pages, as of a day if one is given."""
    of = f"--db {shlex.quote(str(database))}"
    by = "" if policy is None else f" --policy {shlex.quote(str(policy))}"
    then = "" if as_of is None else f" --as-of {as_of}"
    return typed(
        program,
        [
            ("a token to sign in with; it is shown once", f"operators add me {of}"),
            ("the server: open the address it prints, and paste the token; Ctrl-C stops it", f"serve {of}{by}{then}"),
        ],
    )


def typed(program: str, steps: Iterable[tuple[str, str]]) -> list[str]:
    """Return commands to copy, each below a comment with its purpose."""
    return [line for words, command in steps for line in (f"# {words}", f"{program} {command}")]


def program_name() -> str:
    """Return how the reader starts the command line: by its name if that is on the path, else as it was started."""
    if shutil.which(PROGRAM):
        return PROGRAM
    started = Path(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m service.cli.main" if started.suffix == ".py" else shlex.quote(str(started))
