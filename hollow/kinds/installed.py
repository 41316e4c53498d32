"""Other resources that charts install: stored, without effect.

Services, policies and routes have no effect in a hollow cluster; StatefulSets have no pods. Kubernetes' RBAC roles take effect.
"""

from hollow.kinds.cells import OPEN
from machinery.apiserver.resource import STATUS, Resource


def _kept(group: str, version: str, name: str, kind: str, *, namespaced: bool = True, custom: bool = False) -> Resource:
    return Resource(
        group=group,
        version=version,
        name=name,
        kind=kind,
        namespaced=namespaced,
        schema=OPEN,
        subresources=(STATUS,),
        counts_generations=True,
        custom=custom,
    )


INSTALLED = (
    _kept("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    _kept("", "v1", "services", "Service"),
    _kept("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False),
    _kept("apps", "v1", "statefulsets", "StatefulSet"),
    _kept("gateway.networking.k8s.io", "v1", "gateways", "Gateway", custom=True),
    _kept("gateway.networking.k8s.io", "v1", "tlsroutes", "TLSRoute", custom=True),
    _kept("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule", custom=True),
    _kept("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor", custom=True),
    _kept("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor", custom=True),
    _kept("networking.k8s.io", "v1", "ingresses", "Ingress"),
    _kept("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    _kept("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
)
