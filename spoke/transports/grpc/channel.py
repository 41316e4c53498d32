"""The address that a channel to a hub connects to: the hub or a proxy.

gRPC selects proxies from the environment by its own rules and lets NO_PROXY override an explicit one. So that is disabled, and
the channel dials the proxy, requests the hub from it by CONNECT, and expects the hub's certificate.
"""

import asyncio
import socket
from base64 import b64encode
from urllib.parse import unquote, urlsplit

from spoke.ports import HubAddress

Options = tuple[tuple[str, str | int], ...]
DEFAULT_PORT = 80


def dialled(address: HubAddress) -> tuple[str, Options]:
    """The address to dial and the channel's options."""
    alone: Options = (("grpc.enable_http_proxy", 0),)
    if not address.proxy:
        return address.target, alone
    proxy = urlsplit(address.proxy)
    host = f"[{proxy.hostname}]" if ":" in (proxy.hostname or "") else proxy.hostname
    options = (*alone, ("grpc.http_connect_server", address.target), ("grpc.default_authority", address.target))
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        options = (*options, ("grpc.http_connect_headers", f"Proxy-Authorization: Basic {b64encode(login).decode()}"))
    return f"{host}:{proxy.port or DEFAULT_PORT}", options


class AddressRotation:
    """Rotates a hub's addresses: after one that accepted a connection and stayed silent, the next one is dialled first."""

    def __init__(self) -> None:
        self._silent: dict[str, int] = {}

    def silent(self, target: str) -> None:
        """Record that the first dialled address did not answer in time."""
        self._silent[target] = self._silent.get(target, 0) + 1

    async def dialled(self, address: HubAddress) -> tuple[str, Options]:
        """Like the function `dialled`; resolves the name here only after silence."""
        turns = self._silent.get(address.target, 0)
        if not turns or address.proxy:
            return dialled(address)
        host, _, port = address.target.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError:
            return dialled(address)
        places = sorted({(family, str(place[0])) for family, _, _, _, place in found})
        places = places[turns % len(places) :] + places[: turns % len(places)]
        family = places[0][0]
        ordered = [f"[{each}]:{port}" if family == socket.AF_INET6 else f"{each}:{port}" for of, each in places if of == family]
        scheme = "ipv6" if family == socket.AF_INET6 else "ipv4"
        return f"{scheme}:{','.join(ordered)}", (*dialled(address)[1], ("grpc.default_authority", address.target))
