"""Chat Completions and the Responses API, which OpenAI, Azure, Gemini, OpenRouter, Ollama, vLLM and many others speak.

1. Chat Completions is what most servers speak; the Responses API also counts tokens.
2. These APIs cache prefixes without being asked. Tokens read from the cache are part of the prompt's count, so they are subtracted.
3. The limit on the answer has two names in Chat Completions. OpenAI's own models accept the newer one, most local servers know the older
   one. A server that refuses one of them is asked with the other.
4. Stop reasons become those of the Messages API. A refusal has a field of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, BadRequestError

from audit.cost import Usage
from schemas.errors import SettingsError
from streams.judges.failures import ClientErrors, Failure, classify_error, one_line, unreadable
from streams.judges.http_client import ClientOptions, check_address, check_key, open_http_client
from streams.judges.model_api import JudgeRequest, Message, RawResponse, clean_name, usage_of

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_SETTING = "baseUrl"
_ENDINGS = ("/chat/completions", "/responses")
ERRORS = ClientErrors(APIStatusError, APIConnectionError)
_SCHEMA_NAME = "answer"
_NEW_LIMIT, _OLD_LIMIT = "max_completion_tokens", "max_tokens"
_NEW_LIMIT_HOSTS = re.compile(r"(?:^|\.)(?:openai\.com|azure\.com)$")
_REFUSAL, _MAX_TOKENS_REACHED, _END = "refusal", "max_tokens", "end_turn"
_STOP_REASONS = {
    "stop": _END,
    "completed": _END,
    "length": _MAX_TOKENS_REACHED,
    "max_output_tokens": _MAX_TOKENS_REACHED,
    "content_filter": _REFUSAL,
}
"""The stop reasons of the Messages API for those of these APIs; others are kept as they are."""


def open_client(api_key: str | None, base_url: str | None, options: ClientOptions) -> AsyncOpenAI:
    """Return a client that neither retries nor follows redirects: each text is sent once, to the configured address.

    Raises SettingsError if the key or the address is invalid. A server that is not the API itself may need no key.
    """
    url = check_address(base_url or DEFAULT_BASE_URL, options.setting or _SETTING, _ENDINGS)
    if api_key is None and url.host.endswith("openai.com"):
        raise SettingsError("there is no key for the judge's API", hint="Name its variable as keyEnv, and set that variable.")
    http = open_http_client(url, options)
    return AsyncOpenAI(
        api_key=check_key(api_key),
        base_url=str(url),
        timeout=http.timeout,
        max_retries=0,
        http_client=http,
        # Variables of the environment must not change where the texts go, or on whose account.
        organization="",
        project="",
    )


class _OpenAIApi:
    """What both APIs share."""

    caches_unmarked = True

    def __init__(self, client: AsyncOpenAI) -> None:
        self.base_url = str(client.base_url)
        self._client = client

    def classify(self, error: Exception, wall: Callable[[], float]) -> Failure:
        """Return the failure for an error of the client."""
        return classify_error(error, ERRORS, secret=self._client.api_key, wall=wall)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()


class ChatApi(_OpenAIApi):
    """Chat Completions as a `streams.judges.model_api.ModelApi`."""

    def __init__(self, client: AsyncOpenAI) -> None:
        super().__init__(client)
        self._limit_name = limit_name(client.base_url.host)

    async def call(self, request: JudgeRequest, max_tokens: int) -> RawResponse:
        """Ask the model."""
        limit = self._limit_name
        try:
            return await self._create(request, {limit: max_tokens})
        except BadRequestError as error:
            if not _names_limit(error):
                raise
        # Concurrent calls may be refused together, so the other name is that of this call, not of the last one.
        self._limit_name = _OLD_LIMIT if limit == _NEW_LIMIT else _NEW_LIMIT
        return await self._create(request, {self._limit_name: max_tokens})

    async def _create(self, request: JudgeRequest, limit: dict[str, int]) -> RawResponse:
        parameters = chat_parameters(request) | limit
        response = await self._client.chat.completions.with_raw_response.create(**parameters)
        return RawResponse(response.headers, response.http_response.content)

    async def count_tokens(self, request: JudgeRequest) -> int | None:
        """Return None: this API does not count tokens."""
        del request
        return None

    def read(self, content: bytes) -> Message | Failure:
        """Return the message in a chat completion."""
        return read_chat_completion(content)


class ResponsesApi(_OpenAIApi):
    """The Responses API as a `streams.judges.model_api.ModelApi`."""

    async def call(self, request: JudgeRequest, max_tokens: int) -> RawResponse:
        """Ask the model. The provider is told to keep neither the texts nor the answer."""
        response = await self._client.responses.with_raw_response.create(
            **response_parameters(request), max_output_tokens=max_tokens, store=False
        )
        return RawResponse(response.headers, response.http_response.content)

    async def count_tokens(self, request: JudgeRequest) -> int | None:
        """Return the tokens of a request's prompt."""
        return (await self._client.responses.input_tokens.count(**response_parameters(request))).input_tokens

    def read(self, content: bytes) -> Message | Failure:
        """Return the message in a response."""
        return read_response(content)


def limit_name(host: str) -> str:
    """Return the name of the limit on the answer in Chat Completions that a host most likely accepts."""
    return _NEW_LIMIT if _NEW_LIMIT_HOSTS.search(host) else _OLD_LIMIT


def chat_parameters(request: JudgeRequest) -> dict[str, Any]:
    """Return the parameters of `chat.completions.create`, except the limit on the answer."""
    turns = [{"role": turn.role, "content": turn.text} for turn in request.turns]
    parameters: dict[str, Any] = {
        "model": request.model,
        "messages": [{"role": "system", "content": request.instructions}, *turns],
    }
    if request.schema is not None:
        schema = {"name": _SCHEMA_NAME, "strict": True, "schema": request.schema}
        parameters["response_format"] = {"type": "json_schema", "json_schema": schema}
    if (effort := _effort(request)) is not None:
        parameters["reasoning_effort"] = effort
    return parameters


def response_parameters(request: JudgeRequest) -> dict[str, Any]:
    """Return the parameters of `responses.create`, except the limit on the answer."""
    parameters: dict[str, Any] = {
        "model": request.model,
        "instructions": request.instructions,
        "input": [{"role": turn.role, "content": turn.text} for turn in request.turns],
    }
    if request.schema is not None:
        schema = {"type": "json_schema", "name": _SCHEMA_NAME, "strict": True, "schema": request.schema}
        parameters["text"] = {"format": schema}
    if (effort := _effort(request)) is not None:
        parameters["reasoning"] = {"effort": effort}
    return parameters


def _effort(request: JudgeRequest) -> str | None:
    traits = request.traits
    return "none" if traits.effort is None and traits.switch_off_thinking else traits.effort


def _names_limit(error: BadRequestError) -> bool:
    """Return whether a server refuses the name of the limit on the answer, and not its size."""
    message = error.message
    return (_NEW_LIMIT in message or _OLD_LIMIT in message) and (
        "nsupported" in message or "nknown" in message or "nrecognized" in message
    )


class _Function(msgspec.Struct):
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function = msgspec.field(default_factory=_Function)


class _ChatMessage(msgspec.Struct):
    content: Any = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _ChatMessage
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: Any = None


_COMPLETION = msgspec.json.Decoder(_Completion)


def read_chat_completion(content: bytes) -> Message | Failure:
    """Return the message in a chat completion, or a failure if it cannot be read."""
    try:
        body = _COMPLETION.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return unreadable(one_line(str(error)))
    if not body.choices:
        return unreadable("there are no choices")
    choice = body.choices[0]
    message = choice.message
    text = _join_parts(message.content)
    if text is None and message.tool_calls:
        text = message.tool_calls[0].function.arguments
    stop_reason = _STOP_REASONS.get(choice.finish_reason or "", choice.finish_reason)
    if message.refusal:
        text, stop_reason = message.refusal, _REFUSAL
    return Message(text, clean_name(body.model), clean_name(stop_reason), _read_chat_usage(body.usage))


def _join_parts(content: Any) -> str | None:
    """Return the text of a message's content, which some servers send as a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "".join(texts) if texts else None


def _read_chat_usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    return _split_usage(value.get("prompt_tokens"), value.get("completion_tokens"), value.get("prompt_tokens_details"))


def _split_usage(prompt_tokens: Any, output_tokens: Any, details: Any) -> Usage | None:
    """Return the usage, with the cached tokens apart from the others; None if a count is invalid."""
    details = details if isinstance(details, Mapping) else {}
    read = details.get("cached_tokens") or 0
    written = details.get("cache_write_tokens") or 0
    if any(type(count) is not int for count in (prompt_tokens, read, written)):
        return None
    return usage_of(prompt_tokens - read - written, output_tokens, written, read)


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None
    arguments: str | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    output: list[_Item]
    status: str | None = None
    model: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: Any = None


_RESPONSE = msgspec.json.Decoder(_Response)


def read_response(content: bytes) -> Message | Failure:
    """Return the message in a response of the Responses API, or a failure if it cannot be read."""
    try:
        body = _RESPONSE.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return unreadable(one_line(str(error)))
    parts = [part for item in body.output if item.type == "message" for part in item.content or ()]
    texts = [part.text for part in parts if part.type == "output_text" and part.text is not None]
    texts = texts or [item.arguments for item in body.output if item.type == "function_call" and item.arguments is not None]
    refusals = [part.refusal for part in parts if part.refusal]
    reason = body.incomplete_details.reason if body.incomplete_details else body.status
    stop_reason = _STOP_REASONS.get(reason or "", reason)
    if refusals:
        texts, stop_reason = refusals, _REFUSAL
    text = "".join(texts) if texts else None
    return Message(text, clean_name(body.model), clean_name(stop_reason), _read_response_usage(body.usage))


def _read_response_usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    return _split_usage(value.get("input_tokens"), value.get("output_tokens"), value.get("input_tokens_details"))
