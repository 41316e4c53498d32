"""Whether an object matches a query. Every store implements this rule, in SQL or in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hub.api.certificatesigningrequests.request import selectable as selectable_of_request
from hub.api.events import selectable as selectable_of_event
from hub.api.liveness import LastBeat
from hub.api.meta import document as doc
from hub.api.meta.change import (
    ADDONS,
    EVENTS,
    MANAGED_CLUSTERS,
    NAMESPACES,
    REQUESTS,
    REVOCATIONS,
    SECRETS,
    SELECTABLE,
    Document,
    Key,
    Kind,
    Query,
    StoredObject,
)
from hub.api.meta.field_sources import QueryRecord
from hub.api.meta.ordering import Place, SortOrder
from hub.api.query.query_fields import created_at
from hub.api.query.selectable_fields import of_cluster, of_conditions
from hub.api.revocations import selectable as selectable_of_revocation
from machinery.identity import ClusterName
from machinery.meta.selectors import Operator

SELECTABLE[ADDONS] = of_conditions
SELECTABLE[MANAGED_CLUSTERS] = of_cluster
SELECTABLE[REQUESTS] = selectable_of_request
SELECTABLE[EVENTS] = selectable_of_event
SELECTABLE[REVOCATIONS] = selectable_of_revocation
SELECTABLE[NAMESPACES] = lambda document: {"status.phase": str(doc.mapping(document, "status").get("phase") or "")}
SELECTABLE[SECRETS] = lambda document: {"type": str(document.get("type") or "")}


def fields_of(kind: Kind, document: Document) -> dict[str, str]:
    """Non-empty selectable fields of a document, besides name and namespace."""
    extract = SELECTABLE.get(kind)
    return {field: value for field, value in extract(document).items() if value} if extract else {}


def matches(query: Query, key: Key, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Whether namespace, labels and fields match. A missing field is the empty string, as in Kubernetes."""
    if query.namespace is not None and key.namespace != query.namespace:
        return False
    known = {**fields, "metadata.name": key.name, "metadata.namespace": key.namespace}
    return all(term.matches(labels) for term in query.labels) and all(
        (known.get(term.name, "") in term.values) == (term.operator in (Operator.EQUALS, Operator.IN)) for term in query.fields
    )


def known_of(kind: Kind, document: Document, beat: LastBeat | None = None) -> QueryRecord:
    """The parts of an object that conditions can use."""
    key = doc.key(document)
    return QueryRecord(key.name, doc.labels(document), fields_of(kind, document), created_at(document), beat)


def selects(kind: Kind, query: Query, document: Document, beat: LastBeat | None = None) -> bool:
    """Like `matches`, for a whole document and including the query's condition."""
    known = known_of(kind, document, beat)
    if not matches(query, doc.key(document), known.labels, known.fields):
        return False
    return query.where is None or query.where.holds(known)


@dataclass(frozen=True, slots=True)
class Portion:
    """Result of a query: a page, the number of further objects, and the sort position of the last one."""

    items: tuple[StoredObject, ...]
    rest: int
    place: Place


def portion(query: Query, objects: Iterable[StoredObject], beats: Mapping[ClusterName, LastBeat]) -> Portion:
    """Evaluate a query in memory. `beats`: by cluster, if the query uses them."""

    def beat(each: StoredObject) -> LastBeat | None:
        return beats.get(ClusterName(each.key.name))

    found = {each.key: each for each in objects if selects(each.kind, query, each.document, beat(each))}
    order = query.order or SortOrder(())
    places = {key: order.place(known_of(each.kind, each.document, beat(each))) for key, each in found.items()}
    keys = order.arranged(places)
    if query.after is not None:
        keys = [key for key in keys if order.follows(key, places[key], query.after)]
    page = keys[: query.limit]
    place = places[page[-1]] if page else ()
    return Portion(tuple(found[key] for key in page), len(keys) - len(page), place)
