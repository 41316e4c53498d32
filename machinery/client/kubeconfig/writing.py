"""Writer for kubeconfigs: new ones, and changes of existing ones."""

import base64
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from machinery.client.exec_credential import ExecUser, written_exec
from machinery.client.kubeconfig.reading import parse_kubeconfig
from machinery.client.kubeconfig.shapes import ENDPOINT_KIND, NAME_KIND, ClusterEntry, Credential, HubEndpoint
from machinery.errors import InvalidError
from machinery.meta import bounded_yaml as boundedyaml
from machinery.product import GROUP_SUFFIX, KUBECONFIG_EXTENSION, KUBECONFIG_NAME_EXTENSION

HUB_CONTEXT = "default-context"
HUB_NAMESPACE = "configuration"
HUB_USER = "default-auth"
HUB_KUBECONFIG_CERTIFICATE = "tls.crt"
HUB_KUBECONFIG_TOKEN = "token"  # noqa: S105 - the name of a file
HUB_KUBECONFIG_KEY = "tls.key"


def _extension(endpoint: HubEndpoint) -> dict[str, Any]:
    authority = endpoint.certificate_authority
    extension = {
        "apiVersion": f"hub.{endpoint.group_suffix}/v1alpha1",
        "kind": ENDPOINT_KIND,
        "grpcServer": endpoint.grpc_server,
        "hubID": endpoint.hub_id,
        **({"certificateAuthorityData": _encode(authority)} if authority is not None else {}),
        **({"clusterName": endpoint.cluster_name} if endpoint.cluster_name is not None else {}),
    }
    return {"name": KUBECONFIG_EXTENSION, "extension": extension}


def write_kubeconfig(
    cluster: ClusterEntry, credential: Credential, *, user: str, context: str | None = None, namespace: str | None = None
) -> bytes:
    """A bootstrap or admin kubeconfig with inline data. It contains a private key: write it with mode 0600."""
    auth = {"client-certificate-data": _encode(credential.chain), "client-key-data": _encode(credential.key)}
    return _write(cluster, user=user, auth=auth, context=context or cluster.name, namespace=namespace)


def write_token_kubeconfig(cluster: ClusterEntry, token: str, *, user: str) -> bytes:
    """A bootstrap kubeconfig with a bearer token, for agents with the csr driver. It is a secret: write it with mode 0600."""
    return _write(cluster, user=user, auth={"token": token}, context=cluster.name, namespace=None)


def write_exec_kubeconfig(cluster: ClusterEntry, plugin: ExecUser, *, user: str) -> bytes:
    """A kubeconfig whose user has a credential plugin. It contains no secret."""
    return _write(cluster, user=user, auth={"exec": written_exec(plugin)}, context=cluster.name, namespace=None)


@lru_cache(maxsize=64)
def write_hub_kubeconfig(cluster: ClusterEntry) -> bytes:
    """The hub kubeconfig beside tls.crt and tls.key, as OCM's agents and add-ons expect it. It contains no key."""
    auth = {"client-certificate": HUB_KUBECONFIG_CERTIFICATE, "client-key": HUB_KUBECONFIG_KEY}
    return _write(cluster, user=HUB_USER, auth=auth, context=HUB_CONTEXT, namespace=HUB_NAMESPACE)


def by_token_file(kubeconfig: bytes) -> bytes:
    """A kubeconfig of `write_hub_kubeconfig` whose user has the token file `token` beside it (OCM's token driver)."""
    document = boundedyaml.load(kubeconfig)
    document["users"] = [{"name": HUB_USER, "user": {"tokenFile": HUB_KUBECONFIG_TOKEN}}]
    return yaml.safe_dump(document, sort_keys=False).encode()


def with_authority(kubeconfig: bytes, authority: bytes) -> bytes:
    """The kubeconfig with these CAs (PEM) for the gRPC door, and for the HTTPS door too if both had the same CA.

    Raises InvalidError.
    """
    source = "that is to know its hub by another CA"
    entry = parse_kubeconfig(kubeconfig, source=source, folder={}).cluster
    document = boundedyaml.load(kubeconfig)
    (cluster,) = (each["cluster"] for each in document["clusters"] if each["name"] == entry.name)
    if entry.endpoint is not None and entry.endpoint.certificate_authority is not None:
        for each in cluster["extensions"]:
            if each["name"] == KUBECONFIG_EXTENSION:
                each["extension"]["certificateAuthorityData"] = _encode(authority)
    else:
        cluster.pop("certificate-authority", None)
        cluster["certificate-authority-data"] = _encode(authority)
    return yaml.safe_dump(document, sort_keys=False).encode()


def is_same_but_for_trust(one: bytes, other: bytes) -> bool:
    """Whether two kubeconfigs differ only in the CAs that `with_authority` sets; False: one of them is unreadable."""
    try:
        return with_authority(one, b"") == with_authority(other, b"")
    except InvalidError:
        return False


def _write(cluster: ClusterEntry, *, user: str, auth: Mapping[str, Any], context: str, namespace: str | None) -> bytes:
    entry: dict[str, Any] = {
        "server": cluster.server,
        "certificate-authority-data": _encode(cluster.certificate_authority),
    }
    named = {"proxy-url": cluster.proxy_url, "tls-server-name": cluster.tls_server_name}
    entry.update({name: value for name, value in named.items() if value})
    if cluster.endpoint:
        entry["extensions"] = [_extension(cluster.endpoint)]
    elif cluster.cluster_name is not None:
        named_for = {"apiVersion": f"hub.{GROUP_SUFFIX}/v1alpha1", "kind": NAME_KIND, "clusterName": cluster.cluster_name}
        entry["extensions"] = [{"name": KUBECONFIG_NAME_EXTENSION, "extension": named_for}]
    chosen = {"cluster": cluster.name, "user": user} | ({"namespace": namespace} if namespace else {})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster.name, "cluster": entry}],
        "contexts": [{"name": context, "context": chosen}],
        "current-context": context,
        "users": [{"name": user, "user": dict(auth)}],
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def _encode(pem: bytes) -> str:
    return base64.b64encode(pem).decode("ascii")
