"""Errors: their tree with hints, the codes of the API, and why something is set aside."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import service.http
from reference.markdown import code, first_paragraph, page, sentence, table, words
from schemas.errors import DriftlineError, RecordError
from streams.log.dead_letters import UNRETRYABLE_REASONS

_PACKAGES = ("schemas", "audit", "analytics", "streams", "service", "driftline", "driftline_trial")
_ALSO = {
    "conflicting_id": "The log has a record of this identity with other content.",
    "removed_by_retention": "A topic had removed records before they were read.",
    "stage_failed": "A stage could not get over the record; the detail has the error.",
    "state_too_large": "A stage's state of the session is larger than a topic takes.",
}
"""Reasons for which records are set aside and that are no error of decoding."""


_MEND = "see to what the detail says, then put it back with `driftline dead-letters retry`"


def errors() -> str:
    """Return the page."""
    letters = [
        (code(one.code), first_paragraph(one.__doc__), words(one.hint))
        for one in error_classes()
        if issubclass(one, RecordError) and one is not RecordError
    ]
    letters += [
        (code(reason), words(said), sentence(words(UNRETRYABLE_REASONS.get(reason, _MEND)))) for reason, said in _ALSO.items()
    ]
    return page(
        "Errors",
        "Each names the field, the file and line, or the topic, partition and offset, and a second line says what to do. A command that meets one ends "
        "with exit code 2. Whatever else ends a command is a fault of Driftline: exit code 3, with a traceback to report.",
        *(part for one in error_classes() for part in _error(one)),
        "## Codes of the API",
        "The field `code` of an answer that is an error. Its `error` says more, and names the field.",
        table(("code", "status", "said, for example"), [(code(name), *told) for name, told in sorted(api_codes().items())]),
        "## Reasons of dead letters",
        "Records that cannot be taken are kept with their bytes, their place and one of these reasons: `driftline dead-letters list`.",
        table(("reason", "what it is", "what to do"), letters),
    )


def error_classes() -> list[type[DriftlineError]]:
    """Return every expected error, each after what it is a kind of."""
    for package in _PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(found.name)
    return list(_kinds(DriftlineError))


def _kinds(error: type[DriftlineError]) -> Iterator[type[DriftlineError]]:
    yield error
    for one in sorted(error.__subclasses__(), key=lambda kind: kind.__name__):
        yield from _kinds(one)


def _error(error: type[DriftlineError]) -> list[str]:
    base = error.__base__
    kind = f"A kind of [{base.__name__}](#{base.__name__.lower()})." if base is not None and base is not Exception else ""
    return [
        f"## {error.__name__}",
        first_paragraph(error.__doc__),
        f"*What to do:* {words(error.hint)}" if error.hint else "",
        kind,
    ]


def api_codes() -> dict[str, tuple[str, str]]:
    """Return every code that an endpoint answers, with its statuses, and what is said with it somewhere."""
    statuses: dict[str, set[int]] = {"internal": {500}, "not_found": {404}, "method_not_allowed": {405}}
    said: dict[str, str] = {"internal": "internal error", "not_found": "this path does not exist"}
    for path in sorted(Path(inspect.getfile(service.http)).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ApiError":
                status, name, told = (_text(one) for one in (*node.args, None, None, None)[:3])
                if status.isdigit() and name:
                    statuses.setdefault(name, set()).add(int(status))
                    said[name] = said.get(name) or told
    phrases = {
        name: ", ".join(f"{one} {HTTPStatus(one).phrase.lower()}" for one in sorted(found)) for name, found in statuses.items()
    }
    return {name: (phrase, words(said.get(name, ""))) for name, phrase in phrases.items()}


def _text(node: ast.expr | None) -> str:
    """Return a text of the source with … for what is filled in; nothing for what is no text."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""
