"""Parser for kubeconfigs, with errors that name the file and what is missing."""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from machinery.client.exec_credential import CLUSTER_EXTENSION, read_exec, why_no_exec
from machinery.client.kubeconfig.shapes import ENDPOINT_KIND, BearerToken, ClusterEntry, Credential, HubEndpoint, Kubeconfig
from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError
from machinery.product import GROUP_SUFFIX, KUBECONFIG_EXTENSION, KUBECONFIG_NAME_EXTENSION


def read_kubeconfig(path: Path, *, context: str | None = None) -> Kubeconfig:
    """Read a file's current context, or the context `context`, with the files that it refers to.

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
    """Parse the current context of a kubeconfig in memory, or the context `context`. Raises InvalidError.

    Relative paths start at `folder`, which may be a mapping of file names to contents.
    """
    return _Reader(source, folder).read(text, context)


class _Reader:
    """Reads one kubeconfig; every error names it."""

    def __init__(self, source: str, folder: Path | Mapping[str, bytes] | None) -> None:
        self._source = source
        self._folder = folder

    def read(self, text: bytes, chosen: str | None = None) -> Kubeconfig:
        try:
            document = boundedyaml.load(text)
        except YamlError as error:
            raise self._wrong(f"is not YAML: {error}") from None
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
        login, cluster = self._entry(document, "user", user), self._entry(document, "cluster", cluster_name)
        return Kubeconfig(
            source=self._source,
            context=name,
            cluster=self._cluster(cluster_name, cluster),
            user=user,
            credential=self._credential(user, login),
            namespace=context.get("namespace"),
            token=self._token(login),
            plugin=read_exec(login, _extension(cluster, CLUSTER_EXTENSION)),
            unusable=_unusable(login),
        )

    def _cluster(self, name: str, entry: dict[str, Any]) -> ClusterEntry:
        server = entry.get("server")
        if not isinstance(server, str) or not server:
            raise self._wrong(f'lacks the server of cluster "{name}"')
        if not server.startswith("https://"):
            raise self._wrong(f'has a server for cluster "{name}" that is no https:// address: {server[:100]}')
        if not _is_place(server):
            raise self._wrong(f'has a server for cluster "{name}" whose host or port cannot be: {server[:100]}')
        authority = self._bytes(entry, "certificate-authority", f'cluster "{name}"')
        if authority is None and entry.get("insecure-skip-tls-verify"):
            raise self._wrong(
                f'has insecure-skip-tls-verify for cluster "{name}", and a hub is always verified: put its CA into '
                "certificate-authority-data, the file trust.crt in the hub's data directory has it"
            )
        if authority is None:
            raise self._wrong(f'lacks certificate-authority-data (the CA) of cluster "{name}"')
        return ClusterEntry(
            name=name,
            server=server,
            certificate_authority=authority,
            endpoint=self._endpoint(name, _entries(entry, "extensions")),
            proxy_url=self._text(entry, "proxy-url", name),
            tls_server_name=self._text(entry, "tls-server-name", name),
            cluster_name=self._bound(name, entry),
        )

    def _bound(self, cluster: str, entry: dict[str, Any]) -> str | None:
        extension = _extension(entry, KUBECONFIG_NAME_EXTENSION)
        bound = extension.get("clusterName") if isinstance(extension, dict) else None
        if extension is not None and not isinstance(bound, str):
            what = f'the extension "{KUBECONFIG_NAME_EXTENSION}" of cluster "{cluster}"'
            raise self._wrong(f"has a clusterName in {what} that is no name")
        return bound

    def _text(self, entry: dict[str, Any], key: str, cluster: str) -> str | None:
        text = entry.get(key)
        if text is not None and not isinstance(text, str):
            raise self._wrong(f'has a {key} for cluster "{cluster}" that is no text')
        return text

    def _endpoint(self, cluster: str, extensions: list[dict[str, Any]]) -> HubEndpoint | None:
        found = [each for each in extensions if each.get("name") == KUBECONFIG_EXTENSION]
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
        if not port.isdigit() or not _is_place(f"//{extension['grpcServer']}"):
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
        """Inline data, or the content of the named file; inline data wins, as in kubectl."""
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
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "no file has such a name"
            raise self._wrong(f"names {path} as {name} of {owner}, which cannot be read: {why}") from None

    def _decoded(self, text: Any, what: str) -> bytes | None:
        if text is None:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise self._wrong(f"has {what}, which is not base64") from None

    def _entry(self, document: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
        for item in _entries(document, f"{kind}s"):
            if item.get("name") == name and isinstance(item.get(kind), dict):
                entry: dict[str, Any] = item[kind]
                return entry
        raise self._wrong(f'has no {kind} "{name}"')

    def _wrong(self, what: str) -> InvalidError:
        return InvalidError(f"kubeconfig {self._source} {what}")


def _entries(document: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    listed = document.get(part)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _is_place(address: str) -> bool:
    """Whether the URL has a host and, if given, a valid port."""
    try:
        parts = urlsplit(address)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host)


def _extension(entry: Mapping[str, Any], name: str) -> Any:
    """Extension of that name; None: absent."""
    found = (each for each in _entries(entry, "extensions") if each.get("name") == name)
    return next(found, {}).get("extension")


def _unusable(entry: Mapping[str, Any]) -> str:
    """See `Kubeconfig.unusable`."""
    if entry.get("username") or entry.get("password"):
        return "has a username or a password, which a hub does not know: use a token, an exec plug-in or `hubctl login`"
    if entry.get("auth-provider"):
        return "has an auth-provider, which Kubernetes knows no more: use an exec plug-in, or `hubctl login`"
    if any(entry.get(name) for name in ("as", "as-uid", "as-groups", "as-user-extra")):
        return 'acts as another ("as"), which hubctl does not do: use a user of your own, or kubectl'
    return why_no_exec(entry)
