"""ManagedClusterAddOn as OCM serves it, in v1beta1. TODO(#3): v1alpha1, converted at the door."""

from typing import Any

from hub.domain import document as doc
from hub.domain.selectable import ADD_ON_ALIASES, ADD_ON_FIELDS, of_conditions
from machinery.apiserver.resource import STATUS, Column, Resource, Row
from machinery.apiserver.storage import Document

TEXT: dict[str, Any] = {"type": "string"}
MOMENT: dict[str, Any] = {"type": "string", "format": "date-time"}
OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CONDITION: dict[str, Any] = {
    "type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "type": {**TEXT, "maxLength": 316},
        "status": {**TEXT, "enum": ["True", "False", "Unknown"]},
        "reason": {**TEXT, "minLength": 1, "maxLength": 1024},
        "message": {**TEXT, "maxLength": 32768},
        "lastTransitionTime": MOMENT,
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
    },
}
SUBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "user": TEXT,
        "groups": {"type": "array", "items": TEXT},
        "organizationUnits": {"type": "array", "items": TEXT},
    },
}
REGISTRATION: dict[str, Any] = {
    "type": "object",
    "required": ["type"],
    "description": "How the add-on's agent identifies itself: with a client certificate for the hub, or another signer's.",
    "properties": {
        "type": {**TEXT, "enum": ["KubeClient", "CustomSigner"]},
        "kubeClient": {"type": "object", "properties": {"subject": SUBJECT, "driver": TEXT}},
        "customSigner": {
            "type": "object",
            "required": ["signerName"],
            "properties": {"signerName": {**TEXT, "minLength": 5, "maxLength": 571}, "subject": SUBJECT},
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "ManagedClusterAddOn represents the desired state and current status of an add-on of one managed cluster.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "description": "spec holds configuration that could apply to any add-on.",
            "properties": {"configs": {"type": "array", "items": OPEN}, "installNamespace": TEXT},
        },
        "status": {
            "type": "object",
            "description": "status represents the current status of the add-on.",
            "properties": {
                "namespace": TEXT,
                "conditions": {"type": "array", "items": CONDITION},
                "registrations": {"type": "array", "items": REGISTRATION},
                "addOnMeta": OPEN,
                "configReferences": {"type": "array", "items": OPEN},
                "supportedConfigs": {"type": "array", "items": OPEN},
                "relatedObjects": {"type": "array", "items": OPEN},
                "healthCheck": {"type": "object", "properties": {"mode": TEXT}},
                "kubeClientDriver": TEXT,
            },
        },
    },
}


def condition_status(document: Document, kind: str) -> str | None:
    """The status of one condition; None when it is not there."""
    return next((entry.get("status") for entry in doc.conditions(document) if entry.get("type") == kind), None)


def _condition(kind: str) -> Column:
    def cell(row: Row) -> str | None:
        return condition_status(row.document, kind)

    return Column(kind, cell, description=f"The status of the condition {kind}.")


def managed_cluster_add_on(group_suffix: str) -> Resource:
    """The resource as the hub serves it."""
    return Resource(
        group=f"addon.{group_suffix}",
        version="v1beta1",
        name="managedclusteraddons",
        kind="ManagedClusterAddOn",
        short_names=("mca", "mcas"),
        namespaced=True,
        schema=SCHEMA,
        subresources=(STATUS,),
        columns=(_condition("Available"), _condition("Degraded"), _condition("Progressing")),
        counts_generations=True,
        selectable=of_conditions,
        selectable_names=ADD_ON_FIELDS,
        field_aliases=ADD_ON_ALIASES,
    )
