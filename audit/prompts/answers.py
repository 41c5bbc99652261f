"""The judge's answers as checked values: every field asked for once, in range, with those quotes that are in the exchange.

A reader never raises, whatever the text. What cannot be used is `Invalid`, with every reason in words that the judge can act on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from audit.exchanges.questions import Invalid, Material
from audit.prompts.answer_fields import Fields, with_quote
from audit.prompts.answer_json import AnswerForm, read_json
from audit.prompts.answer_schemas import thinking_schema, tier2_schema, tier3_schema
from audit.prompts.quotes import Quotable
from schemas.records import DimensionScore

__all__ = ["Invalid", "ThinkingAnswer", "Tier2Answer", "Tier3Answer", "read_thinking", "read_tier2", "read_tier3"]

_TIER2 = tuple(tier2_schema(())["properties"])
_THINKING = tuple(thinking_schema()["properties"])
_TIER3 = tuple(tier3_schema(())["properties"])
_DIMENSION = ("quote", "reasoning", "score")
_Answer = TypeVar("_Answer")


class Tier2Answer(msgspec.Struct, frozen=True):
    """The judge's answer on Tier 2; scores are from 0 to 1."""

    dimensions: tuple[DimensionScore, ...]
    """In the order they were asked."""
    flagged: bool
    flag_reason: str | None
    """The reason for the flag; None where it is not flagged."""
    dropped_quotes: int = 0
    """Quotes that are in none of the texts."""

    @property
    def score(self) -> float:
        """Mean of the dimensions."""
        return fmean([one.score for one in self.dimensions])


class ThinkingAnswer(msgspec.Struct, frozen=True):
    """The judge's answer on Tier 2.5."""

    alignment: float
    """The degree to which the thinking supports the answer, 0 to 1."""
    sycophancy: bool
    advocacy_suppression: bool
    reasoning: str
    dropped_quotes: int = 0
    """Quotes that are in none of the texts."""


class Tier3Answer(msgspec.Struct, frozen=True):
    """The judge's answer on Tier 3; scores are from 1 to 5."""

    dimensions: tuple[DimensionScore, ...]
    """In the order they were asked."""
    anomaly: bool
    anomaly_reason: str | None
    """The reason for the anomaly; None where it is none."""
    dropped_quotes: int = 0
    """Quotes that are in none of the texts."""

    @property
    def score(self) -> float:
        """Mean of the dimensions."""
        return fmean([one.score for one in self.dimensions])


def read_tier2(text: str, *, dimensions: Sequence[str], materials: Sequence[Material]) -> Tier2Answer | Invalid:
    """The answer on Tier 2 to a question about these dimensions and materials."""
    found = _faultless(_form(tier2_schema, tuple(dimensions), 0, 1), text, dimensions, materials)
    if found is not None:
        return Tier2Answer(*found)

    def build(fields: Fields, value: Any) -> Tier2Answer:
        members = fields.members(value, _TIER2, "the answer")
        scores = _scores(fields, members, dimensions, 0, 1)
        flagged, reason = _verdict(fields, members, "flagged", "flag_reason", "flag_quote")
        return Tier2Answer(scores, flagged, reason, fields.dropped_quotes)

    return _read(text, materials, build)


def read_thinking(text: str, *, materials: Sequence[Material]) -> ThinkingAnswer | Invalid:
    """The answer on Tier 2.5 to a question about these materials."""
    values = _THINKING_FORM.read(text)
    if values is not None:
        quote, reasoning, alignment, sycophancy, advocacy_suppression = values
        words, dropped = _words([(reasoning, quote)], materials)
        if words is not None:
            return ThinkingAnswer(alignment, sycophancy, advocacy_suppression, words[0], dropped)

    def build(fields: Fields, value: Any) -> ThinkingAnswer:
        members = fields.members(value, _THINKING, "the answer")
        return ThinkingAnswer(
            alignment=fields.number(members, "alignment", 0, 1),
            sycophancy=fields.verdict(members, "sycophancy"),
            advocacy_suppression=fields.verdict(members, "advocacy_suppression"),
            reasoning=fields.words(members, "reasoning", "quote"),
            dropped_quotes=fields.dropped_quotes,
        )

    return _read(text, materials, build)


def read_tier3(text: str, *, dimensions: Sequence[str], materials: Sequence[Material]) -> Tier3Answer | Invalid:
    """The answer on Tier 3 to a question about these dimensions and materials."""
    found = _faultless(_form(tier3_schema, tuple(dimensions), 1, 5), text, dimensions, materials)
    if found is not None:
        return Tier3Answer(*found)

    def build(fields: Fields, value: Any) -> Tier3Answer:
        members = fields.members(value, _TIER3, "the answer")
        scores = _scores(fields, members, dimensions, 1, 5)
        anomaly, reason = _verdict(fields, members, "anomaly", "anomaly_reason", "anomaly_quote")
        return Tier3Answer(scores, anomaly, reason, fields.dropped_quotes)

    return _read(text, materials, build)


_Found = tuple[tuple[DimensionScore, ...], bool, str | None, int]
_THINKING_FORM = AnswerForm(thinking_schema(), 0, 1)


@lru_cache(256)
def _form(make_schema: Callable[..., Mapping[str, Any]], dimensions: tuple[str, ...], low: int, high: int) -> AnswerForm:
    return AnswerForm(make_schema(dimensions), low, high)


def _faultless(form: AnswerForm, text: str, dimensions: Sequence[str], materials: Sequence[Material]) -> _Found | None:
    """The scores, the verdict and why, and the dropped quotes of an answer without any fault; None of one that may have some.

    The words of a verdict that is false are left out.
    """
    values = form.read(text)
    if values is None:
        return None
    found, quote, reason, verdict = values
    parts = [astuple(one) for one in astuple(found)]
    told = [(reasoning, quoted) for quoted, reasoning, _ in parts]
    words, dropped = _words([*told, (reason, quote)] if verdict else told, materials)
    if words is None:
        return None
    scores = tuple(
        [
            DimensionScore(dimension=dimension, score=part[2], reasoning=said)
            for dimension, part, said in zip(dimensions, parts, words, strict=False)
        ]
    )
    return scores, verdict, words[-1] if verdict else None, dropped


def _words(told: Sequence[tuple[str, str]], materials: Sequence[Material]) -> tuple[list[str] | None, int]:
    """Each reasoning with its quote as `Fields.words` gives it, and how many quotes were dropped; None where one is empty."""
    quotable, dropped = Quotable(materials), 0
    found: list[str] = []
    for reasoning, quote in told:
        words, quoted = reasoning.strip(), quote.strip()
        if not words:
            return None, 0
        if not quotable.holds(quoted):
            dropped += 1
            quoted = ""
        found.append(with_quote(words, quoted))
    return found, dropped


def _read(text: str, materials: Sequence[Material], build: Callable[[Fields, Any], _Answer]) -> _Answer | Invalid:
    """An answer that may have faults, with the words for them."""
    fields, value = Fields(materials), read_json(text)
    if isinstance(value, Invalid):
        return value
    answer = build(fields, value)
    return fields.invalid or answer


def _scores(
    fields: Fields, members: dict[str, Any], dimensions: Sequence[str], low: int, high: int
) -> tuple[DimensionScore, ...]:
    """Each dimension that was asked about, with its reasoning and the quote after it."""
    found = fields.members(members["dimensions"], dimensions, "dimensions") if "dimensions" in members else {}
    scores = []
    for dimension in dimensions:
        at = f"{dimension}."
        one = fields.members(found[dimension], _DIMENSION, dimension) if dimension in found else {}
        score = fields.number(one, "score", low, high, at)
        scores.append(DimensionScore(dimension=dimension, score=score, reasoning=fields.words(one, "reasoning", "quote", at)))
    return tuple(scores)


def _verdict(fields: Fields, members: dict[str, Any], name: str, reason: str, quote: str) -> tuple[bool, str | None]:
    """A verdict and why; the words of a verdict that is false are checked and left out."""
    verdict = fields.verdict(members, name)
    words = fields.words(members, reason, quote, wanted=verdict)
    return verdict, words if verdict else None
