"""What a run of a framework has to come out as, as far as the framework says it: the conversation of `capturing.programs.numbers`."""

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

OF_TRACE = "the id of the trace"
"""Stands for a session that has no other name."""
Turn = tuple[str, str, str]
"""Question, answer and outcome of an exchange."""
Call = tuple[str, str]
"""The name of a tool and its arguments, in JSON."""


class Facts(NamedTuple):
    """What came out of a run."""

    turns: tuple[Turn, ...]
    sessions: frozenset[str]
    agents: frozenset[str]
    versions: frozenset[str]
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    errors: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Expected:
    """What comes out of a framework's run; a default is what was said, anything else is what the framework leaves out or adds."""

    questions: tuple[str, ...] = numbers.QUESTIONS
    answers: tuple[str, ...] = numbers.ANSWERS
    outcomes: tuple[str, ...] = ("answered",) * 3
    session: str = numbers.SESSION
    agent: str = numbers.AGENT
    version: str | None = numbers.VERSION
    tool: str = "double"
    has_arguments: bool = True
    more_calls: tuple[Call, ...] = ()
    more_results: tuple[str, ...] = ()
    results: tuple[str, ...] = ("12 doubled is 24", "30 doubled is 60")
    error: str | None = numbers.ERROR
    tokens: tuple[int, int, int] = (390, 51, 48)
    """Those that were read, written, and read from the cache."""

    @property
    def facts(self) -> Facts:
        """What has to come out."""
        calls = [(self.tool, json.dumps({"number": number} if self.has_arguments else None)) for number in numbers.NUMBERS]
        return Facts(
            tuple(zip(self.questions, self.answers, self.outcomes, strict=True)),
            frozenset({self.session} if self.questions else ()),
            frozenset({self.agent}),
            frozenset({self.version} if self.version else ()),
            tuple(sorted([*calls, *self.more_calls])),
            tuple(sorted([*self.results, *self.more_results])),
            () if self.error is None else (self.error,),
            *self.tokens,
        )


def facts_of(lines: Iterable[Json]) -> Facts:
    """What comes out of the requests of a run."""
    assemblies = assembled(records_of(Captured(line["signal"], line["request"]) for line in lines))
    exchanges = [exchange for assembly in assemblies for exchange in assembly.exchanges]
    events = [event for assembly in assemblies for event in assembly.events]
    calls, outputs, usages = (_payloads(assemblies, kind) for kind in ("tool_call", "tool_output", "token_usage"))
    return Facts(
        tuple(
            (exchange.user_message, "" if exchange.outcome == "error" else exchange.agent_response.strip(), exchange.outcome)
            for exchange in exchanges
        ),
        frozenset(OF_TRACE if SESSION_FROM_TRACE in exchange.tags else exchange.session_id for exchange in exchanges),
        frozenset({*(exchange.agent for exchange in exchanges), *(event.agent for event in events)}),
        frozenset(label.value for exchange in exchanges for label in exchange.labels if label.name == "agent_version"),
        tuple(sorted((call["tool"], json.dumps(call.get("arguments"))) for call in calls)),
        tuple(sorted(output["result"] for output in outputs if not output.get("is_error"))),
        tuple(sorted(output["result"] for output in outputs if output.get("is_error"))),
        sum(usage["usage"].get("input", 0) + usage["usage"].get("cache_read", 0) for usage in usages),
        sum(usage["usage"].get("output", 0) for usage in usages),
        sum(usage["usage"].get("cache_read", 0) for usage in usages),
    )


def kept_lines(framework: str) -> list[Json]:
    """The requests of the capture that is kept of a framework."""
    return [json.loads(line) for line in (FRAMEWORK_CAPTURES / f"{framework}.jsonl").read_text("utf-8").splitlines()]


def _payloads(assemblies: Iterable[Assembly], kind: str) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for assembly in assemblies for event in assembly.events if event.event == kind]


_UNDERSCORED = numbers.AGENT.replace("-", "_")
"""The agent's name where a framework wants a name of Python."""
_AS_OBJECT = tuple(json.dumps({"result": result}) for result in Expected().results)
_ADK = Expected(
    answers=(*numbers.ANSWERS[:2], ""),
    outcomes=("answered", "answered", "error"),
    agent=_UNDERSCORED,
    results=_AS_OBJECT,
    tokens=(325, 44, 40),
)
"""A tool that raises ends the run of ADK, so that the model is not asked again."""
_ADK_WITHOUT_CONTENT = replace(
    _ADK, questions=(), answers=(), outcomes=(), version=None, has_arguments=False, results=(), tokens=(325, 44, 40)
)
_APOLOGY = "An error occurred while running the tool. Please try again."
"""What the OpenAI Agents SDK tells the model of a tool that raised."""

EXPECTED: Mapping[str, Expected] = {
    "agent_framework": Expected(session=OF_TRACE, version=None),
    "agno": Expected(),
    "autogen": Expected(agent=_UNDERSCORED, tokens=(0, 0, 0)),
    "crewai": Expected(tokens=(0, 0, 0)),
    "crewai_openai": Expected(),
    "crewai_openllmetry": Expected(
        session=OF_TRACE, results=(*Expected().results, f"Error executing tool: {numbers.ERROR}"), error=None
    ),
    "dspy": Expected(
        agent="numbers-service", more_calls=(("finish", "{}"),) * 3, more_results=("Completed.",) * 3, tokens=(0, 0, 0)
    ),
    "google_adk": _ADK_WITHOUT_CONTENT,
    "google_adk_opt_in": _ADK,
    "google_adk_openinference": replace(
        _ADK, results=tuple(result.replace(": ", ":") for result in _AS_OBJECT), tokens=(195, 24, 24)
    ),
    "genkit": Expected(
        agent="numbers-service",
        answers=(*numbers.ANSWERS[:2], ""),
        outcomes=("answered", "answered", "error"),
        session=OF_TRACE,
        tokens=(325, 44, 0),
    ),
    "google_adk_schema_1": _ADK,
    "google_adk_1": _ADK,
    "haystack_own": Expected(
        session=OF_TRACE,
        agent="numbers-service",
        tokens=(260, 34, 32),
        error=json.dumps({"error": f"Failed to invoke Tool `double` with parameters {{'number': 13}}. Error: {numbers.ERROR}"}),
    ),
    "litellm": Expected(session=OF_TRACE, agent="numbers-service", results=(), error=None, tokens=(390, 51, 0)),
    "mastra": Expected(version=None, results=('{"doubled":24}', '{"doubled":60}'), tokens=(260, 34, 32)),
    "openai_agents_chat": Expected(error=_APOLOGY, tokens=(260, 34, 0)),
    "smolagents": Expected(
        agent=_UNDERSCORED,
        more_calls=tuple(("final_answer", json.dumps({"answer": answer})) for answer in numbers.ANSWERS),
        more_results=numbers.ANSWERS,
        tokens=(390, 51, 0),
    ),
    "haystack_openinference": Expected(agent="numbers-service", results=(), error=None, tokens=(260, 34, 0)),
    "langgraph_both": Expected(),
    "langgraph_langfuse": Expected(),
    "langgraph_openinference": Expected(),
    "langgraph_openllmetry": Expected(),
    "livekit": Expected(error="An internal error occurred"),
    "llama_index": Expected(agent="numbers-service"),
    "openai_agents_openllmetry": Expected(session=OF_TRACE, error=_APOLOGY),
    "openai_agents_responses": Expected(error=_APOLOGY),
    "openllmetry": Expected(),
    "pydantic_ai": Expected(),
    "vercel_ai": Expected(),
    "vercel_ai_6": Expected(),
    "semantic_kernel": Expected(session=OF_TRACE, tool="Numbers-double", tokens=(390, 51, 0)),
    "strands": Expected(version=None, error=f"Error: {numbers.ERROR}"),
    "strands_opt_in": Expected(version=None),
}
