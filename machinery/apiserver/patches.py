"""The patch formats as functions from document to document: JSON Patch, merge patch, strategic merge patch."""

from collections.abc import Mapping
from typing import Any

import jsonpatch
import jsonpointer
import msgspec

from machinery.apiserver.limits import BODY_LIMIT
from machinery.errors import BadRequestError, InvalidError, Subject, TooLargeError

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
MAX_OPERATIONS = 10_000
MAX_COPIED = BODY_LIMIT
REJECTED = "the server rejected our request due to an error in our request"


def apply_json_patch(document: Mapping[str, Any], operations: Any) -> dict[str, Any]:
    """RFC 6902. Raises BadRequestError for what is no patch, InvalidError for one that does not fit the document."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise BadRequestError("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise TooLargeError(f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}")
    result: Any = msgspec.json.decode(msgspec.json.encode(document))
    copied = 0
    try:
        for operation in operations:
            if operation.get("op") == "copy":
                copied += len(msgspec.json.encode(jsonpointer.resolve_pointer(result, operation.get("from", ""))))
            if copied > MAX_COPIED:
                raise TooLargeError(f"the copies of a JSON patch may add {MAX_COPIED} bytes at most")
            result = jsonpatch.apply_patch(result, [operation])
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError, RecursionError) as error:
        raise InvalidError(f"{REJECTED}: {str(error)[:200]}", subject=Subject()) from None
    if not isinstance(result, dict):
        raise InvalidError(f"{REJECTED}: the result is no object", subject=Subject())
    return result


def apply_merge_patch(document: Mapping[str, Any], patch: Any) -> dict[str, Any]:
    """RFC 7386. Raises BadRequestError for a patch that is no object."""
    if not isinstance(patch, Mapping):
        raise BadRequestError("error decoding patch: a merge patch is an object")
    merged: dict[str, Any] = _merged(document, patch)
    return merged


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


_KNOWN_KEYS = {"metadata.ownerReferences": "uid"}
_PRIMITIVE_LISTS = ("metadata.finalizers",)


def apply_strategic_patch(document: Mapping[str, Any], patch: Any, merge_keys: Mapping[str, str]) -> dict[str, Any]:
    """Kubernetes' merge patch that knows which lists are sets by a key; understands `$patch` and the delete directives."""
    if not isinstance(patch, Mapping):
        raise BadRequestError("error decoding patch: a strategic merge patch is an object")
    return _strategic(document, patch, {**_KNOWN_KEYS, **merge_keys}, "")


def _strategic(target: Any, patch: Mapping[str, Any], keys: Mapping[str, str], path: str) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        inner = f"{path}.{name}" if path else name
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            result[field] = [entry for entry in result.get(field, []) if entry not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = _strategic_value(result.get(name), value, keys, inner)
    return result


def _strategic_value(target: Any, value: Any, keys: Mapping[str, str], path: str) -> Any:
    if isinstance(value, Mapping):
        return _strategic(target, value, keys, path)
    if isinstance(value, list) and path in keys:
        return _merged_by_key(target or [], value, keys, path)
    if isinstance(value, list) and path in _PRIMITIVE_LISTS:
        return [*(target or []), *(entry for entry in value if entry not in (target or []))]
    return value


def _merged_by_key(target: list[Any], patch: list[Any], keys: Mapping[str, str], path: str) -> list[Any]:
    key = keys[path]
    result = list(target)
    for entry in patch:
        if not isinstance(entry, Mapping):
            raise BadRequestError(f"error decoding patch: {path} is a list of objects")
        if entry.get("$patch") == "replace":
            return [other for other in patch if isinstance(other, Mapping) and "$patch" not in other]
        if key not in entry:
            raise BadRequestError(f"error decoding patch: an entry of {path} has no merge key {key}")
        at = next((index for index, old in enumerate(result) if old.get(key) == entry[key]), None)
        if entry.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != entry[key]]
        elif at is None:
            result.append(_strategic({}, entry, keys, path))
        else:
            result[at] = _strategic(result[at], entry, keys, path)
    return result
