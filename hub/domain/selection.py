"""Whether an object is in a query: the rule that every store follows, in SQL or in memory."""

from collections.abc import Mapping

from hub.domain import document as doc
from hub.domain.asking import created_at
from hub.domain.change import (
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
)
from hub.domain.event import selectable as selectable_of_event
from hub.domain.request import selectable as selectable_of_request
from hub.domain.revocation import selectable as selectable_of_revocation
from hub.domain.selectable import of_cluster, of_conditions
from hub.domain.where import Known
from machinery.selectors import Operator

SELECTABLE[ADDONS] = of_conditions
SELECTABLE[MANAGED_CLUSTERS] = of_cluster
SELECTABLE[REQUESTS] = selectable_of_request
SELECTABLE[EVENTS] = selectable_of_event
SELECTABLE[REVOCATIONS] = selectable_of_revocation
SELECTABLE[NAMESPACES] = lambda document: {"status.phase": str(doc.mapping(document, "status").get("phase") or "")}
SELECTABLE[SECRETS] = lambda document: {"type": str(document.get("type") or "")}


def fields_of(kind: Kind, document: Document) -> dict[str, str]:
    """The selectable fields of a document beside its name and namespace."""
    extract = SELECTABLE.get(kind)
    return {field: value for field, value in extract(document).items() if value} if extract else {}


def matches(query: Query, key: Key, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Namespace, labels and fields fit. A field that an object lacks is the empty string, as in Kubernetes."""
    if query.namespace is not None and key.namespace != query.namespace:
        return False
    known = {**fields, "metadata.name": key.name, "metadata.namespace": key.namespace}
    return all(term.matches(labels) for term in query.labels) and all(
        (known.get(term.name, "") in term.values) == (term.operator in (Operator.EQUALS, Operator.IN)) for term in query.fields
    )


def selects(kind: Kind, query: Query, document: Document) -> bool:
    """As `matches`, for a whole document, and with the condition of the query."""
    key, labels, fields = doc.key(document), doc.labels(document), fields_of(kind, document)
    if not matches(query, key, labels, fields):
        return False
    return query.where is None or query.where.holds(Known(key.name, labels, fields, created_at(document)))
