"""OTLP requests in protobuf.

Protobuf rejects a whole message for one text that is not UTF-8, and SDKs that cut texts can split a character. Such a request is parsed again with
message classes whose text fields accept any bytes, and each text is repaired. Valid requests never take this path.
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
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from audit.surrogates import decode_leniently, repair_text
from schemas.errors import InputError
from streams.sources.otlp.attributes import MAX_ATTRIBUTES, read_attributes
from streams.sources.otlp.request_formats import MAX_EVENTS, SEND_HINT, RequestFormat, RequestItem, Scope

Strict = TypeVar("Strict", bound=Message)


def read_protobuf_items(body: bytes, request_format: RequestFormat) -> Iterator[RequestItem[Any]]:
    """Yield the items of a request. Raises InputError if it is no message of OTLP."""
    try:
        request: Any = request_format.request.FromString(body)
    except DecodeError:
        yield from _read_repaired_items(body, request_format)
        return
    for group in getattr(request, request_format.groups.field):
        resource = read_attributes(group.resource.attributes)
        for scope_group in getattr(group, request_format.scopes.field):
            scope = Scope(scope_group.scope.name, scope_group.scope.version)
            for item in getattr(scope_group, request_format.items.field):
                yield RequestItem(resource, scope, item)


def _read_repaired_items(body: bytes, request_format: RequestFormat) -> Iterator[RequestItem[Any]]:
    """Yield the items of a request that protobuf rejected, perhaps only because a text is not UTF-8."""
    try:
        request = read_lenient(request_format.request, body)
    except DecodeError as error:
        raise InputError(
            f"the body is not a protobuf message of OTLP's {request_format.request.DESCRIPTOR.name}", hint=SEND_HINT
        ) from error
    for group in getattr(request, request_format.groups.field):
        resource = _repair_message(group.resource, Resource)
        attributes = read_attributes(resource.message.attributes)
        for scope_group in getattr(group, request_format.scopes.field):
            repaired_scope = _repair_message(scope_group.scope, InstrumentationScope).message
            scope = Scope(repaired_scope.name, repaired_scope.version)
            for item in getattr(scope_group, request_format.items.field):
                _drop_unread_fields(item)
                repaired_item = _repair_message(item, request_format.item_class)
                yield RequestItem(attributes, scope, repaired_item.message, resource.is_repaired or repaired_item.is_repaired)


def _drop_unread_fields(item: Any) -> None:
    """Drop the fields that are not read, so that they need no repair."""
    for name, limit in (("attributes", MAX_ATTRIBUTES + 1), ("events", MAX_EVENTS + 1), ("links", 0)):
        if name in item.DESCRIPTOR.fields_by_name:
            del getattr(item, name)[limit:]


def read_lenient(request: type[Message], body: bytes) -> Any:
    """Return the request with its texts as bytes. Raises DecodeError if it is not such a message."""
    lenient: Any = _build_lenient_class
    return lenient(request).FromString(body)


@functools.cache
def _build_lenient_class(strict: Any) -> type[Message]:
    """Return a copy of a message class in which text fields hold bytes."""
    pool = DescriptorPool()
    for file in _order_imports(strict.DESCRIPTOR.file):
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        for message in copy.message_type:
            _make_lenient(message)
        pool.Add(copy)
    return GetMessageClass(pool.FindMessageTypeByName(strict.DESCRIPTOR.full_name))


def _order_imports(file: Any) -> Iterator[Any]:
    """Return the file preceded by its imports, each once."""
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


class _RepairedMessage(NamedTuple):
    """A message with valid UTF-8. `is_repaired` is True if some texts lost characters."""

    message: Any
    is_repaired: bool


def _repair_message(message: Message, strict: type[Strict]) -> _RepairedMessage:
    """Return a part of a lenient request as a strict message. Texts that are not UTF-8 are repaired."""
    try:
        return _RepairedMessage(strict.FromString(message.SerializeToString()), is_repaired=False)
    except DecodeError:
        _repair_texts(message, strict.DESCRIPTOR)
        return _RepairedMessage(strict.FromString(message.SerializeToString()), is_repaired=True)


def _repair_texts(message: Message, strict: Any) -> None:
    # Recursion is safe, because protobuf limits the depth of messages.
    for field, value in message.ListFields():
        intended = strict.fields_by_number[field.number]
        if intended.message_type is not None:
            for child in value if isinstance(value, MutableSequence) else (value,):
                _repair_texts(child, intended.message_type)
        elif intended.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, field.name, _repair_text(value))
            else:
                value[:] = map(_repair_text, value)


def _repair_text(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        return repair_text(decode_leniently(text)).encode()
    return text
