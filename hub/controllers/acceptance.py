"""Owns the condition HubAcceptedManagedCluster: what an operator, or the rule, decided in `spec.hubAcceptsClient`.

Source: OCM's ManagedCluster controller. A cluster that was never accepted has no such condition; a rule accepts once, so that
a denial by hand stands.
"""

from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.domain import cluster as rules
from hub.domain import document as doc
from hub.domain.change import Document
from hub.ports import Store, Transaction
from hub.services import clusters
from machinery import conditions
from machinery.conditions import Condition
from machinery.identity import ClusterName

NAME = "acceptance"


class Acceptance(Batched):
    """`globs`: names of clusters that need no human."""

    def __init__(self, store: Store, globs: tuple[str, ...]) -> None:
        super().__init__(store)
        self._globs = globs

    def wanted(self, cluster: Document) -> bool:
        """Whether a step on this cluster would write."""
        return _verdict(cluster) is not None or (bool(self._globs) and rules.ACCEPTED_ON not in doc.annotations(cluster))

    def step(self, tx: Transaction, name: str) -> None:
        cluster = ClusterName(name)
        if self._globs:
            clusters.auto_accept(tx, cluster, self._globs, f"{ACTOR}:{NAME}")
        verdict = _verdict(clusters.find(tx, cluster).document)
        if verdict is not None:
            clusters.set_condition(tx, cluster, verdict, f"{ACTOR}:{NAME}")


def _verdict(cluster: Document) -> Condition | None:
    """The condition that is due; None: what stands is right."""
    current = conditions.find(doc.conditions(cluster), conditions.HUB_ACCEPTED)
    is_true = current is not None and current.status == conditions.TRUE
    if doc.is_deleting(cluster) or rules.is_accepted(cluster) == is_true:
        return None
    return rules.ACCEPTED if rules.is_accepted(cluster) else rules.DENIED
