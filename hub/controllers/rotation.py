"""Owns the changes of the hub's CA: one step when it is due, and nothing while something is waited for.

It runs on the leader, in its term. Whatever it had done when it was killed is found in the database, or where the keys lie: a
key that was kept for a CA that nobody knows yet is used for the next one.

A CA goes when nothing that it signed is good any more, or when a patience is over. By a clock that is ahead for a moment all of
that is so at once, and what goes does not come back: while the database's clock is not believed, only what an operator wants
goes.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import structlog

from hub.controllers.steadiness import Steadiness
from hub.domain.authority import Authority, Phase, Wish
from hub.domain.event import NORMAL, WARNING, Told
from hub.domain.rotation import Act, Step, Survey, next_step
from hub.ports import KeyPlace, Store, Transaction
from hub.services import authorities
from hub.services.authorities import Made
from machinery.controller import Reconciler
from machinery.errors import MusterError

NAME = "ca-rotation"
PERIOD = timedelta(seconds=2)
KIND = "CertificateAuthority"
SAID = {
    Phase.DISTRIBUTING: "is handed out: every agent is told to trust it beside the one that issues",
    Phase.ISSUING: "issues from now on",
    Phase.OUTGOING: "issues no more; what it signed is good until its agents have moved",
    Phase.RETIRING: "is trusted no more, but for agents that come back with a recovery certificate of it",
    Phase.RETIRED: "is retired: nothing that it signed is accepted",
}

DOUBTED = "the database's clock has to go evenly for a while before a CA goes by it"

log = structlog.get_logger(__name__)

Make = Callable[[Survey, Authority], Awaitable[Made]]
"""Another CA, its key kept, to follow this one."""


class Rotation(Reconciler[str]):
    """`recovery`: how long what a retiring CA signed opens `Recover`."""

    def __init__(
        self,
        store: Store,
        make: Make,
        place: KeyPlace,
        *,
        patience: timedelta,
        recovery: timedelta,
        api_version: str,
        tell: Callable[[Told], None],
        steady: Steadiness,
    ) -> None:
        self._store = store
        self._make = make
        self._place = place
        self._patience = patience
        self._recovery = recovery
        self._api_version = api_version
        self._tell = tell
        self._steady = steady
        self._trouble = ""

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """One step; the next look is at once while there was one to make."""
        seen, is_believed = await self._store.read(self._look)
        step = next_step(seen, self._patience) if seen is not None else None
        if seen is None or step is None:
            return None
        if not is_believed and _goes_by_time(seen, step):
            self._warn(step, DOUBTED)
            return None
        try:
            changed = await self._take(step, seen)
        except MusterError as error:
            self._warn(step, error.message)
            return None
        self._trouble = ""
        for each in changed:
            self._say(each)
        return timedelta()

    def _look(self, tx: Transaction) -> tuple[Survey | None, bool]:
        """None: no change is under way; and whether the database's clock is believed, which each look counts for."""
        is_believed = self._steady.believes(tx.now)
        return (authorities.survey(tx) if _is_under_way(tx) else None), is_believed

    def _warn(self, step: Step, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("the change of CA cannot go on now", ca=step.authority, step=step.act.value, error=trouble)
        self._trouble = trouble

    async def _take(self, step: Step, seen: Survey) -> Sequence[Authority]:
        if step.act is Act.MAKE:
            old = next(each for each in seen.authorities if each.id == step.authority)
            made = await self._make(seen, old)
            return [await self._store.run(authorities.propose, made)]
        changed = await self._store.run(authorities.take, step, self._recovery)
        for each in changed:
            if each.phase is Phase.RETIRED:
                await self._place.forget(each.id)
        return changed

    def _say(self, authority: Authority) -> None:
        log.info("change of CA", ca=authority.id, phase=authority.phase.value)
        about = {"apiVersion": self._api_version, "kind": KIND, "metadata": {"name": authority.id}}
        kind = WARNING if authority.compromised or authority.wish is Wish.COMPROMISED else NORMAL
        self._tell(Told("", about, authority.phase.value, f"The CA {authority.id} {SAID[authority.phase]}", kind))


def _is_under_way(tx: Transaction) -> bool:
    return any(each.wish is not None or each.phase not in (Phase.ISSUING, Phase.RETIRED) for each in tx.authorities.all())


def _goes_by_time(seen: Survey, step: Step) -> bool:
    """Whether a CA loses something by this step, and no operator has said that it shall."""
    one = next(each for each in seen.authorities if each.id == step.authority)
    return step.act in (Act.RETIRE, Act.END) and not (one.is_given_up or one.wish is Wish.PROCEED)
