"""Conventions: the names under which instrumentors put what Driftline reads, as tables. First names win.

Sources: OpenTelemetry's semantic conventions for generative AI with the renames of their migration page, OpenInference's
`semantic_conventions.md`, OpenLLMetry's `semconv_ai`, Langfuse's OTel ingestion, Pydantic AI's and Logfire's instrumentation, and the
telemetry of Vercel's AI SDK; `tests/otlp/captures` has what each of them really sent. What says the kind of a span is in `kinds`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Shape = Literal["json", "flat", "text"]


class Place(NamedTuple):
    """An attribute that holds messages: as JSON, flat over many attributes that begin with the name, or as one text."""

    name: str
    shape: Shape


OUTPUT = "output.value"
"""What came back, whole; of a request to a model perhaps with the id of the answer."""
SENT = (
    Place("llm.input_messages", "flat"),
    Place("gen_ai.input.messages", "json"),
    Place("gen_ai.prompt", "flat"),
    Place("gen_ai.prompt", "json"),
    Place("ai.prompt.messages", "json"),
    Place("ai.prompt", "json"),
    Place("langfuse.observation.input", "json"),
    Place("langfuse.trace.input", "json"),
    Place("traceloop.entity.input", "json"),
    Place("prompt", "text"),
    Place("input.value", "json"),
)
"""Places of the messages that were sent. OpenInference's have more than those of OpenTelemetry that it writes beside them."""
CAME = (
    Place("llm.output_messages", "flat"),
    Place("gen_ai.output.messages", "json"),
    Place("gen_ai.completion", "flat"),
    Place("gen_ai.completion", "json"),
    Place("ai.response.text", "text"),
    Place("langfuse.observation.output", "json"),
    Place("langfuse.trace.output", "json"),
    Place("final_result", "json"),
    Place("traceloop.entity.output", "json"),
    Place(OUTPUT, "json"),
)
"""Places of what came back."""
WHOLE = ("pydantic_ai.all_messages", "all_messages_events", "events")
"""Places of a conversation with both: messages of the model among and after those of the user."""
CALLED = ("ai.response.toolCalls",)
"""Places of a list of tool calls that stands beside the message."""
THOUGHT = ("ai.response.reasoning",)
"""Places of a text of reasoning that stands beside the message."""
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
)
AGENT = (
    "gen_ai.agent.name",
    "agent.name",
    "agent_name",
    "ai.telemetry.functionId",
    "langsmith.metadata.lc_agent_name",
    "traceloop.association.properties.lc_agent_name",
)
AGENT_OF_ENTITY, AGENT_NODE = "traceloop.entity.name", "graph.node.id"
"""They name the agent where the span is one."""
METADATA = "metadata"
"""An object, or a text of JSON, with names that a framework passes on."""
METADATA_SESSION = ("thread_id", "session_id", "conversation_id")
METADATA_AGENT = ("lc_agent_name",)
"""Names within METADATA."""
MODEL = (
    "gen_ai.response.model",
    "ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "llm.request.model_name",
    "langfuse.observation.model.name",
    "ai.model.id",
)
RESPONSE_ID = ("gen_ai.response.id", "ai.response.id")
READ = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "ai.usage.promptTokens",
    "ai.usage.inputTokens",
)
WRITTEN = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "ai.usage.completionTokens",
    "ai.usage.outputTokens",
)
CACHE_READ = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.details.cache_read_tokens",
    "llm.token_count.prompt_details.cache_read",
    "ai.usage.cachedInputTokens",
)
CACHE_WRITTEN = (
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "gen_ai.usage.details.cache_write_tokens",
    "llm.token_count.prompt_details.cache_write",
)
USAGE_DETAILS = "langfuse.observation.usage_details"
DETAILS_READ = ("input", "prompt_tokens", "input_tokens")
DETAILS_WRITTEN = ("output", "completion_tokens", "output_tokens")
DETAILS_CACHE_READ = ("cache_read_input_tokens", "input_cached_tokens", "prompt_tokens_details.cached_tokens")
DETAILS_CACHE_WRITTEN = ("cache_creation_input_tokens",)
"""Names within USAGE_DETAILS, which are those of the providers; a point leads into an object."""
STOP = (
    "gen_ai.response.finish_reasons",
    "llm.finish_reason",
    "ai.response.finishReason",
    "gen_ai.completion.0.finish_reason",
    "langfuse.observation.metadata.finish_reason",
    "anthropic.message.stop_reason",
)
TOOL = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "lk.function_tool.name", "traceloop.entity.name")
TOOL_CALL_ID = (
    "gen_ai.tool.call.id",
    "gen_ai.tool.call_id",
    "tool_call.id",
    "tool.id",
    "ai.toolCall.id",
    "lk.function_tool.id",
)
ARGUMENTS = (
    "input.value",
    "gen_ai.tool.call.arguments",
    "tool_arguments",
    "ai.toolCall.args",
    "ai.toolCall.input",
    "tool_call.function.arguments",
    "traceloop.entity.input",
    "langfuse.observation.input",
    "gen_ai.prompt",
)
"""OpenInference's name comes first: beside it, OpenTelemetry's may hold the schema of the arguments."""
RESULT = (
    "gen_ai.tool.call.result",
    "tool_response",
    "ai.toolCall.result",
    "ai.toolCall.output",
    "traceloop.entity.output",
    "langfuse.observation.output",
    OUTPUT,
    "gen_ai.completion",
)
QUOTED = ("traceloop.entity.output", "langfuse.observation.metadata.finish_reason")
"""Texts that are written as JSON, quotes and escapes included."""
SCRUBBED = "[Scrubbed due to "
"""The beginning of what Logfire puts in the place of a value that it takes for a secret: it may be a session's id."""
NAMELESS = frozenset(
    {
        *("LangGraph", "RunnableSequence", "AgentExecutor", "ClaudeAgentSDK.query", "ClaudeAgentSDK.ClaudeSDKClient"),
        *("CodeAgent", "ToolCallingAgent", "MultiStepAgent", "AssistantAgent", "ReAct", "ReActAgent", "FunctionAgent"),
        *("registrar", "Agent", "agent"),
    }
)
"""Names of an agent's span that are a framework's, and so no agent's."""
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
"""Methods of agents that instrumentors write after the agent's name."""
NAMING = frozenset({"openinference", "langfuse"})
"""Dialects in which an agent's span has the agent's name, and often no attribute has."""
COMPACTED = "gen_ai.conversation.compacted"
SERVICE = "service.name"
ERROR = ("error.type", "exception.type")
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
"""An event whose attributes are those of its span."""
MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.choice": "choice",
}
"""Events that are one message each."""
EVALUATION_EVENT = "gen_ai.evaluation.result"
