"""ClusterMove: a POST to `managedclusters/NAME/move` orders the agent to another of its hubs."""

from collections.abc import Mapping, Sequence

from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import TEXT, Schema, record
from hub.ports import Store
from hub.registry.multihub import moves
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Document
from machinery.errors import Cause, required
from machinery.identity import ClusterName

SCHEMA: Schema = record(
    "ClusterMove asks the agent of a cluster to go to another of the hubs that it reports. The order stays until it has gone "
    "there, or is cancelled.",
    spec=record(
        "Where to.",
        to={**TEXT, "description": "The hub's name, id, url, or the beginning of its id."},
        cancel={"type": "boolean", "description": "true: the agent may stay."},
    ),
    status=record(
        "What became of it.",
        hubID={**TEXT, "description": "The hub that the agent is asked to go to, or was; empty: there was no order."},
        hubName={**TEXT, "description": "How the agent calls it."},
    ),
)


def cluster_move(store: Store, group_suffix: str) -> Subresource:
    """Returns the subresource of ManagedClusters."""

    async def answer(question: Question) -> Document:
        name, actor = ClusterName(question.name), question.actor.user
        spec = doc.mapping(question.document, "spec")
        if spec.get("cancel") is True:
            hub_id = await store.run(moves.cancel, name, actor, dry_run=question.dry_run)
            return _answered(question, {"hubID": hub_id})
        hub = await store.run(moves.order, name, str(spec.get("to")), actor, dry_run=question.dry_run)
        return _answered(question, {"hubID": str(hub["id"]), "hubName": str(hub.get("name") or "")})

    kind = Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="clustermoves",
        kind="ClusterMove",
        verbs=("create",),
        schema=SCHEMA,
        validate=_violations,
        answers=answer,
    )
    return Subresource("move", verbs=("create",), question=kind)


def _answered(question: Question, status: Mapping[str, str]) -> Document:
    return {**question.document, "status": {name: value for name, value in status.items() if value}}


def _violations(new: Document, _old: Document | None) -> Sequence[Cause]:
    spec = doc.mapping(new, "spec")
    if spec.get("cancel") is True or spec.get("to"):
        return ()
    return (required("spec.to", "name one of the hubs that the agent reports, or cancel"),)
