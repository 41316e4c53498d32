"""Leader terms without an Event yet: recorded with the lock, reported by the next leader."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from hub.api.events import EventRecord
from machinery.meta.timestamps import format_time

FACT = "untold-terms"
KEPT = 100
"""Number of terms that are reported individually; earlier ones are only counted."""


@dataclass(frozen=True, slots=True)
class TermStart:
    """A term: its holder and its start by the database's clock."""

    term: int
    holder: str
    at: datetime


@dataclass(frozen=True, slots=True)
class UnreportedTerms:
    """Terms in order; `left_out`: number of earlier ones that were dropped."""

    terms: tuple[TermStart, ...] = ()
    left_out: int = 0

    def followed_by(self, began: TermStart) -> "UnreportedTerms":
        terms = (*self.terms, began)
        return UnreportedTerms(terms[-KEPT:], self.left_out + max(0, len(terms) - KEPT))

    def news(self, term: int, ours: EventRecord) -> Iterator[EventRecord]:
        """Events that the leader of `term` must write. `ours`: the Event of its own term, with the cause of its election."""
        if self.left_out:
            yield replace(ours, message=f"{self.left_out} changes of leader before term {self.terms[0].term} are not listed")
        for each in self.terms:
            began = f"{each.holder} became leader in term {each.term}, at {format_time(each.at)}"
            late = replace(ours, message=f"{began}; the term ended before its cause was recorded")
            yield ours if each.term == term else late


def encoded(untold: UnreportedTerms) -> str:
    return msgspec.json.encode(untold).decode()


def decoded(text: str | None) -> UnreportedTerms:
    return msgspec.json.decode(text, type=UnreportedTerms) if text else UnreportedTerms()
