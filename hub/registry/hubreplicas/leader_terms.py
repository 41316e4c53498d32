"""Use cases about who led: every term is told once, in the transaction that forgets that it is to be told."""

from hub.api.core.event import EventRecord
from hub.api.hubreplicas import leader_terms as rules
from hub.ports import Transaction
from hub.registry.events import service as events


def tell(tx: Transaction, term: int, ours: EventRecord, actor: str) -> None:
    """Makes an Event of each term that nobody was told of. `ours`: what there is to say of `term`, which is the caller's."""
    untold = rules.decoded(tx.facts.get(rules.FACT))
    if untold.terms:
        events.tell(tx, tuple(untold.news(term, ours)), actor)
        tx.facts.set(rules.FACT, rules.encoded(rules.UnreportedTerms()))
