"""Credential plugins of kubeconfigs (client.authentication.k8s.io): programs that output a token or a client certificate.

Source: Kubernetes' ExecCredential, v1 and v1beta1, and the field `exec` of a kubeconfig's user. This module runs no program.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from machinery.errors import InvalidError
from machinery.meta.timestamps import parse_time

API_VERSION, KIND = "client.authentication.k8s.io/v1", "ExecCredential"
API_VERSIONS = (API_VERSION, "client.authentication.k8s.io/v1beta1")
EXEC_INFO = "KUBERNETES_EXEC_INFO"
"""Environment variable with the cluster for which a plugin is called."""
CLUSTER_EXTENSION = "client.authentication.k8s.io/exec"
"""Extension of a kubeconfig's cluster with configuration for plugins."""


class Interactive(StrEnum):
    """Whether a plugin may use the terminal."""

    NEVER = "Never"
    IF_AVAILABLE = "IfAvailable"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class ExecUser:
    """A user of a kubeconfig whose credential comes from a plugin."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    provides_cluster: bool = True
    install_hint: str = ""
    api_version: str = API_VERSION
    interactive: Interactive = Interactive.IF_AVAILABLE
    cluster_config: Any = field(default=None, repr=False)
    """The cluster's configuration for plugins; None if there is none."""


@dataclass(frozen=True, slots=True)
class ExecCluster:
    server: str
    certificate_authority: bytes
    proxy_url: str | None = None
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """Output of a plugin: a client certificate (PEM) with its key, a token, or both. `expires`: as the plugin printed it."""

    chain: str = ""
    key: str = field(default="", repr=False)
    expires: str = ""
    token: str = field(default="", repr=False)


def read_exec(entry: Mapping[str, Any], cluster_config: Any = None) -> ExecUser | None:
    """Return the plugin of a kubeconfig's user; None if there is none, or `exec_error` rejects it."""
    config = entry.get("exec")
    if not isinstance(config, Mapping) or exec_error(entry):
        return None
    given = ((str(each["name"]), each.get("value")) for each in config.get("env") or ())
    variables = {name: "" if value is None else str(value) for name, value in given}
    return ExecUser(
        config["command"],
        tuple(str(each) for each in config.get("args") or ()),
        variables,
        provides_cluster=config.get("provideClusterInfo") is True,
        install_hint=str(config.get("installHint") or ""),
        api_version=config["apiVersion"],
        interactive=Interactive(config.get("interactiveMode") or Interactive.IF_AVAILABLE),
        cluster_config=cluster_config,
    )


def exec_error(entry: Mapping[str, Any]) -> str:
    """Return the problem of a user's `exec`, as the rest of a sentence; empty: no problem, or no `exec`."""
    config = entry.get("exec")
    if config is None:
        return ""
    if not isinstance(config, Mapping) or not isinstance(config.get("command"), str) or not config["command"]:
        return "has an exec without a command"
    if config.get("apiVersion") not in API_VERSIONS:
        return f"has an exec whose apiVersion is not {' or '.join(API_VERSIONS)}"
    if (config.get("interactiveMode") or Interactive.NEVER) not in list(Interactive):
        return f"has an exec whose interactiveMode is not {', '.join(Interactive)}"
    lists = (config.get("args") or [], config.get("env") or [])
    if not all(isinstance(each, list) for each in lists) or not all(
        isinstance(each, Mapping) and each.get("name") for each in lists[1]
    ):
        return "has an exec whose args are not a list, or whose env is not a list of names and values"
    return ""


def written_exec(user: ExecUser) -> dict[str, Any]:
    """Return the field `exec` of a kubeconfig's user."""
    return {
        "apiVersion": user.api_version,
        "command": user.command,
        "args": list(user.arguments),
        **({"env": [{"name": name, "value": value} for name, value in user.environment.items()]} if user.environment else {}),
        "interactiveMode": str(user.interactive),
        "provideClusterInfo": user.provides_cluster,
        **({"installHint": user.install_hint} if user.install_hint else {}),
    }


def exec_info(
    cluster: ExecCluster | None, *, api_version: str = API_VERSION, interactive: bool = False, config: Any = None
) -> str:
    """Return the value of EXEC_INFO. `cluster` None: without cluster and `config` (configuration for plug-ins)."""
    spec: dict[str, Any] = {"interactive": interactive}
    if cluster is not None:
        authority = base64.b64encode(cluster.certificate_authority).decode("ascii")
        named = {"proxy-url": cluster.proxy_url, "tls-server-name": cluster.tls_server_name}
        spec["cluster"] = {
            "server": cluster.server,
            "certificate-authority-data": authority,
            **{name: value for name, value in named.items() if value},
            **({"config": config} if config is not None else {}),
        }
    return json.dumps({"apiVersion": api_version, "kind": KIND, "spec": spec}, default=str)  # YAML values may be dates


def read_exec_info(text: str) -> ExecCluster:
    """Parse the value of EXEC_INFO. Raises InvalidError if it is invalid, or lacks the server or CA of the cluster."""
    document = _document(text, f"the variable {EXEC_INFO}", API_VERSION)
    cluster = (document.get("spec") or {}).get("cluster")
    if not isinstance(cluster, Mapping) or not isinstance(cluster.get("server"), str):
        raise InvalidError(
            "the kubeconfig does not pass the cluster to this plug-in: set provideClusterInfo: true beside its command"
        )
    try:
        authority = base64.b64decode(cluster.get("certificate-authority-data") or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidError("the certificate-authority-data of the cluster is not base64") from None
    if not authority:
        raise InvalidError("the kubeconfig has no certificate-authority-data for the cluster, so the hub cannot be verified")
    return ExecCluster(cluster["server"], authority, cluster.get("proxy-url"), cluster.get("tls-server-name"))


def written_credential(credential: ExecCredential) -> dict[str, Any]:
    """Return the output of a plugin. It contains a secret."""
    status = {
        "expirationTimestamp": credential.expires,
        "clientCertificateData": credential.chain,
        "clientKeyData": credential.key,
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "status": status}


def read_credential(text: str, api_version: str = API_VERSION) -> ExecCredential:
    """Parse the output of a plugin. Raises InvalidError, which contains no part of the text."""
    document = _document(text, "the output of the plug-in", api_version)
    status = document.get("status")
    if not isinstance(status, Mapping):
        raise InvalidError("the output of the plug-in has no status")
    names = ("clientCertificateData", "clientKeyData", "token", "expirationTimestamp")
    parts = [status.get(name) or "" for name in names]
    if not all(isinstance(part, str) for part in parts):
        raise InvalidError(f"the output of the plug-in has a value that is not a string among {', '.join(names)}")
    credential = ExecCredential(parts[0], parts[1], parts[3], parts[2])
    if bool(credential.chain) != bool(credential.key):
        raise InvalidError("the output of the plug-in contains a certificate or a key without the other")
    if not credential.chain and not credential.token:
        raise InvalidError("the output of the plug-in contains neither a token nor a client certificate with its key")
    try:
        if credential.expires:
            parse_time(credential.expires)
    except (ValueError, OverflowError):
        raise InvalidError("the output of the plug-in has an expirationTimestamp that is not a time") from None
    return credential


def _document(text: str, what: str, api_version: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND or document.get("apiVersion") != api_version:
        raise InvalidError(f"{what} is not a {KIND} of {api_version}")
    return document
