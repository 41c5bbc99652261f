"""Requests in protobuf with texts that are not UTF-8: each text is repaired, and all that is whole is read.

Protobuf refuses a whole message for one bad text within it, and SDKs that cut at a length halve characters. So a request that was refused
is read once more with messages whose fields for text take any bytes. The usual request never comes here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, MutableSequence
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from audit.surrogates import decode_broken, mended_text

Strict = TypeVar("Strict", bound=Message)


class Repaired(NamedTuple):
    """A message whose texts are UTF-8. `is_cut`: some of them were not, and lost what could not be read."""

    message: Any
    is_cut: bool


def read_lenient(request: type[Message], body: bytes) -> Any:
    """The request with its texts as bytes; DecodeError when it is no message of this kind at all."""
    lenient: Any = _lenient_class
    return lenient(request).FromString(body)


def repair(message: Message, strict: type[Strict]) -> Repaired:
    """A part of a lenient request as the message that it should have been, each text repaired that is not UTF-8."""
    try:
        return Repaired(strict.FromString(message.SerializeToString()), is_cut=False)
    except DecodeError:
        _repair_texts(message, strict.DESCRIPTOR)
        return Repaired(strict.FromString(message.SerializeToString()), is_cut=True)


@functools.cache
def _lenient_class(strict: Any) -> type[Message]:
    """The class of the same messages with bytes in the place of text."""
    pool = DescriptorPool()
    for file in _with_imports(strict.DESCRIPTOR.file):
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        for message in copy.message_type:
            _make_lenient(message)
        pool.Add(copy)
    return GetMessageClass(pool.FindMessageTypeByName(strict.DESCRIPTOR.full_name))


def _with_imports(file: Any) -> Iterator[Any]:
    """The file after those that it imports, each once."""
    ordered: dict[str, Any] = {}

    def visit(imported: Any) -> None:
        for dependency in imported.dependencies:
            visit(dependency)
        ordered.setdefault(imported.name, imported)

    visit(file)
    return iter(ordered.values())


def _make_lenient(message: DescriptorProto) -> None:
    for field in message.field:
        if field.type == FieldDescriptorProto.TYPE_STRING:
            field.type = FieldDescriptorProto.TYPE_BYTES
    for nested in message.nested_type:
        _make_lenient(nested)


def _repair_texts(message: Message, strict: Any) -> None:
    # Protobuf bounds the depth of what it has read.
    for field, value in message.ListFields():
        intended = strict.fields_by_number[field.number]
        if intended.message_type is not None:
            for child in value if isinstance(value, MutableSequence) else (value,):
                _repair_texts(child, intended.message_type)
        elif intended.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, field.name, _repair(value))
            else:
                value[:] = map(_repair, value)


def _repair(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        return mended_text(decode_broken(text)).encode()
    return text
