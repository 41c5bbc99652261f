"""Programs written in Go, each built once on a machine from its module, into the cache of `support.npm`."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from support.npm import cache_folder
from support.processes import locked, skip_or_fail

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
BUILD_SECONDS = 900.0


@cache
def helm() -> Path:
    """Return Helm: the one on the PATH, or one built here. Skip the test if neither is possible; fail in CI."""
    installed = shutil.which("helm")
    if installed:
        return Path(installed)
    go = shutil.which("go")
    if go is None:
        skip_or_fail("there is no helm, and no go to build it: install Helm 3 or Go")
    folder = cache_folder() / f"go-{HELM.rpartition('@')[2]}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / "helm").exists():
            done = subprocess.run(
                [go, "install", HELM],
                env=os.environ | {"GOBIN": f"{folder}"},
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
            if done.returncode:
                skip_or_fail(f"go could not build Helm: {done.stderr.strip()[-500:]}")
    return folder / "helm"
