"""The place of a spark line: its values for the script, and words for who cannot see it."""

from __future__ import annotations

import json
import re
from html import unescape

from service.pages.charts import spark


def test_values_keep_their_gaps_and_the_description_is_escaped() -> None:
    """The script reads the values, a screen reader the description."""
    markup = spark([0.9, None, 0.6], 'fell <"x">')
    assert json.loads(unescape(re.findall(r'data-spark="([^"]*)"', markup)[0])) == [0.9, None, 0.6]
    assert 'role="img" aria-label="fell &lt;&#34;x&#34;&gt;"' in markup


def test_a_single_point_has_no_line() -> None:
    """A single point would carry no information."""
    assert not spark([None, 0.9, None], "one")
    assert not spark([], "none")
