"""Checks the options of `hubctl create bootstrap-kubeconfig`, and whether other machines can use an address of the hub.

For an invalid option, the functions raise CommandError with the valid form.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from hubctl.errors import CommandError, UsageError, usage_errors
from hubctl.files import read_text
from hubctl.options import read_key_values
from machinery.durations import parse_duration

USUAL_POD_NETWORKS = (IPv4Network("10.244.0.0/16"), IPv4Network("10.42.0.0/16"))
"""Default pod networks of flannel, of kubeadm's examples and of k3s."""
INSIDE_NAMES = (".svc", ".cluster.local", ".pod")
LOOPBACK = "a loopback address, which is valid on one machine only"


def check_endpoints(server: str, grpc_server: str) -> None:
    """Raises CommandError for an address that other machines cannot use. Empty addresses are not checked."""
    checks = (
        (urlsplit(server).hostname or "", "https_advertised", "--server https://HOST:PORT"),
        (split_host(grpc_server)[0] if grpc_server else "", "grpc_advertised", "--grpc-server HOST:PORT"),
    )
    for host, setting, flag in checks:
        why = unreachable(host) if host else None
        if why:
            raise CommandError(
                f"{host} is {why}, so another machine cannot use it: set the hub's {setting} "
                f"(--{setting.replace('_', '-')}) to the address that clusters reach, or give {flag} here; "
                "for an agent on this machine give --allow-loopback"
            )


def unreachable(host: str) -> str | None:
    """Return why other machines cannot use the address `host`, as the rest of "it is ..."; None: no reason is known."""
    name = host.strip("[]").rstrip(".").lower()
    address = _address(name)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address is None:
        kinds = {
            "empty": not name,
            LOOPBACK: name == "localhost" or name.endswith(".localhost"),
            "a name that only resolves inside one Kubernetes cluster": name.endswith(INSIDE_NAMES),
        }
    else:
        kinds = {
            LOOPBACK: address.is_loopback,
            "the unspecified address, to which nobody can connect": address.is_unspecified,
            "a link-local address, which is valid on one network segment only": address.is_link_local,
            "a multicast address, which belongs to no single machine": address.is_multicast,
            "an address of a usual pod network, valid inside one Kubernetes cluster only": any(
                address in network for network in USUAL_POD_NETWORKS
            ),
        }
    return next((kind for kind, applies in kinds.items() if applies), None)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """Return the address in `name`, in any notation that the C library accepts (`127.1`, `0x7f000001`)."""
    with suppress(ValueError):
        return ip_address(name.partition("%")[0])
    with suppress(OSError):
        return ip_address(socket.inet_aton(name))
    return None


def split_host(address: str) -> tuple[str, int | None]:
    """Return host and port of `host:port`, `[v6]:port` or a host without port. Raises ValueError."""
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
    """Return the spec of a BootstrapCredential, without certificate request and empty values. Raises CommandError."""
    from machinery.identity import cluster_name  # noqa: PLC0415 - start-up time

    with usage_errors():
        cluster = cluster_name(chosen["cluster"]) if chosen["cluster"] else ""
    uses = chosen.get("uses", "1")
    if uses != "unlimited" and (not uses.isdecimal() or not 0 < int(uses) < 2**31):
        raise UsageError(f'--uses "{uses}" is not a number: give 1 or more, or unlimited')
    attestation = {
        "issuer": chosen.get("attest_issuer"),
        "keys": read_text(chosen["attest_keys"]) if chosen.get("attest_keys") else "",
        "certificateAuthority": read_text(chosen["attest_ca"]) if chosen.get("attest_ca") else "",
        "audience": chosen.get("attest_audience"),
        "subject": chosen.get("attest_subject"),
    }
    if any(attestation.values()) and not attestation["issuer"]:
        raise UsageError("the other --attest options need --attest-issuer URL")
    spec = {
        "token": chosen.get("token"),
        "clusterName": cluster,
        "clusterNames": list(chosen.get("patterns") or ()),
        "clusterSet": chosen["cluster_set"],
        "labels": read_key_values("--label", "label", chosen["labels"]),
        "attestation": {field: text for field, text in attestation.items() if text},
        "uses": None if uses == "unlimited" else int(uses),
        "expirationSeconds": _lifetime_seconds(chosen["expires"]),
    }
    return {name: value for name, value in spec.items() if value}


def https_address(server: str | None) -> str:
    if not server:
        return ""
    parts = urlsplit(server)
    try:
        good = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.username or parts.query or parts.fragment:
        raise UsageError(f'--server "{server}" is not an address: write https://HOST:PORT')
    return server.rstrip("/")


def grpc_address(address: str | None) -> str:
    if not address:
        return ""
    with suppress(ValueError):
        if all(split_host(address)):
            return address
    raise UsageError(f'--grpc-server "{address}" is not an address: write HOST:PORT')


def _lifetime_seconds(text: str) -> int | None:
    if not text:
        return None
    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--expires {error}") from None
    if lifetime < timedelta(seconds=1):
        raise UsageError(f'--expires "{text}" is too short: give at least 1s')
    return round(lifetime.total_seconds())
