"""Kubernetes' messages as tables: numbers and names of their fields, from the `generated.proto` files of its API packages."""

from collections.abc import Mapping

from machinery.apiserver.write.protobuf import ANY_VERSION, Field, Kind, Message


def _text_map(name: str, value: Kind = Kind.TEXT) -> Field:
    return Field(name, Kind.MAP, {1: Field("key"), 2: Field("value", value)})


def _nested(name: str, message: Message, *, repeated: bool = False) -> Field:
    return Field(name, Kind.MESSAGE, message, repeated=repeated)


def _optional(name: str, kind: Kind) -> Field:
    return Field(name, kind, pointer=True)


_OWNER = {
    1: Field("kind"),
    3: Field("name"),
    4: Field("uid"),
    5: Field("apiVersion"),
    6: _optional("controller", Kind.BOOLEAN),
    7: _optional("blockOwnerDeletion", Kind.BOOLEAN),
}
_METADATA = {
    1: Field("name"),
    2: Field("generateName"),
    3: Field("namespace"),
    5: Field("uid"),
    6: Field("resourceVersion"),
    7: Field("generation", Kind.INTEGER),
    8: Field("creationTimestamp", Kind.TIME),
    9: Field("deletionTimestamp", Kind.TIME),
    10: _optional("deletionGracePeriodSeconds", Kind.INTEGER),
    11: _text_map("labels"),
    12: _text_map("annotations"),
    13: _nested("ownerReferences", _OWNER, repeated=True),
    14: Field("finalizers", repeated=True),
}
_OBJECT = {1: _nested("metadata", _METADATA)}
_REFERENCE = {
    number: Field(name)
    for number, name in enumerate(("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"), start=1)
}
_SOURCE = {1: Field("component"), 2: Field("host")}
_SERIES = {1: Field("count", Kind.INTEGER), 2: Field("lastObservedTime", Kind.MICRO_TIME)}

_SECRET = {
    **_OBJECT,
    2: _text_map("data", Kind.BYTES),
    3: Field("type"),
    4: _text_map("stringData"),
    5: _optional("immutable", Kind.BOOLEAN),
}
_CONFIG_MAP = {
    **_OBJECT,
    2: _text_map("data"),
    3: _text_map("binaryData", Kind.BYTES),
    4: _optional("immutable", Kind.BOOLEAN),
}
_SERVICE_ACCOUNT = {
    **_OBJECT,
    2: _nested("secrets", _REFERENCE, repeated=True),
    3: _nested("imagePullSecrets", {1: Field("name")}, repeated=True),
    4: _optional("automountServiceAccountToken", Kind.BOOLEAN),
}
_TOKEN_REQUEST = {
    **_OBJECT,
    2: _nested(
        "spec",
        {
            1: Field("audiences", repeated=True),
            3: _nested("boundObjectRef", {1: Field("kind"), 2: Field("apiVersion"), 3: Field("name"), 4: Field("uid")}),
            4: _optional("expirationSeconds", Kind.INTEGER),
        },
    ),
}
_TOKEN_REVIEW = {**_OBJECT, 2: _nested("spec", {1: Field("token"), 2: Field("audiences", repeated=True)})}
_EXTRA = Field("extra", Kind.MAP, {1: Field("key"), 2: Field("value", Kind.LIST, pointer=True)})
_SELECTION = {
    1: Field("rawSelector"),
    2: _nested("requirements", {1: Field("key"), 2: Field("operator"), 3: Field("values", repeated=True)}, repeated=True),
}
_RESOURCE_ATTRIBUTES = {
    **{
        number: Field(name)
        for number, name in enumerate(("namespace", "verb", "group", "version", "resource", "subresource", "name"), start=1)
    },
    8: _nested("fieldSelector", _SELECTION),
    9: _nested("labelSelector", _SELECTION),
}
_ACCESS = {
    1: _nested("resourceAttributes", _RESOURCE_ATTRIBUTES),
    2: _nested("nonResourceAttributes", {1: Field("path"), 2: Field("verb")}),
}
_SELF_ACCESS_REVIEW = {**_OBJECT, 2: _nested("spec", _ACCESS)}
_ACCESS_REVIEW = {
    **_OBJECT,
    2: _nested("spec", {**_ACCESS, 3: Field("user"), 4: Field("groups", repeated=True), 5: _EXTRA, 6: Field("uid")}),
}
_RULES_REVIEW = {**_OBJECT, 2: _nested("spec", {1: Field("namespace")})}
_POLICY_RULE = {
    number: Field(name, repeated=True)
    for number, name in enumerate(("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), start=1)
}
_LABEL_SELECTOR = {
    1: _text_map("matchLabels"),
    2: _nested("matchExpressions", {1: Field("key"), 2: Field("operator"), 3: Field("values", repeated=True)}, repeated=True),
}
_ROLE = {**_OBJECT, 2: _nested("rules", _POLICY_RULE, repeated=True)}
_CLUSTER_ROLE = {
    **_ROLE,
    3: _nested("aggregationRule", {1: _nested("clusterRoleSelectors", _LABEL_SELECTOR, repeated=True)}),
}
_BINDING = {
    **_OBJECT,
    2: _nested("subjects", {1: Field("kind"), 2: Field("apiGroup"), 3: Field("name"), 4: Field("namespace")}, repeated=True),
    3: _nested("roleRef", {1: Field("apiGroup"), 2: Field("kind"), 3: Field("name")}),
}
_NAMESPACE = {
    **_OBJECT,
    2: _nested("spec", {1: Field("finalizers", repeated=True)}),
    3: _nested("status", {1: Field("phase")}),
}
_LEASE = {
    **_OBJECT,
    2: _nested(
        "spec",
        {
            1: _optional("holderIdentity", Kind.TEXT),
            2: _optional("leaseDurationSeconds", Kind.INTEGER),
            3: Field("acquireTime", Kind.MICRO_TIME),
            4: Field("renewTime", Kind.MICRO_TIME),
            5: _optional("leaseTransitions", Kind.INTEGER),
            6: _optional("strategy", Kind.TEXT),
            7: _optional("preferredHolder", Kind.TEXT),
        },
    ),
}
_REQUEST_CONDITION = {
    1: Field("type"),
    2: Field("reason"),
    3: Field("message"),
    4: Field("lastUpdateTime", Kind.TIME),
    5: Field("lastTransitionTime", Kind.TIME),
    6: Field("status"),
}
_CERTIFICATE_SIGNING_REQUEST = {
    **_OBJECT,
    2: _nested(
        "spec",
        {
            1: Field("request", Kind.BYTES),
            2: Field("username"),
            3: Field("uid"),
            4: Field("groups", repeated=True),
            5: Field("usages", repeated=True),
            6: _EXTRA,
            7: Field("signerName"),
            8: _optional("expirationSeconds", Kind.INTEGER),
        },
    ),
    3: _nested("status", {1: _nested("conditions", _REQUEST_CONDITION, repeated=True), 2: Field("certificate", Kind.BYTES)}),
}
_CORE_EVENT = {
    **_OBJECT,
    2: _nested("involvedObject", _REFERENCE),
    3: Field("reason"),
    4: Field("message"),
    5: _nested("source", _SOURCE),
    6: Field("firstTimestamp", Kind.TIME),
    7: Field("lastTimestamp", Kind.TIME),
    8: Field("count", Kind.INTEGER),
    9: Field("type"),
    10: Field("eventTime", Kind.MICRO_TIME),
    11: _nested("series", _SERIES),
    12: Field("action"),
    13: _nested("related", _REFERENCE),
    14: Field("reportingComponent"),
    15: Field("reportingInstance"),
}
_EVENT = {
    **_OBJECT,
    2: Field("eventTime", Kind.MICRO_TIME),
    3: _nested("series", _SERIES),
    4: Field("reportingController"),
    5: Field("reportingInstance"),
    6: Field("action"),
    7: Field("reason"),
    8: _nested("regarding", _REFERENCE),
    9: _nested("related", _REFERENCE),
    10: Field("note"),
    11: Field("type"),
    12: _nested("deprecatedSource", _SOURCE),
    13: Field("deprecatedFirstTimestamp", Kind.TIME),
    14: Field("deprecatedLastTimestamp", Kind.TIME),
    15: Field("deprecatedCount", Kind.INTEGER),
}
_DELETE_OPTIONS = {
    1: _optional("gracePeriodSeconds", Kind.INTEGER),
    2: _nested("preconditions", {1: _optional("uid", Kind.TEXT), 2: _optional("resourceVersion", Kind.TEXT)}),
    3: _optional("orphanDependents", Kind.BOOLEAN),
    4: _optional("propagationPolicy", Kind.TEXT),
    5: Field("dryRun", repeated=True),
}

MESSAGES: Mapping[tuple[str, str], Message] = {
    ("authentication.k8s.io/v1", "SelfSubjectReview"): _OBJECT,
    ("authentication.k8s.io/v1", "TokenRequest"): _TOKEN_REQUEST,
    ("authentication.k8s.io/v1", "TokenReview"): _TOKEN_REVIEW,
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview"): _ACCESS_REVIEW,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): _SELF_ACCESS_REVIEW,
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): _RULES_REVIEW,
    ("authorization.k8s.io/v1", "SubjectAccessReview"): _ACCESS_REVIEW,
    ("certificates.k8s.io/v1", "CertificateSigningRequest"): _CERTIFICATE_SIGNING_REQUEST,
    ("coordination.k8s.io/v1", "Lease"): _LEASE,
    ("events.k8s.io/v1", "Event"): _EVENT,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): _CLUSTER_ROLE,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io/v1", "Role"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _BINDING,
    ("v1", "ConfigMap"): _CONFIG_MAP,
    (ANY_VERSION, "DeleteOptions"): _DELETE_OPTIONS,
    ("v1", "Event"): _CORE_EVENT,
    ("v1", "Namespace"): _NAMESPACE,
    ("v1", "Secret"): _SECRET,
    ("v1", "ServiceAccount"): _SERVICE_ACCOUNT,
}
"""By apiVersion and kind."""
