"""Rows of tables on how far people and a judge agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.cli.terminal import MISSING


def agreement_cells(name: str, found: Mapping[str, Any]) -> list[Any]:
    """A row of a table on agreement: who is compared, how much there is, kappa and bias with their intervals."""
    kappa = found["state"].replace("_", " ")
    if found["kappa"] is not None:
        kappa = f"{found['kappa']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
    bias = MISSING if found["bias"] is None else f"{found['bias']:+.2f} ({found['biasLow']:+.2f} to {found['biasHigh']:+.2f})"
    return [name, found["labels"], found["exchanges"], found["sessions"], kappa, bias]
