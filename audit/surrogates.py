"""Halves of surrogate pairs: what programs leave behind that cut a text in UTF-16 at a length. No UTF-8 can hold them.

Texts are repaired: each half becomes U+FFFD. Ids are not, because two ids that differ would become one: they are refused.
"""

from __future__ import annotations
