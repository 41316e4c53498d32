"""Use cases about draining replicas: sessions move away, and no new ones are accepted."""

from collections.abc import Sequence
from dataclasses import replace

from hub.api.events import EventRecord
from hub.api.hubreplicas import Replica
from hub.ports import Transaction
from hub.registry.events import service as events
from machinery.errors import ConflictError, NotFoundError
from machinery.product import GROUP_SUFFIX

API_VERSION, KIND = f"hub.{GROUP_SUFFIX}/v1alpha1", "HubReplica"


def order(tx: Transaction, name: str, actor: str, *, force: bool = False, dry_run: bool = False) -> Replica:
    """Order the replica to hold no session, until `lift` or the end of its process.

    Raises NotFoundError; ConflictError if it is lost, or, without `force`, if no other replica takes sessions.
    """
    found = _find(tx, name)
    if found.drained:
        return found
    if not force and not _others(tx, name):
        raise ConflictError(
            f'no other replica than "{name}" takes sessions: its agents could go nowhere but to another hub of theirs. Start '
            "another replica first, or insist with force (hubctl drain replica --force)"
        )
    return _put(tx, replace(found, drained=True), ("ReplicaDrained", f"{actor} drains the replica {name}"), actor, dry_run)


def lift(tx: Transaction, name: str, actor: str, *, dry_run: bool = False) -> Replica:
    """Let the replica take sessions again. Raises NotFoundError, ConflictError."""
    found = _find(tx, name)
    if not found.drained:
        return found
    reason_and_message = ("ReplicaUncordoned", f"{actor} lets the replica {name} have sessions again")
    return _put(tx, replace(found, drained=False), reason_and_message, actor, dry_run)


def _find(tx: Transaction, name: str) -> Replica:
    found = tx.replicas.of(name)
    if found is None:
        raise NotFoundError(f'there is no replica "{name}"')
    if found.is_lost(tx.now):
        raise ConflictError(f'the replica "{name}" is lost: it has not told anything for a while, and has no sessions')
    return found


def _others(tx: Transaction, name: str) -> Sequence[Replica]:
    return [replica for replica in tx.replicas.all() if replica.name != name and replica.takes_sessions(tx.now)]


def _put(tx: Transaction, replica: Replica, reason_and_message: tuple[str, str], actor: str, dry_run: bool) -> Replica:  # noqa: FBT001 - passed on
    if not dry_run:
        tx.replicas.put(replica)
        about = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": replica.name}}
        events.tell(tx, [EventRecord("", about, *reason_and_message)], actor)
    return replica
