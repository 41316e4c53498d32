"""Owns the changes of the hub's CA: one step when it is due, and nothing while something is waited for.

A step that cannot be made now holds up no other: a CA whose time is doubted, or a key that cannot be kept, is no reason to
keep one that is compromised.

It runs on the leader, in its term. Whatever it had done when it was killed is found in the database, or where the keys lie: a
key that was kept for a CA that nobody knows yet is used for the next one.

A CA goes when nothing that it signed is good any more, or when a patience is over. By a clock that is ahead for a moment all of
that is so at once, and what goes does not come back: while the database's clock is not believed, only what an operator wants
goes; and what he gives up waits for the time that he gave to agents only while some of them are there and could still move.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from hub.controllers.steadiness import Steadiness
from hub.domain.authority import Authority, Phase, Wish
from hub.domain.event import NORMAL, WARNING, Told
from hub.domain.rotation import Act, Step, Survey, due_steps, goes_by_time
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
        self._hindered: Mapping[Step, str] = {}

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """The first step that can be made; the next look is at once while there was one to make."""
        seen, is_believed = await self._store.read(self._look)
        if seen is None:
            return None
        hindered: dict[Step, str] = {}
        for step in due_steps(seen, self._patience):
            trouble = DOUBTED if not is_believed and goes_by_time(seen, step) else await self._make_step(step, seen)
            if trouble is None:
                self._hindered = {}
                return timedelta()
            hindered[step] = trouble
        self._warn(hindered)
        return None

    async def _make_step(self, step: Step, seen: Survey) -> str | None:
        """What hinders it; None: it is made."""
        try:
            changed = await self._take(step, seen)
        except MusterError as error:
            return error.message
        for each in changed:
            self._say(each)
        return None

    def _look(self, tx: Transaction) -> tuple[Survey | None, bool]:
        """None: no change is under way; and whether the database's clock is believed, which each look counts for."""
        is_believed = self._steady.believes(tx.now)
        return (authorities.survey(tx) if _is_under_way(tx) else None), is_believed

    def _warn(self, hindered: Mapping[Step, str]) -> None:
        for step, trouble in hindered.items():
            if self._hindered.get(step) != trouble:
                log.warning("the change of CA cannot go on now", ca=step.authority, step=step.act.value, error=trouble)
        self._hindered = hindered

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
