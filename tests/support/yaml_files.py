"""YAML that tests keep beside them, read with libyaml: the parser in Python takes ten times as long, in every worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a build without libyaml has the slow one only


def read_yaml(path: Path) -> Any:
    """Return the parsed value of the file."""
    return yaml.load(path.read_text("utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader, either way
