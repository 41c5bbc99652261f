"""Completion: what a shell offers while somebody types, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.cli.command_groups import COMMANDS
from service.cli.completion import FILES, Shell, script_of
from service.setup.access import AccessStore, Holder, access_file
from service.setup.workspace import utc_now

Command = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[3]
EVENT = '{"session_id": "s1", "event": "tool_call", "tool": "x", "timestamp": "2026-10-01T09:00:00Z"}\n'
STATES = ["acknowledged", "dismissed", "open", "resolved"]
HEAVY = ("duckdb", "polars", "pydantic_settings", "yaml", "service.setup.workspace", "service.setup.settings", "audit.")
BASH = """
source <(driftline completion bash)
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_driftline 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; autoload -Uz compinit; compinit -u -D; source <(driftline completion zsh); LISTMAX=1000; print READY'
zpty -r -m shell line '*READY*READY*'
zpty -w -n shell $'{line}\\t'
zpty -r -m shell line '*{wanted}*'
print -r -- $line
zpty -d shell
"""


Offered = Callable[..., list[str]]


@pytest.fixture
def offered(driftline: Command) -> Offered:
    """Return the completions of the last word, sorted."""

    def complete(*arguments: str) -> list[str]:
        code, out, err = driftline("_complete", *arguments)
        assert code == 0
        assert err == ""
        return sorted(line.partition("\t")[0] for line in out.splitlines())

    return complete


def test_commands_members_options_and_values_are_completed(offered: Offered) -> None:
    """Each position offers what is valid there, without options already given."""
    assert offered("inc") == ["incidents"]
    assert {"acknowledge", "dismiss", "list", "new-normal", "reopen", "resolve", "show"} <= set(offered("incidents", ""))
    assert "accept" not in offered("incidents", "")
    assert offered("runs", "--pr") == ["--project"]
    assert "--project" not in offered("runs", "--project", "x", "--")
    assert offered("incidents", "list", "--status", "") == STATES
    assert offered("incidents", "list", "--status=o") == ["--status=open"]
    assert "--status" in offered("incidents", "list", "--status", "open", "--st")
    assert offered("incidents", "list", "--status", "=", "o") == ["open"]
    assert offered("evaluations", "--by", "") == ["case", "model", "people", "session"]
    assert offered("check-drift", "--fail-on", "") == ["confirmed", "critical", "live", "open"]
    assert offered("completion", "") == sorted(Shell)
    assert "exit-codes" in offered("help", "")
    assert {"--help", "--json"} <= set(offered("runs", "--"))
    assert offered("") == sorted(COMMANDS)
    assert offered("--") == ["--help", "--verbose", "--version"]


@pytest.mark.parametrize(
    "words",
    [
        ("import", "claude-code", ""),
        ("import", "claude-code", "a", "b", "--db", ""),
        ("runs", "--since", ""),
        ("no-such-command", "--unknown", "x"),
    ],
)
def test_files_are_completed_where_nothing_else_is_known(offered: Offered, words: tuple[str, ...]) -> None:
    """Shells do the same for programs that they do not know."""
    assert offered(*words) == [FILES]


def test_projects_are_completed_from_database_tokens_and_policy(
    driftline: Command, offered: Offered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each source may have projects that the others lack."""
    (tmp_path / "e.jsonl").write_text(EVENT)
    assert driftline("import", "events", "e.jsonl", "--project", "stored")[0] == 0
    with AccessStore(access_file(tmp_path / "driftline.duckdb"), utc_now) as access:
        access.add(Holder("connection", "north", "named"))
    (tmp_path / "policy.yaml").write_text("version: 1\nprojects: {planned: {enabled: true}}\n")
    monkeypatch.setenv("DRIFTLINE_POLICY", "policy.yaml")

    assert offered("runs", "--project", "") == ["named", "planned", "stored"]
    assert offered("banner", "st") == ["stored"]
    assert offered("runs", "--db", "elsewhere.duckdb", "--project", "") == ["planned"]
    assert not (tmp_path / "elsewhere.access").exists()


def test_unreadable_sources_are_skipped(offered: Offered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell cannot show an error during completion."""
    for name in ("driftline.duckdb", "driftline.access", "policy.yaml"):
        (tmp_path / name).write_text("{[ nonsense")
    monkeypatch.setenv("DRIFTLINE_POLICY", "policy.yaml")
    assert offered("runs", "--project", "") == [FILES]
    monkeypatch.setenv("DRIFTLINE_PORT", "nonsense")
    assert offered("runs", "--project", "") == [FILES]


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["_complete", "incidents", "list", "--status", ""], ("duckdb", "polars")),
        (["_complete", "inc"], HEAVY),
        (["completion", "zsh"], HEAVY),
        (["--help"], HEAVY),
        ([], HEAVY),
    ],
)
def test_completion_loads_no_database(words: list[str], heavy: tuple[str, ...]) -> None:
    """The shell waits for it, and DuckDB alone takes as long as everything else."""
    statement = f"import sys; from service.cli.main import run; run({words!r}); print('\\n'.join(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-P", "-c", statement]
    process = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True)

    assert [name for name in process.stderr.splitlines() if name.startswith(heavy)] == []
    assert process.stdout


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Return a function that runs a script in a shell with `driftline` on its path; skip if the shell is missing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "driftline"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m service.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "e.jsonl").write_text(EVENT)
    monkeypatch.chdir(tmp_path)

    def typed(name: str, script: str) -> str:
        shell_path = shutil.which(name)
        if shell_path is None:
            pytest.skip(f"{name} is not installed: its completion is tested where it is")
        environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "xterm"}
        process = subprocess.run(
            [shell_path, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert process.stderr == "", process.stderr
        return process.stdout

    return typed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("driftline inc", ["incidents"]),
        ("driftline incidents list --status re", ["resolved"]),
        ("driftline incidents list --status = op", ["open"]),
        ("driftline import events e.j", [""]),
    ],
)
def test_bash_completes(shell: Callable[[str, str], str], words: str, expected: list[str]) -> None:
    """Files are left to bash."""
    assert shell("bash", BASH.format(words=words)).splitlines() == expected


@pytest.mark.parametrize(("line", "wanted"), [("driftline incid", "ents"), ("driftline incidents list --status res", "olved")])
def test_zsh_completes(shell: Callable[[str, str], str], line: str, wanted: str) -> None:
    """It runs on a pseudo-terminal, as typed, and shows what zsh adds."""
    assert wanted in shell("zsh", ZSH.format(line=line, wanted=wanted))


@pytest.mark.parametrize(
    ("line", "expected"),
    [("driftline incidents rep", []), ("driftline incidents reo", ["reopen"]), ("driftline incidents list --status re", ["resolved"]),
     ("driftline import events e.j", ["e.jsonl"])],
)  # fmt: skip
def test_fish_completes(shell: Callable[[str, str], str], line: str, expected: list[str]) -> None:
    """Each completion has its description."""
    completions = shell("fish", f'driftline completion fish | source; complete -C "{line}"')
    assert [one.split("\t")[0] for one in completions.splitlines()] == expected


@pytest.mark.parametrize("name", Shell)
def test_a_completion_script_says_how_to_install_it(name: Shell) -> None:
    """The person who prints it needs to know where to put it."""
    assert f"driftline completion {name}" in script_of(name)
