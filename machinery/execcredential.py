"""Credential plug-ins of kubeconfigs (client.authentication.k8s.io/v1): programs that tell a client certificate.

Source: Kubernetes' ExecCredential, and the field `exec` of a kubeconfig's user.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from machinery.errors import InvalidError

API_VERSION, KIND = "client.authentication.k8s.io/v1", "ExecCredential"
EXEC_INFO = "KUBERNETES_EXEC_INFO"
"""The variable in which a plug-in is told for whom it is asked."""


@dataclass(frozen=True, slots=True)
class ExecUser:
    """A user of a kubeconfig whose credential a program tells."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    provides_cluster: bool = True
    install_hint: str = ""


@dataclass(frozen=True, slots=True)
class AskedCluster:
    """The cluster that a plug-in is asked for."""

    server: str
    certificate_authority: bytes
    proxy_url: str | None = None
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ToldCredential:
    """What a plug-in tells. PEM; `expires` as it is written."""

    chain: str
    key: str = field(repr=False)
    expires: str = ""


def read_exec(entry: Mapping[str, Any]) -> ExecUser | None:
    """The plug-in of a kubeconfig's user; None: it has none, or one of another version."""
    told = entry.get("exec")
    if not isinstance(told, Mapping) or told.get("apiVersion") != API_VERSION or not isinstance(told.get("command"), str):
        return None
    variables = {str(each["name"]): str(each.get("value", "")) for each in told.get("env") or () if "name" in each}
    arguments = tuple(str(each) for each in told.get("args") or ())
    shows_cluster = told.get("provideClusterInfo") is True
    return ExecUser(told["command"], arguments, variables, shows_cluster, str(told.get("installHint") or ""))


def written_exec(user: ExecUser) -> dict[str, Any]:
    """The user's `exec`."""
    return {
        "apiVersion": API_VERSION,
        "command": user.command,
        "args": list(user.arguments),
        **({"env": [{"name": name, "value": value} for name, value in user.environment.items()]} if user.environment else {}),
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": user.provides_cluster,
        **({"installHint": user.install_hint} if user.install_hint else {}),
    }


def exec_info(cluster: AskedCluster | None) -> str:
    """What `EXEC_INFO` says."""
    spec: dict[str, Any] = {"interactive": False}
    if cluster is not None:
        authority = base64.b64encode(cluster.certificate_authority).decode("ascii")
        named = {"proxy-url": cluster.proxy_url, "tls-server-name": cluster.tls_server_name}
        spec["cluster"] = {
            "server": cluster.server,
            "certificate-authority-data": authority,
            **{name: value for name, value in named.items() if value},
        }
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "spec": spec})


def read_exec_info(text: str) -> AskedCluster:
    """Raises InvalidError that says what the kubeconfig lacks."""
    document = _document(text, f"the variable {EXEC_INFO}")
    cluster = (document.get("spec") or {}).get("cluster")
    if not isinstance(cluster, Mapping) or not isinstance(cluster.get("server"), str):
        raise InvalidError(
            "the kubeconfig does not tell this plug-in its cluster: set provideClusterInfo: true beside its command"
        )
    try:
        authority = base64.b64decode(cluster.get("certificate-authority-data") or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidError("the certificate-authority-data of the cluster is not base64") from None
    if not authority:
        raise InvalidError("the kubeconfig has no certificate-authority-data for the cluster, so the hub cannot be verified")
    return AskedCluster(cluster["server"], authority, cluster.get("proxy-url"), cluster.get("tls-server-name"))


def told_credential(credential: ToldCredential) -> dict[str, Any]:
    """What the plug-in writes to its output. It holds a private key."""
    status = {
        "expirationTimestamp": credential.expires,
        "clientCertificateData": credential.chain,
        "clientKeyData": credential.key,
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "status": status}


def read_told(text: str) -> ToldCredential:
    """Raises InvalidError, which holds nothing of the text."""
    document = _document(text, "what the plug-in told")
    status = document.get("status")
    parts: Sequence[Any] = ()
    if isinstance(status, Mapping):
        parts = [status.get(name) for name in ("clientCertificateData", "clientKeyData")]
    if len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):  # noqa: PLR2004 - a chain and a key
        raise InvalidError("what the plug-in told holds no client certificate with its key")
    return ToldCredential(parts[0], parts[1], str(status.get("expirationTimestamp") or "") if status else "")


def _document(text: str, what: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND or document.get("apiVersion") != API_VERSION:
        raise InvalidError(f"{what} is no {KIND} of {API_VERSION}")
    return document
