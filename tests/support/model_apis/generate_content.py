"""A stand-in for a paid model: Gemini's `generateContent`, which plays what `support.model_apis.messages` plays."""

from __future__ import annotations

import json

from support.model_apis.messages import Json, PlayedApi, Provider, Step


class GenerateContent(PlayedApi):
    """The Gemini API."""

    def play(self, request: Json) -> None:
        """Answer a content request, as a stream if requested."""
        model, _, method = self.path.partition("?")[0].rpartition("/")[2].partition(":")
        if method not in {"generateContent", "streamGenerateContent"}:
            self.answer(404, {"error": {"code": 404, "message": self.path, "status": "NOT_FOUND"}})
            return
        step, fails = self.provider.step_for(request | {"messages": [_message(content) for content in request["contents"]]})
        if fails:
            self.answer(step.status, {"error": {"code": step.status, "message": "scripted", "status": "INVALID_ARGUMENT"}})
        elif method == "streamGenerateContent":
            self.begin_stream()
            self.wfile.write(f"data: {json.dumps(_content(self.provider, request, step, model))}\n\n".encode())
        else:
            self.answer(200, _content(self.provider, request, step, model))


def _message(content: Json) -> Json:
    """Return a content as a message in the form of the scripts."""
    role = "assistant" if content.get("role") == "model" else "user"
    return {"role": role, "content": [{"type": "text", "text": part["text"]} for part in content["parts"] if "text" in part]}


def _content(provider: Provider, request: Json, step: Step, model: str) -> Json:
    parts: list[Json] = [{"text": step.text}] if step.text else []
    parts += [
        {"functionCall": {"id": provider.next_id("call"), "name": call.tool, "args": call.given(request)}}
        for call in step.calls
    ]
    input_tokens, output_tokens = step.input_tokens or 0, step.output_tokens or 0
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": input_tokens,
            "candidatesTokenCount": output_tokens,
            "totalTokenCount": input_tokens + output_tokens,
            "cachedContentTokenCount": step.cached_tokens,
        },
        "modelVersion": model,
        "responseId": provider.next_id("resp"),
    }
