"""Owns the condition Approved of requests that need no operator: renewals, add-ons, and registrations that match a rule.

It never denies; other requests wait for an operator. The rules are in `hub.registry.approvalrules.approval`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hub.api.approvalrules import ApprovalRule
from hub.api.certificatesigningrequests import request as rules
from hub.api.certificatesigningrequests.request import RequestPhase
from hub.controllers import ACTOR
from hub.controllers.rule_controller import Ruled
from hub.ports import Transaction
from hub.registry.approvalrules import approval as approving
from hub.registry.approvalrules.approval import ApprovalOutcome
from machinery.meta.objects import Document

NAME = "approval"


def wanted(request: Document) -> bool:
    """Whether the request is undecided."""
    return rules.phase(request) is RequestPhase.PENDING


class Approval(Ruled):
    """Reviews many requests in one transaction."""

    def read_ahead(self, tx: Transaction, names: Sequence[str]) -> None:
        approving.read_ahead(tx, names)

    def prepared(self, tx: Transaction) -> Callable[[str], object]:
        return partial(self._step, tx, self.rules_in(tx))

    def _step(self, tx: Transaction, known: tuple[ApprovalRule, ...], name: str) -> ApprovalOutcome:
        outcome = approving.review(tx, name, known, f"{ACTOR}:{NAME}")
        return replace(outcome or ApprovalOutcome(), asking=approving.asking(tx, name, known))
