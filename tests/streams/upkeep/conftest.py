"""Stores for the tests of upkeep."""

from __future__ import annotations

from support.store_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here
