"""Owns `status.certificate`: signs an approved request once."""

from collections.abc import Sequence

from hub.api.certificates import Lifetimes
from hub.api.certificatesigningrequests import request as rules
from hub.api.certificatesigningrequests.request import RequestPhase
from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.ports import Issuer, Store, Transaction
from hub.registry.certificatesigningrequests import issuance
from hub.registry.certificatesigningrequests import service as requests
from machinery.meta.objects import Document

NAME = "issuance"


def wanted(request: Document) -> bool:
    """Whether the request is approved and not signed."""
    return rules.phase(request) is RequestPhase.APPROVED


class Issuance(Batched):
    """Signs with `issuer`; the hub's records determine the content of each certificate."""

    def __init__(self, store: Store, issuer: Issuer, lifetimes: Lifetimes) -> None:
        super().__init__(store)
        self._issuer = issuer
        self._lifetimes = lifetimes

    def read_ahead(self, tx: Transaction, names: Sequence[str]) -> None:
        requests.read_ahead(tx, names)

    def step(self, tx: Transaction, name: str) -> None:
        issuance.issue(tx, name, self._issuer, self._lifetimes, f"{ACTOR}:{NAME}")
