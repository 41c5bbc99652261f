"""OTLP requests in JSON.

Ids are hexadecimal and 64-bit integers are strings. Unknown fields are ignored, as the protocol requires. Protobuf's field names
(`resource_spans`) and Base64 ids are accepted as well, because its JSON printers write them. An object that has other members instead of the
expected lists is rejected with a message, because its content would be lost.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from audit.surrogates import decode_leniently, json_bytes, repair_text, repair_value
from schemas.errors import InputError
from streams.sources.lines import decode_json, json_type
from streams.sources.otlp.attributes import MAX_ATTRIBUTES, read_attributes
from streams.sources.otlp.received import RejectedItem
from streams.sources.otlp.request_formats import (
    SCOPE_FIELDS,
    SEND_HINT,
    SIGNALS_BY_LIST,
    ListField,
    RequestFormat,
    RequestItem,
    Scope,
    list_spellings,
)

Json = dict[str, Any]
_MAX_MESSAGE_LENGTH = 200
"""Most characters of another message or a list of names in a message."""
_IDS = frozenset(list_spellings("trace_id", "span_id", "parent_span_id"))


def read_json_items(body: bytes, request_format: RequestFormat) -> Iterator[RequestItem[Any]]:
    """Yield the items of a request. Raises InputError if it is no JSON object."""
    request, is_whole = _decode_request(body)
    if not isinstance(request, dict):
        raise InputError(f"the body is {json_type(request)}, not an object", hint=SEND_HINT)
    for name in SIGNALS_BY_LIST.keys() & request.keys() - set(request_format.groups.names):
        yield RequestItem({}, Scope(), _reject_other_signal(name, request[name]))
    for group in _list_members(request, request_format.groups):
        resource, rejected_attributes, is_resource_repaired = _read_json_resource(group, is_whole=is_whole)
        yield from (RequestItem(resource, Scope(), rejected) for rejected in rejected_attributes)
        for scope_group in _list_members(group, request_format.scopes):
            scope = _read_json_scope(scope_group)
            for item in _list_members(scope_group, request_format.items):
                repaired = item if is_whole else _repair_json(item)
                yield RequestItem(
                    resource, scope, _parse_json_item(repaired, request_format), is_resource_repaired or repaired != item
                )


def _decode_request(body: bytes) -> tuple[Any, bool]:
    """Return the value of a body, and whether all its texts are valid Unicode. Other texts hold lone surrogates."""
    try:
        return msgspec.json.decode(body), True
    except UnicodeDecodeError:
        body = decode_leniently(body).encode("utf-8", "backslashreplace")
    except (msgspec.DecodeError, RecursionError):
        pass  # parsed again below, with lone surrogates allowed
    try:
        return decode_json(body), False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}", hint=SEND_HINT) from error


def _reject_other_signal(name: str, groups: Any) -> RejectedItem:
    """Reject the items of another signal's request."""
    request_format, message = SIGNALS_BY_LIST[name]
    count = 0
    for group in _list_members({name: groups}, request_format.groups):
        for scope_group in _list_members(group, request_format.scopes):
            count += sum(1 for _ in _list_members(scope_group, request_format.items))
    return RejectedItem(f"{name}: {message}", json_bytes(groups), count)


def _list_members(parent: Any, list_field: ListField) -> Iterator[Any]:
    """Yield the items of a list under any of its names, and a RejectedItem for any other value in its place."""
    if isinstance(parent, RejectedItem):
        yield parent
        return
    if not isinstance(parent, dict):
        yield RejectedItem(f"{list_field.names[0]}: {json_type(parent)} stands around it, not an object", json_bytes(parent))
        return
    for name in list_field.names:
        value = parent.get(name)
        if isinstance(value, list):
            yield from value
        elif value is not None:
            yield RejectedItem(f"{name}: is {json_type(value)}, not an array", json_bytes(value))
    others = [name for name in parent if name not in list_field.other_members and name not in SIGNALS_BY_LIST]
    if others and parent.keys().isdisjoint(list_field.names):
        message = f"{list_field.names[0]}: is missing; these members are not read: {', '.join(others)[:_MAX_MESSAGE_LENGTH]}"
        yield RejectedItem(message, json_bytes(parent))


def _read_json_resource(group: Any, *, is_whole: bool) -> tuple[Mapping[str, Any], list[RejectedItem], bool]:
    """Return the attributes of a group's resource, the rejected ones, and whether any attribute was repaired."""
    resource = group.get("resource") if isinstance(group, dict) else None
    pairs = resource.get("attributes") if isinstance(resource, dict) else None
    received = pairs if isinstance(pairs, list) else []
    repaired = received if is_whole else [_repair_json(attribute) for attribute in received]
    attributes: list[KeyValue] = []
    rejected: list[RejectedItem] = []
    for attribute in repaired[:MAX_ATTRIBUTES]:
        try:
            attributes.append(ParseDict(attribute, KeyValue(), ignore_unknown_fields=True))
        except (ParseError, AttributeError, TypeError, RecursionError) as error:
            # A rejected attribute loses no span, so it counts as no item.
            rejected.append(RejectedItem(f"resource.attributes: {str(error)[:_MAX_MESSAGE_LENGTH]}", json_bytes(attribute), 0))
    return read_attributes(attributes), rejected, repaired != received


def _repair_json(value: Any) -> Any:
    try:
        return repair_value(value)
    except RecursionError:
        return RejectedItem("it nests too deep")


def _read_json_scope(scope_group: Any) -> Scope:
    if not isinstance(scope_group, dict):
        return Scope()
    for field in list_spellings(*SCOPE_FIELDS):
        scope = scope_group.get(field)
        if isinstance(scope, dict):
            return Scope(_read_text(scope.get("name")), _read_text(scope.get("version")))
    return Scope()


def _read_text(value: Any) -> str:
    return repair_text(value) if isinstance(value, str) else ""


def _parse_json_item(item: Any, request_format: RequestFormat) -> Any:
    if isinstance(item, RejectedItem):
        return item
    name = request_format.items.names[0]
    if not isinstance(item, dict):
        return RejectedItem(f"{name}: is {json_type(item)}, not an object", json_bytes(item))
    try:
        return ParseDict(_convert_ids(item), request_format.item_class(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        return RejectedItem(f"{name}: {str(error)[:_MAX_MESSAGE_LENGTH]}", json_bytes(item))


def _convert_ids(item: Json) -> Json:
    """Return a span with ids in protobuf's JSON encoding, and without links, which are not read."""
    fields = {name: value for name, value in item.items() if name != "links"}
    for name in _IDS & fields.keys():
        try:
            fields[name] = _to_base64(fields[name] or "")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: is not hexadecimal digits") from error
    return fields


def _to_base64(text: Any) -> str:
    """Return an id in Base64. An id that is already Base64 ends in `=`, which is not a hexadecimal digit."""
    return text if isinstance(text, str) and text.endswith("=") else base64.b64encode(binascii.unhexlify(text)).decode()
