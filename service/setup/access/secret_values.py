"""Secrets among the settings: texts that no log, no error and no repr shows."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"https?://[^\s/@?#]+(?:@[^\s/@?#]+)?(?:[/?][^\s#]*)?")


class Secret:
    """A text that its repr hides: `reveal` is the only way to it. ValueError if it is too short."""

    __slots__ = ("_text",)
    SHORTEST = 1
    """Characters at least."""

    def __init__(self, text: str) -> None:
        if len(text) < self.SHORTEST:
            raise ValueError(f"must have {self.SHORTEST} or more characters")
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}('**********')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Key(Secret):
    """A secret that markers or signatures are made with."""

    __slots__ = ()
    SHORTEST = 16


class SecretAddress(Secret):
    """An address that is a secret itself: who knows it can post there. ValueError if it is none."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if not _ADDRESS.fullmatch(text):
            raise ValueError("must be an address that begins with https:// or http://")
