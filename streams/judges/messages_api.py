"""The Messages API, which Anthropic's models and servers that imitate them speak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic

from audit.cost import Usage
from schemas.errors import SettingsError
from streams.judges.failures import ClientErrors, Failure, classify_error, one_line, unreadable
from streams.judges.http_client import ClientOptions, check_address, check_key, open_http_client
from streams.judges.model_api import JudgeRequest, Message, RawResponse, clean_name, usage_of
from streams.judges.protocol import DEFAULT_BASE_URL

_SETTING = "ANTHROPIC_BASE_URL"
_ENDINGS = ("/v1/messages", "/v1")
ERRORS = ClientErrors(APIStatusError, APIConnectionError)


def open_client(api_key: str | None, base_url: str | None, options: ClientOptions) -> AsyncAnthropic:
    """Return a client that neither retries nor follows redirects: each text is sent once, to the configured address.

    Raises SettingsError if the key or the address is invalid. Only the API itself needs a key.
    """
    url = check_address(base_url or DEFAULT_BASE_URL, options.setting or _SETTING, _ENDINGS)
    if api_key is None and url.host.endswith("anthropic.com"):
        hint = "Set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, or ANTHROPIC_BASE_URL for a server that imitates the API."
        raise SettingsError("there is no key for the judge's API", hint=hint)
    http = open_http_client(url, options)
    # The texts must go to the judge alone, so tracing stays off even if the environment enables it.
    return AsyncAnthropic(
        api_key=check_key(api_key),
        base_url=str(url),
        timeout=http.timeout,
        max_retries=0,
        http_client=http,
        open_telemetry=False,
    )


class MessagesApi:
    """The Messages API as a `streams.judges.model_api.ModelApi`."""

    caches_unmarked = False

    def __init__(self, client: AsyncAnthropic) -> None:
        self.base_url = str(client.base_url)
        self._client = client

    async def call(self, request: JudgeRequest, max_tokens: int) -> RawResponse:
        """Ask the model."""
        parameters = message_parameters(request) | {"max_tokens": max_tokens}
        response = await self._client.messages.with_raw_response.create(**parameters)
        return RawResponse(response.headers, response.http_response.content)

    async def count_tokens(self, request: JudgeRequest) -> int | None:
        """Return the tokens of a request's prompt, which costs nothing."""
        parameters = {name: value for name, value in message_parameters(request).items() if name != "max_tokens"}
        return (await self._client.messages.count_tokens(**parameters)).input_tokens

    def read(self, content: bytes) -> Message | Failure:
        """Return the message in a response."""
        return read_message(content)

    def classify(self, error: Exception, wall: Callable[[], float]) -> Failure:
        """Return the failure for an error of the client."""
        return classify_error(error, ERRORS, secret=self._client.api_key or "", wall=wall)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()


def message_parameters(request: JudgeRequest) -> dict[str, Any]:
    """Return the parameters of `messages.create`."""
    system: dict[str, Any] = {"type": "text", "text": request.instructions}
    if request.marks_cache:
        system["cache_control"] = {"type": "ephemeral"}
    parameters: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "system": [system],
        "messages": [{"role": turn.role, "content": turn.text} for turn in request.turns],
    }
    if request.schema is not None:
        parameters["output_config"] = {"format": {"type": "json_schema", "schema": request.schema}}
    if request.traits.switch_off_thinking:
        parameters["thinking"] = {"type": "disabled"}
    return parameters


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    content: list[_Block] | None
    model: str | None = None
    stop_reason: str | None = None
    usage: Any = None


_DECODER = msgspec.json.Decoder(_Body)


def read_message(content: bytes) -> Message | Failure:
    """Return the message in a response's body, or a failure if it cannot be read. That call was billed, so it is not retried."""
    try:
        body = _DECODER.decode(content)
        blocks = [_read_block(block) for block in body.content or ()]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return unreadable(one_line(str(error)))
    texts = [text for text in blocks if text is not None]
    return Message(
        "".join(texts) if texts else None, clean_name(body.model), clean_name(body.stop_reason), _read_usage(body.usage)
    )


def _read_block(block: _Block) -> str | None:
    if block.type == "tool_use":
        return bytes(block.input).decode() or None
    return block.text if block.type == "text" else None


def _read_usage(value: Any) -> Usage | None:
    """Return the token counts, or None if one is invalid. Only the counts of the cache may be missing or null."""
    if not isinstance(value, dict):
        return None
    return usage_of(
        value.get("input_tokens"),
        value.get("output_tokens"),
        value.get("cache_creation_input_tokens") or 0,
        value.get("cache_read_input_tokens") or 0,
    )
