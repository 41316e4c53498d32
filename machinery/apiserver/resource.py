"""What an API server serves, declared: resources with their schema, rules, table columns and subresources.

A `Resource` is a value; the same one serves a hollow cluster from memory and the hub from its database. Everything that is a
rule of the kind stands here as a pure function over documents. Documents are never changed in place: a function gets one and
returns another.
"""

import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from machinery.apiserver.storage import Actor, Document, GroupResource, Key, Past, Selection, Standing, Storage
from machinery.errors import Cause
from machinery.meta.managedfields.structure import LEAF, FieldForm, Structure, keyed_lists, structure

Schema = Mapping[str, Any]
"""A structural OpenAPI v3 schema: `type`, `properties`, `items`, `required`, `enum`, `default`, ...; metadata is known."""

Validation = Callable[[Document, Document | None], Sequence[Cause]]
"""Broken rules of the new object; the second argument is the old one, None at a create."""

PrepareCreate = Callable[[Document, Actor, datetime], Document]
"""The object as it will be validated and stored: drops what a creator may not set, adds what the server knows."""

PrepareUpdate = Callable[[Document, Document, Actor, datetime], Document]
"""The same for a write of the main resource: (new, old, actor, now). The status is already the old one where it has a
subresource."""

FieldExtractor = Callable[[Document], Mapping[str, str]]
"""Values of the selectable fields beside metadata.name and metadata.namespace, by field path."""

Extras = Callable[[Sequence[Key]], Awaitable[Mapping[Key, Mapping[str, Any]]]]
"""One look-up per table for what its cells need beside the documents."""

Groups = Sequence[tuple[tuple[str | None, ...], int]]
"""Combinations of values (None: has none), and how many objects have each; what is most frequent first."""

Counts = Callable[[str, Selection], Awaitable[tuple[Sequence[str], Groups, int]]]
"""What the query parameter `groupBy` asks of a selection: the words, the groups, and the revision at which they were counted.

"" asks how many there are in all. Raises BadRequestError.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A create whose answer is computed and never stored: an access review, a token.

    The document has no unknown fields, the defaults of its schema, and has passed schema and `validate`.
    """

    document: Document
    actor: Actor
    now: datetime
    namespace: str = ""
    name: str = ""
    """Of the object that is asked about, for a question on its subresource."""
    dry_run: bool = False
    peer: str = ""
    """The address that the question comes from."""
    annotations: MutableMapping[str, str] = field(default_factory=dict)
    """What the audit record shall say beside the rest; never a secret."""


Shows = Callable[[Key, Mapping[str, str]], Awaitable[Document]]
"""What is told of an object when its part is read, by the request's parameters, without `apiVersion` and `kind`."""

Answers = Callable[[Question], Awaitable[Document]]
"""The document of the answer; `apiVersion` and `kind` are put in. Raises a MusterError to refuse."""

CUSTOM_PRIORITY, BUILTIN_PRIORITY = 1000, 17_000
DEFAULT_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class TableRow:
    """What a table cell is made from."""

    document: Document
    now: datetime
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the server-side table. `priority` above 0: shown with `-o wide` only."""

    name: str
    cell: Callable[[TableRow], Any]
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


def _status_of_new(new: Document, old: Document, _actor: Actor, _now: datetime) -> Document:
    kept = {name: part for name, part in old.items() if name != "status"}
    return {**kept, "status": new["status"]} if "status" in new else kept


@dataclass(frozen=True, slots=True)
class Subresource:
    """A part of the object that is written on its own path.

    `combine` takes from the new document what this path may change and the rest from the old one; by default the whole status.
    `validate` replaces the resource's validation for writes of this part; None: the resource's own.
    """

    name: str
    combine: PrepareUpdate = _status_of_new
    validate: Validation | None = None
    verbs: tuple[str, ...] = SUBRESOURCE_VERBS
    question: "Resource | None" = None
    """What is posted here, when that is another kind whose answer is computed (`serviceaccounts/token`). `verbs`: create.

    With `shows` it is what is read here, also of objects that are not there any more, and `verbs` is get."""
    shows: "Shows | None" = None


STATUS = Subresource("status")


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """Another served version of a resource than the stored one."""

    name: str
    schema: Schema
    from_stored: Callable[[Document], Document]
    to_stored: Callable[[Document], Document]
    columns: "tuple[Column, ...] | None" = None
    """Of this version's tables, over stored documents; None: the resource's own."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One kind at one URL. `version` is the stored and preferred one; `versions` are the others served beside it."""

    group: str
    version: str
    name: str
    kind: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = False
    verbs: tuple[str, ...] = DEFAULT_VERBS
    schema: Schema = field(default_factory=dict)
    versions: tuple[ServedVersion, ...] = ()
    validate: Validation | None = None
    name_rule: Callable[[str], str | None] | None = None
    """Why a name will not do, or None; by default a DNS subdomain."""
    complete: Callable[[Document], Document] | None = None
    """What decoding makes of an object beyond the schema's defaults: its writer holds that too."""
    fixed: tuple[str, ...] = ()
    """Top-level parts beside `status` that no update of the main resource changes: nobody holds them."""
    prepare_create: PrepareCreate | None = None
    prepare_update: PrepareUpdate | None = None
    prepare_delete: Callable[[Document, datetime], Document] | None = None
    """What else changes when an object that something holds begins to terminate."""
    held: Callable[[Document], bool] = lambda _document: False
    """Whether an object that is deleted stays for another reason than metadata.finalizers."""
    subresources: tuple[Subresource, ...] = ()
    columns: tuple[Column, ...] | None = None
    """Beside Name; None: Name and Age."""
    selectable: FieldExtractor | None = None
    selectable_names: tuple[str, ...] = ()
    """Names that a field selector may hold; one that ends in `.*` stands for all that begin so."""
    field_aliases: Mapping[str, str] = field(default_factory=dict)
    """Short names of selectable fields, and what they stand for."""
    selectable_labels: Mapping[str, str] = field(default_factory=dict)
    """Names that a field selector may hold for what labels say; both names may end in `*`."""
    where: Callable[[str, datetime, bool], Hashable] | None = None
    """What the query parameter `where` asks: its text, now, and whether it is asked of a watch. Raises BadRequestError."""
    order: Callable[[str, Standing | None], Hashable] | None = None
    """What the query parameter `sortBy` asks: its text, and the place behind which a page begins. Raises BadRequestError."""
    counts: Counts | None = None
    extras: Extras | None = None
    counts_generations: bool = False
    """Whether metadata.generation counts the changes outside metadata and status."""
    unconditional_update: bool = False
    """Whether an update without resourceVersion overwrites whatever is there."""
    custom: bool = True
    """A custom resource: no strategic merge patch; unknown fields are pruned with a warning."""
    storage: Storage | None = None
    """Where the objects live, when not in the server's storage."""
    past: Past | None = None
    """Where reads with `at` are answered from; None: its past is not kept."""
    answers: Answers | None = None
    """Computes the answer to a create of a kind that is never stored; its `verbs` are ("create",), and with a `storage` that
    has none of them, `list`."""

    @cached_property
    def structures(self) -> Mapping[str, Structure]:
        """By apiVersion of each served version: how its schema divides an object into fields that have owners."""
        schemas = {self.version: self.schema, **{version.name: version.schema for version in self.versions}}
        return {self.api_version(name): structure(schema) for name, schema in schemas.items()}

    @cached_property
    def merge_keys(self) -> Mapping[str, str]:
        """For strategic merge: path of a list (`status.conditions`) to the key that identifies its entries."""
        content = Structure(FieldForm.MAP, {**self.structures[self.api_version()].fields, "metadata": LEAF})
        lists = () if self.custom else keyed_lists(content)
        return {path: keys[0] for path, keys in lists if len(keys) == 1}

    @property
    def key(self) -> GroupResource:
        return GroupResource(self.group, self.name)

    def selectable_name(self, asked: str) -> str | None:
        """By what name the field is known that a selector asks for; None: it cannot be selected by."""
        known = self.field_aliases.get(asked, asked)
        fits = any(known == name or (name.endswith(".*") and known.startswith(name[:-1])) for name in self.selectable_names)
        return known if fits else None

    def selectable_label(self, asked: str) -> str | None:
        """The label that a field selector asks for under this name; None: it asks for none."""
        for name, label in self.selectable_labels.items():
            if asked == name:
                return label
            if name.endswith("*") and asked.startswith(name[:-1]) and asked != name[:-1]:
                return label[:-1] + asked.removeprefix(name[:-1])
        return None

    @property
    def singular_name(self) -> str:
        return self.singular or self.kind.lower()

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def qualified_kind(self) -> str:
        """As in messages of invalid objects: `ManagedCluster.cluster.open-cluster-management.io`, `Secret`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def api_version(self, version: str = "") -> str:
        return f"{self.group}/{version or self.version}" if self.group else version or self.version

    def subresource(self, name: str) -> Subresource | None:
        return next((part for part in self.subresources if part.name == name), None)

    @property
    def has_status(self) -> bool:
        return self.subresource("status") is not None


@dataclass(frozen=True, slots=True)
class ApiGroup:
    """An API group: name ("" for the legacy core group) and its resources; versions in order of preference."""

    name: str
    resources: tuple[Resource, ...]

    @property
    def priority(self) -> int:
        """Where the group stands in discovery, higher first: Kubernetes' own groups come before custom ones."""
        return CUSTOM_PRIORITY if any(resource.custom for resource in self.resources) else BUILTIN_PRIORITY

    @property
    def versions(self) -> tuple[str, ...]:
        """All versions that any resource is served in: those that are stored first, then Kubernetes' order."""
        stored = dict.fromkeys(resource.version for resource in self.resources)
        others = {version.name for resource in self.resources for version in resource.versions} - set(stored)
        return (*stored, *sorted(others, key=version_order))


_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")
_STABLE = 3


def version_order(name: str) -> tuple[Any, ...]:
    """A key that sorts versions as Kubernetes does: v2, v1, v1beta2, v1beta1, v1alpha1, then other names."""
    found = _VERSION.fullmatch(name)
    if found is None:
        return (1, name)
    major, stage, minor = found.groups()
    maturity = {"alpha": 1, "beta": 2}.get(stage, _STABLE)
    return (0, -maturity, -int(major), -int(minor or 0))


def selectable_fields(groups: Iterable[ApiGroup]) -> dict[GroupResource, FieldExtractor]:
    """What a storage needs to know to match field selectors."""
    return {
        resource.key: resource.selectable for group in groups for resource in group.resources if resource.selectable is not None
    }
