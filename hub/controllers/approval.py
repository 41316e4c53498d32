"""Owns the condition Approved of requests that need no human: renewals by the strict rule, and names that match a rule.

It never denies: what it does not approve waits for an operator. The rules are in `hub.services.requests.review`.
"""

from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.domain import request as rules
from hub.domain.change import Document
from hub.domain.request import RequestPhase
from hub.ports import Store, Transaction
from hub.services import requests

NAME = "approval"


def wanted(request: Document) -> bool:
    """Undecided."""
    return rules.phase(request) is RequestPhase.PENDING


class Approval(Batched):
    """`globs`: names of clusters that need no human."""

    def __init__(self, store: Store, globs: tuple[str, ...]) -> None:
        super().__init__(store)
        self._globs = globs

    def step(self, tx: Transaction, name: str) -> None:
        requests.review(tx, name, self._globs, f"{ACTOR}:{NAME}")
