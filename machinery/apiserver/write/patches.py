"""JSON Patch and merge patch as functions from document to document. `strategic_merge` has the third patch format."""

from collections.abc import Mapping
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
"""Values (objects, lists and their entries) that the copies of a JSON patch may add; copying one takes a microsecond."""
MAX_STEPS = 100_000
"""Path segments that all operations of a JSON patch may have together."""
MAX_MOVED = 100_000_000
"""List entries that one JSON patch may shift by inserting and removing; shifting them takes a tenth of a second."""
OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")
_UNFIT = (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException)
REJECTED = "the server rejected our request due to an error in our request"


def apply_json_patch(document: Mapping[str, Any], operations: Any) -> dict[str, Any]:
    """RFC 6902. Raises BadRequestError for a malformed patch, InvalidError for one that does not fit the document.

    The document is copied once and the copy changed in place. Raises TooLargeError when a patch exceeds the bounds of `_Work`.
    """
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise BadRequestError("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise TooLargeError(f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}")
    result: Any = msgspec.json.decode(msgspec.json.encode(document))
    work = _Work()
    try:
        for operation in operations:
            work.spend(result, operation)
            result = jsonpatch.apply_patch(result, [operation], in_place=True)
    except (*_UNFIT, TypeError, KeyError, RecursionError):
        asked = f"{_shown(operation.get('op'))} at {_shown(operation.get('path'))}"
        raise InvalidError(f"{REJECTED}: {asked}, does not fit the object", subject=ErrorSubject()) from None
    if not isinstance(result, dict):
        raise InvalidError(f"{REJECTED}: the result is no object", subject=ErrorSubject())
    return result


def _shown(value: Any) -> str:
    """A value of a patch for a message, at most 100 characters."""
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:100]


class _Work:
    """Bounds the total work of one JSON patch, because each operation may cost as much as the document is long."""

    def __init__(self) -> None:
        self._copied = self._values = self._steps = self._moved = 0

    def spend(self, document: Any, operation: Mapping[str, Any]) -> None:
        """Count an operation before it runs. Raises TooLargeError, InvalidError, or a JSON pointer error."""
        kind = operation.get("op")
        if kind not in OPERATIONS:  # the library has operations beyond the RFC
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
    """How many list entries shift when an entry is inserted or removed at this pointer; 0 outside of a list."""
    try:
        around, part = jsonpointer.JsonPointer(place).to_last(document)
    except jsonpointer.JsonPointerException:
        return 0  # applying the operation raises the error
    return max(len(around) - part, 0) if isinstance(around, list) and isinstance(part, int) else 0


def apply_merge_patch(document: Mapping[str, Any], patch: Any) -> dict[str, Any]:
    """RFC 7386. Raises BadRequestError for a patch that is not an object."""
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
