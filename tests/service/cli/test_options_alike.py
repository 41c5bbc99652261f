"""Options that several commands have are the same option everywhere, and lists have those that they can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from rich.text import Text

from service.cli.main import application, command_of

Command = Callable[..., tuple[int, str, str]]
LISTS = {
    "sessions list": "project since until limit json full",
    "runs": "project since until limit json full",
    "scores": "project since until limit json full",
    "costs": "project since until limit json",
    "failures": "project since until limit json",
    "wrap-quality": "project since until limit json full",
    "evaluations": "project since until limit json full",
    "incidents list": "project since until limit json full",
    "alerts list": "project since until limit json full",
    "deployments list": "project since until limit json",
    "annotations list": "project since until limit json",
    "dead-letters list": "since until limit json",  # bytes that could not be read have no project
    "replays": "since until limit json",  # files beside the database, most of every project
    "anchors list": "project json",  # the anchors in force: a policy bounds their number
    "links list": "json",  # a few
    "connections list": "json",  # by name; a few
    "operators list": "json",  # by name; a few
    "topics describe": "json",  # of a cluster
}
"""Every command that lists, with those of the six options that it has, and why it lacks the others."""
MAY_DIFFER = {
    # An option that means something else in each command, by the nature of the command.
    "--agent", "--at", "--by", "--case", "--comment", "--connection", "--count", "--days", "--label", "--model", "--name", "--output",
    "--port", "--reason", "--session", "--status", "--tag", "--verbose", "--stage", "--source", "--judge", "--policy-file", "--set",
    "--as-of", "--host", "--text", "--expires", "--dry-run", "--interval", "--lake", "--list", "--until", "--project",
}  # fmt: skip
"""Options whose help may differ between commands."""
PROJECTS = {"Only this project.", "The project.", "Project under which to store records [DRIFTLINE_PROJECT, default]."}
"""What `--project` may say: it filters, it is needed, or it files."""


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return every visible command by its words."""
    for word, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


EVERY = dict(commands(command_of(application())))


def options(command: Any) -> dict[str, Any]:
    """Return the visible options of a command by their first names."""
    return {one.opts[0]: one for one in command.params if one.param_type_name == "option" and not one.hidden}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_has_the_options_of_the_table(name: str) -> None:
    """A user who knows one list knows all of them."""
    has = {one for one in ("project", "since", "until", "limit", "json", "full") if f"--{one}" in options(EVERY[name])}
    assert set(LISTS[name].split()) == has


def test_every_list_is_in_the_table() -> None:
    """A new list must be like the others."""
    assert {name for name in EVERY if name.endswith((" list", " describe"))} <= set(LISTS)
    assert {
        name
        for name in EVERY
        if "--limit" in options(EVERY[name]) and "newest" in str(EVERY[name].help) and not name.startswith("watch ")
    } <= {
        *LISTS,
        "tune",
    }


def test_an_option_has_the_same_help_everywhere() -> None:
    """Options with one name must share one definition."""
    help_texts: dict[str, set[str]] = {}
    for name, command in EVERY.items():
        for option, parameter in options(command).items():
            help_texts.setdefault(option, set()).add(f"{parameter.help} {parameter.metavar}")
            assert option != "--project" or parameter.help in PROJECTS, name
    different = {option: words for option, words in help_texts.items() if len(words) > 1}
    assert set(different) <= MAY_DIFFER, different
    for option in ("--json", "--since", "--limit", "--db", "--policy", "--yes", "--kafka"):
        assert len(help_texts[option]) == 1, option


def test_help_names_values_and_shows_its_texts_whole() -> None:
    """`--json <bool>` reads as if a flag took a value, `<int range>` says nothing, and text in brackets may vanish as markup."""
    parameters = [
        (f"{name} {parameter.opts[0]}", parameter, parameter.display_type_rich(ctx=typer.Context(command)) or "")
        for name, command in EVERY.items()
        for parameter in command.get_params(typer.Context(command))
        if not getattr(parameter, "hidden", False)
    ]
    assert [name for name, parameter, shown in parameters if shown and getattr(parameter, "is_flag", False)] == []
    assert [name for name, _, shown in parameters if shown.startswith("<") and "|" not in shown] == []
    texts = {name: getattr(parameter, "help", None) or "" for name, parameter, _ in parameters}
    assert {name for name, text in texts.items() if Text.from_markup(text).plain != text} == set()
    assert len(parameters) > len(EVERY)


def test_nearly_every_command_prints_json() -> None:
    """Exceptions are commands that run until stopped, or that print for the shell or for people only."""
    without = {name for name, command in EVERY.items() if "--json" not in options(command)}
    assert without == {"serve", "mcp", "worker", "lake sink", "lake serve", "simulate-judge", "demo", "help", "completion"}


def test_a_truncated_list_says_so(driftline: Command) -> None:
    """A silently truncated list looks complete."""
    import json
    from pathlib import Path

    events = [
        {"session_id": f"s{number}", "event": "tool_call", "tool": "x", "timestamp": f"2026-10-0{number}T09:00:00Z"}
        for number in (2, 3, 1)
    ]
    Path("events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    assert driftline("import", "events", "events.jsonl", "--project", "ops")[0] == 0

    code, out, err = driftline("runs", "--json", "--limit", "2")
    assert code == 0
    assert [json.loads(line)["sessionId"] for line in out.splitlines()] == ["s3", "s2"]
    assert "there are more than 2; --limit N shows N" in err
    code, out, err = driftline("runs", "--json", "--since", "2026-10-02")
    assert code == 0
    assert [json.loads(line)["sessionId"] for line in out.splitlines()] == ["s3", "s2"]
    assert err == ""
    assert "no runs since 2026-10-04 00:00" in driftline("runs", "--since", "2026-10-04")[2]
    assert (
        (refused := driftline("runs", "--since", "soon"))[0],
        "error: --since: 'soon' is neither" in refused[2],
    ) == (2, True)
