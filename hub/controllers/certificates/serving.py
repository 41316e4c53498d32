"""Renews the serving certificate of both doors well before its end."""

from collections.abc import Callable
from datetime import timedelta

from machinery.runtime.controller import Reconciler

NAME = "serving-certificate"
PERIOD = timedelta(hours=12)


class ServingCertificate(Reconciler[str]):
    """`renew` checks the certificate and replaces it when due."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        self._renew()
        return None
