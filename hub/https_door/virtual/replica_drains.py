"""ReplicaDrain: a POST to `hubreplicas/NAME/drain` moves the replica's sessions to other replicas, or ends that."""

from hub.api.hubreplicas import Replica
from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import TEXT, Schema, record
from hub.ports import Store
from hub.registry.hubreplicas import service as draining
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Document

_FLAG: Schema = {"type": "boolean"}
SCHEMA: Schema = record(
    "ReplicaDrain has the agents of a replica open their next session elsewhere; the replica takes no new ones until that is "
    "taken back or its process starts anew. Operators and tools are served on.",
    spec=record(
        "What is wanted.",
        cancel={**_FLAG, "description": "true: the replica takes sessions again."},
        force={**_FLAG, "description": "true: also where no other replica takes sessions."},
    ),
    status=record(
        "What became of it.",
        drained={**_FLAG, "description": "Whether the order stands."},
        sessions={"type": "integer", "format": "int32", "description": "Agents that were connected when it told last."},
        version={**TEXT, "description": "Of the replica's program: one that knows of no order ignores it."},
    ),
)


def replica_drain(store: Store, group_suffix: str) -> Subresource:
    """Returns the subresource of HubReplicas."""

    async def answer(question: Question) -> Document:
        spec, actor = doc.mapping(question.document, "spec"), question.actor.user
        if spec.get("cancel") is True:
            return _answered(question, await store.run(draining.lift_drain, question.name, actor, dry_run=question.dry_run))
        force = spec.get("force") is True
        return _answered(
            question, await store.run(draining.order_drain, question.name, actor, force=force, dry_run=question.dry_run)
        )

    kind = Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="replicadrains",
        kind="ReplicaDrain",
        verbs=("create",),
        schema=SCHEMA,
        answers=answer,
    )
    return Subresource("drain", verbs=("create",), question=kind)


def _answered(question: Question, replica: Replica) -> Document:
    status = {"drained": replica.drained, "sessions": replica.sessions, "version": replica.version}
    return {**question.document, "status": status}
