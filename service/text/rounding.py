"""Rounding of numbers in JSON to significant digits, so that 3.845 is not 3.8449999999999998, and formats for people. Stored numbers stay exact.

1. A score, a mean, a share: three decimals; below 0.1, four significant digits.
2. Money and sampling probabilities, with which people calculate: nine decimals, the billionths in which costs are stored.
3. Stored documents, and the parameters that reproduce a query: not rounded.
"""

from __future__ import annotations

import math
import re
from typing import Any

DECIMALS, EXACT_DECIMALS, DIGITS = 3, 9, 4
SMALL = 0.1
"""Below this, three decimals would keep too few digits."""
WHOLE = frozenset({"parameters", "diagnosis", "finalResult", "judgeResult", "final_result", "judge_result", "result"})
"""Fields that hold whole documents."""
_EXACT = re.compile(r"usd|cost|cap$|probability|spent", re.IGNORECASE)


def rounded(value: Any, name: str = "") -> Any:
    """Return the value with all nested numbers rounded; `name` is the field that holds it."""
    if isinstance(value, float):
        return _number(value, name)
    if isinstance(value, dict):
        return {key: one if key in WHOLE else rounded(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one, name) for one in value]
    return value


def _number(value: float, name: str) -> float:
    if not math.isfinite(value):
        return value
    if _EXACT.search(name):
        return round(value, EXACT_DECIMALS)
    return round(value, DECIMALS) if abs(value) >= SMALL else float(f"{value:.{DIGITS}g}")


def grouped(value: float, digits: int = 0) -> str:
    """Format a number for people, with a narrow space between thousands."""
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def counted(number: int, thing: str) -> str:
    """Format a number for people with its noun, in the plural unless it is 1."""
    return f"{grouped(number)} {thing}{'' if number == 1 else 's'}"


def signed(value: float, digits: int = 0) -> str:
    """Format a change for people with its sign; 0 has none."""
    change = round(value, digits)
    sign = "+" if change > 0 else "\u2212" if change < 0 else ""
    return f"{sign}{grouped(abs(change), digits)}"
