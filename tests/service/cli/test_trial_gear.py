"""Without the trial gear its commands are listed and say how to get it, and everything else works."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from service.setup.version import GET_TRIAL, TRIAL, version

Command = Callable[..., tuple[int, str, str]]
COMMANDS = ("demo", "simulate-judge")


@pytest.fixture
def _without_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TRIAL, None)


@pytest.mark.usefixtures("_without_trial")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("arguments", [(), ("--dir", "here"), ("--port", "0", "--script", "hang")])
def test_a_trial_command_says_how_to_install_it(driftline: Command, command: str, arguments: tuple[str, ...]) -> None:
    """An unknown-command error would hide what is missing."""
    code, printed, error = driftline(command, *arguments)

    assert code == 2
    assert printed == ""
    assert command in error
    assert GET_TRIAL in error


@pytest.mark.usefixtures("_without_trial")
@pytest.mark.parametrize("arguments", [("--help",), ("help", "demo"), ("demo", "--help")])
def test_help_works_without_the_trial_gear(driftline: Command, arguments: tuple[str, ...]) -> None:
    """A newcomer reads it first."""
    code, printed, _ = driftline(*arguments)

    assert code == 0
    assert "demo" in printed


@pytest.mark.usefixtures("_without_trial")
def test_the_doctor_says_how_to_get_the_trial_gear(driftline: Command) -> None:
    """The trial gear is optional."""
    code, printed, _ = driftline("doctor")

    assert code == 0
    assert GET_TRIAL in printed


def test_the_doctor_names_the_version_of_the_trial_gear(driftline: Command) -> None:
    """It has to match Driftline's version."""
    _, printed, _ = driftline("doctor")

    assert f"driftline-trial: version {version()}" in printed


def test_trial_gear_of_another_version_is_a_problem(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses modules of Driftline that any version may change."""
    monkeypatch.setattr("service.cli.commands.doctor.trial_version", lambda: "0.1.0")
    code, printed, _ = driftline("doctor")

    assert code == 1
    assert "0.1.0" in printed
