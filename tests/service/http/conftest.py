"""An application over a real engine, called in one event loop; and the same behind a real server."""

from __future__ import annotations

from support.api_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here
