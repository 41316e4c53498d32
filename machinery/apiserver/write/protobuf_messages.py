"""Tables of Kubernetes' protobuf messages: field numbers and names from the `generated.proto` files of its API packages."""

from collections.abc import Mapping

from machinery.apiserver.write.protobuf import ANY_VERSION, FieldKind, Message, MessageField


def _text_map(name: str, value: FieldKind = FieldKind.TEXT) -> MessageField:
    return MessageField(name, FieldKind.MAP, {1: MessageField("key"), 2: MessageField("value", value)})


def _nested(name: str, message: Message, *, repeated: bool = False) -> MessageField:
    return MessageField(name, FieldKind.MESSAGE, message, repeated=repeated)


def _optional(name: str, kind: FieldKind) -> MessageField:
    return MessageField(name, kind, pointer=True)


_OWNER = {
    1: MessageField("kind"),
    3: MessageField("name"),
    4: MessageField("uid"),
    5: MessageField("apiVersion"),
    6: _optional("controller", FieldKind.BOOLEAN),
    7: _optional("blockOwnerDeletion", FieldKind.BOOLEAN),
}
_METADATA = {
    1: MessageField("name"),
    2: MessageField("generateName"),
    3: MessageField("namespace"),
    5: MessageField("uid"),
    6: MessageField("resourceVersion"),
    7: MessageField("generation", FieldKind.INTEGER),
    8: MessageField("creationTimestamp", FieldKind.TIME),
    9: MessageField("deletionTimestamp", FieldKind.TIME),
    10: _optional("deletionGracePeriodSeconds", FieldKind.INTEGER),
    11: _text_map("labels"),
    12: _text_map("annotations"),
    13: _nested("ownerReferences", _OWNER, repeated=True),
    14: MessageField("finalizers", repeated=True),
}
_OBJECT = {1: _nested("metadata", _METADATA)}
_REFERENCE = {
    number: MessageField(name)
    for number, name in enumerate(("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"), start=1)
}
_SOURCE = {1: MessageField("component"), 2: MessageField("host")}
_SERIES = {1: MessageField("count", FieldKind.INTEGER), 2: MessageField("lastObservedTime", FieldKind.MICRO_TIME)}

_SECRET = {
    **_OBJECT,
    2: _text_map("data", FieldKind.BYTES),
    3: MessageField("type"),
    4: _text_map("stringData"),
    5: _optional("immutable", FieldKind.BOOLEAN),
}
_CONFIG_MAP = {
    **_OBJECT,
    2: _text_map("data"),
    3: _text_map("binaryData", FieldKind.BYTES),
    4: _optional("immutable", FieldKind.BOOLEAN),
}
_SERVICE_ACCOUNT = {
    **_OBJECT,
    2: _nested("secrets", _REFERENCE, repeated=True),
    3: _nested("imagePullSecrets", {1: MessageField("name")}, repeated=True),
    4: _optional("automountServiceAccountToken", FieldKind.BOOLEAN),
}
_TOKEN_REQUEST = {
    **_OBJECT,
    2: _nested(
        "spec",
        {
            1: MessageField("audiences", repeated=True),
            3: _nested(
                "boundObjectRef",
                {1: MessageField("kind"), 2: MessageField("apiVersion"), 3: MessageField("name"), 4: MessageField("uid")},
            ),
            4: _optional("expirationSeconds", FieldKind.INTEGER),
        },
    ),
}
_TOKEN_REVIEW = {**_OBJECT, 2: _nested("spec", {1: MessageField("token"), 2: MessageField("audiences", repeated=True)})}
_EXTRA = MessageField("extra", FieldKind.MAP, {1: MessageField("key"), 2: MessageField("value", FieldKind.LIST, pointer=True)})
_SELECTION = {
    1: MessageField("rawSelector"),
    2: _nested(
        "requirements",
        {1: MessageField("key"), 2: MessageField("operator"), 3: MessageField("values", repeated=True)},
        repeated=True,
    ),
}
_RESOURCE_ATTRIBUTES = {
    **{
        number: MessageField(name)
        for number, name in enumerate(("namespace", "verb", "group", "version", "resource", "subresource", "name"), start=1)
    },
    8: _nested("fieldSelector", _SELECTION),
    9: _nested("labelSelector", _SELECTION),
}
_ACCESS = {
    1: _nested("resourceAttributes", _RESOURCE_ATTRIBUTES),
    2: _nested("nonResourceAttributes", {1: MessageField("path"), 2: MessageField("verb")}),
}
_SELF_ACCESS_REVIEW = {**_OBJECT, 2: _nested("spec", _ACCESS)}
_ACCESS_REVIEW = {
    **_OBJECT,
    2: _nested(
        "spec",
        {**_ACCESS, 3: MessageField("user"), 4: MessageField("groups", repeated=True), 5: _EXTRA, 6: MessageField("uid")},
    ),
}
_RULES_REVIEW = {**_OBJECT, 2: _nested("spec", {1: MessageField("namespace")})}
_POLICY_RULE = {
    number: MessageField(name, repeated=True)
    for number, name in enumerate(("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), start=1)
}
_LABEL_SELECTOR = {
    1: _text_map("matchLabels"),
    2: _nested(
        "matchExpressions",
        {1: MessageField("key"), 2: MessageField("operator"), 3: MessageField("values", repeated=True)},
        repeated=True,
    ),
}
_ROLE = {**_OBJECT, 2: _nested("rules", _POLICY_RULE, repeated=True)}
_CLUSTER_ROLE = {
    **_ROLE,
    3: _nested("aggregationRule", {1: _nested("clusterRoleSelectors", _LABEL_SELECTOR, repeated=True)}),
}
_BINDING = {
    **_OBJECT,
    2: _nested(
        "subjects",
        {1: MessageField("kind"), 2: MessageField("apiGroup"), 3: MessageField("name"), 4: MessageField("namespace")},
        repeated=True,
    ),
    3: _nested("roleRef", {1: MessageField("apiGroup"), 2: MessageField("kind"), 3: MessageField("name")}),
}
_NAMESPACE = {
    **_OBJECT,
    2: _nested("spec", {1: MessageField("finalizers", repeated=True)}),
    3: _nested("status", {1: MessageField("phase")}),
}
_LEASE = {
    **_OBJECT,
    2: _nested(
        "spec",
        {
            1: _optional("holderIdentity", FieldKind.TEXT),
            2: _optional("leaseDurationSeconds", FieldKind.INTEGER),
            3: MessageField("acquireTime", FieldKind.MICRO_TIME),
            4: MessageField("renewTime", FieldKind.MICRO_TIME),
            5: _optional("leaseTransitions", FieldKind.INTEGER),
            6: _optional("strategy", FieldKind.TEXT),
            7: _optional("preferredHolder", FieldKind.TEXT),
        },
    ),
}
_REQUEST_CONDITION = {
    1: MessageField("type"),
    2: MessageField("reason"),
    3: MessageField("message"),
    4: MessageField("lastUpdateTime", FieldKind.TIME),
    5: MessageField("lastTransitionTime", FieldKind.TIME),
    6: MessageField("status"),
}
_CERTIFICATE_SIGNING_REQUEST = {
    **_OBJECT,
    2: _nested(
        "spec",
        {
            1: MessageField("request", FieldKind.BYTES),
            2: MessageField("username"),
            3: MessageField("uid"),
            4: MessageField("groups", repeated=True),
            5: MessageField("usages", repeated=True),
            6: _EXTRA,
            7: MessageField("signerName"),
            8: _optional("expirationSeconds", FieldKind.INTEGER),
        },
    ),
    3: _nested(
        "status", {1: _nested("conditions", _REQUEST_CONDITION, repeated=True), 2: MessageField("certificate", FieldKind.BYTES)}
    ),
}
_CORE_EVENT = {
    **_OBJECT,
    2: _nested("involvedObject", _REFERENCE),
    3: MessageField("reason"),
    4: MessageField("message"),
    5: _nested("source", _SOURCE),
    6: MessageField("firstTimestamp", FieldKind.TIME),
    7: MessageField("lastTimestamp", FieldKind.TIME),
    8: MessageField("count", FieldKind.INTEGER),
    9: MessageField("type"),
    10: MessageField("eventTime", FieldKind.MICRO_TIME),
    11: _nested("series", _SERIES),
    12: MessageField("action"),
    13: _nested("related", _REFERENCE),
    14: MessageField("reportingComponent"),
    15: MessageField("reportingInstance"),
}
_EVENT = {
    **_OBJECT,
    2: MessageField("eventTime", FieldKind.MICRO_TIME),
    3: _nested("series", _SERIES),
    4: MessageField("reportingController"),
    5: MessageField("reportingInstance"),
    6: MessageField("action"),
    7: MessageField("reason"),
    8: _nested("regarding", _REFERENCE),
    9: _nested("related", _REFERENCE),
    10: MessageField("note"),
    11: MessageField("type"),
    12: _nested("deprecatedSource", _SOURCE),
    13: MessageField("deprecatedFirstTimestamp", FieldKind.TIME),
    14: MessageField("deprecatedLastTimestamp", FieldKind.TIME),
    15: MessageField("deprecatedCount", FieldKind.INTEGER),
}
_DELETE_OPTIONS = {
    1: _optional("gracePeriodSeconds", FieldKind.INTEGER),
    2: _nested("preconditions", {1: _optional("uid", FieldKind.TEXT), 2: _optional("resourceVersion", FieldKind.TEXT)}),
    3: _optional("orphanDependents", FieldKind.BOOLEAN),
    4: _optional("propagationPolicy", FieldKind.TEXT),
    5: MessageField("dryRun", repeated=True),
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
"""Tables by apiVersion and kind."""
