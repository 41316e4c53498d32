"""Kubeconfigs that lead to a hub: bootstrap, hub and admin kubeconfigs, read with named errors and written.

One shape for all three, usable by kubectl and any Kubernetes client: the current context's cluster entry holds the HTTPS door
and its CA, and in the extension `muster` the gRPC endpoint and the hub's id; its user holds a client certificate, inline or by
paths relative to the file. A file without it leads to a hub by the Kubernetes API alone, where a bearer token will do.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from machinery.errors import InvalidError
from machinery.execcredential import ExecUser, read_exec, written_exec
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX, KUBECONFIG_EXTENSION

ENDPOINT_KIND = "HubEndpoint"
HUB_CONTEXT = "default-context"
HUB_NAMESPACE = "configuration"
HUB_USER = "default-auth"
HUB_KUBECONFIG_CERTIFICATE = "tls.crt"
HUB_KUBECONFIG_TOKEN = "token"  # noqa: S105 - the name of a file
HUB_KUBECONFIG_KEY = "tls.key"


@dataclass(frozen=True, slots=True)
class HubEndpoint:
    """The extension: where agents connect, and which hub it is."""

    grpc_server: str
    """`host:port`."""
    hub_id: HubId
    certificate_authority: bytes | None = None
    """PEM; None: the same CA as the HTTPS door's."""
    cluster_name: str | None = None
    """The one cluster name that a bootstrap credential may admit; its agent takes that name unless told otherwise."""
    group_suffix: str = GROUP_SUFFIX
    """What the hub's API groups end in; the extension says it as its own group."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A client certificate. PEM, leaf first."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Credential(...)"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A user's token, inline or in a file that others renew; inline wins, as it does for kubectl."""

    text: str = field(default="", repr=False)
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """The hub, as a kubeconfig has it."""

    name: str
    server: str
    """`https://host:port` of the HTTPS door."""
    certificate_authority: bytes
    """PEM."""
    endpoint: HubEndpoint | None = None
    proxy_url: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """What the current context says; errors call it by its `source`. None: the user has no client certificate, or no token."""

    source: str
    context: str
    cluster: ClusterEntry
    user: str
    credential: Credential | None = None
    namespace: str | None = None
    token: BearerToken | None = None
    plugin: ExecUser | None = None
    """The program that tells the user's credential; what stands in the file itself wins."""

    def require_endpoint(self) -> HubEndpoint:
        """The gRPC endpoint. Raises InvalidError."""
        if self.cluster.endpoint is None:
            raise InvalidError(f'kubeconfig {self.source}: no extension "{KUBECONFIG_EXTENSION}", so it is for the csr driver')
        return self.cluster.endpoint

    def require_credential(self) -> Credential:
        """The client certificate. Raises InvalidError."""
        if self.credential is None:
            raise InvalidError(
                f'kubeconfig {self.source}: user "{self.user}" lacks client-certificate-data and client-key-data, '
                "and the hub knows its peers by their certificate"
            )
        return self.credential


def read_kubeconfig(path: Path, *, context: str | None = None) -> Kubeconfig:
    """The file's current context, or the one that is named, files it names included.

    Raises InvalidError that names the file and what is missing.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidError(f"kubeconfig {path} cannot be read: {error.strerror or error}") from None
    return parse_kubeconfig(text, source=str(path), folder=path.parent, context=context)


def parse_kubeconfig(
    text: bytes, *, source: str, folder: Path | Mapping[str, bytes] | None = None, context: str | None = None
) -> Kubeconfig:
    """The current context of a kubeconfig in memory, or the one that is named. Raises InvalidError.

    Relative paths in it start at `folder`, which may be in memory too.
    """
    return _Reader(source, folder).read(text, context)


def endpoint_extension(endpoint: HubEndpoint) -> dict[str, Any]:
    """The entry of `extensions`."""
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
    """A bootstrap or admin kubeconfig with everything inline. It holds a private key: write it 0600."""
    auth = {"client-certificate-data": _encode(credential.chain), "client-key-data": _encode(credential.key)}
    return _write(cluster, user=user, auth=auth, context=context or cluster.name, namespace=namespace)


def write_token_kubeconfig(cluster: ClusterEntry, token: str, *, user: str) -> bytes:
    """A bootstrap kubeconfig with a bearer token, for agents that speak the Kubernetes API. It is a secret: write it 0600."""
    return _write(cluster, user=user, auth={"token": token}, context=cluster.name, namespace=None)


def write_exec_kubeconfig(cluster: ClusterEntry, plugin: ExecUser, *, user: str) -> bytes:
    """A kubeconfig whose user's credential a program tells. It holds no secret."""
    return _write(cluster, user=user, auth={"exec": written_exec(plugin)}, context=cluster.name, namespace=None)


@lru_cache(maxsize=64)
def write_hub_kubeconfig(cluster: ClusterEntry) -> bytes:
    """The hub kubeconfig that lies beside tls.crt and tls.key, as OCM's agents and add-ons expect it. It holds no key."""
    auth = {"client-certificate": HUB_KUBECONFIG_CERTIFICATE, "client-key": HUB_KUBECONFIG_KEY}
    return _write(cluster, user=HUB_USER, auth=auth, context=HUB_CONTEXT, namespace=HUB_NAMESPACE)


def by_token_file(kubeconfig: bytes) -> bytes:
    """A kubeconfig of `write_hub_kubeconfig` whose user is known by the file `token` beside it (OCM's token driver)."""
    document = yaml.safe_load(kubeconfig)
    document["users"] = [{"name": HUB_USER, "user": {"tokenFile": HUB_KUBECONFIG_TOKEN}}]
    return yaml.safe_dump(document, sort_keys=False).encode()


def with_authority(kubeconfig: bytes, authority: bytes) -> bytes:
    """The same kubeconfig, its hub's gRPC door known by these CAs (PEM), and the HTTPS door too where both had the same.

    Raises InvalidError.
    """
    source = "that is to know its hub by another CA"
    entry = parse_kubeconfig(kubeconfig, source=source, folder={}).cluster
    document = yaml.safe_load(kubeconfig)
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
    """Whether two kubeconfigs differ in nothing but the CAs of `with_authority`; False: one of them cannot be read."""
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
        entry["extensions"] = [endpoint_extension(cluster.endpoint)]
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


class _Reader:
    """One reading of one file; every error names it."""

    def __init__(self, source: str, folder: Path | Mapping[str, bytes] | None) -> None:
        self._source = source
        self._folder = folder

    def read(self, text: bytes, chosen: str | None = None) -> Kubeconfig:
        try:
            document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
        except (yaml.YAMLError, ValueError):
            raise self._wrong("is not YAML") from None
        if not isinstance(document, dict):
            raise self._wrong("is empty or not a mapping")
        name = chosen or document.get("current-context")
        if not isinstance(name, str) or not name:
            raise self._wrong("has no current-context")
        context = self._entry(document, "context", name)
        cluster_name, user = context.get("cluster"), context.get("user")
        if not isinstance(cluster_name, str) or not cluster_name:
            raise self._wrong(f'has a context "{name}" without a cluster')
        if not isinstance(user, str) or not user:
            raise self._wrong(f'has a context "{name}" without a user')
        login = self._entry(document, "user", user)
        return Kubeconfig(
            source=self._source,
            context=name,
            cluster=self._cluster(cluster_name, self._entry(document, "cluster", cluster_name)),
            user=user,
            credential=self._credential(user, login),
            namespace=context.get("namespace"),
            token=self._token(login),
            plugin=read_exec(login),
        )

    def _cluster(self, name: str, entry: dict[str, Any]) -> ClusterEntry:
        server = entry.get("server")
        if not isinstance(server, str) or not server:
            raise self._wrong(f'lacks the server of cluster "{name}"')
        if not server.startswith("https://"):
            raise self._wrong(f'has a server for cluster "{name}" that is no https:// address: {server[:100]}')
        authority = self._bytes(entry, "certificate-authority", f'cluster "{name}"')
        if authority is None:
            raise self._wrong(f'lacks certificate-authority-data (the CA) of cluster "{name}"')
        return ClusterEntry(
            name=name,
            server=server,
            certificate_authority=authority,
            endpoint=self._endpoint(name, entry.get("extensions") or []),
            proxy_url=entry.get("proxy-url"),
            tls_server_name=entry.get("tls-server-name"),
        )

    def _endpoint(self, cluster: str, extensions: list[Any]) -> HubEndpoint | None:
        found = [each for each in extensions if isinstance(each, dict) and each.get("name") == KUBECONFIG_EXTENSION]
        if not found:
            return None
        what = f'the extension "{KUBECONFIG_EXTENSION}" of cluster "{cluster}"'
        extension = found[0].get("extension")
        if not isinstance(extension, dict) or extension.get("kind") != ENDPOINT_KIND:
            raise self._wrong(f"has another kind than {ENDPOINT_KIND} in {what}")
        missing = [key for key in ("grpcServer", "hubID") if not isinstance(extension.get(key), str) or not extension[key]]
        if missing:
            raise self._wrong(f"lacks {' and '.join(missing)} in {what}")
        _host, _, port = extension["grpcServer"].rpartition(":")
        if not port.isdigit():
            raise self._wrong(f'has a grpcServer in {what} that is not "host:port"')
        authority = self._decoded(extension.get("certificateAuthorityData"), f"certificateAuthorityData in {what}")
        bound = extension.get("clusterName")
        if bound is not None and not isinstance(bound, str):
            raise self._wrong(f"has a clusterName in {what} that is no name")
        group, _, _ = str(extension.get("apiVersion") or "").partition("/")
        suffix = group.removeprefix("hub.") if group.startswith("hub.") else GROUP_SUFFIX
        return HubEndpoint(extension["grpcServer"], HubId(extension["hubID"]), authority, bound, suffix)

    def _credential(self, name: str, entry: dict[str, Any]) -> Credential | None:
        owner = f'user "{name}"'
        chain, key = self._bytes(entry, "client-certificate", owner), self._bytes(entry, "client-key", owner)
        if chain is not None and key is not None:
            return Credential(chain, key)
        if chain is None and key is None:
            return None
        raise self._wrong(f"lacks {'client-certificate-data' if chain is None else 'client-key-data'} of {owner}")

    def _token(self, entry: dict[str, Any]) -> BearerToken | None:
        text, path = str(entry.get("token") or ""), entry.get("tokenFile")
        file: Path | None = None
        if isinstance(path, str) and path and isinstance(self._folder, Path):
            file = self._folder / path
        elif isinstance(path, str) and isinstance(self._folder, Mapping):
            text = text or self._folder.get(path, b"").decode(errors="replace").strip()
        return BearerToken(text, file) if text or file else None

    def _bytes(self, entry: dict[str, Any], name: str, owner: str) -> bytes | None:
        """Inline data, or the file that is named; inline data wins, as it does for kubectl."""
        if entry.get(f"{name}-data"):
            return self._decoded(entry[f"{name}-data"], f"{name}-data of {owner}")
        path = entry.get(name)
        if not path:
            return None
        if not isinstance(path, str) or self._folder is None:
            raise self._wrong(f"names a file for {name} of {owner} where only inline data can be used")
        if not isinstance(self._folder, Path):
            return self._folder.get(path)
        try:
            return (self._folder / path).read_bytes()
        except OSError as error:
            raise self._wrong(f"names {path} as {name} of {owner}, which cannot be read: {error.strerror}") from None

    def _decoded(self, text: Any, what: str) -> bytes | None:
        if text is None:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise self._wrong(f"has {what}, which is not base64") from None

    def _entry(self, document: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
        for item in document.get(f"{kind}s") or []:
            if isinstance(item, dict) and item.get("name") == name and isinstance(item.get(kind), dict):
                entry: dict[str, Any] = item[kind]
                return entry
        raise self._wrong(f'has no {kind} "{name}"')

    def _wrong(self, what: str) -> InvalidError:
        return InvalidError(f"kubeconfig {self._source} {what}")
