"""Use case: write the Event of each leader term once, in the transaction that clears its record."""

from hub.api import hubleaders as rules
from hub.api.events import EventRecord
from hub.ports import Transaction
from hub.registry.events import service as events


def tell(tx: Transaction, term: int, ours: EventRecord, actor: str) -> None:
    """Write an Event for each unreported term. `ours`: the Event of `term`, which is the caller's."""
    untold = rules.decoded(tx.facts.get(rules.FACT))
    if untold.terms:
        events.tell(tx, tuple(untold.news(term, ours)), actor)
        tx.facts.set(rules.FACT, rules.encoded(rules.UnreportedTerms()))
