"""Tables of the attribute names that instrumentors use. In each table, the first name that a span has takes precedence.

Sources: OpenTelemetry's semantic conventions for generative AI with the renames of their migration page and the events of versions 1.26
to 1.36, OpenInference's `semantic_conventions.md`, OpenLLMetry's `semconv_ai`, Langfuse's OTel ingestion, Pydantic AI's and Logfire's
instrumentation, the telemetry of Vercel's AI SDK, and the source code of Google's ADK, MLflow, LiveKit, Genkit, Pipecat, Sentry, Azure AI
Inference, OpenLIT, Mastra, Strands, Haystack, Semantic Kernel, Koog and Claude Code for their own names. `tests/otlp/captures` has requests that
some of them sent. The attributes that give the kind of a span are in `kinds`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Shape = Literal["json", "flat", "text", "tasks"]


class MessageAttribute(NamedTuple):
    """An attribute with messages: as JSON, flattened into attributes with this prefix, as one text, or as CrewAI's tasks."""

    name: str
    shape: Shape


OUTPUT = "output.value"
"""Attribute with the whole output. For a request to a model, it may include the response id."""
REQUEST_MESSAGES = (
    MessageAttribute("llm.input_messages", "flat"),
    MessageAttribute("gen_ai.input.messages", "json"),
    MessageAttribute("gen_ai.prompt", "flat"),
    MessageAttribute("gen_ai.prompt", "json"),
    MessageAttribute("ai.prompt.messages", "json"),
    MessageAttribute("ai.prompt", "json"),
    MessageAttribute("gen_ai.request.messages", "json"),
    MessageAttribute("gcp.vertex.agent.llm_request", "json"),
    MessageAttribute("mlflow.spanInputs", "json"),
    MessageAttribute("genkit:input", "json"),
    MessageAttribute("lk.pii.chat_ctx", "json"),
    MessageAttribute("lk.chat_ctx", "json"),
    MessageAttribute("lk.pii.user_input", "text"),
    MessageAttribute("lk.user_input", "text"),
    MessageAttribute("mastra.agent_run.input", "json"),
    MessageAttribute("mastra.model_generation.input", "json"),
    MessageAttribute("mastra.workflow_run.input", "json"),
    MessageAttribute("haystack.agent.input", "json"),
    MessageAttribute("haystack.agent.step.llm.input", "json"),
    MessageAttribute("haystack.component.input", "json"),
    MessageAttribute("langfuse.observation.input", "json"),
    MessageAttribute("langfuse.trace.input", "json"),
    MessageAttribute("traceloop.entity.input", "json"),
    MessageAttribute("prompt", "text"),
    MessageAttribute("input.value", "json"),
    MessageAttribute("input", "json"),
    MessageAttribute("crew_tasks", "tasks"),
    MessageAttribute("crewai.crew.tasks", "tasks"),
)
"""Attributes with sent messages. OpenInference's come first, because they have more content than the OpenTelemetry attributes beside them."""
RESPONSE_MESSAGES = (
    MessageAttribute("llm.output_messages", "flat"),
    MessageAttribute("gen_ai.output.messages", "json"),
    MessageAttribute("gen_ai.completion", "flat"),
    MessageAttribute("gen_ai.completion", "json"),
    MessageAttribute("ai.response.text", "text"),
    MessageAttribute("gen_ai.response.text", "json"),
    MessageAttribute("gcp.vertex.agent.llm_response", "json"),
    MessageAttribute("mlflow.spanOutputs", "json"),
    MessageAttribute("genkit:output", "json"),
    MessageAttribute("lk.pii.response.text", "text"),
    MessageAttribute("lk.response.text", "text"),
    MessageAttribute("mastra.agent_run.output", "json"),
    MessageAttribute("mastra.model_generation.output", "json"),
    MessageAttribute("mastra.workflow_run.output", "json"),
    MessageAttribute("haystack.agent.output", "json"),
    MessageAttribute("haystack.agent.step.llm.output", "json"),
    MessageAttribute("haystack.component.output", "json"),
    MessageAttribute("langfuse.observation.output", "json"),
    MessageAttribute("langfuse.trace.output", "json"),
    MessageAttribute("final_result", "json"),
    MessageAttribute("crewai.crew.result", "text"),
    MessageAttribute("traceloop.entity.output", "json"),
    MessageAttribute(OUTPUT, "json"),
    MessageAttribute("output", "json"),
)
"""Attributes with returned messages."""
CONVERSATIONS = ("pydantic_ai.all_messages", "all_messages_events", "events")
"""Attributes with a whole conversation, sent and returned messages included."""
TOOL_CALLS = (
    "ai.response.toolCalls",
    "gen_ai.response.tool_calls",
    "lk.pii.response.function_calls",
    "lk.response.function_calls",
)
"""Attributes with tool calls that are not part of the message."""
TOOL_DEFINITIONS = ("gen_ai.tool.definitions", "ai.prompt.tools")
"""Attributes with a list of the tools that a model may call."""
TOOL_DEFINITION = "llm.tools.{}.tool.json_schema"
"""Attribute with one of these tools, by number from 0."""
REASONING = ("ai.response.reasoning",)
"""Attributes with reasoning that is not part of the message."""
SESSION = (
    "langfuse.session.id",
    "session.id",
    "gen_ai.conversation.id",
    "ai.telemetry.metadata.sessionId",
    "traceloop.association.properties.session_id",
    "ai.settings.context.sessionId",
    "langsmith.metadata.thread_id",
    "langsmith.metadata.session_id",
    "langsmith.metadata.conversation_id",
    "traceloop.association.properties.thread_id",
    "gcp.vertex.agent.session_id",
    "mlflow.trace.session",
    "genkit:sessionId",
    "genkit:metadata:sessionId",
    "conversation.id",
    "mastra.metadata.sessionId",
    "mastra.metadata.threadId",
)
AGENT = (
    "gen_ai.agent.name",
    "agent.name",
    "agent_name",
    "ai.telemetry.functionId",
    "langsmith.metadata.lc_agent_name",
    "traceloop.association.properties.lc_agent_name",
    "lk.agent_name",
)
ANSWER_TOOLS = frozenset({"final_answer"})
"""Tools that a model calls to give its answer, as smolagents requires."""
AGENT_OF_ENTITY, AGENT_NODE = "traceloop.entity.name", "graph.node.id"
"""Attributes that name the agent if the span is an agent."""
METADATA = "metadata"
"""An object, or JSON text, with a framework's own names."""
METADATA_SESSION = ("thread_id", "session_id", "conversation_id")
METADATA_AGENT = ("lc_agent_name",)
"""Agent names within METADATA."""
MODEL = (
    "gen_ai.response.model",
    "ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "llm.request.model_name",
    "langfuse.observation.model.name",
    "ai.model.id",
    "mlflow.llm.model",
)
MODEL_OF_REQUEST = "genkit:name"
"""Attribute that names the model if the span is a request."""
RESPONSE_ID = ("gen_ai.response.id", "ai.response.id")


Included = Literal["included", "beside"]


class TokenConvention(NamedTuple):
    """The token counts of a convention: their names, in order of preference, and what they include.

    `container` is an attribute with an object that has the counts at dotted paths. Without a container, the names are attributes. `cache_is`
    tells whether the input count includes cache reads and writes, `reasoning_is` whether the output count includes reasoning. `parts` are
    prefixes of the names of other counts of input and output in the container, such as `input_audio`.
    """

    dialect: str
    cache_is: Included
    reasoning_is: Included
    input: tuple[str, ...]
    output: tuple[str, ...]
    cache_read: tuple[str, ...] = ()
    cache_write: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    container: str | None = None
    parts: tuple[str, str] | None = None


def _openai(dialect: str, container: str) -> TokenConvention:
    return TokenConvention(
        dialect,
        container=container,
        cache_is="included",
        reasoning_is="included",
        input=("prompt_tokens", "input_tokens", "promptTokens"),
        output=("completion_tokens", "output_tokens", "completionTokens"),
        cache_read=("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens"),
        reasoning=("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens"),
        total=("total_tokens", "totalTokens", "total"),
    )


def _anthropic(dialect: str, container: str, within: str = "") -> TokenConvention:
    return TokenConvention(
        dialect,
        container=container,
        cache_is="beside",
        reasoning_is="included",
        input=(f"{within}input_tokens",),
        output=(f"{within}output_tokens",),
        cache_read=(f"{within}cache_read_input_tokens",),
        cache_write=(f"{within}cache_creation_input_tokens",),
        total=(f"{within}total_tokens", f"{within}total"),
    )


TOKEN_CONVENTIONS = (
    TokenConvention(
        "otel",
        cache_is="included",
        reasoning_is="included",
        input=("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens"),
        output=("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens"),
        cache_read=(
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_read_input_tokens",
            "gen_ai.usage.details.cache_read_tokens",
            "gen_ai.usage.details.cache_read_input_tokens",
            "gen_ai.usage.cache_read_tokens",
            "gen_ai.usage.input_tokens.cached",
            "gen_ai.usage.input_cached_tokens",
        ),
        cache_write=(
            "gen_ai.usage.cache_write.input_tokens",
            "gen_ai.usage.cache_creation.input_tokens",
            "gen_ai.usage.cache_creation_input_tokens",
            "gen_ai.usage.cache_write_input_tokens",
            "gen_ai.usage.details.cache_write_tokens",
            "gen_ai.usage.details.cache_creation_input_tokens",
            "gen_ai.usage.cache_write_tokens",
            "gen_ai.usage.input_tokens.cache_write",
        ),
        reasoning=(
            "gen_ai.usage.reasoning.output_tokens",
            "gen_ai.usage.reasoning_tokens",
            "gen_ai.usage.details.reasoning_tokens",
            "gen_ai.usage.output_tokens.reasoning",
        ),
        total=("gen_ai.usage.total_tokens", "llm.usage.total_tokens"),
    ),
    TokenConvention(
        "openinference",
        cache_is="included",
        reasoning_is="included",
        input=("llm.token_count.prompt",),
        output=("llm.token_count.completion",),
        cache_read=("llm.token_count.prompt_details.cache_read",),
        cache_write=("llm.token_count.prompt_details.cache_write",),
        reasoning=("llm.token_count.completion_details.reasoning",),
        total=("llm.token_count.total",),
    ),
    _anthropic("vercel", "ai.response.providerMetadata", within="anthropic.usage."),
    TokenConvention(
        "vercel",
        cache_is="included",
        reasoning_is="included",
        input=("ai.usage.inputTokens", "ai.usage.promptTokens"),
        output=("ai.usage.outputTokens", "ai.usage.completionTokens"),
        cache_read=("ai.usage.inputTokenDetails.cacheReadTokens", "ai.usage.cachedInputTokens"),
        cache_write=("ai.usage.inputTokenDetails.cacheWriteTokens",),
        reasoning=("ai.usage.outputTokenDetails.reasoningTokens", "ai.usage.reasoningTokens"),
        total=("ai.usage.totalTokens",),
    ),
    TokenConvention(
        "langfuse",
        container="langfuse.observation.usage_details",
        cache_is="beside",
        reasoning_is="beside",
        input=("input",),
        output=("output",),
        cache_read=("input_cached_tokens", "input_cache_read", "cache_read_input_tokens"),
        cache_write=(
            "input_cache_creation",
            "input_cache_creation_5m",
            "input_cache_creation_1h",
            "input_ephemeral_5m_input_tokens",
            "input_ephemeral_1h_input_tokens",
            "input_cache_write",
            "cache_creation_input_tokens",
        ),
        reasoning=("output_reasoning", "output_reasoning_tokens"),
        total=("total",),
        parts=("input_", "output_"),
    ),
    _openai("langfuse", "langfuse.observation.usage_details"),
    _anthropic("langfuse", "langfuse.observation.usage_details"),
    TokenConvention(
        "langsmith",
        container="langsmith.metadata.usage_metadata",
        cache_is="included",
        reasoning_is="included",
        input=("input_tokens",),
        output=("output_tokens",),
        cache_read=("input_token_details.cache_read",),
        cache_write=("input_token_details.cache_creation",),
        reasoning=("output_token_details.reasoning",),
        total=("total_tokens",),
    ),
    _openai("mlflow", "mlflow.chat.tokenUsage"),
    _anthropic("mlflow", "mlflow.chat.tokenUsage"),
    TokenConvention(
        "adk",
        container="gcp.vertex.agent.llm_response",
        cache_is="included",
        reasoning_is="beside",
        input=("usage_metadata.prompt_token_count",),
        output=("usage_metadata.candidates_token_count",),
        cache_read=("usage_metadata.cached_content_token_count",),
        reasoning=("usage_metadata.thoughts_token_count",),
        total=("usage_metadata.total_token_count",),
    ),
    TokenConvention(
        "haystack",
        container="haystack.agent.step.llm.output",
        cache_is="included",
        reasoning_is="included",
        input=("replies.0.meta.usage.prompt_tokens",),
        output=("replies.0.meta.usage.completion_tokens",),
        cache_read=("replies.0.meta.usage.prompt_tokens_details.cached_tokens",),
        reasoning=("replies.0.meta.usage.completion_tokens_details.reasoning_tokens",),
        total=("replies.0.meta.usage.total_tokens",),
    ),
    TokenConvention(
        "genkit",
        container="genkit:output",
        cache_is="included",
        reasoning_is="beside",
        input=("usage.inputTokens",),
        output=("usage.outputTokens",),
        cache_read=("usage.cachedContentTokens",),
        reasoning=("usage.thoughtsTokens",),
        total=("usage.totalTokens",),
    ),
    TokenConvention(
        "claude-code",
        cache_is="beside",
        reasoning_is="included",
        input=("input_tokens",),
        output=("output_tokens",),
        cache_read=("cache_read_tokens",),
        cache_write=("cache_creation_tokens",),
    ),
)
"""The token counts of all conventions. If a span has several, the one with the most counts is read; in case of a tie, the first in this table."""
USAGE_OBJECT = "usage"
PROVIDER_TOKEN_CONVENTIONS = (
    _openai("openai", USAGE_OBJECT),
    _anthropic("anthropic", USAGE_OBJECT),
    TokenConvention(
        "gemini",
        container=USAGE_OBJECT,
        cache_is="included",
        reasoning_is="beside",
        input=("promptTokenCount", "prompt_token_count"),
        output=("candidatesTokenCount", "candidates_token_count"),
        cache_read=("cachedContentTokenCount", "cached_content_token_count"),
        reasoning=("thoughtsTokenCount", "thoughts_token_count"),
        total=("totalTokenCount", "total_token_count"),
    ),
)
"""The token counts in the `usage` objects of providers' responses."""
STOP_REASON = (
    "gen_ai.response.finish_reasons",
    "llm.finish_reason",
    "ai.response.finishReason",
    "gen_ai.response.finish_reason",
    "gen_ai.completion.0.finish_reason",
    "langfuse.observation.metadata.finish_reason",
    "anthropic.message.stop_reason",
)
TOOL = (
    "gen_ai.tool.name",
    "tool.name",
    "ai.toolCall.name",
    "lk.function_tool.name",
    "haystack.tool.name",
    "traceloop.entity.name",
    "genkit:name",
    "tool_name",
)
TOOL_CALL_ID = (
    "gen_ai.tool.call.id",
    "gen_ai.tool.call_id",
    "tool_call.id",
    "tool.id",
    "ai.toolCall.id",
    "lk.function_tool.id",
    "tool_use_id",
)
ARGUMENTS = (
    "input.value",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.input",
    "gcp.vertex.agent.tool_call_args",
    "lk.pii.function_tool.arguments",
    "lk.function_tool.arguments",
    "haystack.agent.step.tool.input",
    "mlflow.spanInputs",
    "genkit:input",
    "tool_arguments",
    "ai.toolCall.args",
    "ai.toolCall.input",
    "tool_call.function.arguments",
    "traceloop.entity.input",
    "langfuse.observation.input",
    "gen_ai.prompt",
    "full_command",
)
"""Attributes with the arguments of a tool. OpenInference's comes first, because the OpenTelemetry attribute may hold their schema instead."""
RESULT = (
    "gen_ai.tool.call.result",
    "gen_ai.tool.output",
    "gcp.vertex.agent.tool_response",
    "lk.pii.function_tool.output",
    "lk.function_tool.output",
    "haystack.agent.step.tool.output",
    "mlflow.spanOutputs",
    "genkit:output",
    "tool_response",
    "ai.toolCall.result",
    "ai.toolCall.output",
    "traceloop.entity.output",
    "langfuse.observation.output",
    OUTPUT,
    "gen_ai.completion",
)
JSON_ENCODED = (
    *("traceloop.entity.output", "langfuse.observation.metadata.finish_reason"),
    *("mlflow.spanInputs", "mlflow.spanOutputs", "mlflow.llm.model", "mlflow.trace.session", "genkit:input", "genkit:output"),
)
"""Attributes whose texts are JSON-encoded, quotes included."""
ELIDED = dict.fromkeys(
    (
        "gcp.vertex.agent.llm_request",
        "gcp.vertex.agent.llm_response",
        "gcp.vertex.agent.tool_call_args",
        "gcp.vertex.agent.tool_response",
    ),
    "{}",
)
"""Placeholders for withheld content, by attribute."""
SCRUBBED_PREFIX = "[Scrubbed due to "
"""Start of Logfire's placeholder for a value that looks like a secret, which may be a session id."""
FRAMEWORK_AGENT_NAMES = frozenset(
    {
        *("LangGraph", "RunnableSequence", "AgentExecutor", "ClaudeAgentSDK.query", "ClaudeAgentSDK.ClaudeSDKClient"),
        *("CodeAgent", "ToolCallingAgent", "MultiStepAgent", "AssistantAgent", "ReAct", "ReActAgent", "FunctionAgent"),
        *("registrar", "Agent", "agent"),
    }
)
"""Names of agent spans that frameworks choose, so that they do not name the agent."""
AGENT_METHODS = frozenset(
    {
        *(
            "run",
            "arun",
            "_run",
            "run_async",
            "run_stream",
            "invoke",
            "ainvoke",
            "stream",
            "astream",
            "call",
            "acall",
            "__call__",
        ),
        *("forward", "aforward", "kickoff", "kickoff_async", "execute", "aexecute", "_execute_core", "execute_task"),
        *("on_messages", "on_messages_stream", "chat", "achat", "query", "step", "generate"),
    }
)
"""Methods that instrumentors append to an agent's name."""
AGENT_NAMING_DIALECTS = frozenset({"openinference", "langfuse"})
"""Dialects in which the agent's name is the span's name, often without an attribute."""
SERVER_ATTRIBUTES = frozenset(
    {"http.request.method", "http.method", "http.route", "rpc.method", "messaging.system", "faas.trigger", "faas.invocation_id"}
)
"""Attributes of spans that handle a server call or a queue message."""
COMPACTED = "gen_ai.conversation.compacted"
SERVICE = "service.name"
SERVICE_VERSION = "service.version"
AGENT_VERSION = "agent_version"
"""Label with the version of an agent."""
FRAMEWORK_TRACERS = frozenset({"strands.telemetry.tracer", "strands-agents"})
"""Scopes of a framework that always reports its own version as the version of the service."""
FRAMEWORK_SDK = ("telemetry.sdk.name", "@mastra/")
"""Resource attribute, and prefix of its value, of an SDK that always reports the version of its framework as the version of the service."""
FRAMEWORK_SCOPE = "agent_framework"
"""Scope of a framework that reports its own version as the version of the service, unless it is configured otherwise."""
ENVIRONMENT = "langfuse.environment"
EVALUATION_ENVIRONMENTS = ("langfuse", "sdk-experiment")
"""Prefixes of the environments in which Langfuse runs evaluators, experiments and assistants. Agents cannot use them."""
ERROR = ("error.type", "exception.type")
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
"""Event whose attributes complete those of its span."""
MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.choice": "choice",
    "gen_ai.prompt": "user",
    "gen_ai.content.prompt": "user",
    "gen_ai.content.completion": "choice",
}
"""Role by the name of a message event. `choice` is a returned message. The last two names are from versions 1.26 and 1.27."""
EVENT_CONTENT = ("gen_ai.event.content", "gen_ai.prompt", "gen_ai.completion", "body")
"""Attributes with the whole message of a message event, for events without an attribute per field.

SDKs without event bodies, such as Koog's, write it into `body`.
"""
TOOL_ARGUMENTS_EVENTS = (("gen_ai.tool.message", "content"),)
TOOL_RESULT_EVENTS = (("gen_ai.choice", "message"), ("tool.output", "output"))
"""Events of Strands and Claude Code with the result of a tool, and the field that has it. TOOL_ARGUMENTS_EVENTS are those with the arguments."""
EVALUATION_EVENT = "gen_ai.evaluation.result"
