"""Content that is deleted with a cluster: add-ons, objects made for it in its namespace, and undecided requests."""

from collections.abc import Iterator

from hub.api.certificatesigningrequests.request import RequestPhase, phase
from hub.api.managedclusters import removal as rules
from hub.api.meta.change import (
    ADDONS,
    CONFIG_MAPS,
    LEASES,
    REQUESTS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Kind,
    Query,
    StoredObject,
)
from hub.ports import Transaction
from machinery.identity import CLUSTER_LABEL
from machinery.meta.selectors import Operator, Requirement

PAGE = 200
MADE = (ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, SECRETS, CONFIG_MAPS, LEASES)
"""Kinds whose objects with labels of a cluster or add-on were made for it."""


def of_cluster(tx: Transaction, name: str) -> Iterator[StoredObject]:
    """All content, add-ons first."""
    yield from _all(tx, ADDONS, Query(namespace=name))
    for kind in MADE:
        yield from (stored for stored in _all(tx, kind, Query(namespace=name)) if rules.is_made_for(stored.document, name))
    labelled = Requirement(CLUSTER_LABEL, Operator.EQUALS, (name,))
    for stored in _all(tx, REQUESTS, Query(labels=(labelled,))):
        if phase(stored.document) is RequestPhase.PENDING:
            yield stored


def is_there(tx: Transaction, name: str) -> bool:
    """Whether anything must be removed before the cluster."""
    return next(of_cluster(tx, name), None) is not None


def _all(tx: Transaction, kind: Kind, query: Query) -> Iterator[StoredObject]:
    more, after = True, None
    while more:
        page = tx.objects.find(kind, Query(query.namespace, query.labels, limit=PAGE, after=after))
        yield from page.items
        more, after = page.more, page.items[-1].key if page.items else None
