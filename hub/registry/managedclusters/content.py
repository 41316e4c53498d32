"""Content that is deleted with a cluster: add-ons, objects made for it in its namespace, and undecided requests."""

from collections.abc import Iterator

from hub.api.certificatesigningrequests.request import RequestPhase, phase
from hub.api.managedclusters import removal as rules
from hub.api.meta.change import ADDONS, CONFIG_MAPS, LEASES, REQUESTS, ROLE_BINDINGS, ROLES, SECRETS, SERVICE_ACCOUNTS, Kind
from hub.ports import Transaction
from machinery.identity import CLUSTER_LABEL
from machinery.meta.objects import Query, StoredObject
from machinery.meta.selectors import Operator, Requirement

PAGE = 200
MADE = (ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, SECRETS, CONFIG_MAPS, LEASES)
"""Kinds whose objects with labels of a cluster or add-on were made for it."""


def of_cluster(tx: Transaction, name: str) -> Iterator[tuple[Kind, StoredObject]]:
    """All content with its kind, add-ons first."""
    yield from _all(tx, ADDONS, Query(namespace=name))
    for kind in MADE:
        yield from (found for found in _all(tx, kind, Query(namespace=name)) if rules.is_made_for(found[1].document, name))
    labelled = Requirement(CLUSTER_LABEL, Operator.EQUALS, (name,))
    requests = _all(tx, REQUESTS, Query(labels=(labelled,)))
    yield from (found for found in requests if phase(found[1].document) is RequestPhase.PENDING)


def is_there(tx: Transaction, name: str) -> bool:
    """Whether anything must be removed before the cluster."""
    return next(of_cluster(tx, name), None) is not None


def _all(tx: Transaction, kind: Kind, query: Query) -> Iterator[tuple[Kind, StoredObject]]:
    more, after = True, None
    while more:
        page = tx.objects.find(kind, Query(query.namespace, query.labels, limit=PAGE, after=after))
        yield from ((kind, stored) for stored in page.items)
        more, after = page.after is not None, page.after
