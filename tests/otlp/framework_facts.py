"""The facts that a framework's traces must yield: the conversation of `capturing.programs.numbers`, as far as it exports it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from support.otlp_captures import Captured, assembled, records_of

from otlp.capturing.frameworks import FRAMEWORK_CAPTURES
from otlp.capturing.programs import numbers
from otlp.capturing.readable import Json
from streams.sources.otlp.trace import SESSION_FROM_TRACE
from streams.sources.otlp.trace_records import Assembly

TRACE_ID_SESSION = "the id of the trace"
"""Stands for a session id that is the id of its trace."""
Turn = tuple[str, str, str]
"""Question, answer and outcome of an exchange."""
Call = tuple[str, str]
"""The name of a tool and its arguments, in JSON."""


class Facts(NamedTuple):
    """The facts of a run that are compared."""

    turns: tuple[Turn, ...]
    sessions: frozenset[str]
    agents: frozenset[str]
    versions: frozenset[str]
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    errors: tuple[str, ...]
    tokens: Tokens


@dataclass(frozen=True)
class Tokens:
    """The tokens of a run; input includes the tokens read from the cache."""

    input: int
    output: int
    cached: int


@dataclass(frozen=True)
class Expected:
    """The expected facts of a framework's run; a value other than the default is what the framework omits or adds."""

    questions: tuple[str, ...] = numbers.QUESTIONS
    answers: tuple[str, ...] = numbers.ANSWERS
    outcomes: tuple[str, ...] = ("answered",) * 3
    session: str = numbers.SESSION
    agent: str = numbers.AGENT
    version: str | None = numbers.VERSION
    tool: str = "double"
    has_arguments: bool = True
    additional_calls: tuple[Call, ...] = ()
    additional_results: tuple[str, ...] = ()
    results: tuple[str, ...] = ("12 doubled is 24", "30 doubled is 60")
    error: str | None = numbers.ERROR
    tokens: Tokens = Tokens(input=390, output=51, cached=48)

    @property
    def facts(self) -> Facts:
        """Return the facts to compare."""
        calls = [(self.tool, json.dumps({"number": number} if self.has_arguments else None)) for number in numbers.NUMBERS]
        return Facts(
            turns=tuple(zip(self.questions, self.answers, self.outcomes, strict=True)),
            sessions=frozenset({self.session} if self.questions else ()),
            agents=frozenset({self.agent}),
            versions=frozenset({self.version} if self.version else ()),
            calls=tuple(sorted([*calls, *self.additional_calls])),
            results=tuple(sorted([*self.results, *self.additional_results])),
            errors=() if self.error is None else (self.error,),
            tokens=self.tokens,
        )


def facts_of(lines: Iterable[Json]) -> Facts:
    """Return the facts in the export requests of a run."""
    assemblies = assembled(records_of(Captured(line["signal"], line["request"]) for line in lines))
    exchanges = [exchange for assembly in assemblies for exchange in assembly.exchanges]
    events = [event for assembly in assemblies for event in assembly.events]
    calls = _payloads(assemblies, "tool_call")
    outputs = _payloads(assemblies, "tool_output")
    usages = [payload["usage"] for payload in _payloads(assemblies, "token_usage")]
    cached_tokens = sum(usage.get("cache_read", 0) for usage in usages)
    return Facts(
        turns=tuple(
            (exchange.user_message, "" if exchange.outcome == "error" else exchange.agent_response.strip(), exchange.outcome)
            for exchange in exchanges
        ),
        sessions=frozenset(
            TRACE_ID_SESSION if SESSION_FROM_TRACE in exchange.tags else exchange.session_id for exchange in exchanges
        ),
        agents=frozenset({*(exchange.agent for exchange in exchanges), *(event.agent for event in events)}),
        versions=frozenset(label.value for exchange in exchanges for label in exchange.labels if label.name == "agent_version"),
        calls=tuple(sorted((call["tool"], json.dumps(call.get("arguments"))) for call in calls)),
        results=tuple(sorted(output["result"] for output in outputs if not output.get("is_error"))),
        errors=tuple(sorted(output["result"] for output in outputs if output.get("is_error"))),
        tokens=Tokens(
            input=sum(usage.get("input", 0) for usage in usages) + cached_tokens,
            output=sum(usage.get("output", 0) for usage in usages),
            cached=cached_tokens,
        ),
    )


def read_capture(framework: str) -> list[Json]:
    """Return the export requests in the stored capture of a framework."""
    return [json.loads(line) for line in (FRAMEWORK_CAPTURES / f"{framework}.jsonl").read_text("utf-8").splitlines()]


def _payloads(assemblies: Iterable[Assembly], event_type: str) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for assembly in assemblies for event in assembly.events if event.event == event_type]


_UNDERSCORED = numbers.AGENT.replace("-", "_")
"""The agent's name for frameworks that require a Python identifier."""
_RESULT_OBJECTS = tuple(json.dumps({"result": result}) for result in Expected().results)
_ADK = Expected(
    answers=(*numbers.ANSWERS[:2], ""),
    outcomes=("answered", "answered", "error"),
    agent=_UNDERSCORED,
    results=_RESULT_OBJECTS,
    tokens=Tokens(input=325, output=44, cached=40),
)
"""An exception in a tool ends the run in ADK, without another model call."""
_ADK_WITHOUT_CONTENT = replace(
    _ADK,
    questions=(),
    answers=(),
    outcomes=(),
    version=None,
    has_arguments=False,
    results=(),
    tokens=Tokens(input=325, output=44, cached=40),
)
_APOLOGY = "An error occurred while running the tool. Please try again."
"""The tool result that the OpenAI Agents SDK gives the model after an exception."""

EXPECTED: Mapping[str, Expected] = {
    "agent_framework": Expected(session=TRACE_ID_SESSION, version=None),
    "agno": Expected(),
    "autogen": Expected(agent=_UNDERSCORED, tokens=Tokens(input=0, output=0, cached=0)),
    "crewai": Expected(tokens=Tokens(input=0, output=0, cached=0)),
    "crewai_openai": Expected(),
    "crewai_openllmetry": Expected(
        session=TRACE_ID_SESSION, results=(*Expected().results, f"Error executing tool: {numbers.ERROR}"), error=None
    ),
    "dspy": Expected(
        agent="numbers-service",
        additional_calls=(("finish", "{}"),) * 3,
        additional_results=("Completed.",) * 3,
        tokens=Tokens(input=0, output=0, cached=0),
    ),
    "google_adk": _ADK_WITHOUT_CONTENT,
    "google_adk_opt_in": _ADK,
    "google_adk_openinference": replace(
        _ADK,
        results=tuple(result.replace(": ", ":") for result in _RESULT_OBJECTS),
        tokens=Tokens(input=195, output=24, cached=24),
    ),
    "genkit": Expected(
        agent="numbers-service",
        answers=(*numbers.ANSWERS[:2], ""),
        outcomes=("answered", "answered", "error"),
        session=TRACE_ID_SESSION,
        tokens=Tokens(input=325, output=44, cached=0),
    ),
    "google_adk_schema_1": _ADK,
    "google_adk_1": _ADK,
    "haystack_own": Expected(
        session=TRACE_ID_SESSION,
        agent="numbers-service",
        tokens=Tokens(input=260, output=34, cached=32),
        error=json.dumps({"error": f"Failed to invoke Tool `double` with parameters {{'number': 13}}. Error: {numbers.ERROR}"}),
    ),
    "litellm": Expected(
        session=TRACE_ID_SESSION, agent="numbers-service", results=(), error=None, tokens=Tokens(input=390, output=51, cached=0)
    ),
    "mastra": Expected(
        version=None, results=('{"doubled":24}', '{"doubled":60}'), tokens=Tokens(input=260, output=34, cached=32)
    ),
    "openai_agents_chat": Expected(error=_APOLOGY, tokens=Tokens(input=260, output=34, cached=0)),
    "smolagents": Expected(
        agent=_UNDERSCORED,
        additional_calls=tuple(("final_answer", json.dumps({"answer": answer})) for answer in numbers.ANSWERS),
        additional_results=numbers.ANSWERS,
        tokens=Tokens(input=390, output=51, cached=0),
    ),
    "haystack_openinference": Expected(
        agent="numbers-service", results=(), error=None, tokens=Tokens(input=260, output=34, cached=0)
    ),
    "langgraph_both": Expected(),
    "langgraph_langfuse": Expected(),
    "langgraph_openinference": Expected(),
    "langgraph_openllmetry": Expected(),
    "livekit": Expected(error="An internal error occurred"),
    "llama_index": Expected(agent="numbers-service"),
    "openai_agents_openllmetry": Expected(session=TRACE_ID_SESSION, error=_APOLOGY),
    "openai_agents_responses": Expected(error=_APOLOGY),
    "openllmetry": Expected(),
    "pydantic_ai": Expected(),
    "vercel_ai": Expected(),
    "vercel_ai_6": Expected(),
    "semantic_kernel": Expected(session=TRACE_ID_SESSION, tool="Numbers-double", tokens=Tokens(input=390, output=51, cached=0)),
    "strands": Expected(version=None, error=f"Error: {numbers.ERROR}"),
    "strands_opt_in": Expected(version=None),
}
