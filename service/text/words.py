"""Words for the terms and reasons of the records, from `words.yaml` beside this module: one table per kind of word."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

import msgspec

from audit.detectors.detectors import DETECTORS, FINDERS
from audit.drift.watched_series import TIER_NUMBERS, TIERS
from audit.exchanges.tier1 import STRUCTURAL_CHECKS

WORDS: Mapping[str, Mapping[str, str]] = msgspec.yaml.decode(
    resources.files("service.text").joinpath("words.yaml").read_bytes(), type=dict[str, dict[str, str]]
)
"""Every table by its name; the file says what each is for."""
TERMS: Mapping[str, str] = {
    **WORDS["terms"],
    **{tier: f"{name} · {TIER_NUMBERS[tier]}" for tier, name in TIERS.items()},
    **{check.id: check.title for check in STRUCTURAL_CHECKS},
    **{one.failure_type: one.failure.title for one in (*DETECTORS, *FINDERS)},
    **{one.failure.dimension: one.failure.dimension_title for one in DETECTORS},
}
"""Terms of the records: pages show their words, and the term itself on hover."""
CHECKS: Mapping[str, str] = {
    check.id: f"{check.description[:1].upper()}{check.description[1:]}." for check in STRUCTURAL_CHECKS
}
"""What it means that a Tier 1 check fired; checks of a methodology are not among them."""
