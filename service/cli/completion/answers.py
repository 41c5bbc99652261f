"""Answers to a shell: how a command that is being typed can go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from service.cli.completion.commands import KnownCommand, Option, Value, known_commands
from service.cli.completion.values import known_values

ASK = "_complete"
"""The word that a shell's script puts before the words typed so far, the last of which is being completed."""
FILES = ":files"
"""The answer that asks the shell for its own completion of files."""
_EVERYWHERE = (Option(("--help",), "Show this message and exit."),)
_BEFORE_COMMANDS = (
    *_EVERYWHERE,
    Option(("--version",), "Print the version."),
    Option(("--verbose", "-v"), "Log each step to the error output."),
)


@dataclass(slots=True)
class _Typed:
    """The command that the words lead to, and what was given for it."""

    command: KnownCommand
    given: set[str] = field(default_factory=set)
    """Options that were given."""
    values: dict[str, str] = field(default_factory=dict)
    """Values of options."""
    arguments: int = 0
    """Arguments that were given."""
    waiting: Option | None = None
    """The option whose value is being typed."""


def answer(words: Sequence[str]) -> None:
    """Print how the last word can go on, one possibility per line, with a tab before what it is."""
    *before, last = words or [""]
    sys.stdout.write("".join(f"{word}\t{help_of}\n" for word, help_of in completions(before, last)))


def completions(before: Sequence[str], last: str) -> Iterator[tuple[str, str]]:
    """Return the words that begin with `last` and can follow the words before it, each with what it is."""
    typed = _read(before)
    return ((word, shown) for word, shown in _possible(typed, last) if word == FILES or word.startswith(last))


def _possible(typed: _Typed, last: str) -> Iterator[tuple[str, str]]:
    command = typed.command
    if typed.waiting is not None and typed.waiting.value is not None:
        yield from _of_value(typed.waiting.value, typed.values)
        return
    name, equals, _ = last.partition("=")
    if equals and (option := _option(command, name)) is not None and option.value is not None:
        yield from ((f"{name}={word}", shown) for word, shown in _of_value(option.value, typed.values) if word != FILES)
        return
    if last.startswith("-"):
        yield from _options_left(typed)
        return
    yield from ((name, one.help) for name, one in command.commands.items())
    if (value := _argument(command, typed.arguments)) is not None:
        yield from _of_value(value, typed.values)
    elif not command.commands:
        yield from _options_left(typed)


def _read(words: Sequence[str]) -> _Typed:
    typed = _Typed(_whole())
    for word in words:
        if typed.waiting is not None and word == "=":
            continue  # bash splits --option=value into three words
        if typed.waiting is not None:
            typed.values[typed.waiting.names[0]] = word
            typed.waiting = None
        elif word.startswith("-"):
            _take_option(typed, word)
        elif word in typed.command.commands:
            typed = _Typed(typed.command.commands[word])
        else:
            typed.arguments += 1
    return typed


def _take_option(typed: _Typed, word: str) -> None:
    name, equals, value = word.partition("=")
    option = _option(typed.command, name)
    if option is None:
        return
    if not option.many:
        typed.given.update(option.names)
    if option.value is not None and equals:
        typed.values[option.names[0]] = value
    elif option.value is not None:
        typed.waiting = option


def _whole() -> KnownCommand:
    """Return the command line as one command."""
    return KnownCommand("", _BEFORE_COMMANDS, commands=known_commands())


def _options_left(typed: _Typed) -> Iterator[tuple[str, str]]:
    for option in dict.fromkeys((*typed.command.options, *_EVERYWHERE)):
        if not typed.given.intersection(option.names):
            yield from ((name, option.help) for name in option.names if name.startswith("--"))


def _option(command: KnownCommand, name: str) -> Option | None:
    return next((option for option in command.options if name in option.names), None)


def _argument(command: KnownCommand, given: int) -> Value | None:
    """Return the argument that follows so many others; the last one may go on."""
    if given < len(command.arguments):
        return command.arguments[given]
    return command.arguments[-1] if command.arguments and command.arguments[-1].many else None


def _of_value(value: Value, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if value.kind == "file":
        yield FILES, ""
    yield from ((word, "") for word in (*value.words, *known_values(value.kind, given)))
