"""Detects addresses that do not lead to the hub from another machine."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

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
