"""Virtual environments of the programs, each with the pinned requirements of one dialect and nothing of Driftline."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from npm import UnavailableError

INSTALL_SECONDS = 600.0
REQUIREMENTS = Path(__file__).with_name("requirements")


def python_with(dialect: str, folder: Path) -> Path:
    """The interpreter of a dialect's environment, made in `folder` unless it is there; UnavailableError when it cannot be.

    The requirements are whole, and taken as they are: what some packages say they need cannot be had together.
    """
    requirements = REQUIREMENTS / f"{dialect}.txt"
    environment = folder / dialect
    python = environment / "bin" / "python"
    made_of = environment / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not made_of.exists() or made_of.read_text("utf-8") != digest:
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        quietly = ("--quiet", "--disable-pip-version-check", "--no-deps")
        _run(str(python), "-m", "pip", "install", *quietly, "--requirement", str(requirements))
        made_of.write_text(digest, "utf-8")
    return python


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"pip did not install within {INSTALL_SECONDS:.0f} s") from error
    if done.returncode:
        raise UnavailableError(f"pip could not install: {done.stderr.strip()[-500:]}")
