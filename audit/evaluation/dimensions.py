"""The six dimensions that a run is judged on, from 0 to 10 each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Dimension = Literal["task", "process", "autonomy", "closeness", "efficiency", "spark"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
"""In the order in which they are shown everywhere."""
MEANINGS: Mapping[Dimension, str] = {
    "task": "Did the output fulfil the stated goal? Correct content, correct files, correct format.",
    "process": "Did the agent follow a sound approach? Right tools, respected constraints, no hallucinated steps.",
    "autonomy": "Did the agent operate independently? Sound decisions without over-asking or needing hand-holding.",
    "closeness": "Did the output match what a thoughtful person would have answered? Tone, framing, completeness.",
    "efficiency": "Did the agent reach the goal without waste? No unnecessary tool calls, no verbose noise.",
    "spark": "Did the response show something noteworthy? Useful insight, elegant shortcut, thoughtful initiative.",
}
"""The question that the judge answers for each."""
LOWEST, HIGHEST = 0.0, 10.0
"""The ends of the scale."""
