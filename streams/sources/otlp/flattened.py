"""Flattened messages: a list of objects that was written as many attributes, each with its path for a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNWRAPPED = frozenset({"message", "message_content", "tool_call"})
"""Steps of OpenInference's flat names that only say what follows."""
_DIGITS = 6
"""Digits of the longest number that is a place in a list."""


def unflattened(values: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The objects of a list that was written flat: `PREFIX.0.role`, `PREFIX.0.tool_calls.1.name` and so on, in order."""
    tree: dict[str, Any] = {}
    start = len(prefix) + 1
    for name, value in values.items():
        if not name.startswith(prefix) or name[start - 1 : start] != ".":
            continue
        node, steps = tree, [step for step in name[start:].split(".") if step not in _UNWRAPPED]
        for step in steps[:-1]:
            inner = node.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            if steps:
                node[steps[-1]] = value
    found = _lists(tree)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _lists(node: Any) -> Any:
    """The tree with a list for each node whose names are numbers."""
    if not isinstance(node, dict):
        return node
    if node and all(name.isdecimal() and len(name) <= _DIGITS for name in node):
        return [_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _lists(value) for name, value in node.items()}
