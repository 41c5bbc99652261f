"""The system prompt as it is sent: the shipped one, or one's own with the part at its end that no judge can do without."""

from __future__ import annotations

from audit.evaluation.cases.case_files import shipped_system_prompt

FORM = "# What you are given, and what you answer"
"""Heading of the last part of the shipped prompt: the form of the message, which texts are data, and the shape of the answer."""


def complete(system_prompt: str) -> str:
    """The prompt with the form put at its end, where it does not hold it word for word.

    One's own prompt says how to score. What the judge is given and how it answers is no matter of taste: a server that takes no
    notice of the answer's schema has nothing else to go by, and nor has a judge that is not to obey the texts it reads.
    """
    shipped = shipped_system_prompt()
    form = shipped[shipped.index(FORM) :]
    return system_prompt if form.strip() in system_prompt else f"{system_prompt.rstrip()}\n\n{form}"
