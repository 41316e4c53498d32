"""Validates the options of `hubctl create bootstrap-kubeconfig`, and addresses that must lead to the hub from another machine.

Each function of an option raises CommandError with what to write.
"""

import socket
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hubctl.errors import CommandError

USUAL_POD_NETWORKS = (IPv4Network("10.244.0.0/16"), IPv4Network("10.42.0.0/16"))
"""Default pod networks of flannel, kubeadm's examples and k3s."""
INSIDE_NAMES = (".svc", ".cluster.local", ".pod")


def unreachable(host: str) -> str | None:
    """Why `host` is no address for another machine, as in "is ..."; None if nothing is known against it."""
    name = host.strip("[]").rstrip(".").lower()
    address = _address(name)
    if address is None:
        return _unreachable_name(name)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    kinds = (
        ("a loopback address, which every machine takes for itself", address.is_loopback),
        ("the unspecified address, which one listens on and nobody can connect to", address.is_unspecified),
        ("a link-local address, which is valid on one network segment only", address.is_link_local),
        ("a multicast address, which belongs to no single machine", address.is_multicast),
        ("an address of a usual pod network, valid inside one Kubernetes cluster only", _is_pod(address)),
    )
    return next((kind for kind, applies in kinds if applies), None)


def _is_pod(address: IPv4Address | IPv6Address) -> bool:
    return any(address in network for network in USUAL_POD_NETWORKS)


def _unreachable_name(name: str) -> str | None:
    if not name:
        return "empty"
    if name == "localhost" or name.endswith(".localhost"):
        return "a loopback address, which every machine takes for itself"
    if name.endswith(INSIDE_NAMES):
        return "a name that only resolves inside one Kubernetes cluster"
    return None


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """The address in `name`, in any notation that the C library accepts (`127.1`, `0x7f000001`)."""
    try:
        return ip_address(name.partition("%")[0])
    except ValueError:
        pass
    try:
        return ip_address(socket.inet_aton(name))
    except OSError:
        return None


def split_host(address: str) -> tuple[str, int | None]:
    """Host and port of `host:port`, `[v6]:port` or a bare host. Raises ValueError."""
    text = address.strip()
    if not text or any(character.isspace() or character in "/@" for character in text):
        raise ValueError(f'"{address}" is not host:port')
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), None
    if not port.isdecimal() or not 0 < int(port) < 2**16:  # a port is 16 bits
        raise ValueError(f'"{address}" is not host:port')
    return host.strip("[]"), int(port)


def credential_spec(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a BootstrapCredential, without its certificate request. Options that are missing are not used."""
    from machinery.errors import InvalidError  # noqa: PLC0415 - start-up time
    from machinery.identity import cluster_name  # noqa: PLC0415 - the same

    try:
        cluster = cluster_name(chosen["cluster"]) if chosen["cluster"] else ""
    except InvalidError as error:
        raise CommandError(error.message, code=2) from None
    lifetime = _lifetime(chosen["expires"])
    spec = {
        "token": chosen.get("token"),
        "clusterName": cluster,
        "clusterNames": list(chosen.get("patterns") or ()),
        "clusterSet": chosen["cluster_set"],
        "labels": dict(map(_label, chosen["labels"])),
        "attestation": _attestation(chosen),
        "uses": _uses(chosen.get("uses", "1")),
        "expirationSeconds": round(lifetime.total_seconds()) if lifetime is not None else None,
    }
    return {name: value for name, value in spec.items() if value}


def _attestation(chosen: Mapping[str, Any]) -> dict[str, str]:
    said = {
        "issuer": chosen.get("attest_issuer"),
        "keys": _content(chosen.get("attest_keys")),
        "certificateAuthority": _content(chosen.get("attest_ca")),
        "audience": chosen.get("attest_audience"),
        "subject": chosen.get("attest_subject"),
    }
    given = {field: text for field, text in said.items() if text}
    if given and not said["issuer"]:
        raise CommandError("the other --attest options need --attest-issuer URL", code=2)
    return given


def _content(name: str | None) -> str:
    try:
        return Path(name).read_text() if name else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} cannot be read: {getattr(error, 'strerror', '') or 'it is no text'}", code=2) from None


def _uses(text: str) -> int | None:
    if text == "unlimited":
        return None
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise CommandError(f'--uses "{text}" is not a number: give 1 or more, or unlimited', code=2)
    return int(text)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CommandError(f'--label "{text}" is no label: write KEY=VALUE', code=2)
    return key, value


def https_address(server: str | None) -> str:
    if not server:
        return ""
    parts = urlsplit(server)
    try:
        good = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.username or parts.query or parts.fragment:
        raise CommandError(f'--server "{server}" is not an address: write https://HOST:PORT', code=2)
    return server.rstrip("/")


def grpc_address(address: str | None) -> str:
    if not address:
        return ""
    try:
        host, port = split_host(address)
    except ValueError:
        host, port = "", None
    if not host or port is None:
        raise CommandError(f'--grpc-server "{address}" is not an address: write HOST:PORT', code=2)
    return address


def _lifetime(text: str) -> timedelta | None:
    """None: the hub's default."""
    if not text:
        return None
    from machinery.durations import parse_duration  # noqa: PLC0415 - only needed here

    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"--expires {error}", code=2) from None
    if lifetime < timedelta(seconds=1):
        raise CommandError(f'--expires "{text}" is over before it begins: give at least 1s', code=2)
    return lifetime
