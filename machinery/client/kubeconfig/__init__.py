"""Kubeconfigs that lead to a hub: bootstrap, hub and admin kubeconfigs, read with named errors and written.

One shape for all three, usable by kubectl and any Kubernetes client: the current context's cluster entry holds the HTTPS door
and its CA, and in the extension `muster` the gRPC endpoint and the hub's id; its user holds a client certificate, inline or by
paths relative to the file. A file without it leads to a hub by the Kubernetes API alone, where a bearer token will do.
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
