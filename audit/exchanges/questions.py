"""Messages between the cascade and the judge: a question, and the reply to it.

The cascade does no I/O. It yields a `Question`; a live worker answers it with an API call, a replay with what was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from unicodedata import is_normalized, normalize

import msgspec

from audit.exchanges.outcomes import TierState
from schemas.records import Judgement


def byte_tokens(text: str) -> int:
    """Most tokens that a text can have: no token is shorter than a byte of UTF-8.

    Some tokenizers normalise first, which makes one character into up to eighteen, so the longer of both forms counts.
    """
    forms = (text,) if is_normalized("NFKC", text) else (text, normalize("NFKC", text))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


@lru_cache(256)
def _instructions_size(instructions: str) -> int:
    return byte_tokens(instructions)


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
            return "".join(one.literal for one in self.materials)
        fenced = [f"<{one.name} {boundary}>\n{one.literal}\n</{one.name} {boundary}>" for one in self.materials]
        return "\n\n".join([*fenced, self.task])

    @property
    def least_tokens(self) -> int:
        """Fewest tokens with which the answer is asked for."""
        return self.max_tokens if self.short_answer is None else self.short_answer

    @property
    def texts_size(self) -> int:
        """Most tokens of everything of the request that depends on the question; see `byte_tokens`."""
        schema = byte_tokens(json.dumps(self.schema)) if self.schema_size is None else self.schema_size
        texts = (self.task, *(one.literal for one in self.materials))
        return _instructions_size(self.instructions) + schema + sum(map(byte_tokens, texts))


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a question: the text of an answer, or the state its tier is in without one."""

    text: str | None = None
    state: TierState | None = None
    """The reason for having no answer; None when there is one."""
    judgements: tuple[Judgement, ...] = ()
    """The records it rests on, in order; those of calls that failed are there, too, because they may have cost something."""
