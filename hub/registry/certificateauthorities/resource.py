"""CertificateAuthority, a kind of this project: the hub's CAs, the progress of a rotation, and actions that control it."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, issuing
from hub.api.certificateauthorities.rotation import RotationAgent, RotationSnapshot, waits_for
from hub.api.meta import document as doc
from hub.ports import Store, Transaction
from hub.registry.certificateauthorities import service as authorities
from hub.registry.generic import declared
from hub.registry.generic.definition import ResourceDefinition, action
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from machinery import pki
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.errors import ConflictError
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

SHOWN = 50
"""Largest number of cluster names in `clustersWithoutTrust` and in `clustersHolding`."""
WITHIN = 60
"""Default of `spec.withinSeconds` of the action `compromised`."""
DEFAULT_PATIENCE = timedelta(hours=24)

Cannot = Callable[[Collection[AuthorityId]], Awaitable[str | None]]
"""Returns why no CA can be created in addition to these CAs; None if a CA can be created."""


def _computed(tx: Transaction, patience: timedelta) -> Sequence[ComputedObject]:
    seen = authorities.rotation_snapshot(tx)
    return [
        ComputedObject(each.id, f"CertificateAuthority/{each.id}", {"status": _status(each, seen, patience)}, each.created_at)
        for each in seen.authorities
    ]


def _status(one: AuthorityRecord, seen: RotationSnapshot, patience: timedelta) -> Mapping[str, Any]:
    facts = pki.parse_certificate(one.certificate)
    distrusting, holding = seen.without_trust(one), seen.holding(one)
    optional = {
        "order": one.order.value if one.order else None,
        "orderedBy": one.ordered_by,
        "endsAt": format_time(one.ends_at) if one.ends_at else None,
    }
    return {
        "phase": one.phase.value,
        "since": format_time(one.since),
        "fingerprint": facts.fingerprint,
        "notBefore": format_time(facts.not_before),
        "notAfter": format_time(facts.not_after),
        "certificate": one.certificate.decode("ascii"),
        "crossSigned": one.cross_signed is not None,
        "compromised": one.is_given_up,
        "signed": {purpose.value: count for purpose, count in sorted(seen.signed.get(one.id, {}).items())},
        "agents": len(seen.members),
        "agentsWithoutTrust": len(distrusting),
        "agentsHolding": len(holding),
        "clustersWithoutTrust": _names(distrusting)[:SHOWN],
        "clustersHolding": _names(holding)[:SHOWN],
        "clustersLeftBehind": list(seen.left_behind.get(one.id, ())),
        "waitsFor": list(waits_for(seen, one, patience)),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _names(members: Collection[RotationAgent]) -> list[str]:
    return sorted(each.cluster for each in members)


def authorities_of(
    shown: Resource, store: Store, own: str, *, patience: timedelta = DEFAULT_PATIENCE, cannot: Cannot | None = None
) -> Resource:
    """Returns the served resource with its actions `rotate`, `proceed` and `compromised`. `own`: the hub's API group."""

    async def refusal() -> str | None:
        known = await store.read(lambda tx: tx.authorities.all())
        return await cannot([each.id for each in known]) if cannot is not None else None

    async def rotate(named: AuthorityId, actor: str, question: Question) -> Mapping[str, Any]:
        one = await store.run(_rotate, named, actor, cannot=await refusal(), dry_run=question.dry_run)
        return {"phase": one.phase.value}

    async def proceed(named: AuthorityId, actor: str, question: Question) -> Mapping[str, Any]:
        one = await store.run(authorities.proceed, named, actor, dry_run=question.dry_run)
        return {"phase": one.phase.value}

    async def compromised(named: AuthorityId, actor: str, question: Question) -> Mapping[str, Any]:
        seconds = doc.mapping(question.document, "spec").get("withinSeconds", WITHIN)
        within = timedelta(seconds=seconds)
        one, seen = await store.run(_give_up, named, actor, within, cannot=await refusal(), dry_run=question.dry_run)
        stranded = seen.stranded_agents(one) if seconds else seen.holding(one)
        return {
            "phase": one.phase.value,
            "stranded": len(stranded),
            "strandedClusters": _names(stranded),
            "silentClusters": _names(seen.silent(one)) if seconds else [],
            "moving": len(seen.holding(one)) - len(stranded),
        }

    def subresource(act: Callable[[AuthorityId, str, Question], Awaitable[Mapping[str, Any]]]) -> Subresource:
        async def answer(question: Question) -> Document:
            status = await act(AuthorityId(question.name), question.actor.user, question)
            return {**question.document, "status": status}

        return action(own, act.__name__, answer, "certificateauthorityactions.hub")

    storage = ComputedStorage(store, shown, partial(_computed, patience=patience))
    return replace(shown, storage=storage, subresources=tuple(map(subresource, (rotate, proceed, compromised))))


def _rotate(tx: Transaction, named: AuthorityId, actor: str, *, cannot: str | None, dry_run: bool) -> AuthorityRecord:
    one = authorities.find(tx, named)
    current = issuing(tx.authorities.all())
    if current is not None and current.id != one.id:
        raise ConflictError(f"the CA {one.id} is {one.phase.value}: only the issuing CA, {current.id}, can be rotated")
    return authorities.rotate(tx, actor, cannot=cannot, dry_run=dry_run)


def _give_up(
    tx: Transaction, named: AuthorityId, actor: str, within: timedelta, *, cannot: str | None, dry_run: bool
) -> tuple[AuthorityRecord, RotationSnapshot]:
    seen = authorities.rotation_snapshot(tx)
    return authorities.give_up(tx, named, actor, within, cannot=cannot, dry_run=dry_run), seen


CERTIFICATE_AUTHORITY = ResourceDefinition(declared("certificateauthorities.hub"), bind=authorities_of, stored=False)
