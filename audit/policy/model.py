"""Base model of the parts of a policy, and the names in them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

from audit.anchors.names import is_reserved
from schemas.bounds.limits import NAME


def _not_of_anchors(name: str) -> str:
    if is_reserved(name):
        raise ValueError("the name is reserved for anchors")
    return name


OwnName = Annotated[str, StringConstraints(pattern=f"^{NAME}$"), AfterValidator(_not_of_anchors)]
"""The name of a connection or project that records may be filed under."""


class PolicyModel(BaseModel):
    """A part of a policy: camelCase, strict types, no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, validate_by_name=True)
