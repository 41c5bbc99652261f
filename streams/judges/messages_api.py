"""The Messages API, which Anthropic's models and servers that imitate them speak, also in the forms of Bedrock and Vertex AI.

A cloud's client signs each request with credentials that it finds as the cloud's own tools do, in the environment, in a profile or from the
machine. What goes wrong before a request is sent costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import httpx2
import msgspec
from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex

from audit.cost import Usage
from schemas.errors import SettingsError
from streams.judges.failures import ClientErrors, Failure, classify_error, one_line, unreadable
from streams.judges.http_client import ClientOptions, check_address, check_key, open_http_client
from streams.judges.model_api import JudgeRequest, Message, RawResponse, clean_name, usage_of
from streams.judges.protocol import DEFAULT_BASE_URL

_SETTING = "ANTHROPIC_BASE_URL"
_ENDINGS = ("/v1/messages", "/v1")
ERRORS = ClientErrors(APIStatusError, APIConnectionError)
_SIGNING_PACKAGES = frozenset(["boto3", "botocore", "google", "requests"])
"""The packages that find a cloud's credentials and sign with them."""


def open_client(api_key: str | None, base_url: str | None, options: ClientOptions) -> AsyncAnthropic:
    """Return a client that neither retries nor follows redirects: each text is sent once, to the configured address.

    Raises SettingsError if the key or the address is invalid. Only the API itself needs a key.
    """
    url = check_address(base_url or DEFAULT_BASE_URL, options.setting or _SETTING, _ENDINGS)
    if api_key is None and url.host.endswith("anthropic.com"):
        hint = "Set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, or ANTHROPIC_BASE_URL for a server that imitates the API."
        raise SettingsError("there is no key for the judge's API", hint=hint)
    return AsyncAnthropic(api_key=check_key(api_key), **_client_parameters(url, options))


def open_bedrock_client(api_key: str | None, base_url: str | None, options: ClientOptions) -> AsyncAnthropicBedrock:
    """Return such a client of Amazon Bedrock, with a key of Bedrock or else the credentials of AWS. Raises SettingsError."""
    _check_extra("boto3", "bedrock")
    if options.region is None and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        raise SettingsError(
            "there is no region for Bedrock", hint="Set region: in the judge's entry of the policy, or AWS_REGION."
        )
    key = None if api_key is None else check_key(api_key)
    return AsyncAnthropicBedrock(
        api_key=key, aws_region=options.region, **_client_parameters(_check_url(base_url, options), options)
    )


def open_vertex_client(api_key: str | None, base_url: str | None, options: ClientOptions) -> AsyncAnthropicVertex:
    """Return such a client of Vertex AI, with an access token or else the credentials of Google Cloud. Raises SettingsError."""
    _check_extra("google.auth", "vertex")
    region = options.region or os.environ.get("CLOUD_ML_REGION")
    project = options.cloud_project or os.environ.get("ANTHROPIC_VERTEX_PROJECT_ID")
    if not region or not project:
        missing, variable = ("region", "CLOUD_ML_REGION") if not region else ("cloudProject", "ANTHROPIC_VERTEX_PROJECT_ID")
        hint = f"Set {missing}: in the judge's entry of the policy, or {variable}."
        raise SettingsError(f"there is no {missing} for Vertex AI", hint=hint)
    token = None if api_key is None else check_key(api_key)
    parameters = _client_parameters(_check_url(base_url, options), options)
    return AsyncAnthropicVertex(access_token=token, region=region, project_id=project, **parameters)


def _check_extra(module: str, extra: str) -> None:
    try:
        missing = find_spec(module) is None
    except ModuleNotFoundError:  # a parent of the module is missing
        missing = True
    if missing:
        hint = f"Install it: pip install 'driftline[{extra}]'."
        raise SettingsError(f"api: {extra} needs the extra {extra} of Driftline, which is not installed", hint=hint)


def _check_url(base_url: str | None, options: ClientOptions) -> httpx2.URL | None:
    return None if base_url is None else check_address(base_url, options.setting or "baseUrl", ())


def _client_parameters(url: httpx2.URL | None, options: ClientOptions) -> dict[str, Any]:
    """Return the parameters of every client; without a URL, a cloud's client asks the address of its region."""
    http = open_http_client(url, options)
    # The texts must go to the judge alone, so tracing stays off even if the environment enables it.
    return {
        "base_url": None if url is None else str(url),
        "timeout": http.timeout,
        "max_retries": 0,
        "http_client": http,
        "open_telemetry": False,
    }


class MessagesApi:
    """The Messages API as a `streams.judges.model_api.ModelApi`."""

    caches_unmarked = False

    def __init__(self, client: AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex) -> None:
        self.base_url = str(client.base_url)
        self._client = client
        self._secret = (client.access_token if isinstance(client, AsyncAnthropicVertex) else client.api_key) or ""

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
        if not isinstance(self._client, AsyncAnthropic) and _is_of_signing(error):
            is_retryable = getattr(error, "retryable", False) is True
            return Failure(error=f"no credentials: {one_line(str(error))}", billed=False, is_retryable=is_retryable)
        return classify_error(error, ERRORS, secret=self._secret, wall=wall)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()


def _is_of_signing(error: Exception) -> bool:
    """Return whether a cloud's client failed to sign a request. Its own errors about credentials are RuntimeErrors."""
    return isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] in _SIGNING_PACKAGES


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
