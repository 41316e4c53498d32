"""Owns the statuses of ApprovalRules, and re-evaluates waiting clusters and requests when a rule changes.

Matches are counted in memory and written once a second, so that a decision does not wait for its count; a killed hub loses at
most a second of counts. The decisions themselves are in the audit log and on the objects.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from hub.api.approvalrules import RuleDecision
from hub.api.meta import document as doc
from hub.controllers import ACTOR
from hub.ports import Store, Transaction
from hub.registry.approvalrules import service as approval_rules
from hub.registry.approvalrules.service import DecisionCount
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Reconciler

NAME = "approval-rules"
COUNTS = ""
"""Key for the counts. Other keys are rule names, or ACCEPTED."""
ACCEPTED = "accepted/"
"""Key for all accepted clusters, whose names wait in the reconciler. No rule can have this name."""
AT_MOST = 100
GATHER = timedelta(seconds=1)

Look = Callable[[str], None]
Page = Callable[[Transaction, Key | None], tuple[list[str], Key | None]]


class Rules(Reconciler[str]):
    """`look_at_cluster` and `look_at_request` enqueue a name at the controller that decides it."""

    def __init__(self, store: Store, now: Callable[[], datetime], look_at_cluster: Look, look_at_request: Look) -> None:
        self._store = store
        self._now = now
        self._look_at_cluster = look_at_cluster
        self._look_at_request = look_at_request
        self._tallies: dict[str, DecisionCount] = {}
        self._generations: dict[str, object] = {}
        self._accepted: dict[str, None] = {}

    @property
    def any(self) -> bool:
        """Whether there may be rules."""
        return bool(self._generations)

    def wanted(self, rule: Document) -> bool:
        """Whether the rule is new or its generation has changed."""
        name, metadata = doc.name(rule), doc.mapping(rule, "metadata")
        generation = (metadata.get("uid"), metadata.get("generation"))
        known = self._generations.get(name)
        self._generations[name] = generation
        return known != generation

    def count(self, decision: RuleDecision) -> None:
        """Add a decision to the next write; the caller enqueues COUNTS after GATHER."""
        tally, known = DecisionCount.of(decision, self._now()), self._tallies.get(decision.rule)
        self._tallies[decision.rule] = known.and_then(tally) if known else tally

    def accepted(self, cluster: str) -> None:
        """Re-evaluate the requests that waited for the cluster's acceptance; the caller enqueues ACCEPTED."""
        self._accepted[cluster] = None

    async def reconcile(self, key: str) -> timedelta | None:
        if key == COUNTS:
            await self._write_counts()
        elif key == ACCEPTED:
            return await self._look_at_accepted()
        else:
            await self._store.run(approval_rules.describe, key, f"{ACTOR}:{NAME}")
            await self._each(approval_rules.open_clusters, self._look_at_cluster)
            await self._each(approval_rules.undecided_requests, self._look_at_request)
        return None

    async def _look_at_accepted(self) -> timedelta | None:
        """Handle many clusters per transaction, because hundreds may be accepted at once."""
        clusters = tuple(self._accepted)[:AT_MOST]
        for cluster in clusters:
            del self._accepted[cluster]
        try:
            names = await self._store.read(approval_rules.undecided_of, clusters)
        except Exception:
            self._accepted |= dict.fromkeys(clusters)
            raise
        for name in names:
            self._look_at_request(name)
        return timedelta() if self._accepted else None

    async def _write_counts(self) -> None:
        taken, self._tallies = self._tallies, {}
        try:
            await self._store.run(approval_rules.note, taken, f"{ACTOR}:{NAME}")
        except Exception:
            for name, tally in taken.items():
                later = self._tallies.get(name)
                self._tallies[name] = tally.and_then(later) if later else tally
            raise

    async def _each(self, page: Page, look: Look) -> None:
        after: Key | None = None
        while True:
            names, after = await self._store.read(page, after)
            for name in names:
                look(name)
            if after is None:
                return
