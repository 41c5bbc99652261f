"""Untrusted texts of agents and users as HTML that is safe to show: as they are, and their Markdown.

Every text is escaped by `shown`, which writes out invisible and direction characters. In Markdown, too, raw HTML, images and reference
definitions stay readable text, so nothing is loaded and nothing is hidden. Links lead only to http, https and mailto, and their target
is written beside them.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from audit.prompt_quoting import hidden_parts

_CODE = Markup('<span class="code-point">U+{}</span>')
_ADDRESS = re.compile(r"(?:https?://|mailto:)[^\s<>\"'\\]+", re.IGNORECASE)
MAX_LINK = 2_000
"""Characters of an address. A longer one stays text."""
MAX_STRUCTURE = 2_000
"""Characters of a text that may open a link or a quotation. Each of them can make the parser look at the rest of the text once more."""
MAX_TOKENS = 20_000
"""Blocks and cells of a text. A table of few characters can have many empty cells."""
_STRUCTURE = re.compile(r"[\[\]>]")
_PLAIN = frozenset({"paragraph_open", "paragraph_close", "inline", "text", "softbreak"})
_Tokens = Sequence[Token]
_Env = MutableMapping[str, Any]


def shown(text: object, find: str = "") -> Markup:
    """Escape an untrusted text, with its code in place of every invisible or direction character, and mark the occurrences of `find`."""
    if find:
        pieces = re.split(f"({re.escape(find)})", str(text), flags=re.IGNORECASE)
        # Every second piece is an occurrence.
        return Markup("").join(
            Markup("<mark>{}</mark>").format(shown(piece)) if index % 2 else shown(piece) for index, piece in enumerate(pieces)
        )
    parts = hidden_parts(str(text))
    if len(parts) == 1:
        return escape(parts[0][0])
    return Markup("").join(
        part
        for text_part, hidden in parts
        for part in (escape(text_part), _CODE.format(f"{ord(hidden):04X}") if hidden else "")
    )


def render_markdown(text: str, find: str = "") -> Markup | None:
    """Render Markdown as HTML with the occurrences of `find` marked; None for a text without any formatting, or with too much of it."""
    if sum(1 for _ in _STRUCTURE.finditer(text)) > MAX_STRUCTURE:
        return None
    tokens = _parser().parse(text)
    if len(tokens) > MAX_TOKENS or all(token.type in _PLAIN for block in tokens for token in (block, *(block.children or ()))):
        return None
    for token in tokens:
        token.attrs = {name: value for name, value in token.attrs.items() if name == "start"}
        if token.type in {"heading_open", "heading_close"}:
            # Headings of an agent must not become headings of the page.
            token.tag = "p"
        if token.type == "heading_open":
            token.attrs["class"] = "heading"
    return Markup(_parser().renderer.render(tokens, _parser().options, {"find": find}))  # noqa: S704 - each rule escapes its text


class _Renderer(RendererHTML):
    """Renders texts, code and links; the tags of other tokens have no attributes of the agent."""

    def text(self, tokens: _Tokens, idx: int, _: object, env: _Env) -> str:
        """Render a text."""
        return shown(tokens[idx].content, env["find"])

    def code_inline(self, tokens: _Tokens, idx: int, _: object, env: _Env) -> str:
        """Render code within a paragraph."""
        return Markup("<code>{}</code>").format(shown(tokens[idx].content, env["find"]))

    def code_block(self, tokens: _Tokens, idx: int, _: object, env: _Env) -> str:
        """Render a block of code."""
        return Markup('<pre class="code" tabindex="0">{}</pre>\n').format(shown(tokens[idx].content, env["find"]))

    def fence(self, tokens: _Tokens, idx: int, options: object, env: _Env) -> str:
        """Render a block of code under the language that its fence names."""
        language = tokens[idx].info.strip()
        label = Markup('<p class="language">{}</p>').format(shown(language, env["find"])) if language else ""
        return label + self.code_block(tokens, idx, options, env)

    def link_open(self, tokens: _Tokens, idx: int, _: object, env: _Env) -> str:
        """Begin a link, and keep its target for its end."""
        env["target"] = _build_target(tokens[idx])
        return Markup('<a href="{}" rel="noopener nofollow">').format(tokens[idx].attrGet("href"))

    def link_close(self, tokens: _Tokens, idx: int, _: object, env: _Env) -> str:
        """End a link and write its target, which its text may contradict."""
        is_target = tokens[idx].markup == "autolink"
        return (
            Markup("</a>")
            if is_target
            else Markup('</a> <span class="target">({})</span>').format(shown(env["target"], env["find"]))
        )


def _build_target(token: Token) -> str:
    return " ".join(str(part) for part in (token.attrGet("href"), token.attrGet("title")) if part)


def _is_safe(address: str) -> bool:
    return len(address) <= MAX_LINK and _ADDRESS.fullmatch(address) is not None and len(hidden_parts(address)) == 1


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"]).disable(["html_block", "html_inline", "image", "reference"])
    parser.validateLink = _is_safe  # type: ignore[assignment, method-assign]
    return parser
