"""The help: every word that a page leads to is there, once."""

from __future__ import annotations

import re

from support.api_server import NOW, Call, Tokens
from support.pages import cookie, signed_in
from support.watch_histories import fallen, history, put

from analytics.store.store import Store
from service.pages.project_charts import TIERS


def test_each_term_has_one_entry(call: Call, tokens: Tokens) -> None:
    """Every term needs a unique anchor."""
    page = call("GET", "/help", headers=cookie(signed_in(call, tokens.root))).text
    terms = re.findall(r'<dt id="([^"]+)"', page)
    assert sorted(set(terms)) == sorted(terms)
    assert set(TIERS) | {"gate", "baseline", "trust", "readiness", "wrap-up", "health", "sampling", "unscored"} <= set(terms)
    assert terms == re.findall(r'<a href="#([^"]+)">', page.split('aria-label="Words"')[1])
    assert "wrapQualityScoring: true" in page


def test_every_linked_term_exists(call: Call, tokens: Tokens, store: Store) -> None:
    """Links to terms must have a target."""
    put(store, "scores", history(fallen(0), 3, end=NOW))
    value = cookie(signed_in(call, tokens.root))
    terms = set(re.findall(r'<dt id="([^"]+)"', call("GET", "/help", headers=value).text))
    for path in ("/", "/?view=table", "/projects/ops", "/projects/ops/wrap-quality"):
        page = call("GET", path, headers=value).text
        assert '<a href="/help" >Help</a>' in page
        assert set(re.findall(r'href="/help#([^"]+)"', page)) <= terms, path
    assert 'href="/help#tier2"' in call("GET", "/projects/ops", headers=value).text
    assert call("GET", "/help").status_code == 303
