"""Examples of bodies for the documentation, from `examples.json` beside this module."""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec

EXAMPLES: dict[str, dict[str, Any]] = msgspec.json.decode(resources.files("service.web").joinpath("examples.json").read_bytes())
"""A body by the name of its call."""
