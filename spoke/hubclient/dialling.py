"""Where a channel to a hub really connects: to the hub, or to the proxy before it.

gRPC looks for proxies in the environment by rules of its own, and lets NO_PROXY overrule one that is named. So its looking is
turned off, and it is told to dial the proxy, to ask it for the hub, and to expect the hub's certificate.
"""

from base64 import b64encode
from urllib.parse import unquote, urlsplit

from spoke.ports import HubAddress

Options = tuple[tuple[str, str | int], ...]
DEFAULT_PORT = 80


def dialled(address: HubAddress) -> tuple[str, Options]:
    """What to dial, and the channel's options for it."""
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
