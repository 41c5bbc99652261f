"""Numbers in JSON are rounded to what they mean, wherever JSON leaves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from service.text.formats import rounded


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tier3BehavioralScore": 3.8449999999999998}, {"tier3BehavioralScore": 3.845}),
        ({"avg": 4.706666666666667, "stddev": 0.3189702881263854}, {"avg": 4.707, "stddev": 0.319}),
        ({"p": 0.0123456789, "q": 0.0000123456789}, {"p": 0.01235, "q": 0.00001235}),
        ({"rate": -0.0123456789, "none": 0.0}, {"rate": -0.01235, "none": 0.0}),
        ({"cost_usd": 0.00026058, "costUsd": 0.1 + 0.2}, {"cost_usd": 0.00026058, "costUsd": 0.3}),
        ({"costCap": {"currentCost": 0.0300000000004, "cap": 0.03}}, {"costCap": {"currentCost": 0.03, "cap": 0.03}}),
        ({"samplingProbability": 0.3333333333333333}, {"samplingProbability": 0.333333333}),
        ({"days": [{"mean": 1 / 3}], "n": 3, "flag": True, "text": "0.123456"}, None),
        ({"queries": [{"parameters": {"expected": 0.9004095563139932}}]}, None),
        ({"diagnosis": {"share": 1 / 3}, "finalResult": {"score": 2 / 3}}, None),
    ],
)
def test_numbers_are_rounded_by_their_kind(given: dict[str, Any], said: dict[str, Any] | None) -> None:
    """Scores are rounded to thousandths, money to billionths; full documents and query parameters are not rounded."""
    if said is None:
        said = given | ({"days": [{"mean": 0.333}]} if "days" in given else {})
    assert rounded(given) == said


def test_other_values_are_unchanged() -> None:
    """The JSON encoder decides about them."""
    assert math.isnan(rounded(float("nan")))
    assert math.inf == rounded(math.inf)
