"""Jars from Maven's repository: what a `pom.xml` asks for, downloaded once per machine into a cache outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from support.processes import locked

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DOWNLOAD_SECONDS = 600.0


class UnavailableError(Exception):
    """What a test needs cannot be had on this machine; the message gives the reason."""


def jars(name: str, pom: Path) -> Path:
    """Return the folder with the jars that a `pom.xml` asks for; raise UnavailableError if they cannot be downloaded."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise UnavailableError(f"there is no {program}: install Java 17 and Maven")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftline"
    # By what the file asks for: a change of it makes a folder of its own, and checkouts do not disturb each other.
    folder = cache / f"{name}-{uuid.uuid5(uuid.NAMESPACE_OID, pom.read_text('utf-8')).hex[:8]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{folder.name}.lock"):
            if not folder.exists():
                _download(name, pom, folder)
    return folder


def _download(name: str, pom: Path, folder: Path) -> None:
    """Download the jars with Maven into a temporary folder, and rename it once complete."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), _COPY]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={unfinished}"]
    try:
        download = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
        if download.returncode:
            raise UnavailableError(f"Maven could not fetch {name}:\n{(download.stdout + download.stderr)[-2000:]}")
        unfinished.rename(folder)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"Maven took more than {_DOWNLOAD_SECONDS:g} s to fetch {name}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
