"""Declaration of the resources of an API server: schema, rules, table columns and subresources.

A `Resource` is independent of the storage, which is in memory for a hollow cluster and in the database for the hub. The rules
of a kind are pure functions over documents. Documents are never changed in place.
"""

import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from machinery.apiserver.storage import Actor, Admit, Counts, DeletionWarnings, FieldExtractor, GroupResource, Past, Storage
from machinery.errors import Cause
from machinery.meta.managedfields.structure import LEAF, FieldForm, Structure, keyed_lists, structure
from machinery.meta.objects import Document, Key, SortPosition
from machinery.meta.timestamps import age_of

Schema = Mapping[str, Any]
"""A structural OpenAPI v3 schema: `type`, `properties`, `items`, `required`, `enum`, `default`, ..., without metadata."""

Validation = Callable[[Document, Document | None], Iterable[Cause]]
"""Returns the violations of the new object. The second argument is the old object; None: a create."""

PrepareCreate = Callable[[Document, Actor, datetime], Document]
"""Prepares a new object: removes fields that a creator may not set, and adds fields that the server sets."""

PrepareUpdate = Callable[[Document, Document, Actor, datetime], Document]
"""Like PrepareCreate, for an update of the main resource: (new, old, actor, now). If the kind has the subresource `status`,
the new object already has the old status."""

Extras = Callable[[Sequence[Key]], Awaitable[Mapping[Key, Mapping[str, Any]]]]
"""Reads, once per table, the data that cells need in addition to the documents."""

Written = Callable[[GroupResource, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Question:
    """A create whose response is computed and not stored, such as an access review or a token request.

    The document is pruned, has its defaults, and is valid by the schema and `validate`.
    """

    document: Document
    actor: Actor
    now: datetime
    namespace: str = ""
    name: str = ""
    """Name of the object, if the create is on its subresource."""
    dry_run: bool = False
    peer: str = ""
    annotations: MutableMapping[str, str] = field(default_factory=dict)
    """Additional fields of the audit record; never a secret."""


Shows = Callable[[Key, Mapping[str, str]], Awaitable[Document]]
"""Returns the document of a readable subresource, given the request's parameters, without `apiVersion` and `kind`."""

Answers = Callable[[Question], Awaitable[Document]]
"""Returns the document of the response; the caller adds `apiVersion` and `kind`. Raises a MusterError to refuse."""

CUSTOM_PRIORITY, BUILTIN_PRIORITY = 1000, 17_000
DEFAULT_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class TableRow:
    document: Document
    now: datetime
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the server-side table. A `priority` above 0 means: only with `-o wide`."""

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
    """A part of the object with its own path.

    `combine` returns the old document with the parts of the new document that this path may change; by default, the whole
    status. `validate` validates writes of this part; None: the resource's validation does.
    """

    name: str
    combine: PrepareUpdate = _status_of_new
    validate: Validation | None = None
    verbs: tuple[str, ...] = SUBRESOURCE_VERBS
    question: "Resource | None" = None
    """The kind of a create on this path whose response is computed (`serviceaccounts/token`); `verbs` is then ("create",).

    With `shows`: the kind that a get returns, also for objects that no longer exist; `verbs` is then ("get",)."""
    shows: "Shows | None" = None


STATUS = Subresource("status")


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A served version of a resource other than the stored version."""

    name: str
    schema: Schema
    from_stored: Callable[[Document], Document]
    to_stored: Callable[[Document], Document]
    columns: "tuple[Column, ...] | None" = None
    """Table columns of this version, computed from stored documents; None: the resource's columns."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource. `version`: the stored and preferred version; `versions`: the other served versions."""

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
    """Returns why a name is invalid, or None. By default names are DNS subdomains."""
    complete: Callable[[Document], Document] | None = None
    """Adds fields during decoding, in addition to the schema's defaults. The writer also owns these fields."""
    fixed: tuple[str, ...] = ()
    """Top-level fields other than `status` that an update of the main resource cannot change. No field manager owns them."""
    prepare_create: PrepareCreate | None = None
    prepare_update: PrepareUpdate | None = None
    prepare_delete: Callable[[Document, datetime], Document] | None = None
    """Makes further changes when an object with finalizers begins to terminate."""
    held: Callable[[Document], bool] = lambda _document: False
    """Whether a deleted object must stay, for another reason than metadata.finalizers."""
    subresources: tuple[Subresource, ...] = ()
    columns: tuple[Column, ...] | None = None
    """Columns other than Name; None: Name and Age."""
    selectable: FieldExtractor | None = None
    selectable_names: tuple[str, ...] = ()
    """Names that a field selector may use. A name that ends in `.*` matches all names with that prefix."""
    field_aliases: Mapping[str, str] = field(default_factory=dict)
    """Maps short names of selectable fields to full names."""
    selectable_labels: Mapping[str, str] = field(default_factory=dict)
    """Maps names that a field selector may use to labels. Both may end in `*`."""
    where: Callable[[str, datetime, bool], Hashable] | None = None
    """Parses the query parameter `where`: (text, now, whether the request is a watch). Raises BadRequestError."""
    order: Callable[[str, SortPosition | None], Hashable] | None = None
    """Parses the query parameter `sortBy`: (text, position after which a page begins). Raises BadRequestError."""
    counts: Counts | None = None
    extras: Extras | None = None
    counts_generations: bool = False
    """Whether metadata.generation counts changes outside of metadata and status."""
    unconditional_update: bool = False
    """Whether an update without resourceVersion overwrites any revision."""
    custom: bool = True
    """Whether kube-apiserver's rules for custom resources apply. For example, there is no strategic merge patch."""
    storage: Storage | None = None
    """Storage of the objects; None: the server's storage."""
    past: Past | None = None
    """Returns the storage for reads with the query parameter `at`; None: no past revisions are kept."""
    admit: Admit | None = None
    written: Written | None = None
    """The server awaits this hook before it responds to a write: (resource, revision of the write)."""
    deletion_warnings: DeletionWarnings | None = None
    answers: Answers | None = None
    """Computes the response to a create of a kind that is never stored. `verbs` is ("create",). With a `storage`, whose list
    is empty, `verbs` also contains `list`."""

    @cached_property
    def served_versions(self) -> Mapping[str, ServedVersion | None]:
        """Served versions by name; None is the stored version, which needs no conversion."""
        return {self.version: None, **{version.name: version for version in self.versions}}

    @cached_property
    def structures(self) -> Mapping[str, Structure]:
        """Maps each served apiVersion to the Structure by which managedFields divides an object into fields."""
        versions = self.served_versions.items()
        return {self.api_version(name): structure(version.schema if version else self.schema) for name, version in versions}

    @cached_property
    def merge_keys(self) -> Mapping[str, str]:
        """For strategic merge: maps the path of a list (`status.conditions`) to the key of its entries."""
        content = Structure(FieldForm.MAP, {**self.structures[self.api_version()].fields, "metadata": LEAF})
        lists = () if self.custom else keyed_lists(content)
        return {path: keys[0] for path, keys in lists if len(keys) == 1}

    @property
    def key(self) -> GroupResource:
        return GroupResource(self.group, self.name)

    def selectable_name(self, asked: str) -> str | None:
        """Return the full name of the field that a selector names; None if the field is not selectable."""
        known = self.field_aliases.get(asked, asked)
        fits = any(known == name or (name.endswith(".*") and known.startswith(name[:-1])) for name in self.selectable_names)
        return known if fits else None

    def selectable_label(self, asked: str) -> str | None:
        """Return the label for which a name in a field selector stands; None if it stands for no label."""
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
        """The kind with its group, for error messages: `ManagedCluster.cluster.open-cluster-management.io`, `Secret`."""
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
    """An API group with its resources. `name` is "" for the legacy core group."""

    name: str
    resources: tuple[Resource, ...]

    @property
    def priority(self) -> int:
        """Order of the group in discovery, highest first. Kubernetes' own groups precede custom groups."""
        return CUSTOM_PRIORITY if any(resource.custom for resource in self.resources) else BUILTIN_PRIORITY

    @property
    def versions(self) -> tuple[str, ...]:
        """All served versions: stored versions first, then the others in Kubernetes' order."""
        stored = dict.fromkeys(resource.version for resource in self.resources)
        others = {version.name for resource in self.resources for version in resource.versions} - set(stored)
        return (*stored, *sorted(others, key=version_order))


_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


def version_order(name: str) -> tuple[Any, ...]:
    """Return a key that sorts versions as Kubernetes does: v2, v1, v1beta2, v1beta1, v1alpha1, then other names."""
    if (found := _VERSION.fullmatch(name)) is None:
        return (1, name)
    major, stage, minor = found.groups()
    maturity = {"alpha": 1, "beta": 2}.get(stage, 3)
    return (0, -maturity, -int(major), -int(minor or 0))


def selectable_fields(groups: Iterable[ApiGroup]) -> dict[GroupResource, FieldExtractor]:
    """Return the field extractors by resource. A storage needs them to match field selectors."""
    return {
        resource.key: resource.selectable for group in groups for resource in group.resources if resource.selectable is not None
    }


CREATED_DESCRIPTION = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be "
    "set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 "
    "form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)


AGE = Column(
    "Age", lambda row: age_of(row.document["metadata"].get("creationTimestamp"), row.now), description=CREATED_DESCRIPTION
)
