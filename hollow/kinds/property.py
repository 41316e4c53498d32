"""ClusterProperty of SIG-Multicluster: a property that a managed cluster reports."""

from machinery.apiserver.resource import Resource

CLUSTER_PROPERTY = Resource(
    group="about.k8s.io",
    version="v1alpha1",
    name="clusterproperties",
    kind="ClusterProperty",
    schema={
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"value": {"type": "string", "minLength": 1, "maxLength": 128000}}}
        },
    },
)
