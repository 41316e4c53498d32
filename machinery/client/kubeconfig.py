"""Kubeconfigs for a hub: bootstrap, hub and admin kubeconfigs as values, parsed and written.

All three have one form, which kubectl and any Kubernetes client can use. The cluster of the current context has the address and
the CA of the HTTPS door, and the extension `muster` with the gRPC endpoint and the hub's id. The user has a client certificate,
inline or as paths relative to the file. Without the extension, a client reaches the hub only over the Kubernetes API; there, a
bearer token suffices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from machinery.client import kubeconfig_documents as documents
from machinery.client.exec_credential import CLUSTER_EXTENSION, ExecUser, read_exec, written_exec
from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.meta import bounded_yaml as boundedyaml
from machinery.product import GROUP_SUFFIX, KUBECONFIG_EXTENSION, KUBECONFIG_NAME_EXTENSION

ENDPOINT_KIND, NAME_KIND = "HubEndpoint", "ClusterName"
HUB_USER = "default-auth"


@dataclass(frozen=True, slots=True)
class HubEndpoint:
    """The extension `muster`: gRPC endpoint and hub id."""

    grpc_server: str
    hub_id: HubId
    certificate_authority: bytes | None = None
    """CA of the gRPC endpoint (PEM); None: it is the CA of the HTTPS door."""
    cluster_name: str | None = None
    """The cluster name to which the bootstrap credential is bound. Agents use it if no other name is set or stored."""
    group_suffix: str = GROUP_SUFFIX
    """Suffix of the hub's API groups. It is taken from the extension's own API group."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A client certificate (PEM, leaf first) with its key (PEM)."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Credential(...)"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A user's token, inline or in a file that another program renews. If both are set, the caller decides which to use."""

    text: str = field(default="", repr=False)
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """The cluster of a kubeconfig: the hub."""

    name: str
    server: str
    """`https://host:port` of the HTTPS door."""
    certificate_authority: bytes
    endpoint: HubEndpoint | None = None
    proxy_url: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    cluster_name: str | None = None
    """The cluster name to which the bootstrap credential is bound, if `endpoint` is None. A separate extension contains it."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One context of a kubeconfig. `source`: name in errors. `credential` or `token` None: the user has none."""

    source: str
    context: str
    cluster: ClusterEntry
    user: str
    credential: Credential | None = None
    namespace: str | None = None
    token: BearerToken | None = None
    plugin: ExecUser | None = None
    """Credential plugin of the user. A credential in the file overrides it. Reading a kubeconfig does not run it."""
    impersonation: documents.Impersonation = documents.Impersonation()  # noqa: RUF009 - the value is immutable
    unusable: str = ""
    """Message about an unsupported credential of the user, with the remedy; empty: none."""

    def require_endpoint(self) -> HubEndpoint:
        """Return the gRPC endpoint. Raises InvalidError if there is none."""
        if self.cluster.endpoint is None:
            raise InvalidError(f'kubeconfig {self.source}: no extension "{KUBECONFIG_EXTENSION}", so it is for the csr driver')
        return self.cluster.endpoint

    def require_credential(self) -> Credential:
        """Return the client certificate. Raises InvalidError if there is none."""
        if self.credential is None:
            aside = "; the credential plugin (exec) is not run here" if self.plugin is not None else ""
            raise InvalidError(
                f'kubeconfig {self.source}: user "{self.user}" lacks client-certificate-data and client-key-data, '
                f"and the hub identifies its peers by certificate{aside}"
            )
        return self.credential


def read_kubeconfig(path: Path, *, context: str | None = None) -> Kubeconfig:
    """Read a file and parse it as `parsed` does. Raises InvalidError with the file's name and the missing part."""
    return parsed(documents.read_document(path), source=str(path), folder=path.parent, context=context)


def parse_kubeconfig(text: bytes, *, source: str, folder: Path | Mapping[str, bytes] | None = None) -> Kubeconfig:
    """Decode the content of a kubeconfig and parse its current context as `parsed` does. Raises InvalidError."""
    return parsed(documents.parse_document(text, source), source=source, folder=folder)


def parsed(
    document: documents.Document, *, source: str, folder: Path | Mapping[str, bytes] | None = None, context: str | None = None
) -> Kubeconfig:
    """Parse the current context of a document, or the context with the name `context`. Raises InvalidError.

    `folder`: where relative paths start; it may be a mapping of file names to contents.
    """
    chosen = documents.choose(document, source, context)
    reader = _Reader(source, folder)
    return Kubeconfig(
        source=source,
        context=chosen.name,
        cluster=reader.cluster(chosen.cluster_name, chosen.cluster),
        user=chosen.user_name,
        credential=reader.credential(chosen.user_name, chosen.user),
        namespace=chosen.namespace,
        token=reader.token(chosen.user),
        plugin=read_exec(chosen.user, documents.extension_of(chosen.cluster, CLUSTER_EXTENSION)),
        impersonation=documents.impersonation_of(chosen.user) or documents.Impersonation(),
        unusable=documents.credential_error(chosen.user),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the parts of one kubeconfig. Each error contains the name of the kubeconfig."""

    source: str
    folder: Path | Mapping[str, bytes] | None

    def cluster(self, name: str, entry: documents.Document) -> ClusterEntry:
        server = entry.get("server")
        if not isinstance(server, str) or not server:
            raise self._wrong(f'lacks the server of cluster "{name}"')
        if not server.startswith("https://"):
            raise self._wrong(f'has a server for cluster "{name}" that is not an https:// URL: {server[:100]}')
        if not documents.is_host(server):
            raise self._wrong(f'has a server for cluster "{name}" whose host or port is invalid: {server[:100]}')
        authority = self._bytes(entry, "certificate-authority", f'cluster "{name}"')
        if authority is None and entry.get("insecure-skip-tls-verify"):
            raise self._wrong(
                f'has insecure-skip-tls-verify for cluster "{name}", and a hub is always verified: put its CA into '
                "certificate-authority-data, the file trust.crt in the hub's data directory has it"
            )
        if authority is None:
            raise self._wrong(f'lacks certificate-authority-data (the CA) of cluster "{name}"')
        bound, where = documents.extension_of(entry, KUBECONFIG_NAME_EXTENSION), f'for cluster "{name}"'
        cluster_name = bound.get("clusterName") if isinstance(bound, dict) else None
        if bound is not None and not isinstance(cluster_name, str):
            raise self._wrong(
                f'has a clusterName in the extension "{KUBECONFIG_NAME_EXTENSION}" of cluster "{name}" that is not a string'
            )
        proxy_url, tls_server_name = (self._text(entry, key, where) for key in ("proxy-url", "tls-server-name"))
        return ClusterEntry(name, server, authority, self._endpoint(name, entry), proxy_url, tls_server_name, cluster_name)

    def _text(self, entry: documents.Document, key: str, where: str) -> str | None:
        text = entry.get(key)
        if text is not None and not isinstance(text, str):
            raise self._wrong(f"has a {key} {where} that is not a string")
        return text

    def _endpoint(self, cluster: str, entry: documents.Document) -> HubEndpoint | None:
        if not any(each.get("name") == KUBECONFIG_EXTENSION for each in documents.entries_of(entry, "extensions")):
            return None
        extension = documents.extension_of(entry, KUBECONFIG_EXTENSION)
        what = f'the extension "{KUBECONFIG_EXTENSION}" of cluster "{cluster}"'
        if not isinstance(extension, dict) or extension.get("kind") != ENDPOINT_KIND:
            raise self._wrong(f"has another kind than {ENDPOINT_KIND} in {what}")
        missing = [key for key in ("grpcServer", "hubID") if not isinstance(extension.get(key), str) or not extension[key]]
        if missing:
            raise self._wrong(f"lacks {' and '.join(missing)} in {what}")
        _host, _, port = extension["grpcServer"].rpartition(":")
        if not port.isdigit() or not documents.is_host(f"//{extension['grpcServer']}"):
            raise self._wrong(f'has a grpcServer in {what} that is not "host:port"')
        authority = extension.get("certificateAuthorityData")
        if authority is not None:
            authority = documents.decoded(authority, f"kubeconfig {self.source}: certificateAuthorityData in {what}")
        group, _, _ = str(extension.get("apiVersion") or "").partition("/")
        suffix = group.removeprefix("hub.") if group.startswith("hub.") else GROUP_SUFFIX
        bound = self._text(extension, "clusterName", f"in {what}")
        return HubEndpoint(extension["grpcServer"], HubId(extension["hubID"]), authority, bound, suffix)

    def credential(self, name: str, entry: documents.Document) -> Credential | None:
        owner = f'user "{name}"'
        chain, key = self._bytes(entry, "client-certificate", owner), self._bytes(entry, "client-key", owner)
        if (chain is None) is not (key is None):
            raise self._wrong(f"lacks {'client-certificate-data' if chain is None else 'client-key-data'} of {owner}")
        return Credential(chain, key) if chain is not None and key is not None else None

    def token(self, entry: documents.Document) -> BearerToken | None:
        text, path, folder = str(entry.get("token") or ""), entry.get("tokenFile"), self.folder
        file = folder / path if isinstance(path, str) and path and isinstance(folder, Path) else None
        if isinstance(path, str) and isinstance(folder, Mapping):
            text = text or folder.get(path, b"").decode(errors="replace").strip()
        return BearerToken(text, file) if text or file else None

    def _bytes(self, entry: documents.Document, name: str, owner: str) -> bytes | None:
        """Return inline data, or the content of the named file. Inline data overrides the file, as in kubectl."""
        if entry.get(f"{name}-data"):
            return documents.decoded(entry[f"{name}-data"], f"kubeconfig {self.source}: {name}-data of {owner}")
        path = entry.get(name)
        if not path:
            return None
        if not isinstance(path, str) or self.folder is None:
            raise self._wrong(f"names a file for {name} of {owner} where only inline data can be used")
        if not isinstance(self.folder, Path):
            return self.folder.get(path)
        try:
            return (self.folder / path).read_bytes()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "no file has such a name"
            raise self._wrong(f"names {path} as {name} of {owner}, which cannot be read: {why}") from None

    def _wrong(self, what: str) -> InvalidError:
        return InvalidError(f"kubeconfig {self.source} {what}")


def write_kubeconfig(cluster: ClusterEntry, identity: Credential | ExecUser | str, *, user: str) -> bytes:
    """Return a kubeconfig whose user has a client certificate, a credential plugin, or a bearer token (a string), all inline.

    It contains a secret, except with a plugin; the caller must store it with mode 0600.
    """
    if isinstance(identity, Credential):
        auth: documents.Document = {
            "client-certificate-data": documents.encoded(identity.chain),
            "client-key-data": documents.encoded(identity.key),
        }
    else:
        auth = {"exec": written_exec(identity)} if isinstance(identity, ExecUser) else {"token": identity}
    return _write(cluster, user, auth, cluster.name)


@lru_cache(maxsize=64)
def write_hub_kubeconfig(cluster: ClusterEntry) -> bytes:
    """Return the hub kubeconfig that refers to tls.crt and tls.key next to it, as OCM's agents expect. It contains no key."""
    auth = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    return _write(cluster, HUB_USER, auth, "default-context", {"namespace": "configuration"})


def _write(
    cluster: ClusterEntry, user: str, auth: documents.Document, context: str, more: Mapping[str, str] | None = None
) -> bytes:
    """Encode a kubeconfig. `more`: further fields of the context."""
    named = {"proxy-url": cluster.proxy_url, "tls-server-name": cluster.tls_server_name}
    entry: documents.Document = {
        "server": cluster.server,
        "certificate-authority-data": documents.encoded(cluster.certificate_authority),
        **{name: value for name, value in named.items() if value},
    }
    if cluster.endpoint is not None:
        endpoint, authority = cluster.endpoint, cluster.endpoint.certificate_authority
        extension = {
            "apiVersion": f"hub.{endpoint.group_suffix}/v1alpha1",
            "kind": ENDPOINT_KIND,
            "grpcServer": endpoint.grpc_server,
            "hubID": endpoint.hub_id,
            **({"certificateAuthorityData": documents.encoded(authority)} if authority is not None else {}),
            **({"clusterName": endpoint.cluster_name} if endpoint.cluster_name is not None else {}),
        }
        entry["extensions"] = [{"name": KUBECONFIG_EXTENSION, "extension": extension}]
    elif cluster.cluster_name is not None:
        extension = {"apiVersion": f"hub.{GROUP_SUFFIX}/v1alpha1", "kind": NAME_KIND, "clusterName": cluster.cluster_name}
        entry["extensions"] = [{"name": KUBECONFIG_NAME_EXTENSION, "extension": extension}]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster.name, "cluster": entry}],
        "contexts": [{"name": context, "context": {"cluster": cluster.name, "user": user, **(more or {})}}],
        "current-context": context,
        "users": [{"name": user, "user": auth}],
    }
    return boundedyaml.write(document).encode()
