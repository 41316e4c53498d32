"""OpenAPI version 2: conversion from the version 3 documents, and its encoding as protobuf.

Older clients use version 2 for validation, merges and `explain`. kubectl, helm and other Go clients request it as protobuf
(`openapi.v2.Document`). Version 2 has no `nullable` and no `anyOf`. As in Kubernetes, they are removed, so that a version 2
schema allows more than the version 3 schema, never less. The encoder needs only few messages, so it uses tables of fields
instead of generated code. The field numbers come from gnostic's `OpenAPIv2.proto`. There, maps are lists of named values,
unions are separate messages, and free-form values are YAML.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

Document = Mapping[str, Any]
_OPERATIONS = ("get", "put", "post", "delete", "patch")
_NOT_IN_2 = ("nullable", "anyOf", "oneOf", "not")
_INT_OR_STRING = "x-kubernetes-int-or-string"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def swagger(documents: Iterable[Document], title: str, version: str) -> dict[str, Any]:
    """Merge all version 3 documents, and convert them to one version 2 document."""
    paths: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for document in documents:
        paths |= {path: _path_item(item) for path, item in document["paths"].items()}
        definitions |= {name: _schema(each) for name, each in document["components"]["schemas"].items()}
    info = {"title": title, "version": version}
    return {
        "swagger": "2.0",
        "info": info,
        "paths": dict(sorted(paths.items())),
        "definitions": dict(sorted(definitions.items())),
    }


def _schema(schema: Any) -> dict[str, Any]:
    shown = {name: value for name, value in schema.items() if name not in _NOT_IN_2}
    if "allOf" in shown:
        (inner,) = shown.pop("allOf")
        shown |= inner
    if "$ref" in shown:
        shown["$ref"] = shown["$ref"].replace("#/components/schemas/", "#/definitions/")
    if shown.get(_INT_OR_STRING):
        shown.pop("type", None)
    if schema.get(_PRESERVE) or (schema.get("nullable") and shown.get("type") in ("object", "array")):
        for name in ("type", "items", "properties", "additionalProperties"):
            shown.pop(name, None)
    if "properties" in shown:
        shown["properties"] = {name: _schema(part) for name, part in shown["properties"].items()}
    for inner in ("items", "additionalProperties"):
        if isinstance(shown.get(inner), Mapping):
            shown[inner] = _schema(shown[inner])
    return shown


def _path_item(item: Document) -> dict[str, Any]:
    shown: dict[str, Any] = {method: _operation(item[method]) for method in _OPERATIONS if method in item}
    if "parameters" in item:
        shown["parameters"] = [_parameter(each) for each in item["parameters"]]
    return shown


def _parameter(parameter: Document) -> dict[str, Any]:
    return {**{name: value for name, value in parameter.items() if name != "schema"}, **parameter["schema"]}


def _operation(operation: Document) -> dict[str, Any]:
    shown = {name: value for name, value in operation.items() if name not in ("parameters", "requestBody", "responses")}
    asked = [_parameter(each) for each in operation.get("parameters", ())]
    if body := operation.get("requestBody"):
        schema = next(iter(body["content"].values()))["schema"]
        asked.append({"name": "body", "in": "body", "required": body.get("required", False), "schema": _schema(schema)})
        shown["consumes"] = list(body["content"])
    responses = operation["responses"]
    shown["produces"] = list(responses[min(responses)]["content"])
    return {**shown, "parameters": asked, "responses": {code: _response(each) for code, each in responses.items()}}


def _response(response: Document) -> dict[str, Any]:
    schema = next(iter(response["content"].values()))["schema"]
    either = schema.get("anyOf")
    return {"description": response["description"], "schema": _schema(either[0] if either else schema)}


Encode = Callable[[int, Any], bytes]
"""Encodes a JSON value as the field with this number, including its tag."""
Table = Mapping[str, tuple[int, Encode]]
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_EXTENSION = "x-"


def encode(document: Mapping[str, Any]) -> bytes:
    return _fields(_DOCUMENT, document)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits at a time
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _block(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def _text(number: int, value: Any) -> bytes:
    return _block(number, str(value).encode()) if value else b""


def _texts(number: int, value: Any) -> bytes:
    return b"".join(_block(number, each.encode()) for each in value)


def _flag(number: int, value: Any) -> bytes:
    return _tag(number, _VARINT) + b"\x01" if value else b""


def _whole(number: int, value: Any) -> bytes:
    return _tag(number, _VARINT) + _varint(int(value)) if value else b""


def _real(number: int, value: Any) -> bytes:
    return _tag(number, _FIXED64) + struct.pack("<d", float(value)) if value else b""


def _yaml(number: int, value: Any) -> bytes:
    """Encode an `Any` as JSON, which is valid YAML."""
    return _block(number, _block(2, msgspec.json.encode(value) + b"\n"))


def _yamls(number: int, value: Any) -> bytes:
    return b"".join(_yaml(number, each) for each in value)


def _fields(table: Table, value: Mapping[str, Any]) -> bytes:
    """Encode fields by the table. The entry `x-` is for all extensions."""
    out = bytearray()
    for name, part in value.items():
        if name.startswith(_EXTENSION):
            number, _ = table[_EXTENSION]
            out += _block(number, _text(1, name) + _yaml(2, part))
        else:
            number, write = table[name]
            out += write(number, part)
    return bytes(out)


def _message(table: Callable[[], Table], *wrappers: int) -> Encode:
    """Return the encoder of a nested message. Each wrapper is the number of the field that contains the next message."""

    def write(number: int, value: Any) -> bytes:
        content = _fields(table(), value)
        for wrapper in wrappers:
            content = _block(wrapper, content)
        return _block(number, content)

    return write


def _each(write: Encode) -> Encode:
    return lambda number, values: b"".join(write(number, value) for value in values)


def _named(write: Encode, field: int = 1) -> Encode:
    """Return the encoder of a map: a message with a repeated field of entries with name and value."""

    def entries(number: int, values: Any) -> bytes:
        return _block(number, b"".join(_block(field, _text(1, name) + write(2, value)) for name, value in values.items()))

    return entries


def _additional(number: int, value: Any) -> bytes:
    if isinstance(value, Mapping):
        return _block(number, _of_schema(1, value))
    return _block(number, _tag(2, _VARINT) + (b"\x01" if value else b"\x00"))


def _encode_parameter(number: int, value: Mapping[str, Any]) -> bytes:
    """Encode ParametersItem > Parameter > body, or > NonBodyParameter > query or path."""
    if value["in"] == "body":
        content = _block(1, _fields(_BODY, value))
    else:
        place, table = (3, _QUERY) if value["in"] == "query" else (4, _PATH)
        content = _block(2, _block(place, _fields(table, value)))
    return _block(number, _block(1, content))


def _numbered(write: Encode, **numbers: int) -> Table:
    return {name: (number, write) for name, number in numbers.items()}


_of_schema = _message(lambda: _SCHEMA)
_of_operation = _message(lambda: _OPERATION)
_SCHEMA: Table = {
    "$ref": (1, _text),
    **_numbered(_text, format=2, title=3, description=4, pattern=13),
    **_numbered(_real, multipleOf=6, maximum=7, minimum=9),
    **_numbered(_flag, exclusiveMaximum=8, exclusiveMinimum=10, uniqueItems=16),
    **_numbered(_whole, maxLength=11, minLength=12, maxItems=14, minItems=15, maxProperties=17, minProperties=18),
    "enum": (20, _yamls),
    "required": (19, _texts),
    "default": (5, _yaml),
    "additionalProperties": (21, _additional),
    "type": (22, lambda number, value: _block(number, _text(1, value))),
    "items": (23, _message(lambda: _SCHEMA, 1)),
    "properties": (25, _named(_of_schema)),
    _EXTENSION: (31, _yaml),
}
_PARAMETER: Table = {"in": (2, _text), **_numbered(_text, description=3, name=4), "required": (1, _flag), "enum": (21, _yamls)}
_QUERY: Table = {**_PARAMETER, "type": (6, _text), "uniqueItems": (20, _flag)}
_PATH: Table = {**_PARAMETER, "type": (5, _text), "uniqueItems": (19, _flag)}
_BODY: Table = {"name": (2, _text), "in": (3, _text), "required": (4, _flag), "schema": (5, _of_schema)}
_RESPONSE: Table = {"description": (1, _text), "schema": (2, _message(lambda: _SCHEMA, 1))}
_OPERATION: Table = {
    **_numbered(_text, description=3, operationId=5),
    **_numbered(_texts, tags=1, produces=6, consumes=7),
    "parameters": (8, _each(_encode_parameter)),
    "responses": (9, _named(_message(lambda: _RESPONSE, 1))),
    _EXTENSION: (13, _yaml),
}
_PATH_ITEM: Table = {
    **_numbered(_of_operation, get=2, put=3, post=4, delete=5, patch=8),
    "parameters": (9, _each(_encode_parameter)),
}
_INFO = _numbered(_text, title=1, version=2)
_DOCUMENT: Table = {
    "swagger": (1, _text),
    "info": (2, _message(lambda: _INFO)),
    "paths": (8, _named(_message(lambda: _PATH_ITEM), 2)),
    "definitions": (9, _named(_of_schema)),
}
