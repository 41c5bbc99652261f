"""The policy file of a server: reading it, comparing and checking another text, and saving that text.

1. A text is checked completely before it is written, relative to the folder of the file, because methodologies are files beside it.
2. The text is written to a file beside it and renamed, so a reader finds either the old or the new text. The previous text is kept
   under the same name with the suffix `.previous`, and can be restored in the same way.
3. A save names the text on which it is based. If the file has changed meanwhile, nothing is written.
4. A running server keeps its policy until it restarts: see `service.server.server_lifecycle`.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from audit.policy import Policy, load_policy
from schemas.errors import DriftlineError, PolicyError
from service.text.answers import Answer

EVERY_OTHER = ""
"""Stands for the projects that neither policy names."""
FLEET = "*"
"""Stands for the settings that belong to no project: redaction, prices, the session gap, spans on Kafka."""


class SettingChange(Answer, frozen=True):
    """A setting that would change."""

    setting: Annotated[str, Meta(examples=["sampling.routineInterval"])]
    before: Annotated[Any, Meta(examples=[3])]
    after: Annotated[Any, Meta(examples=[5])]
    projects: Annotated[
        list[str], Meta(description='Of projects; "" stands for all that are not named, "*" for the whole server.')
    ]


def changes(before: Policy, after: Policy) -> list[SettingChange]:
    """Return the changed settings between two policies; empty if there are none."""
    found: dict[tuple[str, str, str], list[str]] = {}
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for project in (FLEET, EVERY_OTHER, *sorted({*before.projects, *after.projects})):
        old, new = effective(before, project), effective(after, project)
        for setting in sorted(old.keys() | new.keys()):
            was, will = old.get(setting), new.get(setting)
            if was != will:
                key = (setting, repr(was), repr(will))
                found.setdefault(key, []).append(project)
                values[key] = (was, will)
    return [SettingChange(key[0], *values[key], projects) for key, projects in sorted(found.items())]


def effective(policy: Policy, project: str) -> dict[str, Any]:
    """Return the settings in force for a project by their names in the file; for FLEET, the settings that belong to no project."""
    if project == FLEET:
        parts = policy.model_dump(
            mode="json", by_alias=True, include={"redaction", "collector", "prices", "session_gap_minutes"}
        )
        return dict(_flat("", parts))
    resolved = policy.for_project(project)
    settings = dict(_flat("", resolved.settings.model_dump(mode="json", by_alias=True)))
    return settings | {"methodology": f"{resolved.settings.methodology} ({resolved.methodology.digest[:8]})"}


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from _flat(f"{path}.{name}" if path else str(name), inner)


NO_FILE = "The server was started without a policy file, so every default is in force. Set DRIFTLINE_POLICY to a file."
SKELETON = "version: 1\n"
"""The initial text if there is no file: every default."""
CONTEXT_LINES = 3
"""Unchanged lines around each change of a comparison."""
_writing = threading.Lock()


class StaleError(DriftlineError):
    """The file has changed since the text on which the save is based."""

    hint = "Load the policy again and make your change there."


class ReadOnlyError(DriftlineError):
    """The file cannot be written; the message gives the reason."""

    hint = "Download the checked text and put it where the file comes from."


class PolicyProblem(Answer, frozen=True):
    """A problem of a text."""

    line: Annotated[int | None, Meta(examples=[4])]
    problem: Annotated[str, Meta(examples=["defaults.sampling.routineIntervall: unknown field; did you mean routineInterval?"])]


class StoredPolicy(Answer, frozen=True):
    """The policy file, and whether it is in force."""

    path: Annotated[str | None, Meta(description="null: the server has no policy file.", examples=["policy.yaml"])]
    text: str
    fingerprint: Annotated[str, Meta(description="SHA-256 of the text.")]
    read_only_because: Annotated[str | None, Meta(description="null: it can be saved.")]
    has_previous: Annotated[bool, Meta(description="Whether the text before the last save can be taken back.")]
    in_force: Annotated[bool, Meta(description="Whether the server judges by this text; if not, it does from its next start.")]
    problems: Annotated[list[PolicyProblem], Meta(description="What keeps the server from starting with this text.")]


class SavedPolicy(Answer, frozen=True):
    """The file after a change."""

    fingerprint: str
    changes: list[SettingChange]
    in_force: bool


class EffectivePolicy(Answer, frozen=True):
    """The settings in force for a project."""

    project: str | None
    digest: Annotated[str, Meta(description="As in every score.")]
    settings: Annotated[dict[str, Any], Meta(examples=[{"sampling.routineInterval": 3}])]


class AppliedPolicy(Answer, frozen=True):
    """The server is restarting."""

    restarting: bool


class PolicyFile:
    """The file at a path, or no file. It is never kept open, because others may replace it at any time."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @property
    def place(self) -> Path:
        """The path, or without a file the name that problems of a text use."""
        return self.path or Path("policy.yaml")

    def text(self) -> str:
        """Return the text of the file; the shortest policy if there is none. PolicyError if it cannot be read."""
        return SKELETON if self.path is None else _read(self.path)

    def previous(self) -> str | None:
        """Return the text from before the last save; None if there is none."""
        return None if self.path is None or not _before(self.path).is_file() else _read(_before(self.path))

    def why_read_only(self) -> str:
        """Return the reason why the file cannot be written; empty if it can."""
        if self.path is None:
            return NO_FILE
        target = self.path.resolve()
        if not target.exists():
            return f"{self.path} does not exist."
        if os.access(target, os.W_OK) and os.access(target.parent, os.W_OK):
            return ""
        return (
            f"{self.path} is read-only for the server, as a file of a Kubernetes ConfigMap or an image is. "
            "Change it where it comes from."
        )

    def save(self, text: str, base: str) -> None:
        """Write a text to the file and keep the previous one; `base` is the fingerprint of the text on which it is based.

        On a ReadOnlyError or StaleError nothing was written. The text must have been checked before.
        """
        if reason := self.why_read_only():
            raise ReadOnlyError(reason)
        if self.path is None:  # pragma: no cover - said by why_read_only
            raise ReadOnlyError(NO_FILE)
        with _writing:
            before = _read(self.path)
            if fingerprint(before) != base:
                raise StaleError("the policy file was changed meanwhile")
            try:
                _replace(_before(self.path), before)
                _replace(self.path.resolve(), text)
            except OSError as error:
                raise ReadOnlyError(f"{self.path}: {error.strerror}") from error


def check(file: PolicyFile, text: str, known: Collection[str]) -> Policy | list[PolicyProblem]:
    """Return the policy in a text, or its problems by line.

    Methodology files outside the folder are refused, except the `known` ones.
    """
    try:
        return load_policy(file.place, text.encode(), confined=known)
    except PolicyError as error:
        return _problems(file.place, str(error))
    except UnicodeEncodeError:
        return [PolicyProblem(None, "half of a surrogate pair is no text")]


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text, with which a save names the text on which it is based."""
    return hashlib.sha256(text.encode()).hexdigest()


def compared(before: str, after: str) -> list[str]:
    """Return the lines of a unified diff of two texts, without file names; empty if they are equal."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=CONTEXT_LINES, lineterm="")
    return list(lines)[2:]


def _problems(place: Path, message: str) -> list[PolicyProblem]:
    """Return the problems in a PolicyError's message; lines without a position belong to the previous problem."""
    start = re.compile(rf"{re.escape(str(place))}:(\d+): (.*)", re.DOTALL)
    found: list[PolicyProblem] = []
    for line in message.splitlines():
        matched = start.fullmatch(line)
        if matched:
            found.append(PolicyProblem(int(matched[1]), matched[2]))
        elif found:
            found[-1] = PolicyProblem(found[-1].line, f"{found[-1].problem}\n{line}")
        else:
            found.append(PolicyProblem(None, line))
    return found


def _before(path: Path) -> Path:
    target = path.resolve()
    return target.with_name(f"{target.name}.previous")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}", hint="Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}: is not UTF-8", hint="Save the file as UTF-8.") from error


def _replace(path: Path, text: str) -> None:
    """Replace a file in one step, keeping its permissions; durable on return."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        unfinished.chmod(mode)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
