"""Test cases and evaluation profiles as files: YAML or JSON, refused with the line and the field of every problem."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from audit.evaluation.cases.case import Case
from audit.evaluation.cases.profile import Profile
from audit.policy.settings_files import Document
from schemas.errors import PolicyError

MAX_SYSTEM_PROMPT_BYTES = 64 * 1024
"""Size of the largest system prompt: it is sent with every question."""
_HINT = "Correct the lines named above; docs/evaluation-files.md explains every field."
_NO_ID = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_ID = 64
_SHIPPED_PROMPT = "judge_system_prompt.md"


@dataclass(frozen=True, slots=True)
class LoadedProfile:
    """An evaluation profile with the text of the system prompt it names, or of the shipped one."""

    profile: Profile
    system_prompt: str


def load_case(path: Path) -> Case:
    """Load a test case; PolicyError lists each problem as `FILE:LINE: field: reason`."""
    return Document(path, hint=_HINT).validate(Case)


def load_profile(path: Path) -> LoadedProfile:
    """Load a profile and its system prompt, whose path is from the folder of the profile; errors as `load_case`.

    A profile without a `profile_id` has the name of its file.
    """
    document = Document(path, hint=_HINT)
    if isinstance(document.value, dict) and (name := _identifier(path.stem)):
        document.value.setdefault("profile_id", name)
    profile = document.validate(Profile)
    named = profile.judge_system_prompt_path
    if named is None:
        return LoadedProfile(profile, shipped_system_prompt())
    try:
        text = _system_prompt(path.parent / named)
    except ValueError as error:
        place = document.place(("judge_system_prompt_path",))
        raise PolicyError(f"{place}: the file {named!r} {error}", hint=_HINT) from None
    return LoadedProfile(profile, text)


@cache
def shipped_system_prompt() -> str:
    """The system prompt that comes with the package."""
    return resources.files("audit.evaluation").joinpath(_SHIPPED_PROMPT).read_text("utf-8")


def _identifier(name: str) -> str:
    """The name with what no id may hold as hyphens; empty where nothing is left."""
    return _NO_ID.sub("-", name).strip("-._")[:_MAX_ID]


def _system_prompt(path: Path) -> str:
    """The text of the file; ValueError says why it cannot be used."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SYSTEM_PROMPT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_SYSTEM_PROMPT_BYTES:
        raise ValueError(f"is larger than {MAX_SYSTEM_PROMPT_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if not text.strip():
        raise ValueError("is empty: without instructions the judge cannot answer")
    return text
