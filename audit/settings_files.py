"""Policies, methodologies and other settings in files: YAML (so JSON too), with the line of every field for its errors."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from audit.file_kinds import HEAD, binary_kind
from schemas.bounds import MAX_DEPTH
from schemas.errors import PolicyError
from schemas.validation_messages import words_of

MAX_FILE_BYTES = 1024 * 1024
_KIND_PROBLEMS = frozenset({"union_tag_invalid", "union_tag_not_found"})
Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)
POLICY_HINT = "Correct the lines named above; examples/policy.yaml explains every field."
"""Advice on problems in a policy or methodology."""
_KEY_NOUNS = {"string_pattern_mismatch": "project name"}
_FILE_MESSAGES = {
    "model_type": "fields are expected here, one per line: `name: value`",
    "model_attributes_type": "fields are expected here, one per line: `name: value`",
    "missing": "is required",
    "extra_forbidden": "unknown field",
    "string_type": "must be a string; quote it",
}
"""Messages for problems in a file, where they differ from those for a call."""


class Document:
    """A file's value with the line of each field, and the problems found so far."""

    def __init__(
        self,
        path: Path,
        *,
        hint: str = POLICY_HINT,
        content: bytes | None = None,
        shows_values: bool = True,
        max_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """Read the file, or `content` instead of it; raises PolicyError if it cannot be read or is not YAML.

        `hint` says how to fix problems in it. Their messages have the wrong value if the document `shows_values`. A file of more than
        `max_bytes` is refused.
        """
        self.path = path
        self.hint = hint
        self._shows_values = shows_values
        self.lines: dict[Location, int] = {(): 1}
        self.problems: list[tuple[int, str]] = []
        self._loader = _Loader(_decode_text(path, _read_bytes(path, max_bytes) if content is None else content, max_bytes))
        try:
            node = self._loader.get_single_node()
            self.value = self._construct(node, ()) if node is not None else None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self._build_document_error((mark.line + 1) if mark else 1, error.problem or "no YAML") from None
        finally:
            self._loader.dispose()
        if node is None:
            raise self._build_document_error(1, "the file is empty")

    def problem(self, location: Location, reason: str) -> None:
        """Add a problem with a field."""
        self.note(location, f"{self.describe_location(location)}: {reason}")

    def note(self, location: Location, message: str) -> None:
        """Add a message about a field that already names its location."""
        self.problems.append((self.line(location), message))

    def describe_location(self, location: Location) -> str:
        """Return `FILE:LINE: field.path` of a field."""
        return f"{self.path}:{self.line(location)}: {_format_location(location)}"

    def line(self, location: Location) -> int:
        """Return the line of a field, from 1; for a missing field the line of its parent."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]

    def validate(self, model: type[Model]) -> Model:
        """Return the value as a model; raises PolicyError with every problem on its own line."""
        try:
            result = model.model_validate(self.value, by_alias=True, by_name=False)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            locations = [self._locate_problem(problem) for problem in problems]
            for location, problem in zip(locations, problems, strict=True):
                if not _is_consequence(location, problem, locations):
                    self.problem(location, _describe_problem(problem, model, shows_values=self._shows_values))
            self.refuse_problems()
            raise  # unreachable: a ValidationError has at least one error
        self.refuse_problems()
        return result

    def refuse_problems(self) -> None:
        """Raise PolicyError with all problems so far in order of the file, if any."""
        if self.problems:
            raise PolicyError("\n".join(message for _, message in sorted(self.problems)), hint=self.hint)

    def _locate_problem(self, problem: Any) -> Location:
        """Return the location of a problem in the file.

        Pydantic adds elements to the location: the kind chosen from several, and a mark for a bad key.
        """
        *parents, last = problem["loc"] or ("",)
        location: Location = ()
        for element in parents:
            if (*location, element) in self.lines:
                location = (*location, element)
        if problem["type"] in _KIND_PROBLEMS:
            return (*location, last, problem["ctx"]["discriminator"].strip("'"))
        is_of_kind = problem["type"] == "value_error" and (*location, last) not in self.lines
        return location if is_of_kind or last in ("", "[key]") else (*location, last)

    def _build_document_error(self, line: int, reason: str) -> PolicyError:
        return PolicyError(f"{self.path}:{line}: document: {reason}", hint="The file must be one YAML or JSON document.")

    def _construct(self, node: yaml.Node, location: Location) -> Any:
        """Return the node as plain values (sequences as tuples); records lines and refuses features of YAML beyond JSON."""
        self.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._construct_mapping(node, location)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return tuple(self._construct(item, (*location, index)) for index, item in enumerate(node.value))
        if isinstance(node, yaml.ScalarNode):
            return self._construct_scalar(node)
        raise _build_error(f"the tag {node.tag} is not supported", node)

    def _construct_mapping(self, node: yaml.MappingNode, location: Location) -> dict[Hashable, Any]:
        result: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self._construct_scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise _build_error("a field name must be text; quote it", key_node)
            line = key_node.start_mark.line + 1
            if key in result:
                first_line = self.lines[(*location, key)]
                message = f"{self.path}:{line}: {_format_location((*location, key))}: given twice, first on line {first_line}"
                self.problems.append((line, message))
                continue
            self.lines[(*location, key)] = line
            result[key] = self._construct(value_node, (*location, key))
        return result

    def _construct_scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return self._loader.construct_object(node)
        except (ValueError, OverflowError):
            raise _build_error(f"not a value: {node.value[:40]!r}", node) from None


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (a few lines of which can expand to gigabytes) and with bounded depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _build_error("aliases (*name) are not supported; write the value out", event)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _build_error(f"nested deeper than {MAX_DEPTH}", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _build_error(reason: str, position: Any) -> yaml.MarkedYAMLError:
    """Return an error in YAML's own form, at a node or event."""
    return yaml.MarkedYAMLError(None, None, reason, position.start_mark)


def _decode_text(path: Path, data: bytes, max_bytes: int) -> str:
    if len(data) > max_bytes:
        raise PolicyError(
            f"{path}:1: document: larger than {max_bytes} bytes",
            hint="Check that it is the right file; a settings file has a page or two.",
        )
    if kind := binary_kind(data[:HEAD]):
        raise PolicyError(f"{path}:1: document: is {kind.name}, not YAML or JSON", hint=kind.hint)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError(f"{path}:{line}: document: not UTF-8", hint="Save the file as UTF-8.") from None
    control = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise PolicyError(f"{path}:{line}: document: control character {control.group()!r}", hint="Remove the character.")
    return text


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read the file, at most one byte more than it may have."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise PolicyError(f"{path}: does not exist", hint="Check the path.") from None
    except IsADirectoryError:
        raise PolicyError(f"{path}:1: document: is a folder", hint="Give a file in it.") from None
    except OSError as error:
        raise PolicyError(
            f"{path}:1: document: cannot be read: {error.strerror}", hint="Check the path and its permissions."
        ) from None


def _format_location(location: Location) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".") or "document"


def _is_consequence(location: Location, problem: Any, locations: Iterable[Location]) -> bool:
    """Return whether a list is only too short because pydantic leaves out elements that have problems of their own."""
    if problem["type"] != "too_short":
        return False
    return any(len(other) > len(location) and other[: len(location)] == location for other in locations)


def _describe_problem(problem: Any, model: type[BaseModel], *, shows_values: bool) -> str:
    """Return what is wrong with a field, with a suggestion, or with its value if the document shows values."""
    kind = problem["type"]
    location = problem["loc"]
    if location and location[-1] == "[key]":
        return f"not a {_KEY_NOUNS.get(kind, 'name')}: {words_of(problem)}"
    if kind in _KIND_PROBLEMS:
        return _describe_kinds(problem, model)
    reason = _FILE_MESSAGES.get(kind) or words_of(problem)
    if kind == "extra_forbidden":
        name = str(location[-1])
        return reason + _suggest_name(name, _list_field_names(model) - {name})
    value = problem["input"]
    is_scalar = isinstance(value, str | int | float) or value is None
    if kind == "missing" or not is_scalar or not shows_values:
        return reason
    return f"{reason} (it is {value!r:.80})"


def _describe_kinds(problem: Any, model: type[BaseModel]) -> str:
    """Name the available kinds, if a field must choose one and names none of them."""
    field = problem["ctx"]["discriminator"].strip("'")
    choices = (item.get("discriminator", {}) for item in _iterate_objects(model.model_json_schema(by_alias=True)))
    kinds = sorted(next(choice["mapping"] for choice in choices if choice.get("propertyName") == field))
    tag = problem["ctx"].get("tag")
    start = "is required" if tag is None else f"there is no {field} {tag[:80]!r}{_suggest_name(tag, kinds)}"
    return f"{start}; there are {', '.join(kinds)}"


def _iterate_objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a JSON schema at every depth."""
    if isinstance(schema, dict):
        yield schema
    if isinstance(schema, dict | list):
        for item in schema.values() if isinstance(schema, dict) else schema:
            yield from _iterate_objects(item)


def _suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a suggestion of the most similar name; an empty text if none is similar."""
    matches = difflib.get_close_matches(name, sorted(names), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _list_field_names(model: type[BaseModel]) -> set[str]:
    """Return the names that a file may use anywhere in the model, for suggestions."""
    schema = model.model_json_schema(by_alias=True)
    names = set(schema.get("properties", {}))
    for definition in schema.get("$defs", {}).values():
        names |= set(definition.get("properties", {}))
    return names


class PolicyModel(BaseModel):
    """A part of a policy: camelCase, strict types, no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, validate_by_name=True)
