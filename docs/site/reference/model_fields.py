"""The fields of a policy and of a methodology, from their models."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from audit.cost import CacheTerms, ModelPrice, PriceStep
from audit.detectors.thresholds import AgentDetectors, Detectors, Thresholds, ToolRules, TranscriptThresholds
from audit.policy import (
    Anchors,
    BehaviouralDimension,
    Collector,
    CollectorRoute,
    CostCaps,
    Dimension,
    Maintenance,
    MethodologyFile,
    MinAlertedChange,
    PatternCheck,
    Policy,
    ProjectSettings,
    RedactionSettings,
    Sampling,
    SecretPattern,
    Traces,
    When,
    shipped_methodologies,
)
from reference.markdown import code, fenced, field_words, first_paragraph, page, table, words

ROOT = Path(__file__).parents[3]
_POLICY: dict[str, type[BaseModel]] = {
    "The file": Policy,
    "defaults, and each of projects": ProjectSettings,
    "costCaps": CostCaps,
    "minAlertedChange": MinAlertedChange,
    "maintenance": Maintenance,
    "sampling": Sampling,
    "anchors": Anchors,
    "traces": Traces,
    "detectors": Detectors,
    "detectors: tools": ToolRules,
    "detectors: agents": AgentDetectors,
    "detectors: events": Thresholds,
    "detectors: transcripts": TranscriptThresholds,
    "collector": Collector,
    "collector.routes": CollectorRoute,
    "redaction": RedactionSettings,
    "redaction.patterns": SecretPattern,
    "prices": ModelPrice,
    "prices: steps": PriceStep,
    "prices: cache": CacheTerms,
}
_METHODOLOGY: dict[str, type[BaseModel]] = {
    "The file": MethodologyFile,
    "tier1": PatternCheck,
    "tier2": Dimension,
    "tier3": BehaviouralDimension,
}
_WHEN = {
    When.ALWAYS: "every exchange",
    When.EXECUTION_TASK: "the user asks for something to be done",
    When.IMPLEMENTATION_TASK: "the user asks for something to be done or built",
    When.DISAGREEMENT: "the agent pushes back",
    When.HIGH_STAKES: "Tier 1 or Tier 2 raised a flag",
    When.CODE_CHANGE: "the answer holds code or a diff",
    When.MULTI_USER: "the record says that several users take part",
}
_BOUNDS = {
    "minimum": "≥ ", "maximum": "≤ ", "minLength": "characters ≥ ", "maxLength": "characters ≤ ", "minItems": "entries ≥ ",
    "maxItems": "entries ≤ ", "maxProperties": "entries ≤ ", "pattern": "pattern ",
}  # fmt: skip


def policy() -> str:
    """Return the page on policies."""
    return page(
        "Policy",
        "A policy says how each project is judged. It is YAML or JSON; every field is optional but `version`, names "
        "are camelCase, and an unknown name is refused with its line: `driftline policy check FILE`. What a project leaves out "
        "comes from `defaults`. Every score carries the digest of the policy it was made by.",
        *_models(_POLICY),
        "## An example with every field",
        fenced((ROOT / "examples" / "policy.yaml").read_text("utf-8"), "yaml"),
    )


def methodology() -> str:
    """Return the page on methodologies."""
    shipped = [part for one in shipped_methodologies().values() for part in _shipped(one)]
    return page(
        "Methodology",
        "A methodology is a file with checks and judge dimensions beyond those that hold for everybody; a policy names it. How to write one: "
        "[Write a methodology](../how-to/methodology.md).",
        *_models(_METHODOLOGY),
        "## when",
        table(("when", "the dimension applies to"), [(code(when.value), _WHEN[when]) for when in When]),
        "## What is shipped",
        *shipped,
    )


def _models(models: dict[str, type[BaseModel]]) -> list[str]:
    return [
        part for title, model in models.items() for part in (f"## {title}", first_paragraph(model.__doc__), list_fields(model))
    ]


def list_fields(model: type[BaseModel], omitted: Collection[str] = ()) -> str:
    """Return a table of a model's fields without those that are described elsewhere."""
    said = field_words(model)
    schema = model.model_json_schema(by_alias=True)
    rows = []
    for name, field in model.model_fields.items():
        if name in omitted:
            continue
        shown = schema["properties"][field.alias or to_camel(name)]
        default = "required" if field.is_required() else _default(shown)
        rows.append(
            (
                code(field.alias or to_camel(name)),
                words(_said(said.get(name, ""), shown, schema)),
                _holds(shown, schema),
                default,
            )
        )
    return table(("field", "what it is", "holds", "default"), rows)


def _said(words_below: str, shown: dict[str, Any], schema: dict[str, Any]) -> str:
    """What is said of a field, as whoever writes a file says it; of one that has fields itself, what is said of them."""
    about = words_below or _target(shown, schema).get("description", "").partition("\n\n")[0]
    return str(about).replace("None is", "null is")


def _target(shown: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema["$defs"][shown["$ref"].rpartition("/")[2]] if "$ref" in shown else {}
    return found


def _default(shown: dict[str, Any]) -> str:
    if "default" not in shown:
        return "none"
    default = shown["default"]
    return "see there" if isinstance(default, dict) and default else code(json.dumps(default))


def _holds(shown: dict[str, Any], schema: dict[str, Any]) -> str:
    """What a field may hold, in words."""
    if "$ref" in shown:
        target = _target(shown, schema)
        return "one of " + ", ".join(map(code, target["enum"])) if "enum" in target else "fields"
    if "anyOf" in shown:
        return " or ".join(_holds(one, schema) for one in shown["anyOf"])
    if "const" in shown or "enum" in shown:
        return ", ".join(code(one) for one in shown.get("enum", [shown.get("const")]))
    told = [f"{said}{code(shown[bound])}" for bound, said in _BOUNDS.items() if bound in shown]
    kind = {"array": "list", "object": "fields by name", "null": "null", "integer": "whole number"}.get(shown.get("type", ""))
    inner = f" of {_holds(shown['items'], schema)}" if shown.get("type") == "array" and "items" in shown else ""
    return ", ".join([f"{kind or shown.get('type', 'value')}{inner}", *told])


def _shipped(one: Any) -> list[str]:
    rows = [(code(check.id), "1", words(check.description), "") for check in one.tier1]
    rows += [(code(found.id), "2", words(found.description), "") for found in one.tier2]
    rows += [(code(found.id), "3", words(found.description), code(found.when.value)) for found in one.tier3]
    return [f"### {one.name}", words(one.judge_context), table(("check or dimension", "tier", "what it asks", "when"), rows)]
