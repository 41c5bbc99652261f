"""The place of a spark line: its values for the script, and words for who cannot see it."""

from __future__ import annotations

import json
import re
from html import unescape

from service.pages.charts import spark


def test_values_come_back_with_their_gaps_and_words_are_text() -> None:
    """The script reads the one, a reader of screens the other."""
    made = spark([0.9, None, 0.6], 'fell <"x">')
    assert json.loads(unescape(re.findall(r'data-spark="([^"]*)"', made)[0])) == [0.9, None, 0.6]
    assert 'role="img" aria-label="fell &lt;&#34;x&#34;&gt;"' in made


def test_there_is_no_line_through_one_point() -> None:
    """A single point would carry no information."""
    assert not spark([None, 0.9, None], "one")
    assert not spark([], "none")
