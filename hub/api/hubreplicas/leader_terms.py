"""Terms that nobody was told of yet: written down with the taking of the lock, and told by whoever leads then."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from hub.api.core.event import EventRecord
from machinery.meta.timestamps import format_time

FACT = "untold-terms"
KEPT = 100
"""So many terms are told one by one; of those before them their number is."""


@dataclass(frozen=True, slots=True)
class Began:
    """A term: who took the lock, and when by the database's clock."""

    term: int
    holder: str
    at: datetime


@dataclass(frozen=True, slots=True)
class UnreportedTerms:
    """In their order; `left_out` came before them."""

    terms: tuple[Began, ...] = ()
    left_out: int = 0

    def followed_by(self, began: Began) -> "UnreportedTerms":
        terms = (*self.terms, began)
        return UnreportedTerms(terms[-KEPT:], self.left_out + max(0, len(terms) - KEPT))

    def news(self, term: int, ours: EventRecord) -> Iterator[EventRecord]:
        """What there is to be told by the leader of `term`, which knows of its own how it came about: `ours`."""
        if self.left_out:
            yield replace(ours, message=f"the {self.left_out} changes of leader before term {self.terms[0].term} are left out")
        for each in self.terms:
            yield ours if each.term == term else replace(ours, message=_late(each))


def _late(began: Began) -> str:
    when = format_time(began.at)
    return f"{began.holder} became leader in term {began.term}, at {when}: the term ended before it was told why"


def encoded(untold: UnreportedTerms) -> str:
    return msgspec.json.encode(untold).decode()


def decoded(text: str | None) -> UnreportedTerms:
    return msgspec.json.decode(text, type=UnreportedTerms) if text else UnreportedTerms()
