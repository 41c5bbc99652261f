"""Emulated prompt caching: the tokens that a request would write to and read from the provider's cache.

A mark caches the whole prompt up to it, in the order system, messages, for one model and one answer schema. Below the model's minimum
nothing is cached, without any notice. Entries do not expire here.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

from audit.cost import price_of
from audit.fingerprints import canonical_json
from driftline_trial.simulator.answers import simulated_usage, tokens_of
from driftline_trial.simulator.requests import ParsedRequest

OTHER_MINIMUM = 1024
"""Smallest cached prefix, in tokens, of a model for which it is not known."""
MAX_ENTRIES = 10_000


class PrefixCache:
    """The newest prefixes that were seen, so that memory is bounded."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def tokens(self, parsed: ParsedRequest) -> int:
        """Count the tokens of the request's prompt."""
        return tokens_of(_texts(parsed))

    def usage(self, parsed: ParsedRequest, answer: str) -> dict[str, Any]:
        """Return the usage of the request with this answer as the API reports it, and cache its prefixes."""
        schema, *_ = texts = _texts(parsed)
        total = simulated_usage(texts, answer)
        cached_tokens = marked_tokens = 0
        ttl = "5m"
        for tokens, key, marked_ttl in self._prefixes(parsed, schema):
            if key in self._seen:
                cached_tokens = tokens
            marked_tokens, ttl = tokens, marked_ttl
            self._remember(key)
        written_tokens = marked_tokens - cached_tokens
        return {
            "input_tokens": total.input_tokens - marked_tokens,
            "cache_creation_input_tokens": written_tokens,
            "cache_read_input_tokens": cached_tokens,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written_tokens if ttl == "5m" else 0,
                "ephemeral_1h_input_tokens": written_tokens if ttl == "1h" else 0,
            },
            "output_tokens": min(total.output_tokens, parsed.max_tokens),
            "service_tier": "standard",
        }

    def _prefixes(self, parsed: ParsedRequest, schema: str) -> list[tuple[int, bytes, str]]:
        """Yield tokens, digest and time to live of every marked prefix that is long enough, the shortest first."""
        prefixes = []
        digest = hashlib.sha256(canonical_json([parsed.model, schema]).encode("utf-8", "surrogatepass"))
        texts = [schema]
        for block in parsed.blocks:
            texts.append(block.text)
            digest.update(canonical_json(block.text).encode("utf-8", "surrogatepass"))
            if block.ttl is not None and (tokens := tokens_of(texts)) >= minimum_of(parsed.model):
                prefixes.append((tokens, digest.digest(), block.ttl))
        return prefixes

    def _remember(self, key: bytes) -> None:
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_ENTRIES:
            self._seen.popitem(last=False)


def _texts(parsed: ParsedRequest) -> list[str]:
    """Yield everything that the model reads, the schema first."""
    schema = "" if parsed.structured is None else canonical_json(parsed.structured)
    return [schema, *(block.text for block in parsed.blocks)]


def minimum_of(model: str) -> int:
    """Return the smallest cached prefix of this model, in tokens."""
    price = price_of(model, {})
    return (price.cache_minimum if price else None) or OTHER_MINIMUM
