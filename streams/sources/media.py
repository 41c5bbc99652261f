"""Placeholders for images, audio, video and files in messages.

Providers and frameworks mark a media block by its `type`, by the key that holds it, or only by a MIME type. The content is not stored, and no
URL in it is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]


def placeholder_of(block: Json) -> str | None:
    """Return `[image]`, `[audio]`, `[video]` or `[file]` for a media block; None for any other block."""
    kind = block.get("type", block.get("block_type"))
    if isinstance(kind, str):
        name = _BY_TYPE.get(kind)
        return None if name is None else f"[{_modality(block) or name}]"
    if _KEYS.isdisjoint(block):
        return None
    for key, name in _BY_KEY.items():
        if isinstance(inner := block.get(key), dict):
            return f"[{_modality(inner) or name}]"
    return None


def placeholders_in(blocks: Iterable[Json]) -> str:
    """Return the placeholders of a message's blocks as text, each kind once, in order; empty if the message has no media."""
    placeholders = map(placeholder_of, blocks)
    return join_placeholders(placeholder for placeholder in placeholders if placeholder is not None)


def join_placeholders(placeholders: Iterable[str]) -> str:
    """Return placeholders as the text of a message, each kind once."""
    return " ".join(dict.fromkeys(placeholders))


def _modality(block: Json) -> str | None:
    """Return the modality that a block names besides its type: OpenTelemetry's `modality`, or a MIME type in the block or its source."""
    modality = block.get("modality")
    if isinstance(modality, str) and modality in _MODALITIES:
        return modality
    sources = [block.get(member) for member in _SOURCE_MEMBERS]
    for holder in (block, *(source for source in sources if isinstance(source, dict))):
        for member in _MIME_TYPE_MEMBERS:
            mime_type = holder.get(member)
            if isinstance(mime_type, str) and mime_type:
                return _modality_of_mime_type(mime_type)
        for member in _ADDRESS_MEMBERS:
            address = holder.get(member)
            if isinstance(address, str) and address.startswith("data:"):
                return _modality_of_mime_type(address.removeprefix("data:"))
    return None


def _modality_of_mime_type(mime_type: str) -> str:
    """Return the modality of a MIME type, or of a data URL's content; `file` if it is neither an image, audio nor video."""
    top_level_type = mime_type[:_MAX_TOP_LEVEL_TYPE].partition("/")[0].lower()
    return top_level_type if top_level_type in _MODALITIES else "file"


_MODALITIES = frozenset({"image", "audio", "video"})
_MAX_TOP_LEVEL_TYPE = 16
"""Characters of a MIME type that are searched for its top-level type: a data URL may have megabytes."""
_BY_TYPE = {
    **dict.fromkeys(("image", "image_url", "image-url", "input_image", "output_image", "image_content", "localImage"), "image"),
    **dict.fromkeys(("audio", "audio_url", "audio-url", "input_audio", "output_audio", "audio_content"), "audio"),
    **dict.fromkeys(("video", "video_url", "video-url", "input_video", "video_content"), "video"),
    **dict.fromkeys(
        (
            "file", "input_file", "file_url", "file-url", "document", "document_url", "document-url", "blob", "uri", "binary", "media",
            "resource", "resource_link", "container_upload",
        ),
        "file",
    ),
}  # fmt: skip
"""Block types of OpenAI, Anthropic, OpenTelemetry, OpenInference, LangChain, LlamaIndex, LiveKit, Pydantic AI, Vercel and MCP."""
_BY_KEY = {
    **dict.fromkeys(("inline_data", "inlineData", "file_data", "fileData", "media", "document", "file"), "file"),
    **dict.fromkeys(("image", "image_url"), "image"),
    "video": "video",
    "audio": "audio",
}
"""Keys that hold a block without a type in Gemini, Genkit, Bedrock and Haystack."""
_KEYS = frozenset(_BY_KEY)
_SOURCE_MEMBERS = ("source", "file", "image_url", "input_audio", "audio", "image", "video", "data", "media")
_MIME_TYPE_MEMBERS = ("mime_type", "mimeType", "media_type", "mediaType", "contentType", "content_type")
_ADDRESS_MEMBERS = ("url", "image_url", "uri", "data", "image", "file_data", "content")
