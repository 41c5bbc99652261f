"""The words for the terms of the records."""

from __future__ import annotations

import pytest

from audit.exchanges.sampling import REASONS
from service.text.words import WORDS
from streams.log.dead_letters import RETRY_SAMPLING_REASON


@pytest.mark.parametrize("table", ["sampling", "sampling_reasons"])
def test_every_sampling_reason_has_words(table: str) -> None:
    """A page would show the bare name of a reason that was added without them."""
    assert set(WORDS[table]) == {*REASONS, RETRY_SAMPLING_REASON}
