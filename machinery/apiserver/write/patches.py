"""The three patch formats as functions from document to document: JSON Patch, merge patch, Kubernetes' strategic merge patch.

A strategic merge patch supports the directives `$patch: replace|delete`, in a map or in an entry of a keyed list, and
`$deleteFromPrimitiveList/NAME`. Lists are merged in linear time, by an index of the entries' keys in canonical form.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch
import jsonpointer
import msgspec

from machinery.apiserver.http.limits import OBJECT_LIMIT
from machinery.errors import BadRequestError, ErrorSubject, InvalidError, TooLargeError
from machinery.meta import bounded_json as boundedjson

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
MAX_OPERATIONS = 10_000
MAX_COPIED = OBJECT_LIMIT
MAX_COPIED_VALUES = 20_000
"""Largest number of values (objects, lists, entries) that a JSON patch may copy. The copy of a value takes a microsecond."""
MAX_STEPS = 100_000
"""Largest total number of path segments in all operations of a JSON patch."""
MAX_MOVED = 100_000_000
"""Largest number of list entries that the inserts and removals of a JSON patch may shift. This takes a tenth of a second."""
OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")
_UNFIT = (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException)
REJECTED = "the server rejected our request due to an error in our request"


_KNOWN_KEYS = {"metadata.ownerReferences": "uid"}
_PRIMITIVE_LISTS = ("metadata.finalizers",)
_DELETE_FROM = "$deleteFromPrimitiveList/"

_encode = msgspec.json.Encoder(order="sorted").encode


def apply_json_patch(document: Mapping[str, Any], operations: Any) -> dict[str, Any]:
    """Apply a patch of RFC 6902 to a copy of the document.

    Raises BadRequestError for a malformed patch, InvalidError for a patch that does not fit the document, and TooLargeError for
    a patch above the bounds of this module.
    """
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise BadRequestError("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise TooLargeError(f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}")
    result: Any = msgspec.json.decode(msgspec.json.encode(document))
    work = _Work()
    try:
        for operation in operations:
            work.count_operation(result, operation)
            result = jsonpatch.apply_patch(result, [operation], in_place=True)
    except (*_UNFIT, TypeError, KeyError, RecursionError):
        asked = f"{_shown(operation.get('op'))} at {_shown(operation.get('path'))}"
        raise InvalidError(f"{REJECTED}: {asked}, does not fit the object", subject=ErrorSubject()) from None
    if not isinstance(result, dict):
        raise InvalidError(f"{REJECTED}: the result is not an object", subject=ErrorSubject())
    return result


def _shown(value: Any) -> str:
    """Return a value of a patch for an error message, at most 100 characters."""
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:100]


class _Work:
    """Bounds the total work of one JSON patch, because the cost of an operation may grow with the size of the document."""

    def __init__(self) -> None:
        self._copied = self._values = self._steps = self._moved = 0

    def count_operation(self, document: Any, operation: Mapping[str, Any]) -> None:
        """Count an operation before it runs. Raises TooLargeError, InvalidError, or the library's JSON pointer error."""
        kind = operation.get("op")
        if kind not in OPERATIONS:  # the library also supports operations that are not in the RFC
            raise InvalidError(f"{REJECTED}: unexpected operation kind: {_shown(kind)}", subject=ErrorSubject())
        places = [str(operation[name]) for name in ("path", "from") if name in operation]
        self._steps += sum(place.count("/") for place in places)
        if self._steps > MAX_STEPS:
            raise TooLargeError(f"the paths of a JSON patch may have {MAX_STEPS} parts at most")
        if kind == "copy":
            source = msgspec.json.encode(jsonpointer.resolve_pointer(document, operation.get("from", "")))
            self._copied += len(source)
            self._values += boundedjson.count_values(source) if self._copied <= MAX_COPIED else 0
        if self._values > MAX_COPIED_VALUES:
            raise TooLargeError(f"the copies of a JSON patch may add {MAX_COPIED_VALUES} values at most")
        if self._copied > MAX_COPIED:
            raise TooLargeError(f"the copies of a JSON patch may add {MAX_COPIED} bytes at most")
        if kind not in ("test", "replace"):
            self._moved += sum(_behind(document, place) for place in places)
        if self._moved > MAX_MOVED:
            raise TooLargeError(f"the operations of a JSON patch may move {MAX_MOVED} entries of lists at most")


def _behind(document: Any, place: str) -> int:
    """Return how many list entries an insert or a removal at this pointer shifts; 0 outside of a list."""
    try:
        around, part = jsonpointer.JsonPointer(place).to_last(document)
    except jsonpointer.JsonPointerException:
        return 0  # applying the operation raises the error
    return max(len(around) - part, 0) if isinstance(around, list) and isinstance(part, int) else 0


def apply_merge_patch(document: Mapping[str, Any], patch: Any) -> dict[str, Any]:
    """Apply a patch of RFC 7386. Raises BadRequestError if the patch is not an object."""
    if not isinstance(patch, Mapping):
        raise BadRequestError("error decoding patch: a merge patch is an object")
    return _merged(document, patch)


def _merged(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value) if isinstance(value, Mapping) else value
    return result


def apply_strategic_patch(document: Mapping[str, Any], patch: Any, merge_keys: Mapping[str, str]) -> dict[str, Any]:
    """Apply a strategic merge patch. `merge_keys`: merge keys by path of the list. Raises BadRequestError."""
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
        if name.startswith(_DELETE_FROM):
            field = name.removeprefix(_DELETE_FROM)
            result[field] = _left(_listed(result.get(field), field), _listed(value, name))
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = _value(result.get(name), value, keys, inner)
    return result


def _value(target: Any, value: Any, keys: Mapping[str, str], path: str) -> Any:
    if isinstance(value, Mapping):
        return _strategic(target, value, keys, path)
    if isinstance(value, list) and path in keys:
        return _merged_by_key(_listed(target, path), value, keys, path)
    if isinstance(value, list) and path in _PRIMITIVE_LISTS:
        there = _listed(target, path)
        return [*there, *_left(value, there)]
    return value


def _listed(value: Any, path: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, list):
        raise BadRequestError(f"error decoding patch: {path[:200]} is a list")
    return value or []


def _left(entries: Sequence[Any], gone: Sequence[Any]) -> list[Any]:
    known = {_encode(entry) for entry in gone}
    return [entry for entry in entries if _encode(entry) not in known]


def _merged_by_key(target: Sequence[Any], patch: Sequence[Any], keys: Mapping[str, str], path: str) -> list[Any]:
    """Merge a list by its merge key. If entries have the same key, a patch changes the first, and a delete removes all."""
    if not all(isinstance(entry, Mapping) for entry in (*target, *patch)):
        raise BadRequestError(f"error decoding patch: {path} is a list of objects")
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if "$patch" not in entry]
    entries: list[Mapping[str, Any] | None] = list(target)
    places: dict[bytes, list[int]] = {}
    for place, entry in enumerate(target):
        places.setdefault(_encode(entry.get(keys[path])), []).append(place)
    for entry in patch:
        if keys[path] not in entry:
            raise BadRequestError(f"error decoding patch: an entry of {path} has no merge key {keys[path]}")
        key = _encode(entry[keys[path]])
        if entry.get("$patch") == "delete":
            for place in places.pop(key, ()):
                entries[place] = None
            continue
        if key not in places:
            places[key] = [len(entries)]
            entries.append({})
        first = places[key][0]
        entries[first] = _strategic(entries[first], entry, keys, path)
    return [entry for entry in entries if entry is not None]
