"""A copy of the repository that tests change as a guide says, and the commands that run in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

GIT = shutil.which("git") or "git"
ROOT = Path(__file__).parents[2]
_LEFT_OUT = ("docs/pictures/", "docs/assets/")
_BLOCK = re.compile(r"^```(\w+) title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = 600
_OURS = ("ANTHROPIC_", "DRIFTLINE_", "PYTEST_")
"""How variables begin that would change what runs in a copy."""


@dataclass(frozen=True)
class Copy:
    """A copy at `root`; its code takes precedence over that of the checkout."""

    root: Path

    def run(self, *command: str) -> str:
        """Run a command in the copy and return its output; raise AssertionError with all output on failure."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        paths = os.pathsep.join([str(self.root), str(self.root / "tests")])
        # The environment is this one's, which make must not bring up to date.
        own = {
            "PYTHONPATH": paths,
            "PYTHONDONTWRITEBYTECODE": "",
            "MAKEFLAGS": "INSTALLED=",
            "COLUMNS": "200",
            "HOME": str(self.root),
        }
        command_run = subprocess.run(
            command,
            cwd=self.root,
            env=inherited | own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert command_run.returncode == 0, f"{' '.join(command)}:\n{command_run.stdout[-8000:]}\n{command_run.stderr[-8000:]}"
        return command_run.stdout

    def python(self, module: str, *arguments: str) -> str:
        """Run a Python module like `run`."""
        return self.run(sys.executable, "-m", module, *arguments)

    def follow(self, text: str) -> set[str]:
        """Write the titled code blocks of a guide or section to files, apply its diffs, and return the file names."""
        blocks = _BLOCK.findall(text)
        for kind, title, block in blocks:
            path = self.root / title
            if kind == "diff":
                path.write_text(changed(path.read_text("utf-8"), block, title), "utf-8")
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block, "utf-8")
        return {title for _, title, _ in blocks}


def copy_repository(folder: Path) -> Copy:
    """Copy every tracked file of the working tree except pictures."""
    listed = subprocess.run([GIT, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file() and not name.startswith(_LEFT_OUT):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return Copy(folder)


def changed(text: str, difference: str, title: str) -> str:
    """Return the text with a block replaced: `difference` has context lines (blank), removed lines (-) and added lines (+).

    AssertionError unless the lines that are there already stand in one place of the text, one after the other.
    """
    lines = difference.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    places = len(re.findall(f"(?=^{re.escape(before)})", text, re.MULTILINE))
    assert places == 1, f"{title} has {places} places with these lines, not one:\n{before}"
    return re.sub(f"^{re.escape(before)}", lambda _: after, text, flags=re.MULTILINE)
