"""Stores for the tests of upkeep."""

from __future__ import annotations

from stores import *  # noqa: F403 - pytest finds fixtures by their names here
