"""Selectable fields of each kind, and whether an object matches a query. A store implements the same rule in SQL.

A missing field equals the empty string: `status.available=` selects clusters without the condition Available,
`status.available!=True` all clusters that are not known to be available. The store keeps one row per field.
"""

from collections.abc import Iterable, Mapping, Sequence

from hub.api.certificatesigningrequests import selectable as selectable_of_request
from hub.api.events import selectable as selectable_of_event
from hub.api.managedclusteraddons.health import FEATURE_PREFIX as ADDON_PREFIX
from hub.api.managedclusters import agent_annotations
from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, EVENTS, MANAGED_CLUSTERS, NAMESPACES, REQUESTS, REVOCATIONS, SECRETS, SELECTABLE, Kind
from hub.api.query.expressions import NO_AGENT, PRESENT, AgentFacts, FieldReference, QueryRecord, SortOrder, Where
from hub.api.revocations import selectable as selectable_of_revocation
from machinery.errors import BadRequestError
from machinery.meta import conditions
from machinery.meta.objects import Document, Page, Query, StoredObject

CONDITIONS, CLAIMS = "status.conditions.", "status.clusterClaims."
CAPACITY, ALLOCATABLE, TAINTS = "status.capacity.", "status.allocatable.", "spec.taints."
"""Prefixes of fields. `where` uses all; field selectors cannot use capacity and allocatable."""
HUB_ACCEPTS, VERSION, AGENT_VERSION = "spec.hubAcceptsClient", "status.version.kubernetes", "status.agentVersion"
REASON = "status.availableReason"
"""Reason of the condition Available; for `where` only."""
CLUSTER_FIELDS = (HUB_ACCEPTS, VERSION, AGENT_VERSION, f"{CONDITIONS}*", f"{CLAIMS}*", f"{TAINTS}*")
"""Fields of ManagedClusters that a field selector can use; `*` stands for a condition type, a claim name or a taint key."""
CLUSTER_LABELS: Mapping[str, str] = {"spec.clusterSet": SET_LABEL, "status.addons.*": f"{ADDON_PREFIX}*"}
"""Fields that are stored as labels: the cluster set, and the state of each add-on."""
CLUSTER_ALIASES: Mapping[str, str] = {
    "status.accepted": f"{CONDITIONS}{conditions.HUB_ACCEPTED}",
    "status.available": f"{CONDITIONS}{conditions.AVAILABLE}",
    "status.clockSynced": f"{CONDITIONS}{conditions.CLOCK_SYNCED}",
    "status.joined": f"{CONDITIONS}{conditions.JOINED}",
}
"""Short field names for the statuses of conditions, and the full field names for which they stand."""
ADD_ON_FIELDS = (f"{CONDITIONS}*",)
ADD_ON_ALIASES: Mapping[str, str] = {"status.available": f"{CONDITIONS}{conditions.ADDON_AVAILABLE}"}


def of_cluster(cluster: Document) -> dict[str, str]:
    accepts = doc.mapping(cluster, "spec").get("hubAcceptsClient")
    claims = (claim for claim in doc.sequence(cluster, "status", "clusterClaims") if isinstance(claim, Mapping))
    every = (taint for taint in doc.sequence(cluster, "spec", "taints") if isinstance(taint, Mapping))
    taints = sorted(every, key=lambda taint: str(taint.get("effect")), reverse=True)  # the strongest effect of a key is last
    entries = doc.conditions(cluster)
    return {
        HUB_ACCEPTS: "true" if accepts else "false",
        REASON: next((str(each.get("reason") or "") for each in entries if each.get("type") == conditions.AVAILABLE), ""),
        VERSION: str(doc.mapping(cluster, "status", "version").get("kubernetes") or ""),
        AGENT_VERSION: agent_annotations.agent_version(cluster),
        **of_conditions(cluster),
        **{f"{CLAIMS}{claim.get('name')}": str(claim.get("value") or "") for claim in claims},
        **{f"{CAPACITY}{name}": str(value) for name, value in doc.mapping(cluster, "status", "capacity").items()},
        **{f"{ALLOCATABLE}{name}": str(value) for name, value in doc.mapping(cluster, "status", "allocatable").items()},
        **{f"{TAINTS}{taint.get('key')}": str(taint.get("effect") or "") for taint in taints},
    }


def of_conditions(document: Document) -> dict[str, str]:
    """Return the status of each condition, by type."""
    return {f"{CONDITIONS}{entry.get('type')}": str(entry.get("status") or "") for entry in doc.conditions(document)}


SELECTABLE[ADDONS] = of_conditions
SELECTABLE[MANAGED_CLUSTERS] = of_cluster
SELECTABLE[REQUESTS] = selectable_of_request
SELECTABLE[EVENTS] = selectable_of_event
SELECTABLE[REVOCATIONS] = selectable_of_revocation
SELECTABLE[NAMESPACES] = lambda document: {"status.phase": str(doc.mapping(document, "status").get("phase") or "")}
SELECTABLE[SECRETS] = lambda document: {"type": str(document.get("type") or "")}


def fields_of(kind: Kind, document: Document) -> dict[str, str]:
    """Return the non-empty selectable fields of an object with their values, without metadata.name and metadata.namespace."""
    extract = SELECTABLE.get(kind)
    return {field: value for field, value in extract(document).items() if value} if extract else {}


def where_in(query: Query) -> Where | None:
    return query.where if isinstance(query.where, Where) else None


def order_in(query: Query) -> SortOrder | None:
    """Return the sort order of a query; None: by key.

    A later page of an ordered query begins after the last object of the page before. `order.after` is the sort position of this
    object, and `query.after` is its key.
    """
    return query.order if isinstance(query.order, SortOrder) else None


def uses_present(query: Query) -> bool:
    """Whether a query uses sources without history (PRESENT), such as heartbeats or sessions."""
    where, order = where_in(query), order_in(query)
    named = (where.named() if where else frozenset()) | (order.named if order else frozenset())
    return not named.isdisjoint(PRESENT)


def check_past(query: Query, facets: Sequence[FieldReference] = ()) -> None:
    """Raises BadRequestError if a query of the past uses sources without history (PRESENT). `facets`: fields of `groupBy`."""
    if query.past and (uses_present(query) or any(facet.source.of in PRESENT for facet in facets)):
        raise BadRequestError(
            "heartbeats, sessions, flaps and certificates have no history: leave out connected, lastBeat, replica, driver, "
            "flaps and certificateExpiresIn"
        )


def known_of(kind: Kind, document: Document, agent: AgentFacts = NO_AGENT) -> QueryRecord:
    """Return the parts of an object that `where` can use. `agent`: values from outside of the object, such as heartbeats."""
    key = doc.key(document)
    return QueryRecord(key.name, doc.labels(document), fields_of(kind, document), doc.created_at(document), agent)


def selects(kind: Kind, query: Query, document: Document, agent: AgentFacts = NO_AGENT) -> bool:
    """Whether a query, including its `where`, selects the document."""
    known, where = known_of(kind, document, agent), where_in(query)
    return query.matches(doc.key(document), known.labels, known.fields) and (where is None or where.holds(known))


def is_current(query: Query) -> bool:
    """Whether each page shows the state at the time of its read. Otherwise all pages show the revision of the first page."""
    return not query.past and (query.order is not None or uses_present(query))


def page_of(kind: Kind, query: Query, objects: Iterable[StoredObject], revision: int, agents: Mapping[str, AgentFacts]) -> Page:
    """Evaluate a query in memory and return a page. `agents`: facts about agents by cluster, if the query uses such facts."""

    def known(each: StoredObject) -> QueryRecord:
        return known_of(kind, each.document, agents.get(each.key.name, NO_AGENT))

    found = {each.key: each for each in objects if selects(kind, query, each.document, agents.get(each.key.name, NO_AGENT))}
    order = order_in(query) or SortOrder(())
    places = {key: order.place(known(each)) for key, each in found.items()}
    keys = order.arranged(places)
    if query.after is not None:
        keys = [key for key in keys if order.follows(key, places[key], query.after)]
    page = tuple(found[key] for key in keys[: query.limit])
    rest, last = len(keys) - len(page), page[-1].key if page else None
    counted = None if query.labels or query.fields or query.where else rest or None
    return Page(page, revision, last if rest else None, counted, places[last] if last else (), is_current(query))
