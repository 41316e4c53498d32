"""Owns `status.certificate`: signs an approved request once."""

from hub.api.certificates import Lifetimes
from hub.api.certificatesigningrequests import request as rules
from hub.api.certificatesigningrequests.request import RequestPhase
from hub.api.meta.change import REQUESTS
from hub.controllers import ACTOR
from hub.controllers.batch import UseCaseReconciler
from hub.controllers.builder import ControllerBuilder
from hub.ports import Issuer, Store, Transaction
from hub.registry.certificatesigningrequests import issuance
from hub.registry.certificatesigningrequests import service as requests
from machinery.meta.objects import Document

NAME = "issuance"


def wanted(request: Document) -> bool:
    """Whether the request is approved and not signed."""
    return rules.phase(request) is RequestPhase.APPROVED


def reconciler(store: Store, issuer: Issuer, lifetimes: Lifetimes) -> UseCaseReconciler:
    """Signs with `issuer`; the hub's records determine the content of each certificate."""

    def issue(tx: Transaction, name: str, actor: str) -> None:
        issuance.issue(tx, name, issuer, lifetimes, actor)

    return UseCaseReconciler(store, issue, f"{ACTOR}:{NAME}", requests.read_ahead)


def register(builder: ControllerBuilder) -> None:
    controller = builder.add(NAME, reconciler(builder.store, builder.issuer, builder.lifetimes))
    builder.watch_names(REQUESTS, controller, wanted)
