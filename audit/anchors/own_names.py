"""Names of connections and projects that records may be filed under: those of anchors are reserved."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from audit.anchors.names import checked_own_name
from schemas.bounds.limits import NAME

OwnName = Annotated[str, StringConstraints(pattern=f"^{NAME}$"), AfterValidator(checked_own_name)]
"""The name of a connection or project that records may be filed under."""
