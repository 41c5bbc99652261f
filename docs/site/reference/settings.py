"""Every setting, from the model that reads them."""

from __future__ import annotations

from typing import Any

from reference.markdown import code, page, sentence, words
from service.settings import PREFIX, Settings

_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most", "minLength": "characters at least:"}


def settings() -> str:
    """The page."""
    schema = Settings.model_json_schema()
    parts = [part for name in Settings.model_fields for part in _setting(name, schema["properties"][name])]
    return page(
        "Settings",
        "Settings say where things are, and are read from the environment; an option of a [command](commands.md) wins over them. "
        "The [policy](policy.md) says how agents are judged. A value that cannot be used ends the command with the variable's name.",
        *parts,
    )


def _setting(name: str, schema: dict[str, Any]) -> list[str]:
    choices = [schema, *schema.get("anyOf", ())]
    told = [f"{said} {code(one[bound])}" for one in choices for bound, said in _BOUNDS.items() if bound in one]
    told += ["one of " + ", ".join(code(value) for value in one["enum"]) for one in choices if "enum" in one]
    told += ["a secret: it is in no log and no table" for one in choices if one.get("writeOnly")]
    default = schema.get("default")
    default = str(default).lower() if isinstance(default, bool) else default
    told.append("without it: none" if default in (None, "") else f"without it: {code(default)}")
    return [f"## {PREFIX}{name.upper()}", words(schema["description"]), sentence("; ".join(told))]
