"""Checks of https URLs, and lists of allowed URLs."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

HTTPS_PORT = 443
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")


def https_url_error(url: object) -> str | None:
    """Return why this is not a usable https URL; None if it is one."""
    if not isinstance(url, str) or not url.isprintable():
        return "it is not text"
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        return "it is not an address"
    if parts.scheme != "https":
        return "its scheme is not https"
    if not parts.hostname or not port_is_good:
        return "it names no host and port"
    if parts.username is not None or parts.fragment or parts.query:
        return "it holds a user, a query or a fragment"
    return None


@dataclass(frozen=True, slots=True)
class AllowedUrls:
    """A list of allowed URLs. An empty list allows no URL.

    An entry is a whole URL, or `https://HOST[:PORT]` for all URLs of this host. `*.` before a host matches its subdomains.
    """

    entries: tuple[str, ...] = ()

    def allow(self, url: str) -> bool:
        host, port = _https_host(url)
        return bool(host) and any(entry == url or _is_at(entry, host, port) for entry in self.entries)

    def allow_keys(self, issuer: str, url: str) -> bool:
        """Whether an allowed issuer's JWKS may be fetched from `url`: `url` has the issuer's host and port, or is allowed."""
        return _https_host(url) == _https_host(issuer) != ("", 0) or self.allow(url)


def _is_at(entry: str, host: str, port: int) -> bool:
    """Whether an entry for a whole host matches this host and port."""
    named, named_port = _https_host(entry.replace("*.", "any.", 1))
    if urlsplit(entry).path or port != named_port:
        return False
    return host.endswith(named.removeprefix("any")) if "//*." in entry else host == named


def _https_host(url: str) -> tuple[str, int]:
    """Return host (lower case) and port of an https URL; ("", 0): it is not https, or the host has invalid characters."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or HTTPS_PORT
    except ValueError:
        return "", 0
    return (host, port) if parts.scheme == "https" and _HOST.fullmatch(host) else ("", 0)
