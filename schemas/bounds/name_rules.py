"""Rules of names and labels of a single record, with the words of a refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.bounds.limits import LABEL_NAME, MAX_LABEL, MAX_LABELS, NO_LABELS, NOT_UNICODE, has_surrogates

CONTROL = r"[\x00-\x1f\x7f-\x9f]"
SHOWN = 64
"""Characters of a refused name that are repeated."""


_is_label_name = re.compile(LABEL_NAME).fullmatch


def is_plain_identifier(value: str, longest: int) -> bool:
    """Tell whether an id or a name has no fault, as most: neither control characters nor surrogates can be in it. Others may have none."""
    return 0 < len(value) <= longest and value.isascii() and value.isprintable() and not value.isspace()


def identifier_fault(value: str, longest: int) -> str | None:
    """Return the fault of an id or a name that a source gave, as the end of a sentence, or None for a good one."""
    if is_plain_identifier(value, longest):
        return None
    if not 0 < len(value) <= longest:
        return f"has {len(value)} characters; 1 to {longest} are taken"
    if re.search(CONTROL, value):
        return "holds control characters"
    if has_surrogates(value):  # no column can hold one
        return NOT_UNICODE
    return None if value.strip() else "is blank"


def labels_fault(labels: Sequence[Any]) -> str | None:
    """Return the fault of labels, records or mappings with `name` and `value`, or None for good ones.

    A fault of one label begins with a dot and its name, so that it can stand behind the name of the field.
    """
    if len(labels) > MAX_LABELS:
        return f"has {len(labels)} labels; the most is {MAX_LABELS}"
    seen: set[str] = set()
    for one in labels:
        name, text = (one["name"], one["value"]) if isinstance(one, Mapping) else (one.name, one.value)
        if fault := _name_fault(name, seen):
            return fault
        if not isinstance(text, str):
            return f".{name}: must be a string"
        if fault := identifier_fault(text, MAX_LABEL):
            return f".{name}: {fault}"
        seen.add(name)
    return None


def _name_fault(name: Any, seen: set[str]) -> str | None:
    if not isinstance(name, str) or not _is_label_name(name):
        shown = repr(name[:SHOWN]) if isinstance(name, str) else "this"
        return f"{shown} is not a valid label name: use at most 64 of a-z, 0-9, _ and ., beginning with a letter"
    if name in NO_LABELS:
        return f".{name}: is a field of its own, not a label; send it there"
    return f".{name}: appears twice" if name in seen else None
