"""The sections of the guide to OpenTelemetry that say how each stack is connected: what the page *Connect* shows, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from reference.markdown import fenced
from service.pages.connect import Stack, fill, stacks

BEGIN = "<!-- Made from service/pages/stacks.yaml by docs/site/publish.py: change it there and run make generate. -->"
END = "<!-- The end of what is made. -->"
_FILLED = {"url": "http://127.0.0.1:8377", "token": "$TOKEN"}


def with_stacks(guide: str) -> str:
    """Return the guide with its sections of stacks made again; ValueError where it has no place for them."""
    before, begin, rest = guide.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the guide to OpenTelemetry has no place for the stacks")
    return "\n\n".join([before + BEGIN, *_parts(), END]) + after


def _parts() -> Iterator[str]:
    known = stacks()
    yield (
        "Python programs share these lines. Put them where the program starts, and those of your stack after them, before the\n"
        "agent is made:"
    )
    yield fenced(known.exporter, "python")
    yield (
        "If your program has a `TracerProvider` already, take it as `provider` and add the processor to it. Its other exporters\n"
        "go on getting everything."
    )
    for stack in known.stacks:
        yield from _section(stack, has_exporter=stack.has_exporter)


def _section(stack: Stack, *, has_exporter: bool) -> Iterator[str]:
    yield f"### {stack.name}"
    after = ", after the lines that all share" if has_exporter else ""
    if stack.language != "yaml":
        yield f"`{stack.install}`{after}:"
    if stack.variables:
        yield fenced(fill(stack.variables, _FILLED), "bash")
    yield fenced(fill(stack.code, _FILLED | {"token": "dl_…"}), "js" if stack.language == "javascript" else stack.language)
    yield stack.session
    if stack.notes:
        yield "\n".join(f"- {note}" for note in stack.notes)
    if stack.tried:
        yield f"Tried with {', '.join(stack.tried)}."
