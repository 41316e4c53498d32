"""Conversion of the OpenAPI version 3 documents to version 2, which older clients use for validation, merges and `explain`.

`nullable` and `anyOf`, which version 2 lacks, are removed as in Kubernetes: the schema then allows more, never less.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Document = Mapping[str, Any]
_OPERATIONS = ("get", "put", "post", "delete", "patch")
_NOT_IN_2 = ("nullable", "anyOf", "oneOf", "not")
_INT_OR_STRING = "x-kubernetes-int-or-string"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def swagger(documents: Iterable[Document], title: str, version: str) -> dict[str, Any]:
    """Merge and convert all documents."""
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
