"""Whether an object matches a query, and queries in memory. A store implements the same rule in SQL."""

from collections.abc import Iterable, Mapping

from hub.api.certificatesigningrequests.request import selectable as selectable_of_request
from hub.api.events import selectable as selectable_of_event
from hub.api.liveness import LastBeat
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, EVENTS, MANAGED_CLUSTERS, NAMESPACES, REQUESTS, REVOCATIONS, SECRETS, SELECTABLE, Kind
from hub.api.meta.field_sources import FieldSource, QueryRecord, Where
from hub.api.meta.ordering import SortOrder
from hub.api.query.query_fields import created_at
from hub.api.query.selectable_fields import of_cluster, of_conditions
from hub.api.revocations import selectable as selectable_of_revocation
from machinery.identity import ClusterName
from machinery.meta.objects import Document, Page, Query, StoredObject

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


def where_in(query: Query) -> Where | None:
    """The condition of a query (`where`)."""
    return query.where if isinstance(query.where, Where) else None


def order_in(query: Query) -> SortOrder | None:
    """The sort order of a query in place of the keys' order; `query.after` is then the key of the object at `order.after`."""
    return query.order if isinstance(query.order, SortOrder) else None


def uses_beats(query: Query) -> bool:
    """Whether a query uses heartbeats, which have no history."""
    where, order = where_in(query), order_in(query)
    named = (where.named() if where else frozenset()) | (order.named if order else frozenset())
    return FieldSource.BEAT in named or FieldSource.SESSION in named


def known_of(kind: Kind, document: Document, beat: LastBeat | None = None) -> QueryRecord:
    """The parts of an object that conditions can use."""
    key = doc.key(document)
    return QueryRecord(key.name, doc.labels(document), fields_of(kind, document), created_at(document), beat)


def selects(kind: Kind, query: Query, document: Document, beat: LastBeat | None = None) -> bool:
    """Like `Query.matches`, for a whole document and including the query's condition."""
    known = known_of(kind, document, beat)
    if not query.matches(doc.key(document), known.labels, known.fields):
        return False
    where = where_in(query)
    return where is None or where.holds(known)


def is_current(query: Query) -> bool:
    """Whether the pages after the first show the current state, not that of the first page's revision."""
    return not query.past and (query.order is not None or uses_beats(query))


def page_of(
    kind: Kind, query: Query, objects: Iterable[StoredObject], revision: int, beats: Mapping[ClusterName, LastBeat]
) -> Page:
    """Evaluate a query in memory. `beats`: by cluster, if the query uses them."""

    def known(each: StoredObject) -> QueryRecord:
        return known_of(kind, each.document, beats.get(ClusterName(each.key.name)))

    found = {each.key: each for each in objects if selects(kind, query, each.document, beats.get(ClusterName(each.key.name)))}
    order = order_in(query) or SortOrder(())
    places = {key: order.place(known(each)) for key, each in found.items()}
    keys = order.arranged(places)
    if query.after is not None:
        keys = [key for key in keys if order.follows(key, places[key], query.after)]
    page = tuple(found[key] for key in keys[: query.limit])
    rest, last = len(keys) - len(page), page[-1].key if page else None
    counted = None if query.labels or query.fields or query.where else rest or None
    return Page(page, revision, last if rest else None, counted, places[last] if last else (), is_current(query))
