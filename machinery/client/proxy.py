"""HTTP proxies. HTTPS_PROXY and NO_PROXY select the proxy for a server, by the rules of kubectl and client-go.

HTTP_PROXY does not apply to https. A loopback address never has a proxy. Source: golang.org/x/net/http/httpproxy.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from machinery.errors import InvalidError

HTTPS_PORT = 443
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy")
NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")
FORM = "http://HOST:PORT, with USER:PASSWORD@ if the proxy requires it"


def https_proxy_for(server: str, environment: Mapping[str, str]) -> str:
    """Return the URL of the proxy for `server` (a URL or host:port), not validated; empty: none. It may contain a password."""
    parts = urlsplit(server if "://" in server else f"//{server}")
    host, port = (parts.hostname or "").lower(), parts.port or HTTPS_PORT
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return ""
    excluded = _variable(environment, NO_PROXY_VARIABLES).lower().split(",")
    if any(_excludes(entry.strip(), host, address, port) for entry in excluded):
        return ""
    proxy = _variable(environment, PROXY_VARIABLES).strip()
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def parse_proxy(url: str, schemes: tuple[str, ...]) -> SplitResult | None:
    """Return the parts of a proxy's URL; None if the URL has no host, an invalid port, or a scheme that is not in `schemes`."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if is_valid else None


def shown_proxy(url: str) -> str:
    """Return a proxy's URL without user and password, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def checked_proxy(url: str) -> str:
    """Return `url`. Raises InvalidError if it is not an http:// or https:// URL; the message does not contain the password."""
    if parse_proxy(url, ("http", "https")) is None:
        raise InvalidError(f"the proxy's URL is invalid: write {FORM}, or https:// for a proxy with TLS")
    return url


def _variable(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _excludes(entry: str, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    """Whether an entry of NO_PROXY matches: `*`, a network, or an address or domain with an optional port.

    `example.org` also matches its subdomains; `.example.org` and `*.example.org` match only the subdomains.
    """
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, wanted = entry.rpartition(":")
    if not colon or _address(entry.strip("[]")) is not None:
        name, wanted = entry, ""
    if wanted not in ("", str(port)):
        return False
    excluded = _address(name.strip("[]"))
    if excluded is not None:
        return excluded == address
    name = name[1:] if name.startswith("*.") else name
    return bool(name) and (host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}"))


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
