"""Cost estimates shown before a bulk run starts. A guess to decide by; the worst case bounds each call."""

from __future__ import annotations

from dataclasses import dataclass

from audit.cost.prices import ModelPrice, Usage
from audit.exchanges.questions import Question

CHARACTERS_A_TOKEN = 4
"""Characters of English text that make a token, about. Other languages, code and newer models' tokens are shorter."""
EXPECTED_OUTPUT = {"tier2": 250, "tier2_5": 150, "tier3": 350, "evaluation": 900}
"""Tokens of a usual answer, by purpose: a score, a quote and a sentence for each dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected tokens of one call, named as in `Usage`, and what they cost."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    nano: int | None
    """Nano-USD; None where the price is unknown."""


def estimate(question: Question, price: ModelPrice | None, *, cached: bool, batched: bool = False) -> Estimate:
    """Estimate the tokens and the cost of asking a question once.

    It assumes four characters a token, an answer of usual length (the longest it may have, for a purpose without a usual one), and a
    prompt cache that keeps the instructions where they are as long as the model's smallest prefix. `cached` says whether an earlier
    call of the run has written them; without one this call writes them. A model whose smallest prefix is unknown is taken to cache nothing.
    """
    prefix = _tokens(question.instructions)
    rest = _tokens(question.task, str(question.schema), *(one.literal for one in question.materials))
    minimum = price.cache_minimum if price is not None else None
    kept = prefix if minimum is not None and prefix >= minimum else 0
    usage = Usage(
        input_tokens=rest + prefix - kept,
        output_tokens=min(EXPECTED_OUTPUT.get(question.purpose, question.max_tokens), question.max_tokens),
        cache_read_tokens=kept if cached else 0,
        cache_write_tokens=0 if cached else kept,
    )
    return Estimate(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        nano=price.cost(usage, batched=batched) if price is not None else None,
    )


def _tokens(*texts: str) -> int:
    return -(-sum(len(text) for text in texts) // CHARACTERS_A_TOKEN)
