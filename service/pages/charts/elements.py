"""Elements of a drawing: a drawing has hundreds of them, each a template for a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape


@dataclass(frozen=True, slots=True)
class Element:
    """Markup with placeholders, formatted like `Markup.format` in a fifth of the time."""

    markup: str

    def format(self, *values: object) -> Markup:
        """Fill in values, which are escaped unless they are markup."""
        return Markup(self.markup.format(*map(escape, values)))  # noqa: S704 - our own markup, and values that are escaped
