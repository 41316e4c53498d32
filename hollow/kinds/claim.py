"""ClusterClaim: a property that a managed cluster reports."""

from machinery.apiserver.resource import Resource

CLUSTER_CLAIM = Resource(
    group="cluster.open-cluster-management.io",
    version="v1alpha1",
    name="clusterclaims",
    kind="ClusterClaim",
    schema={
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"value": {"type": "string", "minLength": 1, "maxLength": 1024}}}
        },
    },
)
