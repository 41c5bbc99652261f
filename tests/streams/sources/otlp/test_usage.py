"""Token counts mean the same in every record: input includes cache, output includes reasoning, whichever convention counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.otlp_captures import assembled, records_of
from support.otlp_spans import agent, chat, request

from schemas.bounds import MAX_COUNT
from streams.sources.otlp.kinds import find_present_attributes
from streams.sources.otlp.span_facts import Usage
from streams.sources.otlp.token_usage import UsageReading, read_usage

LANGFUSE, MLFLOW = "langfuse.observation.usage_details", "mlflow.chat.tokenUsage"
LANGSMITH = "langsmith.metadata.usage_metadata"
VERCEL, ADK, GENKIT = "ai.response.providerMetadata", "gcp.vertex.agent.llm_response", "genkit:output"
READ, WRITTEN, FROM_CACHE, INTO_CACHE = 900, 70, 600, 50
WANTED = Usage(READ, WRITTEN, FROM_CACHE, INTO_CACHE)
WITHOUT_WRITES = Usage(READ, WRITTEN, FROM_CACHE)
REASONED = 30


def usage_of(attributes: dict[str, Any]) -> UsageReading:
    """Return the usage of a request with these attributes."""
    values = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in attributes.items()}
    reading = read_usage(values, find_present_attributes(values).token_conventions)
    assert reading is not None
    return reading


INCLUSIVE = {
    "gen_ai.usage.input_tokens": READ,
    "gen_ai.usage.output_tokens": WRITTEN,
    "gen_ai.usage.cache_read.input_tokens": FROM_CACHE,
    "gen_ai.usage.cache_creation.input_tokens": INTO_CACHE,
    "gen_ai.usage.reasoning.output_tokens": REASONED,
}
EXCLUSIVE = {**INCLUSIVE, "gen_ai.usage.input_tokens": READ - FROM_CACHE - INTO_CACHE}
DIALECTS: dict[str, tuple[dict[str, Any], Usage]] = {
    "OpenTelemetry": (INCLUSIVE, WANTED),
    "Strands on Bedrock, whose total counts the cache": (
        {
            "gen_ai.usage.prompt_tokens": READ - FROM_CACHE - INTO_CACHE,
            "gen_ai.usage.completion_tokens": WRITTEN,
            "gen_ai.usage.cache_read_input_tokens": FROM_CACHE,
            "gen_ai.usage.cache_write_input_tokens": INTO_CACHE,
            "gen_ai.usage.total_tokens": READ + WRITTEN,
        },
        WANTED,
    ),
    "Sentry": (
        {
            "gen_ai.usage.input_tokens": READ,
            "gen_ai.usage.input_tokens.cached": FROM_CACHE,
            "gen_ai.usage.input_tokens.cache_write": INTO_CACHE,
            "gen_ai.usage.output_tokens": WRITTEN,
            "gen_ai.usage.output_tokens.reasoning": REASONED,
        },
        WANTED,
    ),
    "OpenInference": (
        {
            "llm.token_count.prompt": READ,
            "llm.token_count.prompt_details.cache_read": FROM_CACHE,
            "llm.token_count.prompt_details.cache_write": INTO_CACHE,
            "llm.token_count.completion": WRITTEN,
            "llm.token_count.completion_details.reasoning": REASONED,
            "llm.token_count.total": READ + WRITTEN,
        },
        WANTED,
    ),
    "OpenInference beside OpenTelemetry's two counts": (
        {
            "gen_ai.usage.input_tokens": READ,
            "gen_ai.usage.output_tokens": WRITTEN,
            "llm.token_count.prompt": READ,
            "llm.token_count.prompt_details.cache_read": FROM_CACHE,
            "llm.token_count.completion": WRITTEN,
        },
        WITHOUT_WRITES,
    ),
    "Vercel 6": (
        {
            "ai.usage.inputTokens": READ,
            "ai.usage.inputTokenDetails.cacheReadTokens": FROM_CACHE,
            "ai.usage.inputTokenDetails.cacheWriteTokens": INTO_CACHE,
            "ai.usage.outputTokens": WRITTEN,
            "ai.usage.totalTokens": READ + WRITTEN,
        },
        WANTED,
    ),
    "Vercel 5 on Anthropic, whose input has no cached tokens": (
        {
            "ai.usage.inputTokens": READ - FROM_CACHE - INTO_CACHE,
            "ai.usage.cachedInputTokens": FROM_CACHE,
            "ai.usage.outputTokens": WRITTEN,
            "ai.usage.totalTokens": READ - FROM_CACHE - INTO_CACHE + WRITTEN,
            VERCEL: {
                "anthropic": {
                    "usage": {
                        "input_tokens": READ - FROM_CACHE - INTO_CACHE,
                        "cache_read_input_tokens": FROM_CACHE,
                        "cache_creation_input_tokens": INTO_CACHE,
                        "output_tokens": WRITTEN,
                    }
                }
            },
        },
        WANTED,
    ),
    "Langfuse's own types": (
        {
            LANGFUSE: {
                "input": READ - FROM_CACHE - INTO_CACHE - 5,
                "input_audio": 5,
                "input_cache_read": FROM_CACHE,
                "input_cache_creation": INTO_CACHE - 20,
                "input_cache_creation_1h": 20,
                "input_cached_tokens_priority": 7,
                "output": WRITTEN - REASONED,
                "output_reasoning": REASONED,
                "total": READ + WRITTEN,
            }
        },
        WANTED,
    ),
    "Langfuse's types without a total": (
        {LANGFUSE: {"input": READ - FROM_CACHE, "cache_read_input_tokens": FROM_CACHE, "output": WRITTEN}},
        WITHOUT_WRITES,
    ),
    "Langfuse with a total that says its input includes the cache": (
        {LANGFUSE: {"input": READ, "input_cached_tokens": FROM_CACHE, "output": WRITTEN, "total": READ + WRITTEN}},
        WITHOUT_WRITES,
    ),
    "Langfuse with only tokens of a cache": (
        {LANGFUSE: {"input_cached_tokens": READ, "output": WRITTEN}},
        Usage(READ, WRITTEN, READ),
    ),
    "OpenAI's Chat Completions in Langfuse": (
        {
            LANGFUSE: {
                "prompt_tokens": READ,
                "prompt_tokens_details": {"cached_tokens": FROM_CACHE},
                "completion_tokens": WRITTEN,
                "completion_tokens_details": {"reasoning_tokens": REASONED},
                "total_tokens": READ + WRITTEN,
            }
        },
        WITHOUT_WRITES,
    ),
    "OpenAI's Responses in Langfuse": (
        {
            LANGFUSE: {
                "input_tokens": READ,
                "input_tokens_details": {"cached_tokens": FROM_CACHE},
                "output_tokens": WRITTEN,
                "output_tokens_details": {"reasoning_tokens": REASONED},
                "total_tokens": READ + WRITTEN,
            }
        },
        WITHOUT_WRITES,
    ),
    "Anthropic's in Langfuse": (
        {
            LANGFUSE: {
                "input_tokens": READ - FROM_CACHE - INTO_CACHE,
                "cache_read_input_tokens": FROM_CACHE,
                "cache_creation_input_tokens": INTO_CACHE,
                "output_tokens": WRITTEN,
            }
        },
        WANTED,
    ),
    "LangSmith beside OpenTelemetry's counts": (
        {
            "gen_ai.usage.input_tokens": READ,
            "gen_ai.usage.output_tokens": WRITTEN,
            "gen_ai.usage.total_tokens": READ + WRITTEN,
            LANGSMITH: {
                "input_tokens": READ,
                "output_tokens": WRITTEN,
                "total_tokens": READ + WRITTEN,
                "input_token_details": {"cache_read": FROM_CACHE, "cache_creation": INTO_CACHE},
                "output_token_details": {"reasoning": REASONED},
            },
        },
        WANTED,
    ),
    "MLflow": (
        {MLFLOW: {"input_tokens": READ, "output_tokens": WRITTEN, "total_tokens": READ + WRITTEN}},
        Usage(READ, WRITTEN),
    ),
    "ADK, whose candidates have no thoughts": (
        {
            "gen_ai.usage.input_tokens": READ,
            "gen_ai.usage.output_tokens": WRITTEN - REASONED,
            ADK: {
                "usage_metadata": {
                    "prompt_token_count": READ,
                    "cached_content_token_count": FROM_CACHE,
                    "candidates_token_count": WRITTEN - REASONED,
                    "thoughts_token_count": REASONED,
                    "total_token_count": READ + WRITTEN,
                }
            },
        },
        WITHOUT_WRITES,
    ),
    "Genkit": (
        {
            GENKIT: {
                "usage": {
                    "inputTokens": READ,
                    "outputTokens": WRITTEN - REASONED,
                    "thoughtsTokens": REASONED,
                    "totalTokens": READ + WRITTEN,
                }
            }
        },
        Usage(READ, WRITTEN),
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_count_means_the_same_in_every_dialect(dialect: str) -> None:
    """Otherwise agents of two frameworks could not be compared."""
    attributes, expected = DIALECTS[dialect]
    assert usage_of(attributes) == UsageReading(expected, is_clear=True)


def test_a_total_decides_between_interpretations() -> None:
    """Some instrumentors wrote Anthropic's input without cache under a name that includes it."""
    total = {"llm.usage.total_tokens": READ + WRITTEN}
    assert [UsageReading(WANTED, is_clear=True)] * 2 == [usage_of({**counts, **total}) for counts in (INCLUSIVE, EXCLUSIVE)]


def test_cached_tokens_beyond_the_input_are_added_to_it() -> None:
    """A part larger than the count cannot be included in it, even without a total."""
    counts = {"llm.token_count.prompt": 8, "llm.token_count.prompt_details.cache_read": 5_000, "llm.token_count.completion": 3}
    usage = Usage(5_008, 3, 5_000)
    totals = ({}, {"llm.token_count.total": 11}, {"llm.token_count.total": 5_011})
    assert [UsageReading(usage, is_clear=True)] * 3 == [usage_of({**counts, **total}) for total in totals]


@pytest.mark.parametrize(
    ("total", "agreed"),
    [
        pytest.param(5, Usage(None, None, FROM_CACHE, INTO_CACHE), id="it fits no reading"),
        pytest.param(None, Usage(None, None, 30, None), id="it fits two"),
    ],
)
def test_a_total_that_fits_no_interpretation_makes_the_usage_unclear(total: int | None, agreed: Usage) -> None:
    """A guessed count looks like any other, so counts that depend on the reading are left empty."""
    both = {**INCLUSIVE, "gen_ai.usage.cache_read.input_tokens": 30, "gen_ai.usage.cache_creation.input_tokens": None}
    attributes = (
        {**INCLUSIVE, "gen_ai.usage.total_tokens": 5} if total else {**both, "gen_ai.usage.total_tokens": READ + WRITTEN + 30}
    )
    reading = usage_of({name: value for name, value in attributes.items() if value is not None})
    assert UsageReading(agreed, is_clear=False) == reading


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("12", 12), (12.0, 12), (0, 0), (MAX_COUNT, MAX_COUNT),
        ("", None), ("-1", None), ("1e3", None), ("١٢", None), (-1, None), (1.5, None), (True, None), (MAX_COUNT + 1, None),
        ("9" * 5_000, None), (float("inf"), None), (float("nan"), None), (None, None), ([12], None),
    ],
)  # fmt: skip
def test_a_count_is_a_whole_number_or_its_text(value: Any, count: int | None) -> None:
    """OTLP's JSON and some SDKs write numbers as texts; any other value is ignored without an error."""
    attributes = {"gen_ai.usage.input_tokens": value, "gen_ai.usage.output_tokens": 1}
    assert Usage(count, 1) == usage_of(attributes).counts


@pytest.mark.parametrize(
    "attributes",
    [
        {"llm.token_count.prompt": 0, "llm.token_count.completion": 0},
        {"gen_ai.usage.input_tokens": 0, "gen_ai.usage.output_tokens": 0, "gen_ai.usage.total_tokens": 0},
        {"gen_ai.usage.total_tokens": 70},
        {"gen_ai.usage.input_tokens": "many"},
        {LANGFUSE: "[]"},
        {LANGFUSE: {"unit": "TOKENS"}},
    ],
)
def test_zero_counts_are_missing(attributes: dict[str, Any]) -> None:
    """Some senders write zeros for a streamed answer without usage, which was not free."""
    values = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in attributes.items()}
    assert read_usage(values, find_present_attributes(values).token_conventions) is None


def test_sums_stay_within_the_range_of_a_record() -> None:
    """A sum of a sender's counts must still fit a record."""
    assert (
        Usage(MAX_COUNT, None, MAX_COUNT) == usage_of({LANGFUSE: {"input": MAX_COUNT, "input_cached_tokens": MAX_COUNT}}).counts
    )


def test_an_exchange_with_unclear_tokens_is_tagged() -> None:
    """The exchange is tagged and has no count; its event has the clear counts. Another request does not make up a sum."""
    unclear = {**INCLUSIVE, "gen_ai.usage.output_tokens": WRITTEN, "gen_ai.usage.total_tokens": 5}
    records = records_of([request(agent(0), chat(1, attributes=unclear), chat(2))])
    (assembly,) = assembled(records)
    (exchange,) = assembly.exchanges
    usages = [json.loads(event.payload)["usage"] for event in assembly.events if event.event == "token_usage"]
    assert exchange.input_tokens is None
    assert "unclear_tokens" in exchange.tags
    assert usages == [{"cache_read": FROM_CACHE, "cache_write": INTO_CACHE}, {"input": 12, "output": 1, "total": 13}]


def test_an_exchange_with_clear_tokens_has_no_tag() -> None:
    """Only a contradiction is reported."""
    (assembly,) = assembled(
        records_of([request(agent(0), chat(1, attributes=EXCLUSIVE | {"gen_ai.usage.total_tokens": READ + WRITTEN}))])
    )
    (exchange,) = assembly.exchanges
    assert exchange.input_tokens == READ
    assert exchange.output_tokens == WRITTEN
    assert "unclear_tokens" not in exchange.tags
