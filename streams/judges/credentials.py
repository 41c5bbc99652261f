"""The credentials of the judge's API in the environment: read by many who ask no judge, so without the API's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DEFAULT_BASE_URL = "https://api.anthropic.com"


class Credentials(NamedTuple):
    """The settings of the judge's API in the environment; a field that is not set there is None."""

    api_key: str | None
    base_url: str | None


def credentials(environ: Mapping[str, str]) -> Credentials:
    """Key and address from `ANTHROPIC_API_KEY`, else `ANTHROPIC_AUTH_TOKEN` (both are sent as a bearer token), and
    `ANTHROPIC_BASE_URL`. What is empty counts as missing.
    """  # noqa: D205 - the first sentence does not fit a line
    names = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL")
    key, token, base_url = (environ.get(name, "").strip() or None for name in names)
    return Credentials(key or token, base_url)
