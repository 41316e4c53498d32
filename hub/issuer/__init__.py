"""Adapter: the hub's certificate authority."""

from hub.issuer.local import LocalIssuer, ServingNames

__all__ = ["LocalIssuer", "ServingNames"]
