"""Maps API resources to the hub's kinds and to each kind's only write path."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests.request import SERIAL_EXTRA, Requester
from hub.api.meta.change import Kind
from hub.ports import Transaction, Written
from hub.registry import kinds
from machinery.apiserver.storage import Actor, GroupResource
from machinery.meta.objects import StoredObject
from machinery.product import OWN_GROUPS

Put = Callable[[Transaction, dict[str, Any], StoredObject | None, Actor], Written]
Remove = Callable[[Transaction, StoredObject, Actor], Written]


@dataclass(frozen=True, slots=True)
class ResourceWritePath:
    """One resource: the hub's kind, and `put` and `remove` of its service."""

    resource: GroupResource
    kind: Kind
    put: Put
    remove: Remove


def write_paths(group_suffix: str) -> dict[GroupResource, ResourceWritePath]:
    """Returns the write paths of all resources that are documents in the store."""
    paths = (_named(path, resource_of(kind, group_suffix)) for kind, path in kinds.WRITE_PATHS.items())
    return {path.resource: path for path in paths}


def resource_of(kind: Kind, group_suffix: str) -> GroupResource:
    """Returns the API resource of a kind; the hub's own groups end in the suffix."""
    name, _, group = kind.partition(".")
    return GroupResource(f"{group}.{group_suffix}" if group in OWN_GROUPS else group, name)


def _named(path: kinds.WritePath, resource: GroupResource) -> ResourceWritePath:
    return ResourceWritePath(
        resource,
        path.kind,
        lambda tx, new, old, actor: path.put(tx, new, old, _requester(actor)),
        lambda tx, old, actor: path.remove(tx, old, _requester(actor)),
    )


def _requester(actor: Actor) -> Requester:
    """Adds the serial number of the actor's certificate, which the hub's own rules use and no other actor may claim.

    Operators' requests have none, so that they stay valid when the operator's certificate is revoked.
    """
    holder = actor.holder
    extra = {name: values for name, values in actor.extra.items() if name != SERIAL_EXTRA}
    if isinstance(holder, CertificateRecord) and holder.purpose not in (Purpose.OPERATOR, Purpose.LOGIN):
        extra[SERIAL_EXTRA] = (f"{holder.serial:x}",)
    return Requester(actor.user, actor.groups, actor.uid, extra)
