"""The resources of a hollow cluster, with the rules and table columns that a real API server has for them."""

from hollow.kinds.claim import CLUSTER_CLAIM
from hollow.kinds.event import EVENT
from hollow.kinds.keyed import CONFIG_MAP, SECRET
from hollow.kinds.lease import LEASE
from hollow.kinds.namespace import NAMESPACE
from hollow.kinds.node import NODE
from hollow.kinds.pod import POD
from machinery.apiserver.resource import Group

GROUPS = (
    Group("", (CONFIG_MAP, EVENT, NAMESPACE, NODE, POD, SECRET)),
    Group("cluster.open-cluster-management.io", (CLUSTER_CLAIM,)),
    Group("coordination.k8s.io", (LEASE,)),
)

__all__ = ["CLUSTER_CLAIM", "CONFIG_MAP", "EVENT", "GROUPS", "LEASE", "NAMESPACE", "NODE", "POD", "SECRET"]
