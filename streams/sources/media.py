"""Media in messages: placeholders for images, audio, video and files.

Providers and frameworks mark such a block by its `type`, by the key that holds it, or only by a MIME type. The content itself is not stored,
and no URL in it is fetched.
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
    """Return the placeholders of a message's blocks, each kind once, in order; empty if all are text."""
    return joined(name for block in blocks if (name := placeholder_of(block)) is not None)


def joined(placeholders: Iterable[str]) -> str:
    """Return placeholders as the text of a message without any other text, each kind once."""
    return " ".join(dict.fromkeys(placeholders))


def _modality(block: Json) -> str | None:
    """Return the modality of a block beyond its type: OpenTelemetry's `modality`, or a MIME type in it or its source."""
    modality = block.get("modality")
    if isinstance(modality, str) and modality in _MODALITIES:
        return modality
    for holder in (block, *(inner for name in _SOURCES if isinstance(inner := block.get(name), dict))):
        for name in _MIME_TYPES:
            if isinstance(mime := holder.get(name), str) and mime:
                return _of_mime(mime)
        for name in _ADDRESSES:
            if isinstance(address := holder.get(name), str) and address.startswith("data:"):
                return _of_mime(address[len("data:") :])
    return None


def _of_mime(mime: str) -> str:
    family = mime[:_LONGEST_FAMILY].partition("/")[0].lower()
    return family if family in _MODALITIES else "file"


_MODALITIES = frozenset({"image", "audio", "video"})
_LONGEST_FAMILY = 16
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
_SOURCES = ("source", "file", "image_url", "input_audio", "audio", "image", "video", "data", "media")
_MIME_TYPES = ("mime_type", "mimeType", "media_type", "mediaType", "contentType", "content_type")
_ADDRESSES = ("url", "image_url", "uri", "data", "image", "file_data", "content")
