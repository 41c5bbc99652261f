"""Differences of two policies: which settings of which projects are others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from audit.policy.policy import Policy
from service.text.answers import Answer

EVERY_OTHER = ""
"""Stands for the projects that neither policy names."""
FLEET = "*"
"""Stands for settings that belong to no project: redaction, prices, the session gap, spans on Kafka."""


class SettingChange(Answer, frozen=True):
    """A setting that would be another one."""

    setting: Annotated[str, Meta(examples=["sampling.routineInterval"])]
    before: Annotated[Any, Meta(examples=[3])]
    after: Annotated[Any, Meta(examples=[5])]
    projects: Annotated[
        list[str], Meta(description='Of projects; "" stands for all that are not named, "*" for the whole server.')
    ]


def changes(before: Policy, after: Policy) -> list[SettingChange]:
    """Return what is in force otherwise after than before, by setting; empty if nothing is."""
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
    """Return the settings in force for a project, by their names in the file; of FLEET, those that belong to no project."""
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
