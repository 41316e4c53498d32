"""ManagedClusterSet and ManagedClusterSetBinding as OCM serves them: groups of clusters, and namespaces that may use them.

A cluster is in the set that its label `cluster.open-cluster-management.io/clusterset` names, or in those whose selector
matches.
"""

from hub.api.managedclustersets import BY_LABELS, EMPTY, EXCLUSIVE
from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import CONDITION, DNS_LABEL, NAME, TEXT, Schema, condition_column, listing, record
from machinery.apiserver.resource import AGE, STATUS, Resource
from machinery.apiserver.storage import Document
from machinery.errors import Cause, invalid_value
from machinery.meta.selectors import valid_label_key, valid_label_value

_ATOMIC = {"x-kubernetes-list-type": "atomic"}
_EXPRESSION = record("", ("key", "operator"), key=TEXT, operator=TEXT, values={**listing(TEXT), **_ATOMIC})
_LABELS: Schema = {
    **record(
        "labelSelector selects the clusters of a set of type LabelSelector.",
        matchLabels={"type": "object", "additionalProperties": TEXT},
        matchExpressions={**listing(_EXPRESSION), **_ATOMIC},
    ),
    "x-kubernetes-map-type": "atomic",
}
_SELECTOR: Schema = {
    **record(
        "clusterSelector says which ManagedClusters are in the set.",
        ("selectorType",),
        selectorType={
            **TEXT,
            "enum": [EXCLUSIVE, BY_LABELS],
            "default": EXCLUSIVE,
            "description": "ExclusiveClusterSetLabel: the clusters whose label clusterset names this set; LabelSelector: those "
            "that labelSelector selects.",
        },
        labelSelector=_LABELS,
    ),
    "default": {"selectorType": EXCLUSIVE},
}
_STATUS = record("status represents the current status.", conditions=listing(CONDITION))
_NAMESPACE = record("", ("name",), name=DNS_LABEL)
_NAMESPACES = listing(_NAMESPACE, "name", description="managedNamespaces are namespaces that the clusters of the set get.")
SET_SCHEMA: Schema = record(
    "ManagedClusterSet defines a group of ManagedClusters that workloads can run on.",
    spec={
        **record("Spec defines the attributes of the set.", clusterSelector=_SELECTOR, managedNamespaces=_NAMESPACES),
        "default": {"clusterSelector": {"selectorType": EXCLUSIVE}},
    },
    status=_STATUS,
)
BINDING_SCHEMA: Schema = record(
    "ManagedClusterSetBinding lets workloads of its namespace run on the clusters of a ManagedClusterSet.",
    spec=record("Spec defines the set.", clusterSet={**NAME, "description": "The set's name, and the binding's own."}),
    status=_STATUS,
)
_WITH_VALUES, _WITHOUT_VALUES = ("In", "NotIn"), ("Exists", "DoesNotExist")


def _set_violations(new: Document, _old: Document | None) -> list[Cause]:
    """Checks the rules of a label selector that a schema cannot express."""
    path = "spec.clusterSelector.labelSelector"
    selector = doc.mapping(new, "spec", "clusterSelector", "labelSelector")
    causes = [
        invalid_value(f"{path}.matchLabels", f"{key}={value}", "is no label")
        for key, value in doc.mapping(selector, "matchLabels").items()
        if not (valid_label_key(key) and valid_label_value(value))
    ]
    for index, expression in enumerate(doc.sequence(selector, "matchExpressions")):
        operator, values = expression.get("operator"), expression.get("values") or []
        at = f"{path}.matchExpressions[{index}]"
        if operator not in (*_WITH_VALUES, *_WITHOUT_VALUES):
            causes.append(invalid_value(f"{at}.operator", operator, "not a valid selector operator"))
        elif (operator in _WITH_VALUES) != bool(values):
            why = "must be specified when `operator` is 'In' or 'NotIn', and not when it is 'Exists' or 'DoesNotExist'"
            causes.append(invalid_value(f"{at}.values", values, why))
    return causes


def _binding_violations(new: Document, _old: Document | None) -> list[Cause]:
    wanted = doc.mapping(new, "spec").get("clusterSet")
    if wanted == doc.name(new):
        return []
    why = "the ManagedClusterSetBinding must have the same name as the target ManagedClusterSet"
    return [invalid_value("spec.clusterSet", wanted or "", why)]


def managed_cluster_set(group_suffix: str) -> Resource:
    return Resource(
        group=f"cluster.{group_suffix}",
        version="v1beta2",
        name="managedclustersets",
        kind="ManagedClusterSet",
        short_names=("mclset", "mclsets"),
        schema=SET_SCHEMA,
        validate=_set_violations,
        subresources=(STATUS,),
        columns=(condition_column("Empty", EMPTY), AGE),
        counts_generations=True,
    )


def managed_cluster_set_binding(group_suffix: str) -> Resource:
    return Resource(
        group=f"cluster.{group_suffix}",
        version="v1beta2",
        name="managedclustersetbindings",
        kind="ManagedClusterSetBinding",
        short_names=("mclsetbinding", "mclsetbindings"),
        namespaced=True,
        schema=BINDING_SCHEMA,
        validate=_binding_violations,
        subresources=(STATUS,),
        counts_generations=True,
    )
