"""The dialects: what each program is run with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from support.model_apis import chat_completions, responses
from support.model_apis import messages as provider
from support.model_apis.messages import Play, Provider

from otlp.capturing.plays import plays
from otlp.capturing.programs import scenario

StandIn = Callable[[Mapping[str, Play]], AbstractContextManager[Provider]]
GENAI_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Switches content on in OpenTelemetry's own instrumentations; older versions know `true`, newer ones where it goes."""
LATEST = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental", GENAI_CONTENT: "SPAN_AND_EVENT"}


@dataclass(frozen=True)
class Dialect:
    """A way in which an SDK reports a conversation.

    Its program is that of `programs`, its environment that of `requirements`, both under the dialect's name unless named here.
    """

    name: str
    stand_in: StandIn
    program: str = ""
    requirements: str = ""
    tool_prefix: str = ""
    conversation: Callable[[str], Mapping[str, Play]] = plays
    has_content: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)


def _table(*dialects: Dialect) -> Mapping[str, Dialect]:
    return {dialect.name: dialect for dialect in dialects}


def _again(of: Dialect, name: str, settings: Mapping[str, str]) -> Dialect:
    """The same program in the same environment, set otherwise."""
    return replace(of, name=name, program=of.name, requirements=of.name, settings=settings)


_OPENAI_V2 = Dialect("openai_v2", chat_completions.stand_in, settings={GENAI_CONTENT: "true"})
_GENAI_OPENAI = Dialect("genai_openai", responses.stand_in, settings=LATEST)
_OPENINFERENCE = Dialect("openinference_openai", chat_completions.stand_in)
_OPENINFERENCE_ANTHROPIC = Dialect("openinference_anthropic", provider.stand_in)
_LIMITS = {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "32", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "100"}
_LANGSMITH = {
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_TRACING_MODE": "otel",
    "LANGSMITH_API_KEY": "not-a-key",
    "LANGCHAIN_REVISION_ID": scenario.VERSION,
}

DIALECTS = _table(
    _OPENAI_V2,
    _again(_OPENAI_V2, "openai_v2_latest", LATEST),
    _GENAI_OPENAI,
    replace(_again(_GENAI_OPENAI, "genai_openai_without_content", {}), has_content=False),
    Dialect("genai_openai_agents", responses.stand_in, settings=LATEST),
    _OPENINFERENCE,
    _again(_OPENINFERENCE, "openinference_openai_limited", _LIMITS),
    Dialect("openinference_langchain", chat_completions.stand_in),
    Dialect("openinference_openai_agents", responses.stand_in),
    _OPENINFERENCE_ANTHROPIC,
    _again(_OPENINFERENCE_ANTHROPIC, "openinference_anthropic_genai", {"OPENINFERENCE_ENABLE_GENAI_SEMCONV": "true"}),
    Dialect("openinference_claude_agent_sdk", provider.stand_in, tool_prefix="mcp__weather__"),
    Dialect("pydantic_ai", chat_completions.stand_in),
    Dialect("openllmetry", chat_completions.stand_in),
    Dialect("openllmetry_legacy", chat_completions.stand_in, program="openllmetry"),
    Dialect("langfuse", chat_completions.stand_in),
    Dialect("logfire", chat_completions.stand_in),
    Dialect("langsmith", chat_completions.stand_in, requirements="openinference_langchain", settings=_LANGSMITH),
    Dialect("vercel_ai", responses.stand_in),
    Dialect("vercel_ai_6", responses.stand_in, program="vercel_ai"),
)
