"""Fields of `where` for clusters, in the language of `machinery.expression`. Approval rules have these and more."""

from collections.abc import Mapping
from datetime import datetime

from hub.api.managedclusteraddons.health import FEATURE_PREFIX as ADDON_PREFIX
from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, Kind
from hub.api.meta.field_sources import MOVING, FieldSource, ValueSource, Where
from hub.api.meta.ordering import Facet
from hub.api.query.selectable_fields import (
    AGENT_VERSION,
    ALLOCATABLE,
    CAPACITY,
    CLAIMS,
    CLUSTER_ALIASES,
    CONDITIONS,
    HUB_ACCEPTS,
    TAINTS,
    VERSION,
)
from machinery.errors import BadRequestError
from machinery.expression import ExpressionError, Fields, MapOf, Type, parse, parse_operand
from machinery.expression.tree import MapEntry
from machinery.expression.types import sort_key
from machinery.meta.objects import Document
from machinery.meta.timestamps import parse_time

CLUSTER: Mapping[str, ValueSource] = {
    "name": ValueSource(FieldSource.NAME, Type.TEXT),
    "labels": ValueSource(FieldSource.LABELS, MapOf(Type.TEXT)),
    "set": ValueSource(FieldSource.LABELS, Type.TEXT, SET_LABEL),
    "age": ValueSource(FieldSource.CREATION, Type.DURATION),
    "accepted": ValueSource(FieldSource.FIELDS, Type.BOOLEAN, HUB_ACCEPTS),
    "available": ValueSource(FieldSource.FIELDS, Type.TEXT, CLUSTER_ALIASES["status.available"]),
    "joined": ValueSource(FieldSource.FIELDS, Type.TEXT, CLUSTER_ALIASES["status.joined"]),
    "clockSynced": ValueSource(FieldSource.FIELDS, Type.TEXT, CLUSTER_ALIASES["status.clockSynced"]),
    "conditions": ValueSource(FieldSource.FIELDS, MapOf(Type.TEXT), CONDITIONS),
    "claims": ValueSource(FieldSource.FIELDS, MapOf(Type.TEXT), CLAIMS),
    "taints": ValueSource(FieldSource.FIELDS, MapOf(Type.TEXT), TAINTS),
    "addons": ValueSource(FieldSource.LABELS, MapOf(Type.TEXT), ADDON_PREFIX),
    "version": ValueSource(FieldSource.FIELDS, Type.VERSION, VERSION),
    "agentVersion": ValueSource(FieldSource.FIELDS, Type.VERSION, AGENT_VERSION),
    "connected": ValueSource(FieldSource.SESSION, Type.BOOLEAN),
    "lastBeat": ValueSource(FieldSource.BEAT, Type.DURATION),
    "capacity": ValueSource(FieldSource.FIELDS, MapOf(Type.QUANTITY), CAPACITY),
    "allocatable": ValueSource(FieldSource.FIELDS, MapOf(Type.QUANTITY), ALLOCATABLE),
    "cpu": ValueSource(FieldSource.FIELDS, Type.QUANTITY, f"{CAPACITY}cpu"),
    "memory": ValueSource(FieldSource.FIELDS, Type.QUANTITY, f"{CAPACITY}memory"),
    "nodes": ValueSource(FieldSource.FIELDS, Type.NUMBER, f"{CAPACITY}nodes"),
}
_FIELDS = Fields({word: source.type for word, source in CLUSTER.items()})


def where_of(text: str, now: datetime, watched: bool = False) -> Where:  # noqa: FBT001, FBT002 - the form of `Resource.where`
    """Parse a condition. Raises BadRequestError with the column and a correction."""
    try:
        asked = Where(parse(text, _FIELDS), now, CLUSTER)
    except ExpressionError as error:
        raise BadRequestError(f"where: {error}") from None
    moving = sorted(name for name in asked.expression.names() if CLUSTER[name].of in MOVING)
    if watched and moving:
        raise BadRequestError(
            f"where: {moving[0]} changes by itself, so that no watch tells of it: leave it out, or list again and again"
        )
    return asked


def facet_of(text: str, what: str) -> Facet:
    """The field of a cluster that `text` names, as in `version` or `labels["env"]`. Raises BadRequestError.

    `what` starts the error message.
    """
    try:
        found = parse_operand(text, _FIELDS)
    except ExpressionError as error:
        raise BadRequestError(f"{what}: {error}") from None
    source = CLUSTER[found.name]
    key = source.key + found.key if isinstance(found, MapEntry) else source.key
    return Facet(text, ValueSource(source.of, found.type, key))


def order_of(kind: Kind, name: str, value: str) -> str | None:
    """Sort key of a selectable field that is a version or a quantity; None if it is compared as text."""
    if kind != MANAGED_CLUSTERS:
        return None
    of = (
        Type.VERSION
        if name in (VERSION, AGENT_VERSION)
        else Type.QUANTITY
        if name.startswith((CAPACITY, ALLOCATABLE))
        else None
    )
    found = None if of is None else of.read(value)
    return None if found is None else sort_key(found)


def created_at(document: Document) -> datetime | None:
    created = doc.mapping(document, "metadata").get("creationTimestamp")
    return parse_time(str(created)) if created else None
