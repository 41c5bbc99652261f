"""Which attributes of the conventions a span has, and what kind of span they make it.

1. The first attribute of `KINDS` whose value is in its table decides. Case and the quotes of JSON do not matter.
2. Every convention allows values of one's own, so an unknown value decides nothing: the next attribute does, else the name of a helper's
   task within the value, else what the span has. One with a model and messages is a request, one with a tool's name and its call a tool,
   one with an agent's name an agent.
3. Any other span is `other`; the value that was not understood is kept, so that it can be counted.

The attributes are found once per set of names: the spans of an instrumentor repeat few sets. So only what is there is looked up in a span,
not every name that some dialect has for it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from streams.sources.otlp import conventions as named
from streams.sources.otlp.span_facts import Kind

if TYPE_CHECKING:
    from streams.sources.otlp.request import Observed


_SHOWN = 64
"""Characters of an unknown value that are kept."""
MERGED_CALLS = "(merged tools)"
"""The tool that a span of Google's ADK names which tells again of calls that ran at the same time."""
HELPER_STEMS = ("embed", "rerank", "moderation", "guardrail", "evaluat")
"""Parts of a value by which a helper's task is known whatever its prefix and form: `aembedding`, `ai.rerank.doRerank`."""
TOOL_SIGNS = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "lk.function_tool.name", "haystack.tool.name", "tool_name")
AGENT_SIGNS = ("gen_ai.agent.name", "agent.name", "haystack.agent.max_steps")
REQUEST_SIGNS = ("gen_ai.request.model", "llm.request.type", "haystack.agent.step.llm.input")
HELPER_SIGNS = (
    *("gen_ai.embeddings.dimension.count", "embedding.model_name", "reranker.model_name", "reranker.query"),
    *("ai.embedding", "ai.embeddings"),
)
SIGNS = (*TOOL_SIGNS, *AGENT_SIGNS, *REQUEST_SIGNS, *HELPER_SIGNS)
"""Attributes of spans that say by them alone what they are."""
_TASKS = frozenset(
    {"title", "titles", "titling", "guardrail", "guardrails", "moderation", "evaluator", "evaluation", "reranker", "embedding"}
)
_SUMMARIES = frozenset(
    {"summary", "summarize", "summarise", "summarizer", "summarization", "compact", "compaction", "compress"}
)
_PASTS = frozenset({"conversation", "chat", "history", "session", "thread", "memory", "context", "messages"})
_MEMORIES = frozenset({"memory", "memories"})
_KEEPING = frozenset({"extract", "extraction", "update", "save", "store", "search", "add", "write", "consolidate"})
_PAIRS = (
    (_SUMMARIES, _PASTS),
    (_MEMORIES, _KEEPING),
    (frozenset({"follow", "followup"}), frozenset({"questions", "suggestions"})),
)
_words = re.compile(r"[A-Z]?[a-z]+|[A-Z]+").findall
KEPT_SETS = 1_024
"""Sets of names that are remembered."""
MAX_NAMES, MAX_CHARACTERS = 128, 8 * 1024
"""Names of a set that is remembered, and characters of all of them: a sender can make up sets without end."""
Names = tuple[str, ...]
COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning", "total")
"""The fields of a convention that name counts of tokens."""


class KindReading(NamedTuple):
    """The kind of a span, the dialect that determined it, and the value that was not understood, if any: `attribute = value`."""

    kind: Kind
    dialect: str
    unknown: str | None = None


def read_kind(observed: Observed, values: Mapping[str, Any], has: Present) -> KindReading:
    """Read what a span is; see the module."""
    if observed.is_log:
        return KindReading("log", "otel")
    if values.get("gen_ai.tool.name") == MERGED_CALLS:
        return KindReading("other", "otel")
    dialect, unknown, is_other = "", "", False
    for name in has.kinds:
        value = str(values[name]).strip(' "')
        own_dialect, kinds = _BY_NAME[name]
        own_dialect = "pydantic-ai" if observed.scope == "pydantic-ai" else own_dialect
        dialect = dialect or own_dialect
        kind = kinds.get(value.casefold())
        if kind is not None and kind != "other":
            return KindReading(kind, own_dialect)
        is_other = is_other or kind == "other"
        if kind is None and value and not unknown:
            unknown = f"{name} = {value[:_SHOWN]}"
    if unknown and _is_helper(unknown.partition(" = ")[2]):
        return KindReading("helper", dialect)
    kind = _kind_by_content(values, has) if is_other else _kind_by_signs(values, has, is_named=bool(unknown))
    return KindReading(kind, dialect or ("otel" if kind != "other" else ""), unknown or None if kind == "other" else None)


def _is_helper(value: str) -> bool:
    lower = value.casefold()
    return any(stem in lower for stem in HELPER_STEMS) or names_helper(value)


def _kind_by_content(values: Mapping[str, Any], has: Present) -> Kind:
    """A request if a model was called and answered, whatever the span's name; for example a prompt that is sent at once."""
    is_helper = not values.keys().isdisjoint(HELPER_SIGNS)
    return "helper" if is_helper else "inference" if has.model and has.sent and has.came else "other"


def _kind_by_signs(values: Mapping[str, Any], has: Present, *, is_named: bool) -> Kind:
    """The kind of a span by its attributes. `is_named`: it has a kind of its own that no table has."""
    names = values.keys()
    if not names.isdisjoint(HELPER_SIGNS):
        return "helper"
    if "gen_ai.tool.name" in names or (not names.isdisjoint(TOOL_SIGNS) and (has.tool_call_id or has.arguments or has.result)):
        return "tool"
    if not names.isdisjoint(REQUEST_SIGNS) or (has.model and (has.sent or has.came or has.counting)):
        return "inference"
    is_agent = not names.isdisjoint(AGENT_SIGNS) and (is_named or bool(has.sent and has.came))
    return "agent" if is_agent else "other"


@functools.lru_cache(1_024)
def names_helper(name: str) -> bool:
    """Tell whether a span is named after a task that serves the program: the title of a chat, the summary of its history, a guardrail.

    The name is the user's, so it decides only beside requests that are named otherwise: a summary may be what was asked for.
    """
    name_words = {word.lower() for word in _words(name)}
    return not name_words.isdisjoint(_TASKS) or any(name_words & one and name_words & other for one, other in _PAIRS)


class Present(NamedTuple):
    """The names that are there, in the order of their table in `conventions`."""

    kinds: Names
    signs: Names
    quoted: Names
    sent: tuple[named.Place, ...]
    came: tuple[named.Place, ...]
    whole: tuple[named.Place, ...]
    called: Names
    thought: Names
    session: Names
    agent: Names
    agent_of_entity: Names
    agent_node: Names
    metadata: Names
    model: Names
    model_of_request: Names
    response_id: Names
    output: Names
    counting: tuple[named.Counting, ...]
    stop: Names
    tool: Names
    tool_call_id: Names
    arguments: Names
    result: Names
    error: Names


def present_in(values: Mapping[str, Any]) -> Present:
    """The attributes among these that the conventions know."""
    names = tuple(values)
    if len(names) <= MAX_NAMES and sum(map(len, names)) <= MAX_CHARACTERS:
        return _remembered(names)
    return _found(names)


def _found(names: Names) -> Present:
    there = frozenset(names)

    def among(table: Iterable[str]) -> Names:
        return tuple(name for name in table if name in there)

    def holding(places: Iterable[named.Place]) -> tuple[named.Place, ...]:
        return tuple(
            place for place in places if (_has_flat(names, place.name) if place.shape == "flat" else place.name in there)
        )

    return Present(
        kinds=among(name for _, name, _ in KINDS),
        signs=among(SIGNS),
        quoted=among(named.QUOTED),
        sent=holding(named.SENT),
        came=holding(named.CAME),
        whole=holding(named.Place(name, "json") for name in named.WHOLE),
        called=among(named.CALLED),
        thought=among(named.THOUGHT),
        session=among(named.SESSION),
        agent=among(named.AGENT),
        agent_of_entity=among((named.AGENT_OF_ENTITY,)),
        agent_node=among((named.AGENT_NODE,)),
        metadata=among((named.METADATA,)),
        model=among(named.MODEL),
        model_of_request=among((named.MODEL_OF_REQUEST,)),
        response_id=among(named.RESPONSE_ID),
        output=among((named.OUTPUT,)),
        counting=tuple(_counting(there)),
        stop=among(named.STOP),
        tool=among(named.TOOL),
        tool_call_id=among(named.TOOL_CALL_ID),
        arguments=among(named.ARGUMENTS),
        result=among(named.RESULT),
        error=among(named.ERROR),
    )


def _has_flat(names: Iterable[str], prefix: str) -> bool:
    start = f"{prefix}."
    return any(name.startswith(start) for name in names)


def _counting(there: frozenset[str]) -> Iterator[named.Counting]:
    """The conventions whose counts may be among these names, each with those of its names that are."""
    for convention in named.COUNTING:
        if convention.container is not None:
            if convention.container in there:
                yield convention
            continue
        present = [tuple(filter(there.__contains__, getattr(convention, field))) for field in COUNTS]
        if any(present):
            yield convention._replace(**dict(zip(COUNTS, present, strict=True)))  # type: ignore[arg-type]


def _table(**names: Iterable[str]) -> Mapping[str, Kind]:
    """Names by their kind as kinds by name."""
    return {name.casefold(): kind for kind, of_kind in names.items() for name in of_kind}  # type: ignore[misc]


_OTEL = _table(
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
        _table(
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
        _table(
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
        _table(
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
        _table(
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
        _table(chain=("workflow", "task"), agent=("agent",), tool=("tool",), other=("unknown", "handoff")),
    ),
    (
        "mlflow",
        "mlflow.spanType",
        _table(
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
    ("openllmetry", "llm.request.type", _table(inference=("chat", "completion"), helper=("embedding", "rerank"))),
    ("mastra", "mastra.span.type", _OTEL),
    (
        "genkit",
        "genkit:metadata:subtype",
        _table(
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
"""Dialect, the attribute that says what a span is, and what its values mean. `other`: neither a request nor a part of a turn."""
_BY_NAME = {name: (dialect, kinds) for dialect, name, kinds in KINDS}
_remembered = functools.lru_cache(KEPT_SETS)(_found)
