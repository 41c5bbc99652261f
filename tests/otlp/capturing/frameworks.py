"""The frameworks: how each program of `programs.frameworks` is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from support.model_apis import any_api
from support.model_apis.messages import Play

from otlp.capturing.capture import CAPTURES
from otlp.capturing.dialects import Dialect
from otlp.capturing.plays import of_dspy, of_numbers
from otlp.capturing.programs import numbers

FRAMEWORK_CAPTURES = CAPTURES / "frameworks"
RESOURCE = {
    "OTEL_SERVICE_NAME": "numbers-service",
    "OTEL_RESOURCE_ATTRIBUTES": f"service.version={numbers.VERSION},deployment.environment.name=staging",
}
OPT_IN = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
"""Has a framework follow the newest conventions, its texts in spans."""


def _framework(
    name: str,
    program: str = "",
    requirements: str = "",
    conversation: Callable[[str], Mapping[str, Play]] = of_numbers,
    **settings: str,
) -> Dialect:
    return Dialect(
        name,
        any_api.stand_in,
        program=f"frameworks.{program or name}",
        requirements=requirements or program or name,
        conversation=conversation,
        settings=RESOURCE | settings,
    )


FRAMEWORKS: Mapping[str, Dialect] = {
    framework.name: framework
    for framework in (
        _framework("google_adk"),
        _framework("google_adk_opt_in", "google_adk", **OPT_IN),
        _framework("google_adk_schema_1", "google_adk", ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN="1"),
        _framework("google_adk_1", "google_adk", "google_adk_1"),
        _framework("google_adk_openinference", requirements="google_adk"),
        _framework("strands"),
        _framework("strands_opt_in", "strands", **OPT_IN),
        _framework("smolagents", conversation=partial(of_numbers, final_tool="final_answer")),
        _framework("autogen"),
        _framework("dspy", conversation=lambda _: of_dspy()),
        _framework("llama_index"),
        _framework("haystack_openinference", requirements="haystack"),
        _framework("haystack_own", requirements="haystack"),
        _framework("crewai"),
        _framework("crewai_openai", requirements="crewai"),
        _framework("crewai_openllmetry"),
        _framework("langgraph_openinference", requirements="langgraph"),
        _framework("langgraph_openllmetry", requirements="langgraph"),
        _framework("langgraph_both", requirements="langgraph"),
        _framework("langgraph_langfuse"),
        _framework("openai_agents_responses", requirements="openai_agents"),
        _framework("openai_agents_chat", requirements="openai_agents"),
        _framework("openai_agents_openllmetry", requirements="openai_agents"),
        _framework("agno"),
        _framework("agent_framework", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"),
        _framework("litellm", OTEL_EXPORTER="otlp_http"),
        _framework("mastra"),
        _framework("pydantic_ai"),
        _framework("vercel_ai"),
        _framework("vercel_ai_6", "vercel_ai", "vercel_ai_6"),
        _framework("openllmetry"),
        _framework("genkit"),
        _framework("semantic_kernel", SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE="true"),
        _framework("livekit"),
    )
}
