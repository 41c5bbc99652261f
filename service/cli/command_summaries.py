"""Summaries of commands, read from their source, so that a list of all commands loads none of them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path


def summary_of(module: str, name: str) -> str:
    """Return the docstring of a command's function, or the help of a group: the line that `--help` lists for it."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return ""
    for node in ast.parse(Path(found.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_called(node.targets, name):
            return next((ast.literal_eval(one.value) for one in node.value.keywords if one.arg == "help"), "")
    return ""


def _is_called(targets: list[ast.expr], name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in targets)
