"""Names of connections and projects that records may be filed under: those of anchors are reserved."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from audit.anchors.names import is_reserved
from schemas.bounds.limits import NAME


def _not_of_anchors(name: str) -> str:
    if is_reserved(name):
        raise ValueError("the name is reserved for anchors")
    return name


OwnName = Annotated[str, StringConstraints(pattern=f"^{NAME}$"), AfterValidator(_not_of_anchors)]
"""The name of a connection or project that records may be filed under."""
