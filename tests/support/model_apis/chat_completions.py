"""A stand-in for a paid model: a server on loopback that speaks the OpenAI Chat Completions API and plays a script.

It plays what `support.model_apis.messages` plays, and finds the play and its step as that does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from support.model_apis.messages import CHARACTERS_PER_TOKEN, Json, Play, PlayedApi, Provider, Step, serving

RELEASE = "-2026-03-05"
"""What a model's name in an answer has beyond that in the request: answers name the release."""
_CREATED = 1_790_000_000


@contextmanager
def stand_in(plays: Mapping[str, Play] | None = None) -> Iterator[Provider]:
    """Yield a stand-in; `url` is the base URL of a client."""
    with serving(ChatCompletions, plays, "/v1") as provider:
        yield provider


class ChatCompletions(PlayedApi):
    """The OpenAI Chat Completions API."""

    def play(self, request: Json) -> None:
        """Answer a completion request, as a stream if requested."""
        if not self.path.endswith("/chat/completions"):
            self.answer(404, {"error": {"message": self.path}})
            return
        step, fails = self.provider.step_for(request)
        if fails:
            self.answer(step.status, {"error": {"type": "invalid_request_error", "code": "scripted", "message": "scripted"}})
        elif request.get("stream"):
            self.begin_stream()
            for chunk in _chunks(request, _completion(self.provider, request, step)):
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.answer(200, _completion(self.provider, request, step))


def _completion(provider: Provider, request: Json, step: Step) -> Json:
    calls = [
        {
            "id": provider.next_id("call"),
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(call.given(request))},
        }
        for call in step.calls
    ]
    message: Json = {"role": "assistant", "content": step.text or None, "refusal": None}
    message |= {"tool_calls": calls} if calls else {}
    # OpenAI keeps its reasoning to itself here; the servers of open models send it under this name.
    message |= {"reasoning_content": step.thinking} if step.thinking else {}
    return {
        "id": provider.next_id("chatcmpl"),
        "object": "chat.completion",
        "created": _CREATED,
        "model": request["model"] + RELEASE,
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": step.stop or ("tool_calls" if calls else "stop"),
            }
        ],
        "usage": _usage(request, step),
    }


def _usage(request: Json, step: Step) -> Json:
    """Return the usage of a cached conversation: all tokens before the last message are read from the cache."""
    sizes = [len(json.dumps(request.get("tools", []))), *(len(json.dumps(message)) for message in request["messages"])]
    prompt = sum(sizes) // CHARACTERS_PER_TOKEN
    cached = sum(sizes[:-1]) // CHARACTERS_PER_TOKEN if len(sizes) > 3 else 0
    if step.input_tokens is not None:
        prompt, cached = step.input_tokens, step.cached_tokens
    output_tokens = step.output_tokens or len(step.text) // CHARACTERS_PER_TOKEN + 1
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output_tokens,
        "total_tokens": prompt + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": len(step.thinking) // CHARACTERS_PER_TOKEN},
    }


def _chunks(request: Json, completion: Json) -> Iterator[Json]:
    """Yield the chunks of a streamed completion: the text in two pieces, the name of a call before its arguments."""
    shared = {name: completion[name] for name in ("id", "created", "model", "service_tier")}
    shared["object"] = "chat.completion.chunk"
    (choice,) = completion["choices"]
    for delta in _deltas(choice["message"]):
        yield shared | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield shared | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if (request.get("stream_options") or {}).get("include_usage"):
        yield shared | {"choices": [], "usage": completion["usage"]}


def _deltas(message: Json) -> Iterator[Json]:
    yield {"role": "assistant", "content": "", "refusal": None}
    if "reasoning_content" in message:
        yield {"reasoning_content": message["reasoning_content"]}
    text = message["content"] or ""
    half = len(text) // 2
    yield from ({"content": piece} for piece in (text[:half], text[half:]) if piece)
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield {"tool_calls": [{"index": index, **call, "function": function | {"arguments": ""}}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}
