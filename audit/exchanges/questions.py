"""Messages between the cascade and the judge: a question, the reply to it, and the judgements recorded of it.

The cascade does no I/O. It yields a `Question`; a live worker answers it with an API call, a replay with what was recorded. Recorded
judgements passed to a function here are all of one question (one fingerprint, so one exchange), except in `with_earlier`, which
takes everything that was recorded of the request's subject.
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
from schemas.bounds import MAX_ADMITTED_BYTES
from schemas.codec.single_object import encode
from schemas.records import EvaluationRequest, Judgement, JudgingRequest

ANSWERED = "answered"
"""Outcome of a judgement that answers its question."""
INTERRUPTED = "interrupted"
"""Outcome of a call whose process ended before the answer was recorded: it is paid for, and says nothing."""
COST_CAP = TierState(SKIPPED_COST_CAP, "cost_cap")
"""The state of a tier when the session's cap leaves no room for the call."""
UNKNOWN_PRICE = TierState(UNSCORED, "unknown_price")
"""The state of a tier under a cap if the model has no known price."""
_LENGTHS = 10
"""Bytes that an array takes beside its items, and each item beside its own bytes, at most."""
_Request = TypeVar("_Request", EvaluationRequest, JudgingRequest)

CHARACTERS_A_TOKEN = 4
"""Characters of English text that make a token, about. Other languages, code and newer models' tokens are shorter."""
EXPECTED_OUTPUT = {"tier2": 250, "tier2_5": 150, "tier3": 350, "evaluation": 900}
"""Tokens of a usual answer, by purpose: a score, a quote and a sentence for each dimension."""


def byte_tokens(text: str) -> int:
    """Most tokens that a text can have: no token is shorter than a byte of UTF-8.

    Some tokenizers normalise first, which makes one character into up to eighteen, so the longer of both forms counts.
    """
    forms = (text,) if is_normalized("NFKC", text) else (text, normalize("NFKC", text))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


class Material(msgspec.Struct, frozen=True):
    """A text of the audited exchange, ready to be shown to the judge."""

    name: str
    """The kind of text: user_message, agent_response or agent_thinking."""
    literal: str
    """The text as a JSON string, in which no mark of the prompt can be written; a cut is shown inside."""


class Invalid(msgspec.Struct, frozen=True):
    """An answer that cannot be used, and every reason in words that the judge can act on."""

    problems: tuple[str, ...]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question for the judge."""

    purpose: str
    """tier2, tier2_5, tier3 or evaluation."""
    model: str
    """Model to ask."""
    instructions: str
    """The stable start of the prompt: the same for every exchange that is asked this with one methodology."""
    materials: tuple[Material, ...]
    """The texts to be judged: data, whatever they say."""
    task: str
    """The instructions for the materials; they come after them. Empty for a question that is asked verbatim."""
    schema: Mapping[str, Any]
    """JSON schema of the answer."""
    max_tokens: int
    """Most tokens the answer may have."""
    short_answer: int | None = None
    """Fewest tokens with which it is asked for where the cap leaves no room for more; None: it always gets `max_tokens`."""
    fingerprint: str
    """Digest of all of the above and of whose exchange it is: it names the question, whatever the boundary."""
    read: Callable[[str], Any]
    """The answer's text as a checked value, or `Invalid`."""
    fallback: TierState | None = None
    """The state of the tier where no judge can be asked any more and no answer was recorded. None: the judge may be asked."""
    schema_size: int | None = None
    """Most tokens of the schema, where that is known already; see `byte_tokens`."""
    verbatim: bool = False
    """True if the one material is the message as sent: it fences its texts itself, and the instructions state the schema."""

    def content(self, boundary: str) -> str:
        """The materials, each fenced by marks that carry the boundary, and the task; of a verbatim question the material itself.

        The boundary is drawn for each request, so no author of a text can have known it.
        """
        if self.verbatim:
            return "".join(material.literal for material in self.materials)
        fenced = [
            f"<{material.name} {boundary}>\n{material.literal}\n</{material.name} {boundary}>" for material in self.materials
        ]
        return "\n\n".join([*fenced, self.task])

    @property
    def least_tokens(self) -> int:
        """Fewest tokens with which the answer is asked for."""
        return self.max_tokens if self.short_answer is None else self.short_answer

    @property
    def texts_size(self) -> int:
        """Most tokens of everything of the request that depends on the question; see `byte_tokens`."""
        schema = byte_tokens(json.dumps(self.schema)) if self.schema_size is None else self.schema_size
        texts = (self.task, *(material.literal for material in self.materials))
        return _instructions_size(self.instructions) + schema + sum(map(byte_tokens, texts))


@lru_cache(256)
def _instructions_size(instructions: str) -> int:
    return byte_tokens(instructions)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a question: the text of an answer, or the state its tier is in without one."""

    text: str | None = None
    state: TierState | None = None
    """The reason for having no answer; None when there is one."""
    judgements: tuple[Judgement, ...] = ()
    """The records it rests on, in order; those of calls that failed are there, too, because they may have cost something."""


def outcome_state(outcome: str) -> TierState:
    """The state of a tier whose question came to this outcome and has no answer."""
    return COST_CAP if outcome == COST_CAP.reason else TierState(UNSCORED, outcome)


def recorded_reply(records: Sequence[Judgement], revision: int) -> Reply | None:
    """Return the recorded reply to a question, for this revision of the score; None where the judge is to be asked.

    Later revisions are out of sight, so a replay finds the same reply as the first time. An answer counts whichever revision
    it was given to: the same question is not paid for twice. A failure counts for its own revision only: a new revision asks
    again. The reply rests on everything in sight, because everything in sight was paid for.
    """
    visible = _up_to_revision(records, revision)
    answer = next((record for record in visible if record.outcome == ANSWERED), None)
    if answer is not None:
        return Reply(text=answer.answer or "", judgements=visible)
    failures = [record for record in visible if record.subject_revision == revision and record.outcome != INTERRUPTED]
    return Reply(state=outcome_state(failures[-1].outcome), judgements=visible) if failures else None


def _up_to_revision(records: Iterable[Judgement], revision: int) -> tuple[Judgement, ...]:
    """Return the records that this revision may see, in an order that does not depend on how they came together."""
    visible = (judgement for judgement in records if judgement.subject_revision <= revision)
    return tuple(
        sorted(visible, key=lambda judgement: (judgement.subject_revision, judgement.judged_at, judgement.judgement_id))
    )


def charged(records: Iterable[Judgement], revision: int) -> int:
    """Nano-USD that a question has cost on behalf of this revision of the score.

    The revisions before it have been charged for what they asked, so nothing is charged twice. A call without a known price counts 0.
    """
    return sum(nano_of(record.cost_usd or 0) for record in records if record.subject_revision == revision)


def with_earlier(request: _Request, recorded: Sequence[Judgement]) -> _Request:
    """The request with what was recorded, in that order; the oldest failures are left out first where there is no room."""
    encoded = [encode(record) for record in recorded]
    room = MAX_ADMITTED_BYTES - len(encode(request)) - _LENGTHS
    kept_indexes = set()
    # Answers were paid for and still hold; of failures the newest say most.
    newest_first = range(len(recorded) - 1, -1, -1)
    for index in sorted(newest_first, key=lambda index: recorded[index].outcome != ANSWERED):
        room -= len(encoded[index]) + _LENGTHS
        if room < 0:
            break
        kept_indexes.add(index)
    return msgspec.structs.replace(request, earlier_judgements=tuple(encoded[index] for index in sorted(kept_indexes)))


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
    rest = _tokens(question.task, str(question.schema), *(material.literal for material in question.materials))
    minimum = price.cache_minimum if price is not None else None
    cached_tokens = prefix if minimum is not None and prefix >= minimum else 0
    usage = Usage(
        input_tokens=rest + prefix - cached_tokens,
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


def _tokens(*texts: str) -> int:
    return -(-sum(len(text) for text in texts) // CHARACTERS_A_TOKEN)
