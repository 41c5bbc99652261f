"""Messages between the cascade and the judge: a question, the reply to it, and the recorded judgements.

The cascade does no I/O. It yields a `Question`; a live worker answers it with an API call, a replay with a recorded judgement.
Judgements passed to a function here all belong to one question (one fingerprint), except in `add_earlier_judgements`, which takes all
judgements of the request's subject.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from unicodedata import is_normalized, normalize

import msgspec

from audit.cost import ModelPrice, Usage, nano_of
from audit.exchanges.outcomes import TierState
from audit.exchanges.states import SKIPPED_COST_CAP, UNSCORED
from audit.spending import SHARED_CAPS
from schemas.bounds import MAX_ADMITTED_BYTES
from schemas.codec.single_object import encode
from schemas.records import EvaluationRequest, Judgement, JudgingRequest, MaskedPassage

ANSWERED = "answered"
"""Outcome of a judgement that answers its question."""
INTERRUPTED = "interrupted"
"""Outcome of a call whose process ended before its answer was recorded: it was paid for, but has no answer."""
COST_CAP = TierState(SKIPPED_COST_CAP, "cost_cap")
"""The state of a tier if the session's cost cap leaves no room for the call; the reasons of other caps are `audit.spending.SHARED_CAPS`."""
UNKNOWN_PRICE = TierState(UNSCORED, "unknown_price")
"""The state of a tier if there is a cost cap and the price of the model is unknown."""
AWAITING_BATCH = TierState(UNSCORED, "awaiting_batch")
"""The state of the judged tiers while an exchange waits for the answers of a batch."""
BATCH_REVISIONS = 100
"""The revision of a score with the answers of a batch is this much higher than that of the score that began to wait.

Revisions in between, such as that of a session's last turns, do not depend on whether the batch has been answered yet. So a replay, which
sees the answers from the start, makes the same records.
"""
_MAX_OVERHEAD = 10
"""Maximum bytes of overhead for an array and for each of its items."""
_Request = TypeVar("_Request", EvaluationRequest, JudgingRequest)

CHARACTERS_PER_TOKEN = 4
"""Approximate number of characters per token of English text. Other languages, code and newer models have shorter tokens."""
EXPECTED_OUTPUT = {"tier2": 250, "tier2_5": 150, "tier3": 350, "tiers_2_and_3": 580, "evaluation": 900}
"""Tokens of a typical answer, by purpose: a score, a quote and a sentence for each dimension."""


def byte_tokens(text: str) -> int:
    """Return an upper bound of a text's tokens: no token is shorter than a byte of UTF-8.

    Some tokenizers normalize first, which may turn one character into eighteen, so the longer of both forms is used.
    """
    forms = (text,) if is_normalized("NFKC", text) else (text, normalize("NFKC", text))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


PARTIAL = TierState(UNSCORED, "partial")
"""The state of a tier whose answer is unusable as a whole, though some of its dimensions are usable. The tier has no score."""


class Material(msgspec.Struct, frozen=True):
    """A text of the audited exchange, quoted for the judge."""

    name: str
    """The kind of text: user_message, agent_response, agent_thinking, tool_calls or earlier_turns."""
    literal: str
    """The text as a JSON string, in which no mark of the prompt can occur; a cut is marked inside. Tool calls and earlier turns are
    a JSON array of objects of such texts.
    """


def literal_texts(literal: str) -> list[str]:
    """Return the texts of a material's literal."""
    value = json.loads(literal)
    return [value] if isinstance(value, str) else [text for item in value for text in item.values() if isinstance(text, str)]


class Invalid(msgspec.Struct, frozen=True):
    """An unusable answer, with every problem stated so that the judge can correct it."""

    problems: tuple[str, ...]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question for the judge."""

    purpose: str
    """tier2, tier2_5, tier3, tiers_2_and_3 or evaluation."""
    model: str
    """Model to ask."""
    instructions: str
    """The stable start of the prompt, equal for all exchanges that are asked this question under one methodology."""
    materials: tuple[Material, ...]
    """The texts to be judged. They are data and never instructions."""
    task: str
    """The instructions after the materials. Empty for a verbatim question."""
    schema: Mapping[str, Any]
    """JSON schema of the answer."""
    max_tokens: int
    """Maximum number of tokens of the answer."""
    short_answer: int | None = None
    """Minimum number of answer tokens to request if the cost cap leaves no room for more; None always requests `max_tokens`."""
    fingerprint: str
    """Digest of everything above and of the exchange's identity, without the boundary. It identifies the question."""
    read: Callable[[str], Any]
    """Parses the answer's text; returns `Invalid` if it is unusable."""
    read_dimensions: Callable[[str], Any] | None = None
    """Parses the usable dimensions of an unusable answer; returns `Invalid` without any. None if the question has no dimensions."""
    fallback: TierState | None = None
    """The state of the tier if no answer is recorded and the judge is unavailable. None if the judge may be asked."""
    schema_size: int | None = None
    """Maximum number of tokens of the schema, if known; see `byte_tokens`."""
    part: int = 1
    """2 if long texts are shown by their middle, which part 1 leaves out."""
    masked_passages: tuple[MaskedPassage, ...] = ()
    """The passages that were removed from the texts, in their order."""
    is_cut: bool = False
    """True if something of a text is in this part left out."""
    verbatim: bool = False
    """True if the only material is the entire message: it fences its own texts, and the instructions state the schema."""

    def content(self, boundary: str) -> str:
        """Return the materials, each between marks with the boundary, followed by the task.

        A verbatim question returns its only material. The boundary is drawn for each request, so no author of a text can know
        it.
        """
        if self.verbatim:
            return "".join(material.literal for material in self.materials)
        fenced = [
            f"<{material.name} {boundary}>\n{material.literal}\n</{material.name} {boundary}>" for material in self.materials
        ]
        return "\n\n".join([*fenced, self.task])

    @property
    def min_tokens(self) -> int:
        """Minimum number of answer tokens to request."""
        return self.max_tokens if self.short_answer is None else self.short_answer

    @property
    def texts_size(self) -> int:
        """Upper bound of the tokens of all parts of the request that depend on the question; see `byte_tokens`."""
        schema = byte_tokens(json.dumps(self.schema)) if self.schema_size is None else self.schema_size
        texts = (self.task, *(material.literal for material in self.materials))
        return _instructions_size(self.instructions) + schema + sum(map(byte_tokens, texts))


@lru_cache(256)
def _instructions_size(instructions: str) -> int:
    return byte_tokens(instructions)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a question: the text of an answer, or the state of its tier without one. A partial answer has both."""

    text: str | None = None
    state: TierState | None = None
    """Why there is no answer, or only a part of it; None if there is one."""
    judgements: tuple[Judgement, ...] = ()
    """The judgements behind the reply, in order, including failed calls, which may have cost something."""


def outcome_state(outcome: str) -> TierState:
    """Return the state of a tier whose question had this outcome."""
    state = SKIPPED_COST_CAP if outcome == COST_CAP.reason or outcome in SHARED_CAPS else UNSCORED
    return TierState(state, outcome)


def recorded_reply(records: Sequence[Judgement], revision: int) -> Reply | None:
    """Return the recorded reply to a question for this revision of the score; None if the judge is to be asked.

    Judgements of later revisions are ignored, so a replay finds the same reply as the first run. An answer counts for every
    revision, so no question is paid for twice. A failure counts for its own revision only, so a new revision asks again. The
    reply includes all judgements up to the revision, because all of them were paid for.
    """
    visible = _select_visible(records, revision)
    answer = next((record for record in visible if record.outcome == ANSWERED), None)
    if answer is not None:
        return Reply(text=answer.answer or "", judgements=visible)
    failures = [record for record in visible if record.subject_revision == revision and record.outcome != INTERRUPTED]
    if not failures:
        return None
    state = outcome_state(failures[-1].outcome)
    return Reply(state=state, text=failures[-1].answer if state == PARTIAL else None, judgements=visible)


def _select_visible(records: Iterable[Judgement], revision: int) -> tuple[Judgement, ...]:
    """Return the judgements up to a revision, in an order that does not depend on how they arrived."""
    visible = (judgement for judgement in records if judgement.subject_revision <= revision)
    return tuple(
        sorted(visible, key=lambda judgement: (judgement.subject_revision, judgement.judged_at, judgement.judgement_id))
    )


def charged(records: Iterable[Judgement], revision: int) -> int:
    """Return the cost of a question in nano-USD, charged to this revision of the score.

    Earlier revisions were charged for their own calls. A call without a known price counts 0.
    """
    return sum(nano_of(record.cost_usd or 0) for record in records if record.subject_revision == revision)


def add_earlier_judgements(request: _Request, recorded: Sequence[Judgement]) -> _Request:
    """Return the request with earlier judgements in their order.

    If there is no room, the oldest failures are left out first.
    """
    encoded = [encode(record) for record in recorded]
    room = MAX_ADMITTED_BYTES - len(encode(request)) - _MAX_OVERHEAD
    kept_indexes = set()
    # Answers come first because they were paid for; then the newest failures, which are the most informative.
    newest_first = range(len(recorded) - 1, -1, -1)
    for index in sorted(newest_first, key=lambda index: recorded[index].outcome != ANSWERED):
        room -= len(encoded[index]) + _MAX_OVERHEAD
        if room < 0:
            break
        kept_indexes.add(index)
    return msgspec.structs.replace(request, earlier_judgements=tuple(encoded[index] for index in sorted(kept_indexes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected tokens of one call, named as in `Usage`, and their cost."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    nano: int | None
    """Nano-USD; None if the price is unknown."""


def estimate(question: Question, price: ModelPrice | None, *, cached: bool, batched: bool = False) -> Estimate:
    """Estimate the tokens and the cost of asking a question once.

    The estimate assumes four characters per token, an answer of typical length (the longest possible for a purpose without
    one), and a prompt cache that keeps the instructions if they are as long as the model's smallest cacheable prefix. `cached`
    is true if an earlier call of the run has written them to the cache; otherwise this call writes them. A model whose smallest
    prefix is unknown is assumed not to cache.
    """
    prefix_tokens = _estimate_tokens(question.instructions)
    other_tokens = _estimate_tokens(question.task, str(question.schema), *(material.literal for material in question.materials))
    minimum = price.cache_minimum if price is not None else None
    cached_tokens = prefix_tokens if minimum is not None and prefix_tokens >= minimum else 0
    usage = Usage(
        input_tokens=other_tokens + prefix_tokens - cached_tokens,
        output_tokens=min(EXPECTED_OUTPUT.get(question.purpose, question.max_tokens), question.max_tokens),
        cache_read_tokens=cached_tokens if cached else 0,
        cache_write_tokens=0 if cached else cached_tokens,
    )
    return Estimate(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        nano=price.cost(usage, batched=batched) if price is not None else None,
    )


def _estimate_tokens(*texts: str) -> int:
    """Return the number of tokens, rounded up."""
    return -(-sum(len(text) for text in texts) // CHARACTERS_PER_TOKEN)
