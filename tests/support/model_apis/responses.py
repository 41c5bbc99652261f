"""A stand-in for a paid model, that of Codex for one: a server on loopback that speaks the OpenAI Responses API and plays a script.

It plays what `support.model_apis.messages` plays, and finds the play and its step as that does: by the text of the user's message, and by how
many answers of the model follow it in the request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support.model_apis.messages import CHARACTERS_PER_TOKEN, Play, PlayedApi, Provider, Step, serving

Json = dict[str, Any]

_BY_MODEL = frozenset({"function_call", "custom_tool_call", "local_shell_call", "reasoning"})
"""Items of a request that the model said, beside its messages."""


@contextmanager
def stand_in(plays: Mapping[str, Play] | None = None) -> Iterator[Provider]:
    """Yield a stand-in; `url` is the base URL of a model provider."""
    with serving(Responses, plays, "/v1") as provider:
        yield provider


class Responses(PlayedApi):
    """The OpenAI Responses API."""

    def play(self, request: Json) -> None:
        """Answer a response request, as a stream if requested, on any path under `/responses`."""
        if not self.path.partition("?")[0].endswith("/responses"):
            self.answer(404, {"error": {"message": self.path}})
            return
        if isinstance(request["input"], str):
            request["input"] = [{"role": "user", "content": request["input"]}]
        # A client may send what is new alone, and name the response that it goes on from.
        request["input"] = [*self.provider.histories.get(request.get("previous_response_id", ""), ()), *request["input"]]
        step, fails = self.provider.step_for(request | {"messages": _messages(request)})
        self.provider.pause(step)
        try:
            if fails:
                self.answer(step.status, {"error": {"type": "server_error", "code": "scripted", "message": "scripted"}})
            elif request.get("stream"):
                self.stream(_events(self.provider, request, step))
            else:
                self.answer(200, _completed(self.provider, request, step))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the run was stopped: that is what the script is about


def _messages(request: Json) -> list[Json]:
    """Return the request's items as messages in the form of the scripts; the model's items of one response are one message."""
    messages: list[Json] = []
    for item in request.get("input", []):
        is_model = item.get("type") in _BY_MODEL or item.get("role") == "assistant"
        if is_model:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            continue
        content = item.get("content")
        blocks = content if isinstance(content, list) else [{"text": content}] if content else []
        texts = [{"type": "text", "text": block["text"]} for block in blocks if "text" in block]
        messages.append({"role": "user", "content": texts})
    return messages


def _events(provider: Provider, request: Json, step: Step) -> Iterator[tuple[str, Json]]:
    """Yield the events of a streamed step."""
    completed = _completed(provider, request, step)
    yield "response.created", {"response": completed | {"status": "in_progress", "output": [], "usage": None}}
    for index, item in enumerate(completed["output"]):
        yield "response.output_item.added", {"output_index": index, "item": item | _UNSAID.get(item["type"], {})}
        if item["type"] == "message":
            text_fields = {"item_id": item["id"], "output_index": index, "content_index": 0, "delta": step.text}
            yield "response.output_text.delta", text_fields
        elif item["type"] == "function_call":
            item_fields = {"item_id": item["id"], "output_index": index}
            yield "response.function_call_arguments.delta", item_fields | {"delta": item["arguments"]}
            yield "response.function_call_arguments.done", item_fields | {"arguments": item["arguments"], "name": item["name"]}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield "response.completed", {"response": completed}


def _completed(provider: Provider, request: Json, step: Step) -> Json:
    """Return the complete response."""
    response_id, output = provider.next_id("resp"), list(_items(provider, request, step))
    provider.histories[response_id] = [*request["input"], *output]
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1_790_000_000,
        "model": request["model"],
        "status": "completed",
        "output": output,
        "usage": _usage(request, step),
        "instructions": request.get("instructions"),
        "tools": request.get("tools", []),
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }


_UNSAID: Mapping[str, Json] = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"summary": []}}


def _items(provider: Provider, request: Json, step: Step) -> Iterator[Json]:
    if step.thinking:
        summary = [{"type": "summary_text", "text": step.thinking}]
        yield {"type": "reasoning", "id": provider.next_id("rs"), "summary": summary, "encrypted_content": None}
    if step.text:
        content = [{"type": "output_text", "text": step.text, "annotations": []}]
        yield {"type": "message", "id": provider.next_id("msg"), "role": "assistant", "status": "completed", "content": content}
    for call in step.calls:
        namespace, _, name = call.tool.rpartition("/")
        yield {
            "type": "function_call",
            "id": provider.next_id("fc"),
            "call_id": provider.next_id("call"),
            **({"namespace": namespace} if namespace else {}),
            "name": name,
            "arguments": json.dumps(call.given(request)),
            "status": "completed",
        }


def _usage(request: Json, step: Step) -> Json:
    """Return the usage of a cached conversation: all tokens before the last item are read from the cache."""
    fixed = len(request.get("instructions") or "") + len(json.dumps(request.get("tools", [])))
    sizes = [len(json.dumps(item)) for item in request["input"]]
    input_tokens = (fixed + sum(sizes)) // CHARACTERS_PER_TOKEN + 1
    cached = (fixed + sum(sizes[:-1])) // CHARACTERS_PER_TOKEN if len(sizes) > 3 else 0
    if step.input_tokens is not None:
        input_tokens, cached = step.input_tokens, step.cached_tokens
    output_tokens = step.output_tokens or (len(step.text) + len(step.thinking)) // CHARACTERS_PER_TOKEN + 1
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": len(step.thinking) // CHARACTERS_PER_TOKEN},
        "total_tokens": input_tokens + output_tokens,
    }
