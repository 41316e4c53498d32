"""ClusterRotation: a POST to `managedclusters/NAME/rotate` orders the cluster's agents to renew their certificates."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hub.api.managedclusters.agent_annotations import LONGEST_RENEWAL
from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, record
from hub.ports import Store
from hub.registry.managedclusters import renewals
from hub.registry.managedclusters.renewals import RenewalProgress
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Document
from machinery.errors import Cause, invalid_value
from machinery.identity import ClusterName
from machinery.meta.timestamps import format_time

SCHEMA: Schema = record(
    "ClusterRotation has the agents of a cluster renew every certificate that was issued before it was posted. The order "
    "stays: an agent that is off renews when it comes back.",
    spec=record(
        "How.",
        withinSeconds={
            "type": "integer",
            "format": "int64",
            "description": "Each agent renews at a random moment within this; 0: at once.",
        },
        show={"type": "boolean", "description": "true: nothing is ordered, and the status tells of the order that stands."},
    ),
    status=record(
        "How far it is.",
        before={**MOMENT, "description": "Certificates that were issued before this are to be renewed; absent: none is."},
        withinSeconds={"type": "integer", "format": "int64", "description": "As it was ordered."},
        agents={
            "type": "array",
            "items": record(
                "An agent with a certificate that is good.",
                name={**TEXT, "description": "The agent's id."},
                renewed={"type": "boolean", "description": "Whether its newest certificate is of after the order."},
                issuedTime={**MOMENT, "description": "When its newest certificate was issued."},
                endTime={**MOMENT, "description": "When that ends."},
                signedBy={**TEXT, "description": "The issuer, and which of its CAs."},
            ),
            "description": "Its agents; absent: none has a certificate.",
        },
    ),
)


def cluster_rotation(store: Store, group_suffix: str) -> Subresource:
    """Returns the subresource of ManagedClusters."""

    async def answer(question: Question) -> Document:
        name, spec = ClusterName(question.name), doc.mapping(question.document, "spec")
        if spec.get("show") is True:
            return _answered(question, await store.read(renewals.progress, name))
        within = timedelta(seconds=int(spec.get("withinSeconds") or 0))
        actor = question.actor.user
        return _answered(question, await store.run(renewals.order, name, within, actor, dry_run=question.dry_run))

    kind = Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="clusterrotations",
        kind="ClusterRotation",
        verbs=("create",),
        schema=SCHEMA,
        validate=_violations,
        answers=answer,
    )
    return Subresource("rotate", verbs=("create",), question=kind)


def _answered(question: Question, found: RenewalProgress) -> Document:
    agents = [
        {
            "name": each.agent,
            "renewed": each.renewed,
            "issuedTime": format_time(each.issued_at),
            "endTime": format_time(each.not_after),
            **({"signedBy": each.signed_by} if each.signed_by else {}),
        }
        for each in found.holders
    ]
    status: dict[str, Any] = {"agents": agents} if agents else {}
    if found.order is not None:
        seconds = found.order.within // timedelta(seconds=1)
        status |= {"before": format_time(found.order.before), "withinSeconds": seconds}
    return {**question.document, "status": status}


def _violations(new: Document, _old: Document | None) -> Sequence[Cause]:
    within = doc.mapping(new, "spec").get("withinSeconds")
    if within is None or (isinstance(within, int) and 0 <= within <= LONGEST_RENEWAL // timedelta(seconds=1)):
        return ()
    return (invalid_value("spec.withinSeconds", within, f"between 0 and {LONGEST_RENEWAL // timedelta(seconds=1)}"),)
