"""Kubeconfigs for a hub: bootstrap, hub and admin kubeconfigs.

All three have one form, usable by kubectl and any Kubernetes client: the current context's cluster has the HTTPS door and its
CA, and the extension `muster` with the gRPC endpoint and the hub's id; its user has a client certificate, inline or as paths
relative to the file. A file without the extension reaches a hub by the Kubernetes API only, where a bearer token suffices.
"""

from machinery.client.kubeconfig.reading import parse_kubeconfig, read_kubeconfig
from machinery.client.kubeconfig.shapes import BearerToken, ClusterEntry, Credential, HubEndpoint, Kubeconfig
from machinery.client.kubeconfig.writing import (
    by_token_file,
    is_same_but_for_trust,
    with_authority,
    write_exec_kubeconfig,
    write_hub_kubeconfig,
    write_kubeconfig,
    write_token_kubeconfig,
)

__all__ = [
    "BearerToken",
    "ClusterEntry",
    "Credential",
    "HubEndpoint",
    "Kubeconfig",
    "by_token_file",
    "is_same_but_for_trust",
    "parse_kubeconfig",
    "read_kubeconfig",
    "with_authority",
    "write_exec_kubeconfig",
    "write_hub_kubeconfig",
    "write_kubeconfig",
    "write_token_kubeconfig",
]
