"""ClusterProfile of SIG Multicluster: a cluster as consumers of an inventory see it, independent of its manager."""

from hub.api.clusterprofiles import GROUP, KIND, VERSION
from hub.https_door.kinds.schemas import CONDITION, TEXT, condition_column, listing, record
from machinery.apiserver.resource import AGE, STATUS, Resource

_PROPERTY = record("", ("name", "value"), name=TEXT, value=TEXT)
_MANAGER = record("clusterManager is who manages the cluster, and this profile.", ("name",), name=TEXT)
SCHEMA = record(
    "ClusterProfile represents a single cluster in a multi-cluster deployment.",
    ("spec",),
    spec=record(
        "",
        ("clusterManager",),
        displayName={**TEXT, "description": "displayName is a name of the cluster for people."},
        clusterManager=_MANAGER,
    ),
    status=record(
        "",
        conditions=listing(CONDITION, "type", description="conditions: ControlPlaneHealthy, Joined."),
        version=record("version of the cluster.", kubernetes={**TEXT, "description": "its Kubernetes version."}),
        properties=listing(_PROPERTY, "name", description="properties are facts about the cluster."),
    ),
)


def cluster_profile() -> Resource:
    return Resource(
        group=GROUP,
        version=VERSION,
        name="clusterprofiles",
        singular="clusterprofile",
        kind=KIND,
        namespaced=True,
        schema=SCHEMA,
        subresources=(STATUS,),
        columns=(condition_column("Joined", "Joined"), condition_column("Healthy", "ControlPlaneHealthy"), AGE),
        counts_generations=True,
    )
