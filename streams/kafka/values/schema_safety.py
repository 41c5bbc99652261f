"""Schema safety: only schemas whose bodies cannot exhaust stack, memory or time are decoded.

Every type takes at least a byte, for null stands in unions alone: then a body has no more parts than bytes. No type refers to itself: then
a body is no deeper than its schema.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
MAX_DEPTH = 64
"""Levels of nesting of a schema."""
_RECORDS = ("record", "error")
_NO_SCHEMA = "it is no Avro schema"
_INNER = {"array": "items", "map": "values"}


def refusal_of(definition: Json) -> str | None:
    """Return the reason why a schema is not used; None if it may be."""
    if definition.get("type") != "record":
        return "it is no schema of a record"
    waiting: list[tuple[Any, tuple[str, ...]]] = [(definition, ())]
    while waiting:
        node, within = waiting.pop()
        if len(within) > MAX_DEPTH:
            return "it nests too deep"
        if (refusal := _fault(node, within)) is not None:
            return refusal
        name = _short(node["name"]) if isinstance(node, dict) and node.get("type") in _RECORDS else ""
        waiting += [(part, (*within, name)) for part in _parts(node) if not (isinstance(node, list) and part == "null")]
    return None


def _fault(node: Any, within: tuple[str, ...]) -> str | None:
    """Return the fault of a type by itself. `within` are the names of the records around it."""
    if isinstance(node, str):
        # Names are compared without their namespaces: that refuses too much rather than too little.
        found = _short(node) in within
        return "it has a null outside of a union" if node == "null" else "it refers to itself" if found else None
    if isinstance(node, dict):
        return _fault_of_record(node) if node.get("type") in _RECORDS else _fault_of_fixed(node)
    return None if isinstance(node, list) else _NO_SCHEMA


def _fault_of_record(node: Json) -> str | None:
    fields = node.get("fields")
    if not (isinstance(node.get("name"), str) and isinstance(fields, list) and all(isinstance(one, dict) for one in fields)):
        return _NO_SCHEMA
    return None if fields else "it has a record without fields"


def _fault_of_fixed(node: Json) -> str | None:
    return "it has a fixed type of no bytes" if node.get("type") == "fixed" and not node.get("size") else None


def _parts(node: Any) -> list[Any]:
    """The types that a type is made of."""
    if isinstance(node, list):
        return node
    kind = node.get("type") if isinstance(node, dict) else None
    if kind is None or kind in ("enum", "fixed"):
        return []
    if kind in _RECORDS:
        return [field.get("type") for field in node["fields"]]
    return [node.get(_INNER.get(kind, "type") if isinstance(kind, str) else "type")]


def _short(name: str) -> str:
    return name.rpartition(".")[2]
