"""The Messages API in this process, which counts and bills tokens with a given tokenizer."""

import json
from collections.abc import Callable

import httpx2

from audit.fingerprints import canonical_json
from driftline_trial.simulator.answers import simulated_answer
from driftline_trial.simulator.requests import ParsedRequest, Problem, read_countable, read_request

Tokenizer = Callable[[str], int]
TOKENIZERS: dict[str, Tokenizer] = {
    "four characters a token": lambda text: -(-len(text) // 4),
    "one byte a token": lambda text: len(text.encode()),
    # Roughly today's tokenizers: few tokens for common scripts, many for others.
    "by script": lambda text: (
        sum(1 if one.isalnum() or one.isspace() else 4 for one in text if one.isascii()) // 4
        + sum(len(one.encode()) for one in text if not one.isascii()) // 2
        + 1
    ),
}
"""The functions that count the tokens of a text, by the name of the tokenizer."""


class CountingApi(httpx2.AsyncBaseTransport):
    """Answers like the simulated judge and bills texts by a tokenizer, an answer up to its limit."""

    def __init__(self, tokens: Tokenizer, *, counts: bool = True) -> None:
        self._tokens = tokens
        self._counts = counts
        self.counted = 0
        """How often tokens were counted."""
        self.asked: list[ParsedRequest] = []
        """The requests for a message."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Count or answer."""
        body = await request.aread()
        is_count = request.url.path.endswith("/count_tokens")
        parsed = (read_countable if is_count else read_request)(dict(request.headers), body)
        if isinstance(parsed, Problem) or (is_count and not self._counts):
            return httpx2.Response(404, json={"type": "error", "error": {"type": "not_found_error", "message": "no"}})
        texts = [canonical_json(parsed.structured or {}), *(block.text for block in parsed.blocks)]
        prompt = sum(map(self._tokens, texts))
        if is_count:
            self.counted += 1
            return httpx2.Response(200, json={"input_tokens": prompt})
        self.asked.append(parsed)
        answer = json.dumps(simulated_answer(parsed.schema or {}, parsed.materials, model=parsed.model))
        usage = {"input_tokens": prompt, "output_tokens": min(self._tokens(answer), parsed.max_tokens)}
        content = [{"type": "text", "text": answer}]
        body_of = {"type": "message", "role": "assistant", "model": parsed.model, "content": content}
        return httpx2.Response(200, json=body_of | {"stop_reason": "end_turn", "usage": usage})
