"""Methodologies: which checks and judge dimensions a project is measured by, beyond those that hold for everybody.

A methodology is a file: schemaVersion, tier1 (pattern checks), tier2 (id, description), tier3 (id, description, when) and a
judgeContext for the judge. What it lists is added to the dimensions of the default methodology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from audit.fingerprints import canonical_json, digest
from audit.patterns import MAX_PATTERN_LENGTH, Pattern, compile_pattern, straighten
from audit.policy.settings_files import Document, Location
from schemas.errors import PolicyError

SHIPPED = ("default", "prawduct", "tilt")
STRUCTURAL_CHECKS = ("self_identification", "silent_refusal", "constraint_disclosure")
"""Ids of the Tier 1 checks that hold under every methodology."""

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
PatternText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH)]


class When(StrEnum):
    """To which exchanges a Tier 3 dimension applies."""

    ALWAYS = "always"
    EXECUTION_TASK = "execution_task"
    IMPLEMENTATION_TASK = "implementation_task"
    DISAGREEMENT = "disagreement"
    HIGH_STAKES = "high_stakes"
    CODE_CHANGE = "code_change"
    MULTI_USER = "multi_user"


class _FileModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


class PatternCheck(_FileModel):
    """A Tier 1 check of a methodology: fires when one of its patterns is in the user message or the response."""

    id: Identifier
    """Its name in flags and columns; no other check or dimension has it."""
    type: Literal["pattern"]
    """There is one kind."""
    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1, max_length=32)]
    """RE2, over texts in lower case with straight apostrophes."""
    description: str = ""
    """For people: what it looks for."""


class Dimension(_FileModel):
    """A dimension that the judge is asked about."""

    id: Identifier
    """Its name in answers and columns; no other check or dimension has it."""
    description: Words
    """The question to the judge, word for word; it says what the ends of the scale mean."""


class BehaviouralDimension(Dimension):
    """A Tier 3 dimension with the exchanges it applies to."""

    when: Annotated[When, Field(strict=False)]
    """To which exchanges it applies."""


class MethodologyFile(_FileModel):
    """A methodology as it is written."""

    schema_version: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=32)]
    """Version of what is measured: every score carries it. Raise it with every change."""
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,62}$")] | None = None
    """The name in scores; without it the name of the file."""
    tier1: Annotated[tuple[PatternCheck, ...], Field(max_length=32)] = ()
    """Checks beside those that hold for everybody."""
    tier2: Annotated[tuple[Dimension, ...], Field(max_length=16)] = ()
    """Dimensions beside the default ones, scored from 0 to 1."""
    tier3: Annotated[tuple[BehaviouralDimension, ...], Field(max_length=16)] = ()
    """Dimensions beside the default ones, scored from 1 to 5."""
    judge_context: Annotated[str, StringConstraints(strip_whitespace=True, max_length=20_000)] = ""
    """Information for the judge about the agents and their tasks."""


@dataclass(frozen=True, slots=True)
class CustomCheck:
    """A Tier 1 check of a methodology, ready to run on straightened text."""

    id: str
    description: str
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Methodology:
    """The measures of a project: a methodology file on top of the default dimensions."""

    name: str
    version: str
    """The file's schemaVersion."""
    digest: str
    """Digest of everything it measures by (the default dimensions included), whatever it is called."""
    tier1: tuple[CustomCheck, ...]
    """The methodology's own checks; the structural ones are always there."""
    tier2: tuple[Dimension, ...]
    tier3: tuple[BehaviouralDimension, ...]
    judge_context: str


def load_methodology(path: Path) -> Methodology:
    """Load a methodology file; PolicyError lists each problem as `FILE:LINE: field: reason`."""
    return _load(path, base=shipped_methodologies()["default"])


def is_methodology(path: Path) -> bool:
    """Tell whether a file is meant as a methodology: it has a schemaVersion. PolicyError when it cannot be read at all."""
    value = Document(path).value
    return isinstance(value, dict) and "schemaVersion" in value


@cache
def shipped_methodologies() -> Mapping[str, Methodology]:
    """The methodologies that come with the package, by name."""
    loaded: dict[str, Methodology] = {}
    for name in SHIPPED:
        with resources.as_file(resources.files("audit").joinpath("methodologies", f"{name}.yaml")) as path:
            loaded[name] = _load(path, base=loaded.get("default"))
    return loaded


def _load(path: Path, *, base: Methodology | None) -> Methodology:
    document = Document(path)
    file = document.validate(MethodologyFile)
    tier2_base, tier3_base = (base.tier2, base.tier3) if base else ((), ())
    _check_ids(document, file, taken=[*STRUCTURAL_CHECKS, *(d.id for d in tier2_base), *(d.id for d in tier3_base)])
    checks = tuple(_compile_check(document, check, ("tier1", index)) for index, check in enumerate(file.tier1))
    document.refuse_problems()
    effective = file.model_copy(update={"name": None, "tier2": tier2_base + file.tier2, "tier3": tier3_base + file.tier3})
    return Methodology(
        name=file.name or path.stem,
        version=file.schema_version,
        digest=digest(canonical_json(effective.model_dump(mode="json", by_alias=True))),
        tier1=checks,
        tier2=effective.tier2,
        tier3=effective.tier3,
        judge_context=file.judge_context,
    )


def _check_ids(document: Document, file: MethodologyFile, *, taken: Iterable[str]) -> None:
    """Ids name columns of the results, so one id means one thing in all tiers."""
    seen = dict.fromkeys(taken, "a built-in check or dimension")
    tiers: dict[str, tuple[PatternCheck | Dimension, ...]] = {"tier1": file.tier1, "tier2": file.tier2, "tier3": file.tier3}
    for tier, items in tiers.items():
        for index, item in enumerate(items):
            if item.id in seen:
                document.problem((tier, index, "id"), f"{item.id!r} is already the id of {seen[item.id]}")
            seen.setdefault(item.id, f"{tier}[{index}]")


def _compile_check(document: Document, check: PatternCheck, location: Location) -> CustomCheck:
    patterns = []
    for index, text in enumerate(check.patterns):
        at = (*location, "patterns", index)
        try:
            patterns.append(compile_pattern(straighten(text), where=f"{document.place(at)}: check {check.id!r}"))
        except PolicyError as error:
            document.note(at, str(error))
    return CustomCheck(id=check.id, description=check.description, patterns=tuple(patterns))
