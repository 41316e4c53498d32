"""ManagedClusterAddOn, `addon.<suffix>/v1beta1`, in the form that agents and operators of OCM know."""

from machinery.apiserver.resource import STATUS, Column, Resource, Row, Schema
from machinery.conditions import ADDON_AVAILABLE, find
from machinery.product import GROUP_SUFFIX

_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
_SUBJECT = {
    "type": "object",
    "properties": {"user": _STRING, "groups": _STRINGS, "organizationUnits": _STRINGS},
}
_CONDITIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": _STRING,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": _STRING,
            "message": _STRING,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    },
}
_REGISTRATION = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"type": "string", "enum": ["KubeClient", "CustomSigner"]},
        "kubeClient": {"type": "object", "properties": {"driver": _STRING, "subject": _SUBJECT}},
        "customSigner": {"type": "object", "properties": {"signerName": _STRING, "subject": _SUBJECT}},
    },
}

SCHEMA: Schema = {
    "type": "object",
    "description": "An add-on installed on a managed cluster.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "configs": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "namespace": _STRING,
                "registrations": {"type": "array", "items": _REGISTRATION},
                "healthCheck": {
                    "type": "object",
                    "properties": {"mode": {"type": "string", "enum": ["Lease", "Customized"]}},
                },
                "conditions": _CONDITIONS,
                "addOnMeta": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "configReferences": {
                    "type": "array",
                    "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
                "relatedObjects": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                "supportedConfigs": {
                    "type": "array",
                    "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            },
        },
    },
}


def _condition(row: Row, kind: str) -> str:
    found = find((row.document.get("status") or {}).get("conditions") or [], kind)
    return found.status if found else ""


COLUMNS = (
    Column("Available", lambda row: _condition(row, ADDON_AVAILABLE)),
    Column("Degraded", lambda row: _condition(row, "Degraded")),
    Column("Progressing", lambda row: _condition(row, "Progressing")),
)


def managed_cluster_addons(suffix: str = GROUP_SUFFIX) -> Resource:
    return Resource(
        group=f"addon.{suffix}",
        version="v1beta1",
        name="managedclusteraddons",
        kind="ManagedClusterAddOn",
        singular="managedclusteraddon",
        short_names=("mca", "mcas"),
        namespaced=True,
        schema=SCHEMA,
        subresources=(STATUS,),
        columns=COLUMNS,
        counts_generations=True,
    )
