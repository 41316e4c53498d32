"""The https URLs that requests may go to where others than the administrator of this machine name them."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

HTTPS_PORT = 443
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")


@dataclass(frozen=True, slots=True)
class AllowedUrls:
    """Without entries, no URL is allowed.

    An entry is a whole URL, or `https://HOST[:PORT]` for every URL of that host. `*.` before a host means its subdomains.
    """

    entries: tuple[str, ...] = ()

    def allow(self, url: str) -> bool:
        host, port = _https_host(url)
        return bool(host) and any(entry == url or _is_at(entry, host, port) for entry in self.entries)

    def allow_keys(self, issuer: str, url: str) -> bool:
        """Whether keys of an allowed issuer may be fetched from `url`: the issuer's own host and port, or an allowed URL."""
        return _https_host(url) == _https_host(issuer) != ("", 0) or self.allow(url)


def _is_at(entry: str, host: str, port: int) -> bool:
    """Whether an entry for a whole host includes this one."""
    named, named_port = _https_host(entry.replace("*.", "any.", 1))
    if urlsplit(entry).path or port != named_port:
        return False
    return host.endswith(named.removeprefix("any")) if "//*." in entry else host == named


def _https_host(url: str) -> tuple[str, int]:
    """Host in lower case and port of an https URL; ("", 0): it is none, or its host has characters that no host has."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or HTTPS_PORT
    except ValueError:
        return "", 0
    return (host, port) if parts.scheme == "https" and _HOST.fullmatch(host) else ("", 0)
