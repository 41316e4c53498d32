"""Parse `where`, `sortBy`, `groupBy` and `sum` for clusters, in the language of `machinery.expression`."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from hub.api.managedclusteraddons.health import FEATURE_PREFIX as ADDON_PREFIX
from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta.change import MANAGED_CLUSTERS, Kind
from hub.api.query import selection
from hub.api.query.expressions import MOVING, By, FieldReference, FieldSource, SortOrder, ValueSource, Where
from hub.api.query.groups import COUNT, GroupQuery
from machinery.errors import BadRequestError
from machinery.expression import ExpressionError, Fields, MapOf, Type, parse, parse_operand
from machinery.expression.tree import MapEntry
from machinery.expression.types import sort_key
from machinery.meta.objects import SortPosition

_stored = partial(ValueSource, FieldSource.FIELDS)
CLUSTER: Mapping[str, ValueSource] = {
    "name": ValueSource(FieldSource.NAME, Type.TEXT, about="the cluster's name"),
    "labels": ValueSource(FieldSource.LABELS, MapOf(Type.TEXT), about="its labels"),
    "set": ValueSource(FieldSource.LABELS, Type.TEXT, SET_LABEL, about="its cluster set"),
    "age": ValueSource(FieldSource.CREATION, Type.DURATION, about="time since its creation"),
    "accepted": _stored(Type.BOOLEAN, selection.HUB_ACCEPTS, "whether it is accepted"),
    "available": _stored(Type.TEXT, selection.CLUSTER_ALIASES["status.available"], "`True`, `False` or `Unknown`"),
    "reason": _stored(
        Type.TEXT, selection.REASON, "the reason of its availability, such as `ManagedClusterLeaseUpdateStopped`"
    ),
    "flaps": ValueSource(FieldSource.FLAPS, Type.NUMBER, about="how often it ceased to be available within a day"),
    "joined": _stored(Type.TEXT, selection.CLUSTER_ALIASES["status.joined"], "the condition ManagedClusterJoined"),
    "clockSynced": _stored(
        Type.TEXT, selection.CLUSTER_ALIASES["status.clockSynced"], "the condition ManagedClusterConditionClockSynced"
    ),
    "conditions": _stored(MapOf(Type.TEXT), selection.CONDITIONS, "the statuses of all conditions, by type"),
    "claims": _stored(MapOf(Type.TEXT), selection.CLAIMS, "its cluster claims, by name"),
    "taints": _stored(
        MapOf(Type.TEXT), selection.TAINTS, "the effects of its taints, by key; the strongest if a key has several"
    ),
    "addons": ValueSource(
        FieldSource.LABELS, MapOf(Type.TEXT), ADDON_PREFIX, about="`available`, `unhealthy` or `unreachable`, by add-on"
    ),
    "version": _stored(Type.VERSION, selection.VERSION, "its Kubernetes version"),
    "version.minor": ValueSource(FieldSource.MINOR, Type.VERSION, selection.VERSION, about="its minor version, such as 1.30"),
    "agentVersion": _stored(Type.VERSION, selection.AGENT_VERSION, "version of the agent that reported last"),
    "driver": ValueSource(FieldSource.DRIVER, Type.TEXT, about="`grpc`, or `csr` if it beats and never had a session"),
    "connected": ValueSource(FieldSource.SESSION, Type.BOOLEAN, about="whether its agent has an open session"),
    "replica": ValueSource(FieldSource.REPLICA, Type.TEXT, about="the hub's replica that has the session"),
    "lastBeat": ValueSource(FieldSource.BEAT, Type.DURATION, about="time since the last heartbeat"),
    "certificateExpiresIn": ValueSource(
        FieldSource.CERTIFICATE,
        Type.DURATION,
        about="time until its agent's newest certificate that is not revoked expires; below `0s` after that",
    ),
    "capacity": _stored(MapOf(Type.QUANTITY), selection.CAPACITY, "the resources of its nodes, by name"),
    "allocatable": _stored(MapOf(Type.QUANTITY), selection.ALLOCATABLE, "allocatable resources, by name"),
    "cpu": _stored(Type.QUANTITY, f"{selection.CAPACITY}cpu", '`capacity["cpu"]`'),
    "memory": _stored(Type.QUANTITY, f"{selection.CAPACITY}memory", '`capacity["memory"]`'),
    "nodes": _stored(Type.NUMBER, f"{selection.CAPACITY}nodes", "number of nodes"),
}
_FIELDS = Fields({word: source.type for word, source in CLUSTER.items()})


def where_of(text: str, now: datetime, watched: bool = False) -> Where:  # noqa: FBT001, FBT002 - the form of `Resource.where`
    """Parse `where`. `watched`: refuse fields that change without a write. Raises BadRequestError (position, correction)."""
    try:
        asked = Where(parse(text, _FIELDS), now, CLUSTER)
    except ExpressionError as error:
        raise BadRequestError(f"where: {error}") from None
    moving = sorted(name for name in asked.expression.names() if CLUSTER[name].of in MOVING)
    if watched and moving:
        raise BadRequestError(
            f"where: {moving[0]} changes without a write, so a watch cannot report it: leave it out, or list repeatedly"
        )
    return asked


def field_reference(text: str, what: str) -> FieldReference:
    """Return the field of a cluster that `text` names, as in `version` or `labels["env"]`. Raises BadRequestError.

    `what`: the parameter that contains the field, for the error message.
    """
    try:
        found = parse_operand(text, _FIELDS)
    except ExpressionError as error:
        raise BadRequestError(f"{what}: {error}") from None
    source = CLUSTER[found.name]
    key = source.key + found.key if isinstance(found, MapEntry) else source.key
    return FieldReference(text, ValueSource(source.of, found.type, key))


def order_of(kind: Kind, name: str, value: str) -> str | None:
    """Return the sort key of `value` if the field `name` is a version or a quantity; None: compare the field as text."""
    if kind != MANAGED_CLUSTERS:
        return None
    if name in (selection.VERSION, selection.AGENT_VERSION):
        found = Type.VERSION.read(value)
    elif name.startswith((selection.CAPACITY, selection.ALLOCATABLE)):
        found = Type.QUANTITY.read(value)
    else:
        return None
    return None if found is None else sort_key(found)


MAX_KEYS = 4
"""Largest number of fields in one `sortBy`, `groupBy` or `sum`."""
MAX_LENGTH = 1024
"""Longest `sortBy`, `groupBy` or `sum`, in characters."""
_PART = re.compile(r"""(?:[^,"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""")
_PATHS: Mapping[str, str] = {
    ".metadata.name": "name",
    ".metadata.creationTimestamp": "-age",
    ".spec.hubAcceptsClient": "accepted",
    ".status.version.kubernetes": "version",
}
_MAPS = (".metadata.labels", ".status.capacity", ".status.allocatable")
"""Paths of maps; the last element is the field's name."""


def sort_of(text: str, after: SortPosition | None = None) -> SortOrder:
    """Parse a sort order such as `-memory,name`; `-` means descending. Raises BadRequestError."""
    keys = tuple(_key(part) for part in _parts(text, "sortBy"))
    if after is not None and len(after) != len(keys):
        raise BadRequestError("invalid continue token: it belongs to another order")
    return SortOrder(keys, after)


def groups_of(text: str) -> tuple[FieldReference, ...]:
    """Parse fields such as `version,labels["env"]`. Raises BadRequestError."""
    facets = tuple(field_reference(part, "groupBy") for part in _parts(text, "groupBy"))
    for facet in facets:
        if facet.is_instant:
            raise BadRequestError(
                f"groupBy: {facet.word} differs for every cluster: count those of a condition, as in where={facet.word} > 1h"
            )
    return facets


def group_query(group_by: str, summed: str = "", sort_by: str = "") -> GroupQuery:
    """Parse `groupBy` ("": one group of all), `sum` and the groups' `sortBy`. Raises BadRequestError."""
    by = groups_of(group_by) if group_by else ()
    sums = tuple(field_reference(part, "sum") for part in _parts(summed, "sum")) if summed else ()
    for each in sums:
        if each.source.type not in (Type.QUANTITY, Type.NUMBER):
            raise BadRequestError(f"sum: {each.word} is a {each.source.type}: sum up quantities and numbers, as in cpu,memory")
    columns = [*(each.source for each in by), COUNT, *(each.source for each in sums)]
    order = []
    for part in _parts(sort_by, "sortBy") if sort_by else ():
        word = part.removeprefix("-").strip()
        wanted = COUNT if word == COUNT else field_reference(word, "sortBy").source
        if wanted not in columns:
            known = ", ".join([*(each.word for each in by), COUNT, *(each.word for each in sums)])
            raise BadRequestError(f"sortBy: groups are not sorted by {word[:80]}: use {known}")
        order.append((columns.index(wanted), part.startswith("-")))
    return GroupQuery(by, sums, tuple(order))


def _parts(text: str, what: str) -> Sequence[str]:
    if len(text) > MAX_LENGTH:
        raise BadRequestError(f"{what}: at most {MAX_LENGTH} characters, not {len(text)}")
    found = [part.strip() for part in _PART.findall(text)]
    if not found or not all(found) or (text.count(",") and text.strip().endswith(",")):
        raise BadRequestError(f"{what}: use fields separated by commas, as in version,name")
    if len(found) > MAX_KEYS:
        raise BadRequestError(f"{what}: at most {MAX_KEYS} fields, not {len(found)}")
    return found


def _key(part: str) -> By:
    descending, word = part.startswith("-"), part.removeprefix("-").strip()
    path = word.removeprefix("{").removesuffix("}")
    if path.startswith("."):
        word = _PATHS.get(path) or _map_entry(path)
    return By(field_reference(word.removeprefix("-"), "sortBy"), descending != word.startswith("-"))


def _map_entry(path: str) -> str:
    """The field for a path of kubectl's `--sort-by` into a map. Raises BadRequestError for other paths."""
    for place in _MAPS:
        if path.startswith(f"{place}."):
            entry = path.removeprefix(f"{place}.").replace("\\.", ".").replace('"', "")
            return f'{place.rpartition(".")[2]}["{entry}"]'
    raise BadRequestError(
        f"sortBy: there is no field for the path {path[:80]}: use a field name, as in version, memory or "
        'labels["env"], or let kubectl sort the list'
    )
