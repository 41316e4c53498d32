"""Checks of https addresses."""

from urllib.parse import urlsplit


def https_url_error(url: object) -> str | None:
    """Why this is not a usable https URL; None: it is."""
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
