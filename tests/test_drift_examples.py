"""examples/drift: each history is imported by the commands that its README gives, and says what the README's table says."""

from __future__ import annotations

import os
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from driftline_trial.simulator import running
from service.cli.main import run

FOLDER = Path(__file__).parents[1] / "examples" / "drift"
README = (FOLDER / "README.md").read_text("utf-8")
SAYINGS = dict(re.findall(r"^\| \[([\w-]+)\]\([\w-]+\.csv\).*\| ([^|]+) \|$", README, re.MULTILINE))
"""What the table says that Driftline says, by history."""
AS_OF = re.findall(r"--as-of (\S+)", README)[0]
INCIDENT = re.compile(r"^  (suspected )?\w+ since [\d-]+, [^:]+: (.+)$", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder without settings and credentials."""
    for name in os.environ:
        if name.startswith(("DRIFTLINE_", "ANTHROPIC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def import_history(name: str, project: str, *options: str) -> list[str]:
    """Import a file, and return what is said of its project: titles of incidents, notices and blind spots."""
    settings = ["--map", str(FOLDER / "map.yaml"), "--policy", str(FOLDER / "policy.yaml")]
    command = ["import", "exchanges", str(FOLDER / f"{name}.csv"), "--project", project, *settings]
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert run([*command, "--as-of", AS_OF, *options]) == 0, err.getvalue()
    remarks = re.findall(rf"^{project}: (?!checked for drift|No full baseline)(.+)$", out.getvalue(), re.MULTILINE)
    titles = [f"suspected: {title}" if suspected else title for suspected, title in INCIDENT.findall(out.getvalue())]
    return [*titles, *remarks] or ["nothing"]


def test_the_table_names_every_history() -> None:
    """A file without a row is never looked at."""
    assert sorted(SAYINGS) == sorted({re.sub(r"-[12]$", "", path.stem) for path in FOLDER.glob("*.csv")})
    assert len(SAYINGS) == 10


def test_a_changed_mix_is_said_as_the_readme_says(folder: Path) -> None:  # noqa: ARG001 - it is the current folder
    """The simplest of them: every agent is as before."""
    assert import_history("mix-shift", "mix-shift") == SAYINGS["mix-shift"].split("<br>")


@pytest.mark.parametrize("name", sorted(SAYINGS.keys() - {"mix-shift", "another-judge"}))
def test_each_history_is_said_as_the_readme_says(name: str, folder: Path) -> None:  # noqa: ARG001 - it is the current folder
    """What strangers see when they try it is what they read."""
    assert import_history(name, name) == SAYINGS[name].split("<br>")


def test_another_judge_is_no_change_of_the_agent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it is the current folder
    """The second judge takes a tenth of the scale off every score; the agent is as before."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "simulated")
    for part, script, model in (("1", "answer", "first-judge"), ("2", "strict:0.1", "another-judge")):
        with running(script, model=model) as judge:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
            remarks = import_history(f"another-judge-{part}", "another-judge", "--judge", "--yes")
    assert remarks == SAYINGS["another-judge"].split("<br>")
