"""Views of exchanges before they are stored: a table for people, documents for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from audit.exchanges.labels import labels_json
from schemas.records import Exchange
from service.cli.terminal import table
from service.text.plain import MISSING, plain

SHOWN = 60
"""Characters of a text that the table shows."""
_INTERNAL = ("ingested_at", "content_digest")


def exchange_view(exchanges: Sequence[Exchange]) -> RenderableType:
    """Show each exchange on a line."""
    headers = ["at", "session", "agent", "model", "tokens", "question", "answer"]
    cells = [
        [
            f"{one.occurred_at:%Y-%m-%d %H:%M:%S}",
            plain(one.session_id, SHOWN),
            plain(one.agent, SHOWN) or MISSING,
            plain(one.agent_model, SHOWN) or MISSING,
            _tokens(one),
            plain(one.user_message, SHOWN),
            plain(one.agent_response, SHOWN) or one.outcome,
        ]
        for one in exchanges
    ]
    return table(headers, cells, right=["tokens"])


def exchange_document(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange for scripts, with its labels as they are sent."""
    fields = msgspec.structs.asdict(exchange)
    return {name: value for name, value in fields.items() if name not in _INTERNAL} | {"labels": labels_json(exchange.labels)}


def _tokens(exchange: Exchange) -> str:
    if exchange.input_tokens is None and exchange.output_tokens is None:
        return MISSING
    return " → ".join(MISSING if count is None else str(count) for count in (exchange.input_tokens, exchange.output_tokens))
