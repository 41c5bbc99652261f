"""Finds which attributes of the conventions a span has, and determines its kind from them.

1. The first attribute of `KINDS` whose value is in its table decides. Case and JSON quotes are ignored.
2. Every convention allows custom values, so an unknown value decides nothing. In order, the next attribute decides, then the name of a helper's
   task in the value, then the other attributes: a model and messages make a request, the name and the call of a tool make a tool, and the name
   of an agent makes an agent.
3. Any other span is `other`. The value that was not understood is kept, so that it can be counted.

The lookup of attributes is cached per set of names, because an instrumentor uses few sets. After the lookup, only the attributes that a span
has are read, instead of every name that some dialect uses.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from streams.sources.otlp import conventions
from streams.sources.otlp.conventions import MessageAttribute, TokenConvention
from streams.sources.otlp.span_facts import Kind

if TYPE_CHECKING:
    from streams.sources.otlp.received import ReceivedSpan


_MAX_UNKNOWN = 64
"""Characters kept of an unknown value."""
MERGED_TOOLS = "(merged tools)"
"""Tool name of a Google ADK span that repeats tool calls which ran in parallel."""
HELPER_STEMS = ("embed", "rerank", "moderation", "guardrail", "evaluat")
"""Word stems that identify a helper's task in any form: `aembedding`, `ai.rerank.doRerank`."""
TOOL_SIGNS = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "lk.function_tool.name", "haystack.tool.name", "tool_name")
AGENT_SIGNS = ("gen_ai.agent.name", "agent.name", "haystack.agent.max_steps")
REQUEST_SIGNS = ("gen_ai.request.model", "llm.request.type", "haystack.agent.step.llm.input")
HELPER_SIGNS = (
    *("gen_ai.embeddings.dimension.count", "embedding.model_name", "reranker.model_name", "reranker.query"),
    *("ai.embedding", "ai.embeddings"),
)
SIGN_ATTRIBUTES = (*TOOL_SIGNS, *AGENT_SIGNS, *REQUEST_SIGNS, *HELPER_SIGNS)
"""Attributes whose mere presence identifies the kind of a span."""
_HELPER_TASKS = frozenset(
    {"title", "titles", "titling", "guardrail", "guardrails", "moderation", "evaluator", "evaluation", "reranker", "embedding"}
)
_SUMMARY_ACTIONS = frozenset(
    {"summary", "summarize", "summarise", "summarizer", "summarization", "compact", "compaction", "compress"}
)
_HISTORY_NAMES = frozenset({"conversation", "chat", "history", "session", "thread", "memory", "context", "messages"})
_MEMORY_NAMES = frozenset({"memory", "memories"})
_MEMORY_ACTIONS = frozenset({"extract", "extraction", "update", "save", "store", "search", "add", "write", "consolidate"})
_HELPER_TASK_PAIRS = (
    (_SUMMARY_ACTIONS, _HISTORY_NAMES),
    (_MEMORY_NAMES, _MEMORY_ACTIONS),
    (frozenset({"follow", "followup"}), frozenset({"questions", "suggestions"})),
)
_split_words = re.compile(r"[A-Z]?[a-z]+|[A-Z]+").findall
CACHED_NAME_SETS = 1_024
"""Maximum number of sets of attribute names whose lookup is cached."""
MAX_CACHED_NAMES = 128
"""Maximum number of names in a cached set."""
MAX_CACHED_CHARACTERS = 8 * 1024
"""Maximum total length of the names in a cached set. The limits bound the cache, because a sender can invent any number of sets."""
Names = tuple[str, ...]
COUNT_FIELDS = ("input", "output", "cache_read", "cache_write", "reasoning", "total")
"""Fields of a TokenConvention that list the names of counts."""


class KindReading(NamedTuple):
    """The kind of a span, the dialect that determined it, and `attribute = value` if the value was not understood."""

    kind: Kind
    dialect: str
    unknown: str | None = None


def read_kind(received: ReceivedSpan, attributes: Mapping[str, Any], present: PresentAttributes) -> KindReading:
    """Return the kind of a span, by the rules of this module."""
    if received.is_log:
        return KindReading("log", "otel")
    if attributes.get("gen_ai.tool.name") == MERGED_TOOLS:
        return KindReading("other", "otel")
    first_dialect = ""
    unknown = ""
    is_other = False
    for name in present.kinds:
        value = str(attributes[name]).strip(' "')
        dialect, kinds = _BY_ATTRIBUTE[name]
        if received.scope == "pydantic-ai":
            dialect = "pydantic-ai"
        first_dialect = first_dialect or dialect
        kind = kinds.get(value.casefold())
        if kind == "other":
            is_other = True
        elif kind is not None:
            return KindReading(kind, dialect)
        elif value and not unknown:
            unknown = f"{name} = {value[:_MAX_UNKNOWN]}"
    if unknown and _names_helper_task(unknown.partition(" = ")[2]):
        return KindReading("helper", first_dialect)
    if is_other:
        kind = _find_kind_by_content(attributes, present)
    else:
        kind = _find_kind_by_signs(attributes, present, is_named=bool(unknown))
    if kind == "other":
        return KindReading(kind, first_dialect, unknown or None)
    return KindReading(kind, first_dialect or "otel")


def _names_helper_task(value: str) -> bool:
    lower = value.casefold()
    return any(stem in lower for stem in HELPER_STEMS) or names_helper(value)


def _find_kind_by_content(attributes: Mapping[str, Any], present: PresentAttributes) -> Kind:
    """Return `inference` if a model was called and answered, although the span names another kind, such as a prompt."""
    if not attributes.keys().isdisjoint(HELPER_SIGNS):
        return "helper"
    if present.model and present.request and present.response:
        return "inference"
    return "other"


def _find_kind_by_signs(attributes: Mapping[str, Any], present: PresentAttributes, *, is_named: bool) -> Kind:
    """Return the kind of a span by its other attributes. `is_named` is True if the span names a kind that is in no table."""
    names = attributes.keys()
    if not names.isdisjoint(HELPER_SIGNS):
        return "helper"
    has_call = present.tool_call_id or present.arguments or present.result
    if "gen_ai.tool.name" in names or (has_call and not names.isdisjoint(TOOL_SIGNS)):
        return "tool"
    has_conversation = present.request or present.response or present.token_conventions
    if not names.isdisjoint(REQUEST_SIGNS) or (has_conversation and present.model):
        return "inference"
    if not names.isdisjoint(AGENT_SIGNS) and (is_named or (present.request and present.response)):
        return "agent"
    return "other"


@functools.lru_cache(1_024)
def names_helper(name: str) -> bool:
    """Return whether a span is named after a task that serves the program, such as the title of a chat or a summary of its history.

    Users choose such names freely, and a summary may be what a user asked for. So the name only decides if other requests are named otherwise.
    """
    name_words = {word.lower() for word in _split_words(name)}
    if not name_words.isdisjoint(_HELPER_TASKS):
        return True
    return any(name_words & actions and name_words & objects for actions, objects in _HELPER_TASK_PAIRS)


class PresentAttributes(NamedTuple):
    """The attributes of each table in `conventions` that a span has, in the order of the table."""

    kinds: Names
    signs: Names
    json_encoded: Names
    request: tuple[MessageAttribute, ...]
    response: tuple[MessageAttribute, ...]
    conversations: tuple[MessageAttribute, ...]
    tool_calls: Names
    reasoning: Names
    session: Names
    agent: Names
    agent_of_entity: Names
    agent_node: Names
    metadata: Names
    model: Names
    model_of_request: Names
    response_id: Names
    output: Names
    token_conventions: tuple[TokenConvention, ...]
    stop_reason: Names
    tool: Names
    tool_call_id: Names
    arguments: Names
    result: Names
    error: Names


def find_present_attributes(attributes: Mapping[str, Any]) -> PresentAttributes:
    """Return the attributes of the conventions that are among these attributes."""
    names = tuple(attributes)
    if len(names) <= MAX_CACHED_NAMES and sum(map(len, names)) <= MAX_CACHED_CHARACTERS:
        return _find_present_cached(names)
    return _find_present(names)


def _find_present(names: Names) -> PresentAttributes:
    name_set = frozenset(names)

    def among(table: Iterable[str]) -> Names:
        return tuple(name for name in table if name in name_set)

    def among_messages(table: Iterable[MessageAttribute]) -> tuple[MessageAttribute, ...]:
        return tuple(attribute for attribute in table if _has_messages(names, name_set, attribute))

    return PresentAttributes(
        kinds=among(name for _, name, _ in KINDS),
        signs=among(SIGN_ATTRIBUTES),
        json_encoded=among(conventions.JSON_ENCODED),
        request=among_messages(conventions.REQUEST_MESSAGES),
        response=among_messages(conventions.RESPONSE_MESSAGES),
        conversations=among_messages(MessageAttribute(name, "json") for name in conventions.CONVERSATIONS),
        tool_calls=among(conventions.TOOL_CALLS),
        reasoning=among(conventions.REASONING),
        session=among(conventions.SESSION),
        agent=among(conventions.AGENT),
        agent_of_entity=among((conventions.AGENT_OF_ENTITY,)),
        agent_node=among((conventions.AGENT_NODE,)),
        metadata=among((conventions.METADATA,)),
        model=among(conventions.MODEL),
        model_of_request=among((conventions.MODEL_OF_REQUEST,)),
        response_id=among(conventions.RESPONSE_ID),
        output=among((conventions.OUTPUT,)),
        token_conventions=tuple(_find_token_conventions(name_set)),
        stop_reason=among(conventions.STOP_REASON),
        tool=among(conventions.TOOL),
        tool_call_id=among(conventions.TOOL_CALL_ID),
        arguments=among(conventions.ARGUMENTS),
        result=among(conventions.RESULT),
        error=among(conventions.ERROR),
    )


_find_present_cached = functools.lru_cache(CACHED_NAME_SETS)(_find_present)


def _has_messages(names: Names, name_set: frozenset[str], attribute: MessageAttribute) -> bool:
    if attribute.shape != "flat":
        return attribute.name in name_set
    prefix = f"{attribute.name}."
    return any(name.startswith(prefix) for name in names)


def _find_token_conventions(names: frozenset[str]) -> Iterator[TokenConvention]:
    """Yield the conventions that may have counts among these names, reduced to those of their names that are present."""
    for convention in conventions.TOKEN_CONVENTIONS:
        if convention.container is not None:
            if convention.container in names:
                yield convention
            continue
        present = {field: tuple(name for name in getattr(convention, field) if name in names) for field in COUNT_FIELDS}
        if any(present.values()):
            yield convention._replace(**present)  # type: ignore[arg-type]


def _build_table(**names: Iterable[str]) -> Mapping[str, Kind]:
    """Return a mapping from case-folded name to kind, given the names of each kind."""
    return {name.casefold(): kind for kind, kind_names in names.items() for name in kind_names}  # type: ignore[misc]


_OTEL = _build_table(
    inference=(
        *("chat", "generate_content", "text_completion", "completion", "responses", "messages", "chat_completion"),
        *("generate_text", "stream_text", "generate_object", "stream_object", "model_generation", "model_step"),
        *("acompletion", "atext_completion", "aresponses", "anthropic_messages", "agenerate_content"),
    ),
    agent=("invoke_agent", "invoke_workflow", "agent_run", "workflow_run"),
    tool=("execute_tool", "tool_call", "mcp_tool_call"),
    retrieval=("retrieval",),
    memory=("search_memory", "update_memory", "create_memory", "delete_memory", "upsert_memory", "create_memory_store"),
    helper=("embeddings", "memory_operation", "processor_run"),
    other=(
        *("create_agent", "plan", "handoff", "workflow_step", "model_chunk", "generic"),
        *("transcription", "atranscription", "speech", "aspeech", "text_to_speech", "speech_to_text"),
        *("image_generation", "aimage_generation"),
    ),
)
KINDS: tuple[tuple[str, str, Mapping[str, Kind]], ...] = (
    (
        "vercel",
        "ai.operationId",
        _build_table(
            agent=("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject"),
            inference=(
                *("ai.generateText.doGenerate", "ai.streamText.doStream"),
                *("ai.generateObject.doGenerate", "ai.streamObject.doStream"),
            ),
            tool=("ai.toolCall",),
        ),
    ),
    (
        "langfuse",
        "langfuse.observation.type",
        _build_table(
            inference=("generation",),
            agent=("agent",),
            tool=("tool",),
            chain=("chain", "span"),
            retrieval=("retriever",),
            helper=("evaluator", "guardrail", "embedding"),
            other=("event",),
        ),
    ),
    (
        "langsmith",
        "langsmith.span.kind",
        _build_table(
            inference=("llm",),
            chain=("chain",),
            tool=("tool",),
            retrieval=("retriever",),
            helper=("embedding",),
            other=("prompt", "parser"),
        ),
    ),
    (
        "openinference",
        "openinference.span.kind",
        _build_table(
            inference=("LLM",),
            agent=("AGENT",),
            tool=("TOOL",),
            chain=("CHAIN",),
            retrieval=("RETRIEVER",),
            helper=("RERANKER", "EMBEDDING", "GUARDRAIL", "EVALUATOR"),
            other=("PROMPT", "UNKNOWN"),
        ),
    ),
    (
        "openllmetry",
        "traceloop.span.kind",
        _build_table(chain=("workflow", "task"), agent=("agent",), tool=("tool",), other=("unknown", "handoff")),
    ),
    (
        "mlflow",
        "mlflow.spanType",
        _build_table(
            inference=("LLM", "CHAT_MODEL"),
            agent=("AGENT",),
            tool=("TOOL",),
            chain=("CHAIN", "WORKFLOW", "TASK"),
            retrieval=("RETRIEVER",),
            helper=("EMBEDDING", "RERANKER", "GUARDRAIL", "EVALUATOR", "MEMORY"),
            other=("PARSER", "UNKNOWN"),
        ),
    ),
    ("otel", "gen_ai.operation.name", _OTEL),
    ("openllmetry", "llm.request.type", _build_table(inference=("chat", "completion"), helper=("embedding", "rerank"))),
    ("mastra", "mastra.span.type", _OTEL),
    (
        "genkit",
        "genkit:metadata:subtype",
        _build_table(
            inference=("model", "background-model"),
            agent=("agent",),
            tool=("tool", "tool.v2"),
            chain=("flow", "prompt", "executable-prompt"),
            retrieval=("retriever",),
            helper=("embedder", "reranker", "evaluator"),
            other=("util", "indexer", "resource", "custom"),
        ),
    ),
)
"""Dialect, attribute that gives the kind of a span, and its values. `other`: neither a request nor a part of a turn."""
_BY_ATTRIBUTE = {name: (dialect, kinds) for dialect, name, kinds in KINDS}
