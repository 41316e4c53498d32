"""Pruning, defaulting and validation of documents by structural OpenAPI v3 schemas, with validation ratcheting.

It supports the subset of OpenAPI that Kubernetes allows in a CustomResourceDefinition. The schema does not describe the
object's `apiVersion`, `kind` and `metadata`. Validated formats: `date-time` (metav1.Time), `micro-time` (metav1.MicroTime) and
`byte`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from machinery.apiserver.resource import Schema
from machinery.errors import Cause, duplicate, invalid_type, invalid_value, not_supported, required, too_long
from machinery.meta.objects import Document
from machinery.meta.timestamps import is_go_time

ENVELOPE = ("apiVersion", "kind", "metadata")
METADATA_FIELDS = frozenset(
    (
        *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers"),
        "managedFields",
    )
)
_TEXT, _NAME, _FLAG = {"type": "string"}, {"type": "string", "minLength": 1}, {"type": "boolean"}
_OWNER: Schema = {
    "type": "object",
    "required": ["apiVersion", "kind", "name", "uid"],
    "properties": dict.fromkeys(("apiVersion", "kind", "name", "uid"), _NAME)
    | dict.fromkeys(("controller", "blockOwnerDeletion"), _FLAG),
}
_METADATA: Schema = {"properties": {"generateName": _TEXT, "ownerReferences": {"type": "array", "items": _OWNER}}}
"""Metadata whose wrong types would break typed clients. `machinery.apiserver.write.metadata` checks other metadata."""
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
LONGEST_MATCHED = 4096
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_canonical = msgspec.json.Encoder(order="sorted").encode
_INT32, _INT64 = 2**31, 2**63


def pruned(schema: Schema, document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the object without fields that the schema does not have, and the sorted paths of these fields."""
    unknown: list[str] = []
    result: dict[str, Any] = {name: document[name] for name in ENVELOPE if name in document}
    metadata = result.get("metadata")
    if isinstance(metadata, dict):
        unknown.extend(f"metadata.{name}" for name in metadata if name not in METADATA_FIELDS)
        result["metadata"] = {name: value for name, value in metadata.items() if name in METADATA_FIELDS}
    content = {name: value for name, value in document.items() if name not in ENVELOPE}
    kept = _pruned(schema, content, "", unknown)
    return {**result, **kept}, sorted(unknown)


def _pruned(schema: Schema, value: Any, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list) and "items" in schema:
        return [_pruned(schema["items"], entry, f"{path}[{index}]", unknown) for index, entry in enumerate(value)]
    if not isinstance(value, dict):
        return value
    properties: Schema = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    kept: dict[str, Any] = {}
    for name, part in value.items():
        inner = f"{path}.{name}" if path else name
        known = properties.get(name, additional)
        if isinstance(known, Mapping):
            kept[name] = _pruned(known, part, inner, unknown)
        elif known or schema.get(PRESERVE) or schema.get(INT_OR_STRING):
            kept[name] = part
        else:
            unknown.append(inner)
    return kept


def defaulted(schema: Schema, value: Any) -> Any:
    """Set absent fields to the schema's defaults. Return the same object if nothing is absent."""
    if isinstance(value, list) and "items" in schema:
        entries = [defaulted(schema["items"], entry) for entry in value]
        return value if all(new is old for new, old in zip(entries, value, strict=True)) else entries
    if not isinstance(value, dict):
        return value
    changed: dict[str, Any] = {}
    for name, part in schema.get("properties", {}).items():
        if name in value:
            new = defaulted(part, value[name])
            if new is not value[name]:
                changed[name] = new
        elif "default" in part:
            changed[name] = part["default"]
    return {**value, **changed} if changed else value


def violations(schema: Schema, document: Mapping[str, Any]) -> list[Cause]:
    """Return all violations of the schema: missing required fields first, then by property name."""
    content = {name: value for name, value in document.items() if name not in ENVELOPE}
    return [*_violations(_METADATA, document.get("metadata") or {}, "metadata"), *_violations(schema, content, "")]


def _violations(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    if value is None and schema.get("nullable"):
        return
    wanted = schema.get("type", "")
    if schema.get(INT_OR_STRING):
        wanted = "integer" if isinstance(value, int) else "string"
    if wanted and not _is(wanted, value):
        named = _type_of(value)
        yield invalid_type(path, named, f'{path} in body must be of type {wanted}: "{named}"')
        return
    if "enum" in schema and value not in schema["enum"]:
        yield not_supported(path, value, schema["enum"])
    if isinstance(value, dict):
        yield from _object_violations(schema, value, path)
    elif isinstance(value, list):
        yield from _list_violations(schema, value, path)
    elif isinstance(value, str):
        yield from _text_violations(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_violations(schema, value, path)


def _object_violations(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[Cause]:
    prefix = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield required(f"{prefix}{name}")
    properties: Schema = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    for name in sorted(value):
        if name in properties:
            yield from _violations(properties[name], value[name], f"{prefix}{name}")
        elif isinstance(additional, Mapping):
            yield from _violations(additional, value[name], f"{prefix}{name}")


def _list_violations(schema: Schema, value: Sequence[Any], path: str) -> Iterator[Cause]:
    items: Schema = schema.get("items", {})
    for index, entry in enumerate(value):
        yield from _violations(items, entry, f"{path}[{index}]")
    if "minItems" in schema and len(value) < schema["minItems"]:
        yield invalid_value(path, len(value), f"{path} in body should have at least {schema['minItems']} items")
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        yield Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {schema['maxItems']} items", path)
    if schema.get("x-kubernetes-list-type") == "map" and not items.get(PRESERVE):  # the addresses of a node may have equal keys
        yield from _duplicates(schema.get("x-kubernetes-list-map-keys", ()), value, path)


def _duplicates(names: Sequence[str], value: Sequence[Any], path: str) -> Iterator[Cause]:
    seen: set[bytes] = set()
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            continue
        key = {name: entry.get(name) for name in names}
        canonical = _canonical(key)
        if canonical in seen:
            yield duplicate(f"{path}[{index}]", key)
        seen.add(canonical)


def _text_violations(schema: Schema, value: str, path: str) -> Iterator[Cause]:
    longest = schema.get("maxLength", LONGEST_MATCHED if "pattern" in schema else None)
    if longest is not None and len(value) > longest:  # the time to match a pattern may grow with the square of the length
        yield too_long(path, longest)
        return
    if "minLength" in schema and len(value) < schema["minLength"]:
        yield invalid_value(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    check = _FORMATS.get(schema.get("format", ""))
    if check is not None and (why := check(value)) is not None:
        yield invalid_type(path, value, why)


def _number_violations(schema: Schema, value: float, path: str) -> Iterator[Cause]:
    bound = _INT32 if schema.get("format") == "int32" else _INT64
    if not -bound <= value < bound:
        yield invalid_type(path, value, f"{path} in body must be of type {schema.get('format', 'integer')}")
    if "minimum" in schema and value < schema["minimum"]:
        yield invalid_value(path, value, f"{path} in body should be greater than or equal to {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        yield invalid_value(path, value, f"{path} in body should be less than or equal to {schema['maximum']}")


def _is(wanted: str, value: Any) -> bool:
    match wanted:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return _type_of(value) == wanted


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("$", r"\Z"), re.ASCII)  # Python's $ also matches before a final newline


def _time_rule(layout: str, *, micro: bool) -> Callable[[str], str | None]:
    return lambda value: None if is_go_time(value, micro=micro) else f'parsing time "{value}" as "{layout}": cannot parse'


def _base64_rule(value: str) -> str | None:  # Python 3.11 decodes surplus padding, Go does not
    return None if len(value) % 4 == 0 and _BASE64.fullmatch(value) else "illegal base64 data"


_FORMATS: dict[str, Callable[[str], str | None]] = {
    "date-time": _time_rule("2006-01-02T15:04:05Z07:00", micro=False),
    "micro-time": _time_rule("2006-01-02T15:04:05.000000Z07:00", micro=True),
    "byte": _base64_rule,
}


WRONG_TYPE = "FieldValueTypeInvalid"
LONGEST_PATH = 1024
"""Longest field path that is resolved. The resolution tries each prefix, because names may contain dots."""
_NOWHERE = object()


def added(
    causes: list[Cause], new: Document, old: Callable[[], Document | None], broken: Callable[[Document], Iterable[Cause]]
) -> list[Cause]:
    """Return the causes that the stored object does not have (validation ratcheting).

    `broken` returns the causes of an object. `old` returns the stored object; it is called only if there are causes. A cause
    about a string or number counts as old only if the value is unchanged: a changed value may be worse with the same cause. A
    wrong type always counts as new, because no other rule can check such an object.
    """
    before = old() if causes else None
    if before is None:
        return causes
    stand = set(broken(before))
    return [cause for cause in causes if cause not in stand or _is_worse(cause, new, before)]


def _is_worse(cause: Cause, new: Document, old: Document) -> bool:
    """Whether the type is wrong, or the field has a new string or number. Causes of lists and maps are about their parts."""
    is_shape = cause.reason == WRONG_TYPE and ": parsing time " not in cause.message  # `parse_time` reads more forms
    if is_shape or len(cause.field) > LONGEST_PATH:
        return cause.reason == WRONG_TYPE
    now, before = _at(new, cause.field), _at(old, cause.field)
    return not isinstance(now, dict | list) and now is not _NOWHERE and now != before


def _at(value: Any, path: str) -> Any:
    """Return the value at a path such as `a.b[0].c`; _NOWHERE: there is none. Names may contain dots and brackets."""
    if not path:
        return value
    if isinstance(value, list):
        index, closed, rest = path.removeprefix("[").partition("]")
        is_there = path.startswith("[") and closed and index.isdecimal() and int(index) < len(value)
        return _at(value[int(index)], rest.removeprefix(".")) if is_there else _NOWHERE
    if not isinstance(value, dict):
        return _NOWHERE
    for end in range(len(path), 0, -1):
        if path[end:][:1] in ("", ".", "[") and path[:end] in value:
            found = _at(value[path[:end]], path[end:].removeprefix("."))
            if found is not _NOWHERE:
                return found
    return _NOWHERE
