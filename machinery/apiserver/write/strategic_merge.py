"""Kubernetes' strategic merge patch, with merge keys of lists and directives.

Directives: `$patch: replace|delete` in a map or in an entry of a keyed list, and `$deleteFromPrimitiveList/NAME`. Entries are
indexed by the canonical form of their key, so merging a list takes linear time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from machinery.errors import BadRequestError

_KNOWN_KEYS = {"metadata.ownerReferences": "uid"}
_PRIMITIVE_LISTS = ("metadata.finalizers",)
_DELETE_FROM = "$deleteFromPrimitiveList/"

_encode = msgspec.json.Encoder(order="sorted").encode


def apply_strategic_patch(document: Mapping[str, Any], patch: Any, merge_keys: Mapping[str, str]) -> dict[str, Any]:
    """Patch the document. `merge_keys`: merge key of a list by its path. Raises BadRequestError for a malformed patch."""
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
    if not all(isinstance(entry, Mapping) for entry in (*target, *patch)):
        raise BadRequestError(f"error decoding patch: {path} is a list of objects")
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [entry for entry in patch if "$patch" not in entry]
    entries = _Keyed(target, keys[path])
    for entry in patch:
        if keys[path] not in entry:
            raise BadRequestError(f"error decoding patch: an entry of {path} has no merge key {keys[path]}")
        if entry.get("$patch") == "delete":
            entries.remove(entry)
        else:
            entries.put(_strategic(entries.like(entry), entry, keys, path))
    return entries.all()


class _Keyed:
    """List entries indexed by one of their fields, in order. Of several with the same key the first is used."""

    def __init__(self, entries: Sequence[Mapping[str, Any]], key: str) -> None:
        self._key = key
        self._entries: list[Mapping[str, Any] | None] = []
        self._places: dict[bytes, list[int]] = {}
        for entry in entries:
            self._append(entry)

    def like(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Entry with the same key; {}: none."""
        places = self._places.get(self._key_of(entry))
        return self._entries[places[0]] or {} if places else {}

    def put(self, entry: Mapping[str, Any]) -> None:
        """Replace the entry with the same key, or append."""
        places = self._places.get(self._key_of(entry))
        if places:
            self._entries[places[0]] = entry
        else:
            self._append(entry)

    def remove(self, entry: Mapping[str, Any]) -> None:
        """Remove all entries with the same key."""
        for place in self._places.pop(self._key_of(entry), ()):
            self._entries[place] = None

    def all(self) -> list[Any]:
        return [entry for entry in self._entries if entry is not None]

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._places.setdefault(self._key_of(entry), []).append(len(self._entries))
        self._entries.append(entry)

    def _key_of(self, entry: Mapping[str, Any]) -> bytes:
        return _encode(entry.get(self._key))
