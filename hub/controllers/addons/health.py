"""Owns the condition Available of add-ons while their cluster is silent: Unknown, with the cluster's reason.

Source: OCM's add-on health check controller. When the cluster sends beats again, the previous status returns.
"""

from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.ports import Transaction
from hub.registry.managedclusteraddons import service as addon_health
from machinery.identity import ClusterName

NAME = "addon-health"


class AddOnHealth(Batched):
    """Updates all add-ons of a cluster in one step."""

    def step(self, tx: Transaction, name: str) -> None:
        addon_health.settle_health(tx, ClusterName(name), f"{ACTOR}:{NAME}")
