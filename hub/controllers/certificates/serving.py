"""Owns the doors' certificate: it is replaced well before its end, while the hub serves."""

from collections.abc import Callable
from datetime import timedelta

from machinery.runtime.controller import Reconciler

NAME = "serving-certificate"
PERIOD = timedelta(hours=12)


class ServingCertificate(Reconciler[str]):
    """`renew` looks at the certificate, and replaces it when that is due."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        self._renew()
        return None
