"""The system prompt of the judge: the one that is shipped, and one's own, which always ends with what no judge can do without."""

from __future__ import annotations

from functools import cache
from importlib import resources

FORM = "# What you are given, and what you answer"
"""Heading of the last part of the shipped prompt: the form of the message, which texts are data, and the shape of the answer."""


@cache
def shipped_system_prompt() -> str:
    """The system prompt that comes with the package, Markdown."""
    return resources.files("audit.evaluation").joinpath("judge_system_prompt.md").read_text("utf-8")


def complete(system_prompt: str) -> str:
    """The prompt as it is sent: the form is put at its end where it does not hold it word for word.

    One's own prompt says how to score. What the judge is given and how it answers is no matter of taste: a server that takes no
    notice of the answer's schema has nothing else to go by, and nor has a judge that is not to obey the texts it reads.
    """
    shipped = shipped_system_prompt()
    form = shipped[shipped.index(FORM) :]
    return system_prompt if form.strip() in system_prompt else f"{system_prompt.rstrip()}\n\n{form}"
