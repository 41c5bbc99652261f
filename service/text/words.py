"""Words for the terms and reasons of the records, from `words.yaml` beside this module: one table per kind of word."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

import msgspec

from audit.detectors.detectors import DETECTORS, FINDERS

WORDS: Mapping[str, Mapping[str, str]] = msgspec.yaml.decode(
    resources.files("service.text").joinpath("words.yaml").read_bytes(), type=dict[str, dict[str, str]]
)
"""Every table by its name; the file says what each is for."""
TERMS: Mapping[str, str] = {
    **WORDS["terms"],
    **{one.failure_type: one.failure.title for one in (*DETECTORS, *FINDERS)},
    **{one.failure.dimension: one.failure.dimension_title for one in DETECTORS},
}
"""Terms of the records: pages show their words, and the term itself on hover."""
