"""The rules of the simulated judge, from `rules.yaml` beside this module."""

from __future__ import annotations

from importlib import resources

import msgspec

from audit.patterns import Pattern, compile_pattern

Weights = dict[str, float]


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Signs that the simulated judge looks for, and the points each takes off a score; the file explains each table."""

    signs: dict[str, str]
    in_response: dict[str, str]
    patterns: dict[str, str]
    lacking: Weights
    other_weights: Weights
    weights: dict[str, Weights]
    run_bases: Weights
    run_weights: dict[str, Weights]


RULES = msgspec.yaml.decode(resources.files("service.simulator").joinpath("rules.yaml").read_bytes(), type=Rules)


def compiled(patterns: dict[str, str]) -> dict[str, Pattern]:
    """Return the patterns of a table, ready to run; each matches whole words."""
    return {name: compile_pattern(rf"\b(?:{text})\b", where=name) for name, text in patterns.items()}


PATTERNS = compiled(RULES.patterns)
