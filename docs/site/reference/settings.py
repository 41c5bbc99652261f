"""Every setting, from the type that reads them."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator

from msgspec.inspect import CustomType, LiteralType, Type

from reference.markdown import code, page, sentence, words
from service.setup.settings import PREFIX, Secret, Settings, kinds_of_settings

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "min_length": "characters at least:"}


def settings() -> str:
    """Return the page."""
    said = _said_below_fields()
    parts = [part for name, kinds in kinds_of_settings().items() for part in _setting(name, kinds, said[name])]
    return page(
        "Settings",
        "Settings say where things are, and are read from the environment; an option of a [command](commands.md) wins over them. "
        "The [policy](policy.md) says how agents are judged. A value that cannot be used ends the command with the variable's name.",
        *parts,
    )


def _said_below_fields() -> dict[str, str]:
    """Return the strings below the fields, which the running program does not keep."""
    (model,) = ast.parse(textwrap.dedent(inspect.getsource(Settings))).body
    pairs = itertools.pairwise(model.body) if isinstance(model, ast.ClassDef) else ()
    return {
        ast.unparse(field.target): " ".join(str(ast.literal_eval(said.value)).split())
        for field, said in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(said, ast.Expr)
    }


def _setting(name: str, kinds: tuple[Type, ...], said: str) -> list[str]:
    told = [one for kind in kinds for one in _told(kind)]
    default = getattr(Settings(), name)
    default = str(default).lower() if isinstance(default, bool) else default
    told.append("without it: none" if default in (None, "") else f"without it: {code(str(default))}")
    return [f"## {PREFIX}{name.upper()}", words(said), sentence("; ".join(told))]


def _told(kind: Type) -> Iterator[str]:
    """What a type says of its values."""
    if isinstance(kind, CustomType) and issubclass(kind.cls, Secret):
        yield f"{_BOUNDS['min_length']} {code(str(kind.cls.SHORTEST))}"
        yield "a secret: it is in no log and no table"
    if isinstance(kind, LiteralType):
        yield "one of " + ", ".join(code(str(value)) for value in kind.values)
    yield from (
        f"{said} {code(str(bound))}" for name, said in _BOUNDS.items() if (bound := getattr(kind, name, None)) is not None
    )
