"""The first things that are typed: nothing, `--help`, a wrong name, `help`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.cli.command_groups import COMMANDS, FIRST_STEPS, GROUPS, group_of

Command = Callable[..., tuple[int, str, str]]


def test_without_a_command_the_first_steps_are_shown(driftline: Command) -> None:
    """All commands follow by topic, and the exit code is 0."""
    code, out, err = driftline()

    assert code == 0
    assert err == ""
    assert all(command in out for command, _ in FIRST_STEPS)
    assert all(group.title in out and all(name in out for name in group.commands) for group in GROUPS)


def test_every_command_is_in_one_group() -> None:
    """The groups make 44 names readable."""
    names = [name for group in GROUPS for name in group.commands]
    assert sorted(names) == sorted(set(names))
    assert all(name in group_of(name).commands for name in COMMANDS)


def test_help_lists_the_commands_by_group(driftline: Command) -> None:
    """The groups have a fixed order."""
    code, out, _ = driftline("--help")
    places = [out.index(f" {group.title} ") for group in GROUPS]

    assert code == 0
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["runz"], ["No such command 'runz'. Did you mean", "'runs'", "`driftline --help` lists the commands."]),
        (
            ["incidents", "lst"],
            ["No such command 'lst'. Did you mean 'list'?", "`driftline incidents --help` lists the commands."],
        ),
        (["runs", "--projct", "x"], ["--projct", "--project", "`driftline runs --help` shows its options."]),
        (["runs", "--limit", "many"], ["error: --limit: must be a whole number", "`driftline runs --help` shows its options."]),
        (["runs", "--limit", "0"], ["error: --limit: must be 1 or more"]),
        (["agreement"], ["Missing option '--project'"]),
        (
            ["check-drift", "--fail-on", "anything"],
            ["--fail-on: 'anything' is not one of 'open', 'live', 'confirmed', 'critical'"],
        ),
        (["help", "runz"], ["No such command 'runz'"]),
    ],
)
def test_a_wrong_word_is_an_error_with_a_suggestion(driftline: Command, typed: list[str], told: list[str]) -> None:
    """All errors have the form `error:` and then what to do."""
    code, out, err = driftline(*typed)

    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert all(words.casefold() in err.casefold() for words in told), err


def test_a_group_alone_shows_its_help(driftline: Command) -> None:
    """It lists the members, but nothing was done, so the exit code is not 0."""
    code, out, err = driftline("incidents")
    assert code == 2
    assert err == ""
    assert "acknowledge" in out


def test_both_forms_of_help_give_the_same_text(driftline: Command) -> None:
    """Users may type either form."""
    assert driftline("incidents", "list", "--help") == driftline("help", "incidents", "list")
    assert driftline("--help") == driftline("help")
