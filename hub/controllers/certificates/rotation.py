"""Performs CA changes, one due step at a time.

A failed step does not block other steps. Otherwise an untrusted clock, or a key that cannot be stored, would keep a compromised
CA in use.

The controller runs on the leader. After a crash it continues from the database and the key storage: it uses a stored key
without a recorded CA for the next CA, and removes the keys of retired CAs that still exist.

A CA is retired when all its certificates have ended or when a time limit has passed. If the clock were ahead for a moment, both
would seem true, and a retirement cannot be undone. So while the database's clock is not trusted, only an operator's order
retires a CA. If an operator has given the agents of a compromised CA time to renew, the retirement also waits while some of
these agents can still renew.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityOrder, AuthorityRecord, Phase
from hub.api.certificateauthorities.rotation import Act, RotationSnapshot, RotationStep, due_steps, goes_by_time
from hub.api.events import NORMAL, WARNING, EventRecord
from hub.controllers.builder import ControllerBuilder
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.ports import Store, Transaction
from hub.ports.identities import KeyPlace
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority
from machinery.errors import MusterError
from machinery.runtime.controller import Reconciler

NAME = "ca-rotation"
PERIOD = timedelta(seconds=2)
KIND = "CertificateAuthority"
PHASE_MESSAGES = {
    Phase.DISTRIBUTING: "is distributed: agents add it to their trust bundle, and it signs nothing yet",
    Phase.ISSUING: "issues certificates from now on",
    Phase.OUTGOING: "issues no more certificates; those that it signed are valid until their agents have renewed",
    Phase.RETIRING: "is no longer trusted, except for agents that reconnect with a recovery certificate of it",
    Phase.RETIRED: "is retired: none of its certificates is accepted",
}

CLOCK_NOT_TRUSTED = "it waits until the database's clock has run evenly for a while"

log = structlog.get_logger(__name__)

Make = Callable[[RotationSnapshot, AuthorityRecord], Awaitable[NewAuthority]]
"""Makes and stores the CA that replaces the given CA."""


@dataclass(eq=False)
class Rotation(Reconciler[str]):
    """Reconciles CA changes. `recovery`: how long certificates of a retiring CA are valid for `Recover`."""

    store: Store
    make: Make
    place: KeyPlace
    patience: timedelta
    recovery: timedelta
    api_version: str
    record_event: Callable[[EventRecord], None]
    clock_guard: ClockGuard
    _blocked: Mapping[RotationStep, str] = field(default_factory=dict, init=False)
    _removed: set[AuthorityId] = field(default_factory=set, init=False)
    _removal_failure: str = field(default="", init=False)

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Take the first possible step. If a step was taken, run again immediately."""
        seen, is_believed, retired = await self.store.look(self._look)
        if seen is not None and await self._take_first(seen, is_believed=is_believed):
            return timedelta()
        await self._remove_keys(retired)
        return None

    def _look(self, tx: Transaction) -> tuple[RotationSnapshot | None, bool, Sequence[AuthorityId]]:
        """Return the CA change in progress, whether the clock is trusted (each call compares clocks), and the retired CAs."""
        is_believed = self.clock_guard.trusts_clock(tx.now)
        records = tx.authorities.all()
        is_under_way = any(each.order is not None or each.phase not in (Phase.ISSUING, Phase.RETIRED) for each in records)
        retired = [each.id for each in records if each.phase is Phase.RETIRED]
        if not is_under_way:
            return None, is_believed, retired
        moves = any(each.order is not None or each.phase in (Phase.DISTRIBUTING, Phase.OUTGOING) for each in records)
        return authorities.rotation_snapshot(tx, with_agents=moves), is_believed, retired

    async def _take_first(self, seen: RotationSnapshot, *, is_believed: bool) -> bool:
        """Take the first due step that is possible now. Warn about blocked steps once. Returns whether a step was taken."""
        blocked: dict[RotationStep, str] = {}
        for step in due_steps(seen, self.patience):
            if not is_believed and goes_by_time(seen, step):
                blocked[step] = CLOCK_NOT_TRUSTED
                continue
            try:
                changed = await self._take(step, seen)
            except MusterError as error:
                blocked[step] = error.message
                continue
            for each in changed:
                self._report(each)
            self._blocked = {}
            return True
        for step, why in blocked.items():
            if self._blocked.get(step) != why:
                log.warning("CA rotation is blocked", ca=step.authority, step=step.act.value, error=why)
        self._blocked = blocked
        return False

    async def _take(self, step: RotationStep, seen: RotationSnapshot) -> Sequence[AuthorityRecord]:
        if step.act is Act.MAKE:
            old = next(each for each in seen.authorities if each.id == step.authority)
            return [await self.store.run(authorities.propose, await self.make(seen, old))]
        changed = await self.store.run(authorities.take, step, self.recovery)
        for one in changed:
            if one.compromised and (left := await self.store.read(authorities.left_behind, one)):
                log.warning(
                    "agents did not leave a compromised CA and need a new bootstrap credential", ca=one.id, clusters=left
                )
        return changed

    async def _remove_keys(self, retired: Collection[AuthorityId]) -> None:
        try:
            for one in retired:
                if one not in self._removed:
                    await self.place.forget(one)
                    self._removed.add(one)
        except MusterError as error:
            if error.message != self._removal_failure:
                log.warning("the key of a retired CA cannot be removed", ca=one, error=error.message)
            self._removal_failure = error.message
        else:
            self._removal_failure = ""

    def _report(self, authority: AuthorityRecord) -> None:
        log.info("CA changed phase", ca=authority.id, phase=authority.phase.value)
        about = {"apiVersion": self.api_version, "kind": KIND, "metadata": {"name": authority.id}}
        kind = WARNING if authority.compromised or authority.order is AuthorityOrder.COMPROMISED else NORMAL
        self.record_event(
            EventRecord("", about, authority.phase.value, f"The CA {authority.id} {PHASE_MESSAGES[authority.phase]}", kind)
        )


def register(builder: ControllerBuilder, make: Make, place: KeyPlace) -> None:
    settings = builder.settings
    reconciler = Rotation(
        builder.store,
        make,
        place,
        patience=settings.ca_rotation_patience,
        recovery=builder.lifetimes.recovery,
        api_version=f"hub.{settings.api_group_suffix}/v1alpha1",
        record_event=builder.record_event,
        clock_guard=ClockGuard(builder.clock, min(SETTLED, settings.ca_rotation_patience)),
    )
    builder.every(PERIOD, builder.add(NAME, reconciler), jitter=0, at_once=True)
