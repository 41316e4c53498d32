"""Divides a document into fields by its schema: which parts have owners of their own, and which are owned only as a whole."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from machinery.meta.managedfields import fieldset

Schema = Mapping[str, Any]


class FieldForm(Enum):
    """How a value is divided into fields."""

    LEAF = auto()
    """Not divided: scalars, atomic lists and atomic maps."""
    MAP = auto()
    """A map, divided by its field names."""
    KEYED = auto()
    """A list of maps, divided by their key fields."""
    SET = auto()
    """A list of scalars, divided by value."""
    OPEN = auto()
    """Divided as the value allows: a map by its field names; any other value is not divided."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The division of one place of a document.

    `fields`: declared fields of a map; `element`: structure of other values of the map, or of a list's entries. `defaults`:
    values of key fields that an entry may omit. `json_type`: type in the schema; "": the schema has none.
    """

    form: FieldForm
    fields: Mapping[str, "Structure"] = field(default_factory=dict)
    element: "Structure | None" = None
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    json_type: str = ""

    def of(self, name: str) -> "Structure":
        """Return the structure of the field `name` of a map."""
        return self.fields.get(name) or self.element or OPEN

    def declares(self, name: str) -> bool:
        return name in self.fields

    def divides(self, value: Any) -> FieldForm:
        """Return the declared form; LEAF if `value` does not fit this form. For OPEN, return MAP for a map, else LEAF."""
        if self.form is FieldForm.OPEN:
            return FieldForm.MAP if isinstance(value, dict) else FieldForm.LEAF
        if self.form is FieldForm.MAP:
            return FieldForm.MAP if isinstance(value, dict) else FieldForm.LEAF
        if self.form is FieldForm.LEAF or not isinstance(value, list):
            return FieldForm.LEAF
        return self.form if all(self.names(entry) is not None for entry in value) else FieldForm.LEAF

    def names(self, entry: Any) -> str | None:
        """Return the path element of a list entry; None if it has none."""
        if self.form is FieldForm.SET:
            return fieldset.value(entry) if isinstance(entry, Hashable) and entry is not None else None
        if not isinstance(entry, dict):
            return None
        if len(self.keys) == 1 and isinstance(text := entry.get(self.keys[0]), str):
            return fieldset.text_key(self.keys[0], text)  # the common case, such as conditions
        known = {name: entry.get(name, self.defaults.get(name)) for name in self.keys}
        found = {name: part for name, part in known.items() if part is not None}
        return fieldset.key(found) if found and all(isinstance(part, Hashable) for part in found.values()) else None


DEEPEST_OPEN = 64
"""Number of levels of undeclared values that are divided into fields. Deeper values are owned only as a whole."""


LEAF = Structure(FieldForm.LEAF)
OPEN = LEAF
for _ in range(DEEPEST_OPEN):
    OPEN = Structure(FieldForm.OPEN, element=OPEN)
_OWNER = Structure(FieldForm.LEAF, element=OPEN, json_type="object")
_NAMED_LEAVES = (
    *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "clusterName"),
)
METADATA = Structure(
    FieldForm.MAP,
    fields={
        **dict.fromkeys(_NAMED_LEAVES, LEAF),
        "labels": Structure(FieldForm.MAP, element=LEAF, json_type="object"),
        "annotations": Structure(FieldForm.MAP, element=LEAF, json_type="object"),
        "finalizers": Structure(FieldForm.SET, element=LEAF, json_type="array"),
        "ownerReferences": Structure(FieldForm.KEYED, element=_OWNER, keys=("uid",), json_type="array"),
    },
    json_type="object",
)
"""Structure of `metadata` of every object, according to ObjectMeta."""


def structure(schema: Schema) -> Structure:
    """Return how objects with this schema divide into fields, including `apiVersion`, `kind` and `metadata`."""
    content = _structure(schema)
    envelope = {"apiVersion": LEAF, "kind": LEAF, "metadata": METADATA}
    open_ended = content.form is FieldForm.OPEN
    return Structure(FieldForm.MAP, {**content.fields, **envelope}, OPEN if open_ended else content.element, json_type="object")


def keyed_lists(content: Structure, path: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the list maps below declared fields: path (`status.conditions`) and keys."""
    for name, part in content.fields.items():
        here = f"{path}.{name}" if path else name
        if part.form is FieldForm.KEYED:
            yield here, part.keys
        inner = part.element if part.form is FieldForm.KEYED else part
        if inner is not None:
            yield from keyed_lists(inner, here)


def _structure(schema: Schema) -> Structure:
    declared = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        return LEAF
    if declared == "array":
        return _list_structure(schema)
    if declared == "object":
        return _map_structure(schema)
    open_ended = not declared and schema.get("x-kubernetes-preserve-unknown-fields")
    return OPEN if open_ended else Structure(FieldForm.LEAF, json_type=declared)


def _list_structure(schema: Schema) -> Structure:
    items: Schema = schema.get("items", {})
    kind = schema.get("x-kubernetes-list-type", "atomic")
    if kind == "set":
        return Structure(FieldForm.SET, element=_structure(items), json_type="array")
    if kind != "map":
        return Structure(FieldForm.LEAF, element=_structure(items), json_type="array")
    keys: Sequence[str] = schema.get("x-kubernetes-list-map-keys", ())
    properties: Schema = items.get("properties", {})
    defaults = {name: properties[name]["default"] for name in keys if "default" in properties.get(name, {})}
    return Structure(FieldForm.KEYED, element=_structure(items), keys=tuple(keys), defaults=defaults, json_type="array")


def _map_structure(schema: Schema) -> Structure:
    additional = schema.get("additionalProperties")
    preserves = schema.get("x-kubernetes-preserve-unknown-fields") or additional is True
    fields = {name: _structure(part) for name, part in schema.get("properties", {}).items()}
    if schema.get("x-kubernetes-map-type") == "atomic":
        return Structure(FieldForm.LEAF, fields, OPEN if preserves else None, json_type="object")
    if preserves and not fields:
        return OPEN
    element = _structure(additional) if isinstance(additional, Mapping) else OPEN if preserves else None
    return Structure(FieldForm.MAP, fields, element, json_type="object")
