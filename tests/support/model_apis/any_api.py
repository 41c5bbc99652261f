"""A stand-in for the paid models of agent frameworks: one server that speaks four APIs, each under the path that its clients ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from support.model_apis.chat_completions import ChatCompletions
from support.model_apis.generate_content import GenerateContent
from support.model_apis.messages import Json, Messages, Play, PlayedApi, Provider, serving
from support.model_apis.responses import Responses

APIS: Mapping[str, type[PlayedApi]] = {
    "chat/completions": ChatCompletions,
    "responses": Responses,
    "messages": Messages,
    "generateContent": GenerateContent,
    "streamGenerateContent": GenerateContent,
}
"""The API of each end of a path."""


@contextmanager
def stand_in(plays: Mapping[str, Play] | None = None) -> Iterator[Provider]:
    """Yield a stand-in; `url` is the base URL of OpenAI's clients, and its parent is that of the others."""
    with serving(_AnyApi, plays, "/v1") as provider:
        provider.without_tools = None
        yield provider


class _AnyApi(ChatCompletions, Responses, Messages, GenerateContent):
    """Every API that the stand-in speaks."""

    def play(self, request: Json) -> None:
        """Answer as the API of the path does."""
        path = self.path.partition("?")[0]
        for end, api in APIS.items():
            if path.endswith(end):
                api.play(self, request)
                return
        self.answer(404, {"error": {"message": self.path}})
